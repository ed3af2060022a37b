"""``cmq dlq`` and ``cmq redrive``: dead-letter queues, and the way back."""

import asyncio
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.progress import Progress, TaskID

from cmq_cli.durations import Seconds, show_duration
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.output import Output, show_count, show_time
from cmq_cli.session import Session
from cmqd_client import Queue, Redrive

app = App(name="dlq", help="Dead-letter queues: for messages that consumers do not delete.")

_Session = Annotated[Session, Parameter(parse=False)]
_Flag = Annotated[bool, Parameter(negative=())]

_FIRST_LOOK, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two polls of a redrive: first short, for short redrives, then longer."""


@app.command(name="set")
async def set_dead_letters(
    queue: str,
    dead_letter_queue: str,
    /,
    *,
    max_receives: int | None = None,
    after: Seconds | None = None,
    session: _Session,
) -> None:
    """Give a queue a dead-letter queue. Give one of --max-receives and --after.

    Parameters
    ----------
    queue
        The queue.
    dead_letter_queue
        A queue of the same account, without a dead-letter queue of its own and not transactional.
    max_receives
        Move a message after this many receives without a delete: 1 to 1000.
    after
        Move a message after this time without a delete, received or not: 5m to 12h, and less than the retention.
    """
    if (max_receives is None) == (after is None):
        raise CommandFailed("give one of: --max-receives, --after", ExitCode.USAGE)
    async with session.client() as client:
        # Both, so that it also changes from one policy to the other.
        info = await client.queue(queue).set_attributes(
            dead_letter_queue=dead_letter_queue,
            dead_letter_max_receives=max_receives or 0,
            dead_letter_after=after or 0,
        )
    when = f"{max_receives} receives" if max_receives is not None else show_duration(info.dead_letter_after)
    if session.output.json:
        session.output.document(
            {
                "queue": queue,
                "dead_letter_queue": info.dead_letter_queue,
                "max_receives": info.dead_letter_max_receives,
                "after": info.dead_letter_after,
            }
        )
    session.output.remark(f"messages of {queue!r} go to {info.dead_letter_queue!r} after {when}")


@app.command
async def unset(queue: str, /, *, session: _Session) -> None:
    """Keep all messages of a queue until their retention ends; dead letters stay where they are."""
    async with session.client() as client:
        await client.queue(queue).set_attributes(dead_letter_queue="", dead_letter_max_receives=0, dead_letter_after=0)
    if session.output.json:
        session.output.document({"queue": queue, "dead_letter_queue": ""})
    session.output.remark(f"{queue!r} has no dead-letter queue any more")


@app.command
async def sources(dead_letter_queue: str, /, *, session: _Session) -> None:
    """List the queues whose dead letters go to this one."""
    async with session.client() as client:
        found = await client.queue(dead_letter_queue).dead_letter_sources()
    if session.output.json:
        session.output.document({"dead_letter_queue": dead_letter_queue, "sources": found})
    elif found:
        session.output.table(("name",), [(name,) for name in found])
    else:
        session.output.remark(f"no queue sends its dead letters to {dead_letter_queue!r}")


async def redrive(
    queue: str,
    /,
    *,
    to: str | None = None,
    rate: int | None = None,
    wait: bool = True,
    status: _Flag = False,
    cancel: _Flag = False,
    session: _Session,
) -> ExitCode:
    """Move dead letters back to the queues that they came from, or to another queue.

    The server moves them, also after this command has ended. Messages that are sent to the queue from now on are
    not moved. A message is always in exactly one queue.

    Parameters
    ----------
    queue
        The queue with the dead letters.
    to
        Move all of them to this queue.
    rate
        Messages a second at most; unlimited by default.
    wait
        Wait until it is done; --no-wait only starts it.
    status
        Show the redrive that is under way, or the last redrive, and start none.
    cancel
        End the redrive that is under way; moved messages stay moved.
    """
    if status + cancel > 1 or ((status or cancel) and (to is not None or rate is not None)):
        raise CommandFailed("--status and --cancel stand alone", ExitCode.USAGE)
    output = session.output
    async with session.client() as client:
        source = client.queue(queue)
        if status:
            found = await source.redrive_status()
        elif cancel:
            found = await source.cancel_redrive()
        else:
            found = await source.redrive(to, max_per_second=rate)
            if wait:
                found = await _follow(source, found, output)
    _show(output, found)
    if status or cancel or found.running:
        return ExitCode.OK
    if found.reason != "done":
        return ExitCode.FAILED
    return ExitCode.PARTIAL if found.missing_origins else ExitCode.OK


async def _follow(queue: Queue, found: Redrive, output: Output) -> Redrive:
    """Look at a redrive until it is over."""
    pause = _FIRST_LOOK
    try:
        with output.progress() as progress:
            task = progress.add_task("moving", total=None, rate="")
            _advance(progress, task, found)
            while found.running:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                found = await queue.redrive_status()
                _advance(progress, task, found)
    except asyncio.CancelledError:
        output.remark(f"the redrive goes on; see it with: cmq redrive {queue.name} --status, end it with --cancel")
        raise
    return found


def _advance(progress: Progress, task: TaskID, found: Redrive) -> None:
    what = found.reason if found.running and found.reason else "moving"
    progress.update(task, description=what, completed=found.moved, total=found.moved + found.remaining)


def _show(output: Output, found: Redrive) -> None:
    if output.json:
        output.document(_document(found))
        return
    state = found.reason if not found.running else f"under way, {found.reason}" if found.reason else "under way"
    pairs = {
        "queue": found.queue,
        "target": found.target or "where each came from",
        "state": state,
        "moved": show_count(found.moved),
        "remaining": show_count(found.remaining),
        "rate": "as fast as it goes" if found.max_per_second is None else f"{found.max_per_second:,}/s",
        "started": show_time(found.start_time),
        "ended": show_time(found.end_time),
    }
    for name, count in found.missing_origins.items():
        pairs[f"stay, from {name}"] = show_count(count)
    output.pairs(pairs)


def _document(found: Redrive) -> dict[str, Any]:
    return {
        "queue": found.queue,
        "target": found.target,
        "max_per_second": found.max_per_second,
        "start_time": found.start_time,
        "end_time": found.end_time,
        "reason": found.reason,
        "moved": found.moved,
        "remaining": found.remaining,
        "missing_origins": found.missing_origins,
    }
