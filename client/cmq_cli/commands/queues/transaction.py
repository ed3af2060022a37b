"""``cmq tx``: half messages, for operators."""

from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import msgspec
from cyclopts import App, Parameter

from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import report_batch, table_of
from cmq_cli.options import CurrentSession, Flag, MaxMessages, QueueName, Yes
from cmq_cli.output import Output
from cmq_cli.session import Session
from cmq_cli.values import from_ms, show_duration
from cmqd_client import MessageId, Queue, TransactionStatus, Undecided

app = App(name="tx", help="Half messages of transactional queues: list them, and decide them by hand.")

_PAGE = 1000
"""Maximum number of half messages in a reply."""
_Ids: TypeAlias = Annotated[str, Parameter(help="Ids of half messages, as list prints them.")]
_Every: TypeAlias = Annotated[
    Flag, Parameter(name="--all", help="Decide all messages that are undecided now, in place of listed ids.")
]
_COLUMNS = ("id", "checks", "last_check_time", "last_answer", "next_check_time")


@app.command(name="list")
async def list_half_messages(
    queue: Annotated[str, Parameter(help="Name of a transactional queue.")],
    /,
    *,
    max_messages: MaxMessages = 100,
    start: Annotated[int, Parameter(help="Position to begin at: 0, or the position that an earlier list printed.")] = 0,
    session: CurrentSession,
) -> None:
    """List half messages that are neither committed nor rolled back, in the order of sending."""
    output = session.output
    async with session.client() as client:
        halves, next_start = await _half_messages(client.queue(queue), max_messages, start)
        # Times of messages are broker time, and the clock of this machine may differ.
        now_ms = (await client.status()).get("broker_time_ms") if halves and not output.json else None
    if output.json:
        messages = [msgspec.structs.asdict(half) for half in halves]
        output.document({"messages": messages, "next_start": next_start})
    elif halves:
        _show(output, halves, datetime.now(UTC) if now_ms is None else from_ms(now_ms))
        if next_start is not None:
            output.remark(f"more messages follow; list them with --start {next_start}")
    else:
        output.remark(f"no undecided half message in {queue!r}")


def _show(output: Output, halves: list[Undecided], now: datetime) -> None:
    columns, rows = table_of(halves, _COLUMNS)
    for half, row in zip(halves, rows, strict=True):
        row.insert(1, show_duration(max(round((now - half.enqueue_time).total_seconds()), 0)))
    output.table([columns[0], "age#", *columns[1:]], rows)


@app.command
async def commit(
    queue: QueueName, /, *ids: _Ids, every: _Every = False, yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Commit half messages by hand: they are delivered."""
    return await _decide(session, queue, ids, every, yes, TransactionStatus.COMMIT)


@app.command
async def rollback(
    queue: QueueName, /, *ids: _Ids, every: _Every = False, yes: Yes = False, session: CurrentSession
) -> ExitCode:
    """Roll half messages back by hand: they are dropped."""
    return await _decide(session, queue, ids, every, yes, TransactionStatus.ROLLBACK)


async def _decide(
    session: Session, name: str, ids: tuple[str, ...], every: bool, yes: bool, status: TransactionStatus
) -> ExitCode:
    if bool(ids) == every:
        raise CommandFailed("name at least one id, or give --all", ExitCode.USAGE)
    verb = "committed" if status is TransactionStatus.COMMIT else "rolled back"
    async with session.client() as client:
        queue = client.queue(name)
        undecided = [MessageId(message_id) for message_id in ids]
        if every:
            halves, _ = await _half_messages(queue, None, 0)
            undecided = [half.id for half in halves]
            question = f"Half messages of {name} to be {verb}: {len(undecided):,}. Continue?"
            if undecided and not yes and not await session.output.confirm(question):
                return ExitCode.FAILED
        result = await queue.end_transactions(undecided, status, check=False)
    failed = {str(failure.id): failure.error for failure in result.failures}
    return report_batch(session.output, verb, result.done, failed)


async def _half_messages(queue: Queue, limit: int | None, start: int) -> tuple[list[Undecided], int | None]:
    """Return up to ``limit`` undecided half messages, and the position of the next."""
    halves: list[Undecided] = []
    next_start: int | None = start
    while next_start is not None and (limit is None or len(halves) < limit):
        page_size = _PAGE if limit is None else min(limit - len(halves), _PAGE)
        page = await queue.half_messages(page_size, start=next_start)
        halves += page
        next_start = page.next_start
    return halves, next_start
