"""``cmq tx``: half messages, for operators."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from cmq_cli.durations import show_duration
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import show_count, show_time
from cmq_cli.session import Session
from cmqd_client import MessageId, Queue, TransactionStatus, Undecided

app = App(name="tx", help="Half messages of transactional queues: see and decide those that no producer decides.")

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]

_PAGE = 1000
"""Half messages the server lists at most at once."""


@app.command(name="list")
async def list_half_messages(
    queue: str,
    /,
    *,
    max_messages: Annotated[int, Parameter(name=["--max", "-n"])] = 100,
    start: int = 0,
    session: _Session,
) -> None:
    """List half messages that are neither committed nor rolled back, in the order of sending.

    Parameters
    ----------
    queue
        Name of a transactional queue.
    max_messages
        Number of messages at most.
    start
        Where to begin: 0, or what an earlier list gave.
    """
    if max_messages < 1:
        raise CommandFailed(f"--max is {max_messages}; it must be at least 1", ExitCode.USAGE)
    async with session.client() as client:
        found, following = await _some(client.queue(queue), max_messages, start)
        # The times of messages are broker time; the clock of this machine may differ.
        broker_time_ms = (await client.status()).get("broker_time_ms") if found and not session.output.json else None
    output = session.output
    if output.json:
        output.document({"messages": [msgspec.structs.asdict(one) for one in found], "next_start": following})
        return
    if not found:
        output.remark(f"no undecided half message in {queue!r}")
        return
    now = datetime.now(UTC) if broker_time_ms is None else datetime.fromtimestamp(broker_time_ms / 1000, UTC)
    rows = [
        (
            one.id,
            show_duration(max(round((now - one.enqueue_time).total_seconds()), 0)),
            show_count(one.checks),
            show_time(one.last_check_time),
            one.last_answer or "-",
            show_time(one.next_check_time),
        )
        for one in found
    ]
    output.table(("id", "age#", "checks#", "last check", "last answer", "next check"), rows)
    if following is not None:
        output.remark(f"there is more: --start {following}")


def _deciding(status: TransactionStatus) -> Callable[..., Awaitable[ExitCode]]:
    """The command that decides like this; its help is given where it is put into the tree."""

    async def decide(
        queue: str,
        /,
        *ids: str,
        every: Annotated[bool, Parameter(name="--all", negative=())] = False,
        yes: _Flag = False,
        session: _Session,
    ) -> ExitCode:
        """Decide half messages by hand.

        Parameters
        ----------
        queue
            Name of the queue.
        ids
            Their ids, as list prints them.
        every
            Decide all messages that are undecided now, instead of ids.
        yes
            Do not ask about --all. Needed with it without a terminal.
        """
        return await _decide(session, queue, ids, every, yes, status)

    return decide


app.command(
    _deciding(TransactionStatus.COMMIT), name="commit", help="Commit half messages by hand: they are delivered."
)
app.command(
    _deciding(TransactionStatus.ROLLBACK), name="rollback", help="Roll half messages back by hand: they are dropped."
)


async def _decide(
    session: Session, name: str, ids: tuple[str, ...], every: bool, yes: bool, status: TransactionStatus
) -> ExitCode:
    if bool(ids) == every:
        raise CommandFailed("name at least one id, or give --all", ExitCode.USAGE)
    verb = "committed" if status is TransactionStatus.COMMIT else "rolled back"
    output = session.output
    async with session.client() as client:
        queue = client.queue(name)
        chosen = [MessageId(one) for one in ids]
        if every:
            found, _ = await _some(queue, None, 0)
            chosen = [one.id for one in found]
            question = f"{len(chosen):,} half messages of {name} are to be {verb}. Go on?"
            if chosen and not yes and not await output.confirm(question):
                return ExitCode.FAILED
        result = await queue.end_transactions(chosen, status)
    if output.json:
        output.document(
            {verb.replace(" ", "_"): result.done, "failed": {one.id: one.error.name for one in result.failures}}
        )
    for one in result.failures:
        output.client_error(one.error, one.id)
    output.remark(f"{len(result.done):,} {verb}")
    if result.ok:
        return ExitCode.OK
    return ExitCode.PARTIAL if result.done else ExitCode.FAILED


async def _some(queue: Queue, limit: int | None, start: int) -> tuple[list[Undecided], int | None]:
    """Undecided half messages, up to ``limit``, and where there are more."""
    found: list[Undecided] = []
    following: int | None = start
    while following is not None and (limit is None or len(found) < limit):
        page = await queue.half_messages(_PAGE if limit is None else min(limit - len(found), _PAGE), start=following)
        found += page
        following = page.next_start
    return found, following
