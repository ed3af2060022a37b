"""A stream of lines, read as they come; sent to a queue as messages, several at a time, in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import BinaryIO, TypeVar

from rich.progress import Progress, TaskID

from cmq_cli.exitcodes import ExitCode, exit_code
from cmq_cli.output import Output
from cmqd_client import CmqError, Queue

T = TypeVar("T")

_READ = 256 * 1024
_MAX_BATCH = 256
_MAX_BATCH_BYTES = 1024 * 1024
"""The server's limits on a batch; headers count too."""


async def read_lines(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines of a stream, as many as there are at a time, without their line breaks.

    The reading is done by a thread, as pipes and terminals cannot be waited for otherwise in every system.
    """
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while data := await asyncio.to_thread(read, _READ):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def send_lines(
    queue: Queue,
    chunks: AsyncIterator[list[bytes]],
    output: Output,
    delay: float | None,
    headers: Mapping[str, str] | None,
) -> ExitCode:
    """Send every line that is not empty; what was sent, in the end, and how it ended.

    One batch after the other: so the order is that of the lines, and after a failure it is known where to go on.
    """
    started = time.monotonic()
    extra = weight_of(headers)
    sent = empty = 0
    failure: CmqError | None = None
    with output.progress() as progress:
        task = progress.add_task("sending", total=None, rate="")
        try:
            async for lines in chunks:
                empty += sum(not line for line in lines)
                for batch in batches((line for line in lines if line), lambda line: len(line) + extra):
                    await queue.send_batch(batch, delay=delay, headers=headers)
                    sent += len(batch)
                    advance(progress, task, sent, started)
        except CmqError as error:
            failure = error
    if output.json:
        output.document(
            {
                "sent": sent,
                "empty_lines_skipped": empty,
                "seconds": round(time.monotonic() - started, 3),
                "error": None if failure is None else failure.name,
            }
        )
    skipped = f", {empty} empty lines left out" if empty else ""
    output.remark(f"{sent} sent{skipped}")
    if failure is None:
        return ExitCode.OK
    output.error(f"after {sent} lines: {failure}")
    return ExitCode.PARTIAL if sent else exit_code(failure)


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
    """How many bytes of a batch the headers of a message take."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in (headers or {}).items())


def advance(progress: Progress, task: TaskID, done: int, started: float) -> None:
    """Show how many messages are done, and how many a second."""
    rate = done / max(time.monotonic() - started, 0.001)
    progress.update(task, completed=done, rate=f"{rate:,.0f}/s")
