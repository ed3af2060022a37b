"""A stream of lines, sent to a queue as messages, several at a time, in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TypeVar

from rich.progress import Progress, TaskID

from cmq_cli.exitcodes import ExitCode, exit_code
from cmq_cli.output import Output
from cmqd_client import CmqError, Queue

T = TypeVar("T")

INTERRUPTED = ExitCode.INTERRUPTED.error_name

_MAX_BATCH = 256
_MAX_BATCH_BYTES = 1024 * 1024
"""The server's limits on a batch; headers count too."""


async def send_lines(
    queue: Queue,
    chunks: AsyncIterator[list[bytes]],
    output: Output,
    delay: float | None,
    headers: Mapping[str, str] | None,
) -> ExitCode:
    """Send every line that is not empty, report the number stored, and return the exit code.

    The next batch leaves when the batch before is stored. So the order of the lines is kept, and after a failure or an
    interruption the report names the line to continue at.

    Raises:
        asyncio.CancelledError: interrupted; the report is printed before.
    """
    started = time.monotonic()
    extra = weight_of(headers)
    sent = empty = under_way = 0
    failure: CmqError | None = None
    interrupted: asyncio.CancelledError | None = None
    with output.progress() as progress:
        task = progress.add_task("sending", total=None, rate="")
        try:
            async for lines in chunks:
                empty += sum(not line for line in lines)
                for batch in batches((line for line in lines if line), lambda line: len(line) + extra):
                    under_way = len(batch)
                    await queue.send_batch(batch, delay=delay, headers=headers)
                    under_way = 0
                    sent += len(batch)
                    advance(progress, task, sent, started)
        except CmqError as error:
            failure = error
        except asyncio.CancelledError as cancelled:
            interrupted = cancelled
    if output.json:
        output.document(
            {
                "sent": sent,
                "unanswered": under_way if interrupted is not None else 0,
                "empty_lines_skipped": empty,
                "seconds": round(time.monotonic() - started, 3),
                "error": INTERRUPTED if interrupted is not None else None if failure is None else failure.name,
            }
        )
    skipped = f", {empty:,} empty lines left out" if empty else ""
    output.remark(f"{sent:,} sent{skipped}")
    if interrupted is not None:
        output.error(stored_so_far(sent, under_way), INTERRUPTED)
        raise interrupted
    if failure is None:
        return ExitCode.OK
    output.client_error(failure, f"after {sent:,} lines")
    return ExitCode.PARTIAL if sent else exit_code(failure)


def stored_so_far(stored: int, unanswered: int) -> str:
    """Say where an interrupted stream stands; the last batch may have been stored although no answer came."""
    text = f"interrupted: {stored:,} messages are stored"
    return f"{text}, and the {unanswered:,} after them may be" if unanswered else text


def batches(items: Iterable[T], weight: Callable[[T], int]) -> list[list[T]]:
    """Split messages into batches that the server takes; one that is too large by itself stands alone."""
    found: list[list[T]] = []
    size = 0
    for item in items:
        bytes_ = weight(item)
        if not found or len(found[-1]) == _MAX_BATCH or size + bytes_ > _MAX_BATCH_BYTES:
            found.append([])
            size = 0
        found[-1].append(item)
        size += bytes_
    return found


def weight_of(headers: Mapping[str, str] | None) -> int:
    """Bytes of a batch that the headers of a message take."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in (headers or {}).items())


def advance(progress: Progress, task: TaskID, done: int, started: float) -> None:
    """Show how many messages are done, and how many a second."""
    rate = done / max(time.monotonic() - started, 0.001)
    progress.update(task, completed=done, rate=f"{rate:,.0f}/s")
