"""The traffic of the demo with Spark, and its books: the messages of every part, and the state of every copy.

All messages are published to a routing topic with four subscribers, in three parts; the times of the middle part are
recorded. Then a part of the copies is consumed, a part is left in flight, and a part becomes dead letters. The books
count by the number in the message header; a reader of the log must find the same counts.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from cmqd_bench.audience import EVERYTHING, EXACT, PATTERN, choose_subscribers, matches
from cmqd_bench.source import Source
from cmqd_client import Client, Message, Queue, Topic

TOPIC = "demo-topic"
NUMBER = "demo-number"
"""Header with the number of a message."""
DEAD = "demo-dead"
REPLAYED = "demo-replayed"
PARTS = 3
MIDDLE = 1
PUBLISHERS = 8
BATCH = 64
BATCH_BYTES = 512 * 1024
MOST_DEAD = 100
MARGIN_SECONDS = 0.05
"""Pause between the parts: no message is published close to the recorded times."""
HIDDEN_SECONDS = 3600.0
MOVE_SECONDS = 30.0

Deal: TypeAlias = Callable[[Queue, Sequence[Message]], Awaitable[None]]
"""The actions on received messages."""


class Pipeline:
    """One run."""

    def __init__(self, source: Source, messages: int) -> None:
        self.messages = messages
        self.subscribers = choose_subscribers(source.routing_keys, url=False)
        self.published = 0
        self.taken = 0
        """Messages received so far."""
        self.consumed: dict[str, set[int]] = {name: set() for name in self.subscribers}
        """Numbers by subscriber: deletes that were answered."""
        self.in_flight: dict[str, set[int]] = {name: set() for name in self.subscribers}
        self.dead: dict[str, set[int]] = {name: set() for name in self.subscribers}
        self.middle: tuple[datetime, datetime] = (datetime.min, datetime.min)
        """Begin and end of the middle part."""
        self._source = source
        self._edges = [messages * part // PARTS for part in range(PARTS + 1)]

    # ------------------------------------------------------------------ expected results

    def wanted(self, name: str) -> set[int]:
        """Numbers of the messages that a subscriber's keys match."""
        by_key = {
            key: any(matches(binding_key, key) for binding_key in self.subscribers[name])
            for key in set(self._source.routing_keys)
        }
        return {number for number in range(self.messages) if by_key[self._source.routing_key(number)]}

    def by_key(self) -> Counter[str]:
        """Messages by routing key."""
        return Counter(self._source.routing_key(number) for number in range(self.messages))

    def states_of(self, name: str) -> dict[str, int]:
        """The expected states of a subscriber's copies; states without copies are left out."""
        deleted, in_flight, dead = (len(books[name]) for books in (self.consumed, self.in_flight, self.dead))
        states = {"deleted": deleted, "in_flight": in_flight, "dead_lettered": dead}
        states["active"] = len(self.wanted(name)) - sum(states.values())
        return {state: count for state, count in states.items() if count}

    @property
    def to_be_taken(self) -> int:
        """Copies that will be received."""
        return sum(self._shares)

    @property
    def _shares(self) -> tuple[int, int, int, int]:
        """Counts of messages: consumed from EVERYTHING, consumed from PATTERN, failed, left in flight."""
        quarter = len(self.wanted(PATTERN)) // 4
        failing = min(len(self.wanted(EXACT)) // 2, MOST_DEAD)
        return self.messages // 2, quarter, failing, max(self.messages // 20, 1)

    @property
    def middle_numbers(self) -> range:
        """Numbers of the messages of the middle part."""
        return range(self._edges[MIDDLE], self._edges[MIDDLE + 1])

    @staticmethod
    def queue_of(name: str) -> str:
        """The name of a subscriber's queue."""
        return f"demo-{name}"

    # ------------------------------------------------------------------ actions

    async def publish(self, client: Client) -> None:
        """Create topic, queues and subscriptions, and publish all parts."""
        longest = max(65_536, self._source.longest)
        topic = await client.create_topic(TOPIC, filter_type="routing", max_message_bytes=longest)
        for name in (DEAD, REPLAYED):
            await client.create_queue(name, max_message_bytes=longest)
        for name, binding_keys in self.subscribers.items():
            queue = await client.create_queue(
                self.queue_of(name), max_message_bytes=longest, visibility_timeout=HIDDEN_SECONDS
            )
            await topic.subscribe(name, queue=queue, binding_keys=binding_keys)
        await client.queue(self.queue_of(EXACT)).set_attributes(dead_letter_queue=DEAD, dead_letter_max_receives=1)
        times: list[datetime] = []
        for part in range(PARTS):
            times.append(await self._breath())
            numbers = iter(range(self._edges[part], self._edges[part + 1]))
            async with asyncio.TaskGroup() as tasks:
                for _ in range(PUBLISHERS):
                    tasks.create_task(self._publish(topic, numbers))
        times.append(await self._breath())
        self.middle = times[MIDDLE], times[MIDDLE + 1]

    async def _breath(self) -> datetime:
        await asyncio.sleep(MARGIN_SECONDS)
        now = datetime.fromtimestamp(time.time(), UTC)
        await asyncio.sleep(MARGIN_SECONDS)
        return now

    async def _publish(self, topic: Topic, numbers: Iterator[int]) -> None:
        source = self._source
        while batch := self._batch(numbers):
            await topic.publish_batch(
                [source.body(number) for number in batch],
                routing_keys=[source.routing_key(number) for number in batch],
                headers=[{NUMBER: str(number)} for number in batch],
            )
            self.published += len(batch)

    def _batch(self, numbers: Iterator[int]) -> Sequence[int]:
        batch: list[int] = []
        size = 0
        for number in numbers:
            batch.append(number)
            size += len(self._source.body(number))
            if len(batch) == BATCH or size + self._source.longest > BATCH_BYTES:
                break
        return batch

    async def consume(self, client: Client) -> None:
        """Consume half of the common copies and a quarter of the pattern's; let some fail, and leave some in flight."""
        half, quarter, failing, held = self._shares
        await asyncio.gather(
            self._take(client, EVERYTHING, half, self._delete(EVERYTHING)),
            self._take(client, PATTERN, quarter, self._delete(PATTERN)),
            self._take(client, EXACT, failing, self._fail),
        )
        await self._take(client, EVERYTHING, held, self._hold)
        dead = client.queue(DEAD)
        async with asyncio.timeout(MOVE_SECONDS):
            while (await dead.attributes()).active < len(self.dead[EXACT]):  # noqa: ASYNC110 - it tells when asked
                await asyncio.sleep(0.05)

    async def _take(self, client: Client, name: str, count: int, deal: Deal) -> None:
        queue = client.queue(self.queue_of(name))
        while count > 0:
            messages = await queue.receive(min(256, count), wait=5)
            if not messages:
                raise TimeoutError(f"{queue.name} gave nothing more, {count} were to come")
            count -= len(messages)
            self.taken += len(messages)
            await deal(queue, messages)

    def _delete(self, name: str) -> Deal:
        async def delete(queue: Queue, messages: Sequence[Message]) -> None:
            (await queue.delete_batch(messages)).raise_for_failures()
            self.consumed[name].update(map(number_of, messages))

        return delete

    async def _fail(self, queue: Queue, messages: Sequence[Message]) -> None:
        # The only receive that the policy permits: the broker then moves the messages to the dead-letter queue.
        (await queue.release_batch(messages)).raise_for_failures()
        self.dead[EXACT].update(map(number_of, messages))

    async def _hold(self, queue: Queue, messages: Sequence[Message]) -> None:
        self.in_flight[EVERYTHING].update(map(number_of, messages))

    async def told(self, client: Client) -> dict[str, dict[str, int]]:
        """The broker's own counts by queue: active and in flight, without zeros."""
        found: dict[str, dict[str, int]] = {}
        for name in (*map(self.queue_of, self.subscribers), DEAD):
            info = await client.queue(name).attributes()
            counts = {"active": info.active, "in_flight": info.in_flight}
            found[name] = {state: count for state, count in counts.items() if count}
        return found

    async def replayed(self, client: Client) -> Counter[int]:
        """Receive the replayed messages; return the count of deliveries with the published body, by number."""
        queue = client.queue(REPLAYED)
        found: Counter[int] = Counter()
        while messages := await queue.receive(256, wait=0):
            found.update(n for m in messages if m.body == self._source.body(n := number_of(m)))
            (await queue.delete_batch(messages)).raise_for_failures()
        return found


def number_of(message: Message) -> int:
    """The number in a message's header."""
    return int(message.headers[NUMBER])
