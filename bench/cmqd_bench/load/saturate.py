"""Saturators: processes that keep the server's loop busy with batches during a measurement.

A saturator is this module run as a program. The program sends, receives and deletes batches on a separate queue,
answers every line on standard input with the number of deleted messages so far, and ends at the end of input.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import uvloop

from cmqd_bench.load.clients import Consumer, Gate, Producer, Tally
from cmqd_bench.load.connect import open_connection
from cmqd_bench.load.session import Session
from cmqd_bench.load.wire import SendTemplate

URL_VARIABLE = "CMQD_BENCH_URL"
BATCH = 64
PAIRS = 4
"""Producer and consumer connections per process: enough that the loop has the next batch at hand while the previous
batch is being made durable, few enough that the measured request does not wait behind many batches."""
BODY = 256
END_SECONDS = 5.0


class Saturators:
    """The running processes, as seen by their parent."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def messages(self) -> int:
        """Return the number of messages cycled so far."""
        total = 0
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), END_SECONDS)
            if not line:
                raise RuntimeError("a saturating process has ended")
            total += int(line)
        return total


@asynccontextmanager
async def saturating(session: Session, count: int) -> AsyncGenerator[Saturators]:
    """Run ``count`` saturators against the session's server; all are at work when the block begins."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number in range(count):
            queue = await session.create_queue(f"saturate-{number}")
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "cmqd_bench.load.saturate", queue),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    # The URL contains a key; a command line would show the key to all users of the machine.
                    env=os.environ | {URL_VARIABLE: session.broker.ready.url},
                )
            )
        saturators = Saturators(processes)
        await saturators.messages()
        yield saturators
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _saturate(url: str, queue: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tally = Tally()
    gate = Gate(4 * PAIRS * BATCH)
    for _ in range(PAIRS):
        Consumer(await open_connection(url), queue, BATCH, tally, gate=gate).receive()
        Producer(await open_connection(url), SendTemplate(queue, batch=BATCH, size=BODY), tally, gate).send()
    while await reader.readline():
        sys.stdout.write(f"{tally.deleted}\n")
        sys.stdout.flush()


def main() -> None:
    """Run as a separate process."""
    (queue,) = sys.argv[1:]
    uvloop.run(_saturate(os.environ[URL_VARIABLE], queue))


if __name__ == "__main__":
    main()
