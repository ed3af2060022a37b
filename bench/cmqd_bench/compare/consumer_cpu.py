"""The CPU of a client per message: a consumer against a loop of receive and delete, in turns on the same server.

Only the CPU of the client's process counts, so the server may share the machine. The ratio of a round compares two runs
that follow one another; the median over the rounds is printed.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cmqd.testing import BrokerProcess
from cmqd_bench.commands.plans import Consumer
from cmqd_client import Client, ConsumedMessage, Queue, connect

QUEUE = "orders"
BODY = b"x" * 100
BATCHES = (16, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of CPU per message, of each round."""

    batch: int
    bare: list[float]
    consumer: list[float]
    default: list[float]

    def ratio(self, kind: str) -> float:
        """Return the median over the rounds of the CPU of a kind of consumer against the loop."""
        return statistics.median(own / bare for own, bare in zip(getattr(self, kind), self.bare, strict=True))


async def receive_and_delete(queue: Queue, batch: int, count: int) -> None:
    """Handle ``count`` messages in a plain loop."""
    done = 0
    while done < count:
        messages = await queue.receive(batch, wait=5)
        await queue.delete_batch(messages)
        done += len(messages)


async def consume(queue: Queue, prefetch: int | None, count: int) -> None:
    """Handle ``count`` messages by a consumer."""
    handled = 0

    async def handle(message: ConsumedMessage) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            consumer.stop()

    consumer = queue.consumer(prefetch=prefetch)(handle)
    await consumer.run()


async def cpu_per_message(queue: Queue, count: int, run: Callable[[], Awaitable[None]]) -> float:
    """Return the microseconds of CPU for each of ``count`` messages that were sent before."""
    await queue.send_batch([BODY] * count, split=True)
    before = time.process_time()
    await run()
    return (time.process_time() - before) / count * 1e6


async def measure_batch(client: Client, batch: int, plan: Consumer) -> Row:
    """Measure the three ways in turns."""
    queue = await client.ensure_queue(QUEUE)
    count = plan.messages if batch > 1 else max(plan.messages // 8, 1)
    row = Row(batch, [], [], [])
    for _ in range(plan.rounds):
        row.bare.append(await cpu_per_message(queue, count, lambda: receive_and_delete(queue, batch, count)))
        row.consumer.append(await cpu_per_message(queue, count, lambda: consume(queue, batch - 1, count)))
        row.default.append(await cpu_per_message(queue, count, lambda: consume(queue, None, count)))
    return row


async def measure(url: str, plan: Consumer) -> list[Row]:
    """Measure all batches."""
    async with connect(url) as client:
        return [await measure_batch(client, batch, plan) for batch in BATCHES]


def print_consumer(plan: Consumer) -> None:
    """Measure and print the CPU of consumers."""
    with (
        tempfile.TemporaryDirectory(dir=plan.scratch) as folder,
        BrokerProcess(Path(folder)) as broker,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        rows = runner.run(measure(broker.url, plan))
    if plan.json:
        print(
            json.dumps(
                [
                    {"batch": row.batch, "bare": row.bare, "consumer": row.consumer, "default": row.default}
                    for row in rows
                ]
            )
        )
        return
    print("CPU of the client per message in us, medians of the rounds; ratio: consumer / (receive + delete)")
    for row in rows:
        bare, own, default = (statistics.median(values) for values in (row.bare, row.consumer, row.default))
        print(
            f"batch {row.batch:2}: receive + delete {bare:6.1f}   consumer {own:6.1f} ({row.ratio('consumer'):.2f})"
            f"   default consumer {default:6.1f} ({row.ratio('default'):.2f})"
        )
