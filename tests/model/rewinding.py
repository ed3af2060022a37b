"""The rules of rewinding: the deleted messages that come back, exactly, also if their times are read meanwhile."""

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import has_queues, which
from model.machine import BrokerMachine

from cmqd.core.domain_errors import TimeNotRewindable
from cmqd.core.outcome import WAITING
from cmqd_segment.records import AnyRecord, QueueRewound
from cmqd_types.queues import RewindPreview, Rewound
from support.core import alone
from support.core.naive_broker import REWIND_GRAIN_MS, STEP_GRAIN_MS, NaiveQueue, State


@dataclass
class NaiveRewind:
    """A rewind during the search for its boundary."""

    queue: NaiveQueue
    time_ms: int
    latest_ms: int
    """The time of the oldest message that consumers could receive or held at the request, or the start of the window.
    """
    refused_above_ms: int
    """The same, if delays that had ended by then count: a tick may have run for these delays, or not."""


class RewindMachine(BrokerMachine):
    first_queues: ClassVar[list[dict[str, Any]]] = [{"retention_ms": 120_000, "rewind_ms": 60_000, "max_delayed": 3}]

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8), keep=st.integers(0, 2))
    def consume(self, number: int, most: int, keep: int) -> None:
        """Receive and delete like a good consumer, so that messages can come back."""
        queue = self.pick(number)
        self.receive(number, most, 0, 30_000)
        held = [message.handle for message in queue.of(State.IN_FLIGHT)]
        if held[keep:]:
            outcome = alone.delete(self.broker, queue.account, queue.name, held[keep:][:8], self.now_ms)
            queue.delete(self.settled(queue, held[keep:][:8], outcome), self.now_ms)
            self.done(outcome)

    @precondition(has_queues)
    @rule(number=which, rewind_ms=st.sampled_from([0, 1, 1000, 30_000, 60_000, 120_000, 200_000]))
    def set_window(self, number: int, rewind_ms: int) -> None:
        self.set_attributes(self.pick(number), {"rewind_ms": rewind_ms})

    @precondition(has_queues)
    @rule(
        number=which,
        pick=which,
        shift=st.sampled_from([0, 0, 0, 1, -1, 50, -50, 1000, -1000]),
        of=st.sampled_from(["deleted", "deleted", "deleted", "oldest", "window", "now", "long ago"]),
        strict=st.booleans(),
    )
    def rewind(self, number: int, pick: int, shift: int, of: str, strict: bool) -> None:
        queue = self.pick(number)
        window_ms = queue.attributes["rewind_ms"]
        times = {
            "deleted": [one.enqueue_ms for one in queue.deleted.values()],
            "oldest": [one.enqueue_ms for one in queue.messages.values()],
            "window": [self.now_ms - window_ms],
            "now": [self.now_ms],
            "long ago": [0],
        }[of] or [self.now_ms]
        time_ms = max(0, times[pick % len(times)] + shift)
        receivable = [one.enqueue_ms for one in queue.messages.values() if one.state in (State.ACTIVE, State.IN_FLIGHT)]
        latest_ms = min([*receivable, self.now_ms])
        # A tick that was made may have ended these delays; none need have.
        due = [one.enqueue_ms for one in queue.of(State.DELAYED) if one.is_due(self.now_ms)]
        refused_above_ms = min([*due, latest_ms])
        earliest_ms = self.now_ms - window_ms
        previewed = self.previewed(queue, time_ms)
        self.waiter_id += 1
        rewind = NaiveRewind(queue, time_ms, max(latest_ms, earliest_ms), max(refused_above_ms, earliest_ms))
        try:
            outcome = self.broker.rewind(queue.account, queue.name, self.waiter_id, time_ms, strict, self.now_ms)
        except TimeNotRewindable:
            too_late = time_ms > refused_above_ms
            too_early = time_ms < earliest_ms and (strict or earliest_ms > refused_above_ms)
            assert not window_ms or too_late or too_early
            return
        assert window_ms
        assert not strict or time_ms >= earliest_ms
        reply = self.done(outcome)
        if reply is WAITING:
            assert not outcome.records
            self.rewinds[self.waiter_id] = rewind
        else:
            self.check_rewound(rewind, reply)
            expected = (earliest_ms, True) if time_ms < earliest_ms else (time_ms, False)
            assert (reply.time_ms, reply.clamped) == expected
            if isinstance(previewed, RewindPreview):
                counted = previewed.messages, previewed.time_ms, previewed.clamped
                assert counted == (reply.messages, reply.time_ms, reply.clamped)
                assert previewed.earliest_ms == earliest_ms
                assert previewed.time_ms <= previewed.latest_ms

    def previewed(self, queue: NaiveQueue, time_ms: int) -> RewindPreview | None:
        """The preview of a rewind that is not strict; None if it is refused, or would read the log."""
        self.waiter_id += 1
        try:
            outcome = self.broker.preview_rewind(queue.account, queue.name, self.waiter_id, time_ms, self.now_ms)
        except TimeNotRewindable:
            return None
        assert not outcome.records
        if isinstance(outcome.reply, RewindPreview):
            return outcome.reply
        self.broker.cancel_receive(self.waiter_id)
        return None

    def judge_more(self, record: AnyRecord) -> None:
        if not isinstance(record, QueueRewound):
            super().judge_more(record)
            return
        queue = self.by_id(record.queue_id)
        assert record.rewound_ms == self.now_ms
        # By the broker's index, since messages before the window may have been forgotten by now, or not.
        live = self.broker.queues[queue.queue_id].index.live
        there = dict(queue.deleted)
        back = {position for position in there if position in live}
        assert all(record.from_position <= position < record.stop_position for position in back)
        queue.rewind(back, self.now_ms)
        self.rewound[queue.queue_id] = there, back

    def check_rewound(self, rewind: NaiveRewind, reply: Rewound) -> None:
        queue = rewind.queue
        if not self.unreadable(queue):
            assert rewind.time_ms <= rewind.latest_ms, "rewound to after a message that is not consumed"
        there, back = self.rewound.pop(queue.queue_id, (queue.deleted, set[int]()))
        asked = {position for position, one in there.items() if one.enqueue_ms >= reply.time_ms}
        window_ms = self.now_ms - queue.attributes["rewind_ms"]
        due = {
            one
            for one in asked
            if there[one].enqueue_ms >= window_ms
            and not there[one].is_forgotten
            and not queue.is_expired(there[one], self.now_ms)
        }
        assert due <= back, "not all came back"
        if not self.unreadable(queue) & there.keys():
            # Unreadable messages hide the boundary.
            assert back <= asked, "some came back that were sent before the time asked for"
        assert not any(queue.is_expired(there[one], self.now_ms - STEP_GRAIN_MS) for one in back)
        assert reply.messages == len(back)

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        rewind = self.rewinds.pop(waiter_id, None)
        if rewind is None:
            return super().judge_woken(waiter_id, reply)
        if isinstance(reply, TimeNotRewindable):
            assert not rewind.queue.attributes["rewind_ms"] or rewind.time_ms > rewind.refused_above_ms
        else:
            assert reply.time_ms >= rewind.time_ms
            assert reply.clamped == (reply.time_ms > rewind.time_ms)
            self.check_rewound(rewind, reply)
        return True

    @precondition(lambda self: bool(self.rewinds))
    @rule(pick=which)
    def cancel_rewind(self, pick: int) -> None:
        asked = sorted(self.rewinds)
        waiter_id = asked[pick % len(asked)]
        del self.rewinds[waiter_id]
        assert self.broker.cancel_receive(waiter_id)

    def at_rest(self) -> None:
        super().at_rest()
        assert not self.rewinds, "a rewind was never answered"
        for queue in self.queues:
            count = self.broker.queue_info(queue.account, queue.name).counts["rewindable"]
            at_most = queue.rewindable(self.now_ms - REWIND_GRAIN_MS, or_forgotten=True)
            assert count <= len(at_most), "what can no longer be rewound is not forgotten"
