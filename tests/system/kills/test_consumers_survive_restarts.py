"""Consumers of a broker that is killed and stopped repeatedly: all consumers go on, and no message is lost.

After every restart every consumer must handle a new message (none is silent). At the end every sent message must have
been handled, and every handler with a lost lease must have been cancelled with the reason. Leases are as short as
possible, and every fourth outage outlasts the leases.

``CMQD_RESTART_ROUNDS`` asks for more restarts (default 5; ``make test-all`` has more).
"""

import asyncio
import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import uvloop

from cmqd_client import Client, ConsumedMessage, Consumer, connect
from cmqd_client.queue import Queue
from support.processes.running_broker import RunningBroker

ROUNDS = int(os.environ.get("CMQD_RESTART_ROUNDS", "5"))
LEASE = 1.0
"""Seconds; the shortest lease that a consumer takes."""
LONG_OUTAGE = 1.5
"""Seconds of every fourth outage: leases end meanwhile."""
HELD = 1.5
"""Seconds for which a handler holds a slow message: longer than a lease, so that outages find handlers at work."""
LOST, SLOW = "lost", "slow"
"""Kinds of messages: held at the first receive until a long outage ends the lease; held for a time."""
QUEUES = [f"orders-{number}" for number in range(5)]
SILENT_SECONDS = 120.0
"""After this time a consumer without a message counts as silent."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(600 + 30 * ROUNDS)]


class HandlerRun(msgspec.Struct):
    """A handler run, and its end."""

    body: bytes
    receive_count: int
    began: float
    ended: float = 0.0
    cancelled_because: str | None = None
    lost: str | None = None


class Ledger:
    """The messages sent, and the handler runs."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.handled: Counter[bytes] = Counter()
        self.runs: list[HandlerRun] = []
        self._news = asyncio.Event()

    async def send(self, queue: Queue, *bodies: bytes) -> None:
        await queue.send_batch(bodies)
        self.sent.update(bodies)

    async def handle(self, message: ConsumedMessage) -> None:
        """Handle a message; a slow message is held at its first receives."""
        run = HandlerRun(message.body, message.receive_count, asyncio.get_running_loop().time())
        self.runs.append(run)
        self._news.set()
        try:
            is_slow = message.body.endswith(SLOW.encode()) and message.receive_count <= 2
            is_lost = message.body.endswith(LOST.encode()) and message.receive_count == 1
            await asyncio.sleep(SILENT_SECONDS if is_lost else HELD if is_slow else 0)
        except asyncio.CancelledError as error:
            run.cancelled_because = str(error.args[0]) if error.args else "without a reason"
            raise
        else:
            self.handled[message.body] += 1
            self._news.set()
        finally:
            run.ended = asyncio.get_running_loop().time()
            run.lost = message.lost

    async def wait_begun(self, bodies: set[bytes]) -> None:
        """Wait until handlers are at work on these messages."""
        while bodies - {run.body for run in self.runs}:
            self._news.clear()
            await self._news.wait()

    async def wait_handled(self, bodies: set[bytes]) -> None:
        async with asyncio.timeout(SILENT_SECONDS):
            while bodies - self.handled.keys():
                self._news.clear()
                await self._news.wait()

    @property
    def overtaken(self) -> int:
        """Handler runs that were still at work when the message was handled again."""
        last: dict[bytes, HandlerRun] = {}
        count = 0
        for run in self.runs:
            before = last.get(run.body)
            count += before is not None and before.ended > run.began
            last[run.body] = run
        return count


async def iterate(queue: Queue, ledger: Ledger) -> None:
    async for message in queue.consume(lease=LEASE):
        async with message.process():
            await ledger.handle(message)


def consumers(client: Client, ledger: Ledger) -> list[Consumer[ConsumedMessage]]:
    return [client.queue(name).consumer(concurrency=4, lease=LEASE)(ledger.handle) for name in QUEUES[1:]]


def has_long_outage(number: int) -> bool:
    """Return True for the rounds with an outage that outlasts the leases."""
    return number % 4 == 3


async def restart(broker: RunningBroker, number: int) -> None:
    """Kill or stop the broker, in turns, and start the broker again."""
    await asyncio.to_thread(broker.kill if number % 2 else broker.stop)
    if has_long_outage(number):
        await asyncio.sleep(LONG_OUTAGE)
    await asyncio.to_thread(broker.start)


async def run_rounds(broker: RunningBroker) -> Ledger:
    ledger = Ledger()
    async with connect(broker.url, patience=None) as producer, connect(broker.url) as client:
        queues = [await producer.create_queue(name) for name in QUEUES]
        workers = consumers(client, ledger)
        running = asyncio.create_task(client.run(*workers, stop_signals=()))
        iterating = asyncio.create_task(iterate(client.queue(QUEUES[0]), ledger))
        for number in range(ROUNDS):
            kind = LOST if has_long_outage(number) else SLOW
            held = {queue.name: f"{number}-{queue.name}-{kind}".encode() for queue in queues[1:]}
            for queue in queues[1:]:
                await ledger.send(queue, held[queue.name])
            if kind == LOST:
                # On a slow machine the outage would otherwise be over before the first receive.
                await ledger.wait_begun(set(held.values()))
            await restart(broker, number)
            probes: set[bytes] = set()
            for queue in queues:
                probe = f"{number}-{queue.name}".encode()
                await ledger.send(queue, probe)
                probes.add(probe)
            try:
                await ledger.wait_handled(probes)
            except TimeoutError:
                silent = sorted(probes - ledger.handled.keys())
                pytest.fail(f"round {number}: not handled {silent}, {[worker.statistics() for worker in workers]}")
            if number % 50 == 49:
                cancelled = sum(run.cancelled_because is not None for run in ledger.runs)
                print(f"{number + 1} restarts, {len(ledger.sent)} sent, {cancelled} cancelled", flush=True)
        await ledger.wait_handled(ledger.sent)
        for queue in queues:
            while (info := await queue.attributes()).active + info.in_flight:  # noqa: ASYNC110 - the broker sets no event
                await asyncio.sleep(0.05)
        for worker in workers:
            worker.stop()
        await running
        iterating.cancel()
        await asyncio.gather(iterating, return_exceptions=True)
    return ledger


def test_consumers_go_on_after_every_restart_and_lose_no_message(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as broker:
        ledger = uvloop.run(run_rounds(broker))

    lost_leases = [run for run in ledger.runs if run.lost is not None]
    print(
        f"{ROUNDS} restarts: {len(ledger.sent)} messages sent, {len(ledger.runs)} handler runs, "
        f"{len(lost_leases)} leases lost under a handler, {ledger.overtaken} runs overtaken"
    )
    assert ledger.sent == set(ledger.handled)
    assert [run for run in lost_leases if run.cancelled_because != run.lost] == []
    assert [run for run in ledger.runs if run.cancelled_because is not None and run.lost is None] == []
    assert lost_leases, "no outage ended a lease: the rounds have shown nothing about cancellations"
