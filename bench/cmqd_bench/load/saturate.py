"""Saturators: processes that keep the server's loop busy with batches during a measurement.

A saturator is this module run as a program. The program sends, receives and deletes batches on a separate queue, and
answers every line on standard input with the number of deleted messages so far.
"""

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

from cmqd_bench.load.session import Session
from cmqd_bench.machine.children import Child, child, standard_input
from cmqd_load.connect import open_connection
from cmqd_load.consumers import Consumer
from cmqd_load.producers import Producer
from cmqd_load.tally import Gate, Tally
from cmqd_load.wire import SendTemplate

URL_VARIABLE = "CMQD_BENCH_URL"
BATCH = 64
PAIRS = 4
"""Producer and consumer connections per process: enough that the loop has the next batch at hand while the previous
batch is being made durable, few enough that the measured request does not wait behind many batches."""
BODY = 256


class Saturators:
    """The running processes."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    async def messages(self) -> int:
        """Return the number of messages cycled so far."""
        return sum([int(await each.ask()) for each in self._children])


@asynccontextmanager
async def saturating(session: Session, count: int) -> AsyncGenerator[Saturators]:
    """Run ``count`` saturators against the session's server; all are at work when the block begins."""
    variables = {URL_VARIABLE: session.broker.ready.url}
    async with AsyncExitStack() as stack:
        children: list[Child] = []
        for number in range(count):
            queue = await session.create_queue(f"saturate-{number}")
            children.append(await stack.enter_async_context(child(__name__, queue, variables=variables)))
        saturators = Saturators(children)
        await saturators.messages()
        yield saturators


async def _saturate(url: str, queue: str) -> None:
    questions = await standard_input()
    tally = Tally()
    gate = Gate(4 * PAIRS * BATCH)
    for _ in range(PAIRS):
        Consumer(await open_connection(url), queue, BATCH, tally, gate=gate).receive()
        Producer(await open_connection(url), SendTemplate(queue, batch=BATCH, size=BODY), tally, gate).send()
    while await questions.readline():
        print(tally.deleted, flush=True)


if __name__ == "__main__":
    uvloop.run(_saturate(os.environ[URL_VARIABLE], sys.argv[1]))
