"""A server with the largest legal number of objects, for tests of the cost of its operations."""

from pathlib import Path
from typing import Any

from cmqd.core.limits import Limits
from cmqd.core.operations.topics.publish import PublishRequest
from cmqd.core.outcome import Outcome
from cmqd.server.log_upkeep.pins import Pins
from support.core import alone
from support.server.server_rig import RigClient, ServerRig

ACCOUNT = "admin"
LIMITS = Limits()
WAITING_SUBSCRIPTIONS = 40
"""Subscriptions to a URL that lack messages."""
BATCH = LIMITS.max_batch
SEGMENTS = 100_000
URL = "https://example.com/hook"
DAY_MS = 86_400_000


class FullBroker:
    """A server whose account is full of queues, topics and schedules; made by ``make``.

    ``wide`` is a topic with all subscriptions, whose first ones lack messages. ``full``, ``changed``, ``cleared`` and
    ``rewound`` are queues with ``messages`` active, delayed, in flight and rewindable messages each. ``half`` has half
    messages, and ``dead`` is a dead-letter queue with all its sources. All topics but ``wide`` deliver to ``wanted``.
    """

    def __init__(self, rig: ServerRig, client: RigClient, messages: int) -> None:
        self.rig = rig
        self.client = client
        self.messages = messages
        self.handles: dict[str, list[int]] = {}
        """Receipt handles by queue."""
        self.half_ids: list[int] = []
        self.published_ids: list[int] = []

    @classmethod
    async def make(cls, folder: Path, messages: int) -> "FullBroker":
        rig = await ServerRig.make(folder, max_requests_per_connection=100_000)
        full = cls(rig, await rig.client(), messages)
        await full._fill()
        return full

    async def _fill(self) -> None:
        for name in ("full", "changed", "cleared", "rewound"):
            self._make_full_queue(name)
        self._make_half_queue()
        self._make_dead_letter_queue()
        broker, now_ms = self.rig.broker, self._now_ms
        for number in range(LIMITS.max_queues_per_account - 20):
            self._done(broker.create_queue(ACCOUNT, f"queue-{number:05}", {}, now_ms))
        self._done(broker.create_queue(ACCOUNT, "wanted", {}, now_ms))
        for number in range(LIMITS.max_topics_per_account - 20):
            name = f"topic-{number:05}"
            self._done(broker.create_topic(ACCOUNT, name, {}, now_ms))
            self._done(broker.subscribe(ACCOUNT, name, "all", {"endpoint": "wanted"}, now_ms))
        self._make_wide_topic()
        for number in range(LIMITS.max_schedules_per_account - 10):
            attributes = {"queue": "queue-00000", "cron": "0 0 1 1 *"}
            self._done(broker.create_schedule(ACCOUNT, f"schedule-{number:04}", attributes, b"x", None, now_ms))
        pin = self.rig.server.part(Pins).begin()
        assert pin is not None
        pin.numbers = range(1, SEGMENTS + 1)
        self.pin = pin
        """A copy of many segments."""
        await self.rig.turn(20)

    @property
    def _now_ms(self) -> int:
        return self.rig.broker_clock.now_ms()

    def _done(self, outcome: Outcome[Any]) -> Any:
        """Append the records of an outcome, and return its reply."""
        if outcome.records:
            self.rig.log.append(outcome.records, outcome.bodies, self._now_ms)
        return outcome.reply

    def _send(self, queue: str, delay_ms: int | None = None) -> None:
        bodies = [b"x"] * BATCH
        self._done(alone.send(self.rig.broker, ACCOUNT, queue, bodies, None, delay_ms, 0, 0, self._now_ms))

    def _send_and_receive(self, queue: str) -> list[int]:
        self._send(queue)
        request = alone.Receive(BATCH, 0, 3_600_000)
        (messages,) = self._done(self.rig.broker.receive_all(ACCOUNT, queue, [request], [0], self._now_ms))
        assert len(messages) == BATCH
        return [message.receipt_handle for message in messages]

    def _make_full_queue(self, name: str) -> None:
        broker, batches = self.rig.broker, range(self.messages // BATCH)
        attributes = {"rewind_ms": DAY_MS, "retention_ms": DAY_MS, "max_delayed": 1_000_000}
        self._done(broker.create_queue(ACCOUNT, name, attributes, self._now_ms))
        for _ in batches:
            self._done(broker.delete_all(ACCOUNT, name, [self._send_and_receive(name)], self._now_ms))
        self.handles[name] = [handle for _ in batches for handle in self._send_and_receive(name)]
        for _ in batches:
            self._send(name)
            self._send(name, delay_ms=1_800_000)

    def _make_half_queue(self) -> None:
        broker = self.rig.broker
        self._done(broker.create_queue(ACCOUNT, "half", {"transactional": True}, self._now_ms))
        for _ in range(self.messages // BATCH):
            half = alone.Half([b"x"] * BATCH)
            self.half_ids += self._done(broker.send_half(ACCOUNT, "half", half, self._now_ms))

    def _make_dead_letter_queue(self) -> None:
        broker = self.rig.broker
        self._done(broker.create_queue(ACCOUNT, "dead", {}, self._now_ms))
        for number in range(LIMITS.max_dead_letter_sources):
            attributes = {"dead_letter_queue": "dead", "dead_letter_max_receives": 1000}
            self._done(broker.create_queue(ACCOUNT, f"source-{number}", attributes, self._now_ms))
        self._done(broker.create_queue(ACCOUNT, "dead-2", {}, self._now_ms))
        self.handles["source-0"] = self._send_and_receive("source-0")
        for _ in range(self.messages // BATCH):
            self._send("dead")

    def _make_wide_topic(self) -> None:
        """Make a topic with subscriptions to queues and to URLs, which do not answer."""
        broker, now_ms = self.rig.broker, self._now_ms
        self._done(broker.create_topic(ACCOUNT, "wide", {}, now_ms))
        self._done(broker.create_topic(ACCOUNT, "unused", {}, now_ms))
        for number in range(LIMITS.max_subscriptions - 2):
            attributes: dict[str, Any] = {
                "endpoint": URL if number < WAITING_SUBSCRIPTIONS else f"queue-{number:05}",
                "filter_tags": ["all", *(f"tag-{number + step}" for step in range(4))],
                "paused": number < WAITING_SUBSCRIPTIONS,
            }
            self._done(broker.subscribe(ACCOUNT, "wide", f"subscription-{number:03}", attributes, now_ms))
        for _ in range(self.messages // BATCH):
            request = PublishRequest([b"x"] * BATCH, None, [["tag-0"]], 0, 0, None)
            (published,) = self._done(broker.publish(ACCOUNT, "wide", [request], now_ms))
            self.published_ids += published.message_ids
