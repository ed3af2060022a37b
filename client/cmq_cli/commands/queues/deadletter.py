"""``cmq dlq`` and ``cmq redrive``: dead-letter queues, and the move of dead letters back to their queues."""

import asyncio
from typing import Annotated

from cyclopts import App, Parameter
from rich.progress import Progress, TaskID

from cmq_cli.attribute_options import option_help
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmq_cli.nouns import as_document
from cmq_cli.options import CurrentSession, Flag, QueueName
from cmq_cli.output import Output
from cmq_cli.session import Seconds
from cmq_cli.values import show_count, show_duration, show_time
from cmqd_client import Queue, Redrive
from cmqd_types.attributes import QUEUE
from cmqd_types.sentences import counted

app = App(name="dlq", help="Dead-letter queues, for messages that no consumer deletes.")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two polls of a redrive: at first short, for short redrives, then longer."""


@app.command(name="set")
async def set_dead_letters(
    queue: QueueName,
    dead_letter_queue: str,
    /,
    *,
    max_receives: Annotated[int | None, Parameter(help=option_help(QUEUE["dead_letter_max_receives"]))] = None,
    after: Annotated[Seconds | None, Parameter(help=option_help(QUEUE["dead_letter_after_ms"]))] = None,
    session: CurrentSession,
) -> None:
    """Give a queue a dead-letter queue. Requires either --max-receives or --after.

    Parameters
    ----------
    dead_letter_queue
        A queue of the same account, not transactional and without a dead-letter queue of its own.
    """
    if (max_receives is None) == (after is None):
        raise CommandFailed("give one of: --max-receives, --after", ExitCode.USAGE)
    async with session.client() as client:
        # Both are set, so that a queue with the other rule changes to this rule.
        info = await client.queue(queue).set_attributes(
            dead_letter_queue=dead_letter_queue,
            dead_letter_max_receives=max_receives or 0,
            dead_letter_after=after or 0,
        )
    limit = counted(max_receives, "receive") if max_receives is not None else show_duration(info.dead_letter_after)
    document = {
        "queue": queue,
        "dead_letter_queue": info.dead_letter_queue,
        "max_receives": info.dead_letter_max_receives,
        "after": info.dead_letter_after,
    }
    session.output.result(document, f"messages of {queue!r} go to {info.dead_letter_queue!r} after {limit}")


@app.command
async def unset(queue: QueueName, /, *, session: CurrentSession) -> None:
    """Keep all messages of a queue until their retention ends; dead letters stay where they are."""
    async with session.client() as client:
        await client.queue(queue).set_attributes(dead_letter_queue="", dead_letter_max_receives=0, dead_letter_after=0)
    session.output.result({"queue": queue, "dead_letter_queue": ""}, f"{queue!r} has no dead-letter queue any more")


@app.command
async def sources(
    dead_letter_queue: Annotated[str, Parameter(help="Name of the dead-letter queue.")], /, *, session: CurrentSession
) -> None:
    """List the queues that use a dead-letter queue."""
    async with session.client() as client:
        names = await client.queue(dead_letter_queue).dead_letter_sources()
    document = {"dead_letter_queue": dead_letter_queue, "sources": list(names)}
    if names:
        session.output.listing(document, ["name"], [[name] for name in names])
    else:
        session.output.result(document, f"no queue sends its dead letters to {dead_letter_queue!r}")


async def redrive(
    queue: Annotated[str, Parameter(help="Name of the dead-letter queue.")],
    /,
    *,
    to: str | None = None,
    rate: int | None = None,
    wait: bool = True,
    status: Flag = False,
    cancel: Flag = False,
    session: CurrentSession,
) -> ExitCode:
    """Move dead letters back to their queues of origin, or to another queue.

    The server moves the messages and continues if this command ends. Messages that are sent to the dead-letter queue
    during the redrive are not moved. A message is always in exactly one queue.

    Parameters
    ----------
    to
        Move all messages to this queue.
    rate
        Maximum number of messages per second; unlimited by default.
    wait
        Wait until the redrive has ended; --no-wait only starts it.
    status
        Show the running redrive, or the last redrive, without starting a redrive.
    cancel
        End the running redrive; moved messages stay moved.
    """
    if status + cancel > 1 or ((status or cancel) and (to is not None or rate is not None)):
        raise CommandFailed("give --status or --cancel alone, without other options", ExitCode.USAGE)
    output = session.output
    async with session.client() as client:
        source = client.queue(queue)
        if status:
            progress = await source.redrive_status()
        elif cancel:
            progress = await source.cancel_redrive()
        else:
            progress = await source.redrive(to, max_per_second=rate)
            if wait:
                progress = await _follow(source, progress, output)
    _show(output, progress)
    if status or cancel or progress.running:
        return ExitCode.OK
    if progress.reason != "done":
        return ExitCode.FAILED
    return ExitCode.PARTIAL if progress.missing_origins else ExitCode.OK


async def _follow(queue: Queue, redrive: Redrive, output: Output) -> Redrive:
    """Poll a redrive until it has ended, and return its last state."""
    pause = _FIRST_PAUSE
    try:
        with output.progress() as progress:
            task = progress.add_task("moving", total=None, rate="")
            _advance(progress, task, redrive)
            while redrive.running:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                redrive = await queue.redrive_status()
                _advance(progress, task, redrive)
    except asyncio.CancelledError:
        output.remark(f"the redrive continues; show it with: cmq redrive {queue.name} --status, end it with --cancel")
        raise
    return redrive


def _advance(progress: Progress, task: TaskID, redrive: Redrive) -> None:
    state = redrive.reason if redrive.running and redrive.reason else "moving"
    progress.update(task, description=state, completed=redrive.moved, total=redrive.moved + redrive.remaining)


def _show(output: Output, redrive: Redrive) -> None:
    state = redrive.reason
    if redrive.running:
        state = f"under way, {redrive.reason}" if redrive.reason else "under way"
    pairs = {
        "queue": redrive.queue,
        "target": redrive.target or "each message's queue of origin",
        "state": state,
        "moved": show_count(redrive.moved),
        "remaining": show_count(redrive.remaining),
        "rate": "unlimited" if redrive.max_per_second is None else f"{redrive.max_per_second:,}/s",
        "started": show_time(redrive.start_time),
        "ended": show_time(redrive.end_time),
    }
    for name, count in redrive.missing_origins.items():
        pairs[f"not moved, from {name}"] = show_count(count)
    output.facts(as_document(redrive), pairs)
