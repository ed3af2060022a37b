"""The rules of queues: the operations of their owner."""

from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule
from model.judge import ACCOUNTS, DEFAULTS, Judge, which

from cmqd.core.domain_errors import (
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueDeleted,
    QueueExists,
    RedriveRunning,
    TooManyQueues,
)
from cmqd_segment.records import QueueAttributesSet
from cmqd_types.attributes import QueueAttributes
from support.core.naive_broker import (
    NaiveQueue,
)


class QueueRules(Judge):
    @rule(
        what=st.sampled_from(["create", "set", "set", "backlog", "clear", "delete"]),
        number=which,
        attributes=st.fixed_dictionaries(
            {},
            optional={
                "retention_ms": st.sampled_from([60_000, 120_000, 345_600_000]),
                "max_delayed": st.integers(1, 4),
                "delay_ms": st.sampled_from([0, 0, 1000]),
                "polling_wait_ms": st.sampled_from([0, 200, 5000]),
                "visibility_timeout_ms": st.sampled_from([1000, 30_000]),
            },
        ),
        max_backlog=st.sampled_from([3, 10, 100_000_000]),
    )
    def administer(self, what: str, number: int, attributes: dict[str, int], max_backlog: int) -> None:
        # A single rule for all changes, because sends and receives are to be more frequent than changes of queues.
        if what == "create":
            self.create(number, attributes)
        elif self.queues:
            queue = self.pick(number)
            if what == "set":
                self.set_attributes(queue, attributes)
            elif what == "backlog":
                self.set_backlog(queue, max_backlog)
            elif what == "clear":
                self.clear(queue)
            else:
                self.delete_queue(queue)

    def create(self, number: int, attributes: dict[str, Any]) -> None:
        whose, called = ACCOUNTS[number % 2], self.names[number // 2 % len(self.names)]
        mine = [queue for queue in self.queues if queue.account == whose]
        refused = self.is_refused({**self.defaults, **attributes}, whose, called, None)
        try:
            outcome = self.broker.create_queue(whose, called, attributes, self.now_ms)
        except QueueExists:
            assert any(queue.name.lower() == called.lower() for queue in mine)
            return
        except TooManyQueues:
            assert len(mine) == self.max_queues
            return
        except InvalidArgument:
            assert refused
            return
        assert not refused
        info = outcome.reply
        assert not any(queue.queue_id == info.queue_id for queue in self.queues + self.gone_queues)
        self.queues.append(NaiveQueue(info.queue_id, whose, called, info.attributes, self.limits))
        self.queues[-1].use(self.now_ms)
        self.rebind()
        self.done(outcome)

    defaults: ClassVar[dict[str, Any]] = msgspec.structs.asdict(DEFAULTS)

    def is_refused(self, attributes: dict[str, Any], account: str, name: str, queue: NaiveQueue | None) -> bool:
        """True if a queue (None = a new queue) cannot have these attributes."""
        retention_ms, rewind_ms = attributes["retention_ms"], attributes["rewind_ms"]
        receives, after_ms = attributes["dead_letter_max_receives"], attributes["dead_letter_after_ms"]
        wanted = attributes["dead_letter_queue"]
        if rewind_ms > retention_ms or after_ms >= retention_ms or 0 < after_ms < 300_000:
            return True
        if attributes["auto_delete_after_ms"] and (
            wanted or attributes["transactional"] or (queue is not None and self.sources(queue))
        ):
            return True
        if not wanted:
            return bool(receives or after_ms)
        target = self.named(account, wanted)
        if bool(receives) == bool(after_ms) or wanted == name or target is None:
            return True
        if target.attributes["transactional"] or target.attributes["dead_letter_queue"]:
            return True
        if target.attributes["auto_delete_after_ms"]:
            return True
        if queue is not None and (self.sources(queue) or self.is_redriven(queue)):
            return True
        others = [source for source in self.sources(target) if source is not queue]
        return len(others) >= self.limits.max_dead_letter_sources

    def named(self, account: str, name: str) -> NaiveQueue | None:
        return next((queue for queue in self.queues if (queue.account, queue.name) == (account, name)), None)

    def rebind(self) -> None:
        """Queues became dead-letter queues, or ceased to be: their messages of that time are to be consumed first."""
        for queue in self.queues:
            if not self.sources(queue):
                queue.dead_letter_floor = -2 if queue.dead_letter_floor >= 0 else queue.dead_letter_floor
            elif queue.dead_letter_floor < 0:
                queue.dead_letter_floor = queue.next_position

    def delete_queue(self, queue: NaiveQueue) -> None:
        try:
            outcome = self.broker.delete_queue(queue.account, queue.name, self.now_ms)
        except DeadLetterQueueInUse:
            assert self.sources(queue)
            return
        assert not self.sources(queue)
        ended = [waiter_id for waiter_id, peek in self.peeks.items() if peek.queue is queue]
        ended += [waiter_id for waiter_id, asked in self.rewinds.items() if asked.queue is queue]
        assert sorted(one.waiter_id for one in outcome.woken) == sorted(
            [receive.waiter_id for receive in queue.line] + ended
        )
        assert all(isinstance(one.reply, QueueDeleted) for one in outcome.woken)
        self.forget_queue(queue)
        self.done(outcome)

    def sources(self, queue: NaiveQueue) -> list[NaiveQueue]:
        """The queues with dead letters for this queue."""
        return [
            source
            for source in self.queues
            if source.account == queue.account and source.attributes["dead_letter_queue"] == queue.name
        ]

    def set_attributes(self, queue: NaiveQueue, changes: dict[str, Any]) -> None:
        wanted = {**queue.attributes, **changes}
        if changes.get("dead_letter_queue") == "" != queue.attributes["dead_letter_queue"]:
            # The policy ends with the binding.
            wanted = {**wanted, "dead_letter_max_receives": 0, "dead_letter_after_ms": 0, **changes}
        refused = self.is_refused(wanted, queue.account, queue.name, queue)
        refused |= wanted["transactional"] != queue.attributes["transactional"]
        try:
            outcome = self.broker.set_queue_attributes(queue.account, queue.name, changes, self.now_ms)
        except (InvalidArgument, RedriveRunning):
            assert refused
            return
        assert not refused
        queue.set_attributes(wanted, self.now_ms)
        queue.use(self.now_ms)
        self.rebind()
        assert self.done(outcome).attributes == queue.attributes

    def set_backlog(self, queue: NaiveQueue, max_backlog: int) -> None:
        """Below the smallest value of an owner, so that a short run reaches the limit."""
        queue.attributes = {**queue.attributes, "max_backlog": max_backlog}
        record = QueueAttributesSet(queue.queue_id, QueueAttributes(**queue.attributes), self.now_ms)
        self.log.append([record])
        self.broker.replay(record, self.log.last_lsn)
        self.note_row()

    def clear(self, queue: NaiveQueue) -> None:
        outcome = self.broker.clear_queue(queue.account, queue.name, self.now_ms)
        queue.pass_floor(queue.next_position, None)
        self.done(outcome)
