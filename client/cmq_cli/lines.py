"""A stream of lines as messages: sent as they come, several at a time, in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO

from rich.progress import Progress, TaskID

from cmq_cli.exitcodes import ExitCode, exit_code
from cmq_cli.output import Output
from cmqd_client import CmqError, Queue

_READ = 256 * 1024
_MAX_BATCH = 256
_MAX_BATCH_BYTES = 1024 * 1024
"""The server's limits on a batch; headers count too and are few."""


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
    header_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in (headers or {}).items())
    sent = empty = 0
    failure: CmqError | None = None
    with output.progress() as progress:
        task = progress.add_task("sending", total=None, rate="")
        try:
            async for lines in chunks:
                empty += sum(not line for line in lines)
                for batch in batches([line for line in lines if line], header_bytes):
                    await queue.send_batch(batch, delay=delay, headers=headers)
                    sent += len(batch)
                    _advance(progress, task, sent, started)
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


def batches(bodies: list[bytes], header_bytes: int = 0) -> list[list[bytes]]:
    """Split bodies into batches that the server takes; one that is too large by itself stands alone."""
    found: list[list[bytes]] = []
    size = 0
    for body in bodies:
        weight = len(body) + header_bytes
        if not found or len(found[-1]) == _MAX_BATCH or size + weight > _MAX_BATCH_BYTES:
            found.append([])
            size = 0
        found[-1].append(body)
        size += weight
    return found


def _advance(progress: Progress, task: TaskID, sent: int, started: float) -> None:
    rate = sent / max(time.monotonic() - started, 0.001)
    progress.update(task, completed=sent, rate=f"{rate:,.0f}/s")
