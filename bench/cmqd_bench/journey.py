"""The demo's traffic: producers and consumers that continue while their broker is killed and restarted."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cmqd_bench.broadcast import CONSUMERS as COPY_CONSUMERS
from cmqd_bench.broadcast import TOPIC, Broadcast, has_http
from cmqd_bench.broker import Broker
from cmqd_bench.ledger import Ledger
from cmqd_bench.source import Source
from cmqd_client import Client, CmqError, Message, Outgoing, Queue, Topic, connect
from cmqd_client.errors import OutcomeUnknown

QUEUE = "demo"
NUMBER = "demo-number"
"""Header with the number of a message."""
PRODUCERS = 16
CONSUMERS = 8
SEND_BATCH = 8
"""Batch size of every second producer; the remaining producers send single messages."""
SEND_BYTES = 512 * 1024
RECEIVE_BATCH = 32
VISIBILITY_SECONDS = 6.0
"""Visibility timeout: messages in flight at the kill are delivered again after this time. Longer than a restart."""
RETRIES = 8
PAUSE_SECONDS = 0.1
OUTAGE_SECONDS = 0.5
"""Time between kill and restart, so that the clients detect the end of their connections."""
DRAIN_SECONDS = 90.0


class DemoFailed(Exception):
    """The demo could not finish."""


@dataclass(slots=True)
class Kill:
    """The effects of the kill, for the closing table."""

    at_acknowledged: int = 0
    started: float = 0.0
    """Monotonic times; 0 = not yet."""
    ended: float = 0.0
    restart_seconds: float = 0.0
    first_answer_seconds: float = 0.0
    """From the kill to the next answered send."""
    errors: int = 0
    """Calls that failed after the client's retries and were made anew."""

    def touches(self, began: float) -> bool:
        """Return True if a call that began at the given time overlaps the time without a broker."""
        return bool(self.started) and began < (self.ended or time.monotonic())


class Journey:
    """One run: the books, the kill, the producers and consumers."""

    def __init__(self, broker: Broker, source: Source, messages: int, say: Callable[[str], None]) -> None:
        self.broker = broker
        self.ledger = Ledger(source.body)
        self.kill = Kill()
        self.broadcast = Broadcast(source, NUMBER, VISIBILITY_SECONDS, self._pause)
        self.messages = messages
        self._source = source
        self._say = say
        self._numbers: Iterator[int] = iter(range(messages))
        self._half = asyncio.Event()
        self._all_sent = False
        self._empty = False

    async def run(self) -> None:
        """Send and publish, kill half way, restart, go on until all queues are empty.

        Raises DemoFailed if the queues do not become empty.
        """
        if has_http():
            self.broker.flags.append("--push-allow-loopback")
        ready = await self.broker.start()
        self._say(f"broker started (loop process {ready.pid}, storage process {ready.storage_pid})")
        broadcast = self.broadcast
        async with (
            broadcast.listening() as url,
            connect(ready.url, retries=RETRIES) as producing,
            connect(ready.url, retries=RETRIES) as consuming,
        ):
            await producing.create_queue(
                QUEUE,
                visibility_timeout=VISIBILITY_SECONDS,
                max_message_bytes=max(65_536, self._source.longest),
            )
            await broadcast.create(producing, url)
            topic = producing.topic(TOPIC)
            async with asyncio.timeout(DRAIN_SECONDS + self.messages / 500), asyncio.TaskGroup() as tasks:
                consumers = [tasks.create_task(self._consume(consuming.queue(QUEUE))) for _ in range(CONSUMERS)]
                for name in [*broadcast.queues] * COPY_CONSUMERS:
                    copies = consuming.queue(broadcast.queue_of(name))
                    consumers.append(tasks.create_task(broadcast.consume(name, copies)))
                killer = tasks.create_task(self._kill_half_way())
                async with asyncio.TaskGroup() as producers:
                    for index in range(PRODUCERS):
                        batch = SEND_BATCH if index % 2 else 1
                        producers.create_task(self._produce(producing.queue(QUEUE), topic, batch))
                self._half.set()
                await killer
                self._all_sent = True
                await self._wait_empty(producing)
                self._empty = True
                broadcast.end()
                await asyncio.gather(*consumers)

    # ------------------------------------------------------------------ producers

    def _next_numbers(self, most: int) -> list[int]:
        numbers: list[int] = []
        size = 0
        for number in self._numbers:
            numbers.append(number)
            size += len(self._source.body(number))
            # The next body is as long as the longest at worst.
            if len(numbers) == most or size + self._source.longest > SEND_BYTES:
                break
        return numbers

    async def _produce(self, queue: Queue, topic: Topic, batch: int) -> None:
        while numbers := self._next_numbers(batch):
            # Send and publish concurrently, so that the kill interrupts both.
            await asyncio.gather(self._send_all(queue, numbers), self.broadcast.publish(topic, numbers))

    async def _send_all(self, queue: Queue, numbers: list[int]) -> None:
        self.ledger.attempt(numbers)
        self.ledger.acknowledge(numbers, await self._send(queue, numbers))
        kill = self.kill
        if kill.ended and not kill.first_answer_seconds:
            kill.first_answer_seconds = time.monotonic() - kill.started
        if self.ledger.acknowledged >= self.messages // 2:
            self._half.set()

    async def _send(self, queue: Queue, numbers: list[int]) -> list[str]:
        outgoing = [Outgoing(self._source.body(number), headers={NUMBER: str(number)}) for number in numbers]
        while True:
            try:
                if len(outgoing) == 1:
                    sent = await queue.send(outgoing[0].body, headers=outgoing[0].headers)
                    return [sent.id]
                return [*(await queue.send_batch(outgoing)).ids]
            except CmqError as error:
                # The client has repeated the send already; a new send may store a message twice.
                await self._pause(error)

    async def _pause(self, error: CmqError) -> None:
        if not error.retryable and not isinstance(error, OutcomeUnknown):
            raise error
        self.kill.errors += 1
        await asyncio.sleep(error.retry_after or PAUSE_SECONDS)

    # ------------------------------------------------------------------ consumers

    async def _consume(self, queue: Queue) -> None:
        while not self._empty:
            try:
                messages = await queue.receive(RECEIVE_BATCH, wait=0.5)
                if messages:
                    for message in messages:
                        number = message.headers.get(NUMBER, "")
                        self.ledger.receive(message.id, int(number) if number.isdigit() else None, message.body)
                    await self._delete(queue, messages)
            except CmqError as error:
                await self._pause(error)

    async def _delete(self, queue: Queue, messages: list[Message]) -> None:
        began = time.monotonic()
        result = await queue.delete_batch(messages)
        done = set(result.done)
        self.ledger.delete(
            (message.id for message in messages if message.receipt_handle in done),
            sure=not self.kill.touches(began),
        )

    async def _wait_empty(self, client: Client) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        queue = client.queue(QUEUE)
        while True:
            info = await queue.attributes()
            left = info.active + info.in_flight + info.delayed + await self.broadcast.left(client)
            if not left:
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"{left} messages and copies are still to come after {DRAIN_SECONDS:.0f} s")
            await asyncio.sleep(PAUSE_SECONDS)

    # ------------------------------------------------------------------ the kill

    async def _kill_half_way(self) -> None:
        await self._half.wait()
        kill, pids = self.kill, self.broker.pids
        kill.at_acknowledged = self.ledger.acknowledged
        kill.started = time.monotonic()
        self.broker.kill()
        self._say(
            f"SIGKILL to processes {', '.join(map(str, pids))} after {kill.at_acknowledged:,} answered sends, "
            "under full load"
        )
        await asyncio.sleep(OUTAGE_SECONDS)
        restarting = time.monotonic()
        ready = await self.broker.start()
        kill.ended = time.monotonic()
        kill.restart_seconds = kill.ended - restarting
        self._say(
            f"broker started again on the same folder and port (loop process {ready.pid}, storage process "
            f"{ready.storage_pid}); recovery and start took {kill.restart_seconds:.2f} s"
        )
