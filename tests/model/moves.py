"""The rules of dead letters and redrives: bindings of queues, and messages that must have been moved by now."""

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import REST_MS, has_queues, which
from model.machine import BrokerMachine

from cmqd.core.domain_errors import (
    BacklogFull,
    BodyUnreadable,
    DeadLettersNotTaken,
    DomainError,
    InvalidArgument,
    MessageTooLarge,
    NoDeadLetterQueue,
    QueueDeleted,
    ReceiptHandleInvalid,
    RedriveRunning,
)
from cmqd.core.outcome import WAITING, DeadLettersDone, Outcome
from cmqd_segment.records import (
    AnyRecord,
    DeadLettersFrom,
    MessagesDeadLettered,
    MessagesReceived,
    RedriveEnded,
    RedriveStarted,
    unpack_runs,
)
from cmqd_types.messages import GONE_MOVED
from cmqd_types.queues import RedriveStatus
from support.core.naive_broker import NaiveMessage, NaiveQueue

ROOM = 50
"""More than all sources of these tests hold: a dead letter never stays for lack of room."""


@dataclass
class NaiveRedrive:
    """The redrive in progress, or the last redrive."""

    target: str
    max_per_second: int
    stop_position: int
    started_ms: int
    wanted: set[int]
    """Positions that were active since the beginning of the redrive, as long as a queue took them."""
    starts: int = 1
    """Number of its beginnings: the first, and a beginning per restart."""
    moved: int = 0
    ended: str = ""


@dataclass
class NaiveRejections:
    """A request to move messages to the dead-letter queue that waits for its pages."""

    queue: NaiveQueue
    messages: dict[int, NaiveMessage]
    """Messages by valid handle."""
    invalid: list[int]
    repeats: dict[int, NaiveMessage]
    """Messages by handles that an earlier request moves already; these handles are invalid, too."""


class MovesMachine(BrokerMachine):
    max_queues = 4
    windows = (0, 12_000, 1 << 20, 1 << 20)
    names = ("dead", "orders", "mails", "Orders")
    first_queues: ClassVar[list[dict[str, Any]]] = [
        {"retention_ms": 3_600_000},
        {"retention_ms": 1_200_000, "dead_letter_queue": "dead", "dead_letter_max_receives": 1, "max_delayed": 3},
    ]

    def __init__(self) -> None:
        super().__init__()
        self.redrives: dict[int, NaiveRedrive] = {}
        self.rejections: dict[int, NaiveRejections] = {}
        """By waiter."""

    def pick(self, number: int) -> NaiveQueue:
        """Choose a queue; most operations should meet the first source and its dead-letter queue."""
        if number % 4 == 3:
            return self.queues[number // 4 % len(self.queues)]
        return self.queues[(1, 1, 0)[number % 4] % len(self.queues)]

    # ------------------------------------------------------------------ dead letters

    @precondition(has_queues)
    @rule(
        number=which,
        name=st.sampled_from(["dead", "dead", "orders", "mails", "Orders", "nowhere", ""]),
        receives=st.sampled_from([None, 0, 1, 2, 3]),
        after_ms=st.sampled_from([None, 0, 0, 0, 1, 300_000, 600_000, 1_200_000]),
    )
    def bind(self, number: int, name: str, receives: int | None, after_ms: int | None) -> None:
        named = {"dead_letter_max_receives": receives, "dead_letter_after_ms": after_ms}
        changes: dict[str, Any] = {field: value for field, value in named.items() if value is not None}
        self.set_attributes(self.pick(number), {"dead_letter_queue": name, **changes})

    @precondition(has_queues)
    @rule(number=which, after_ms=st.sampled_from([300_000, 600_000]))
    def by_age(self, number: int, after_ms: int) -> None:
        self.set_attributes(
            self.pick(number),
            {"dead_letter_queue": "dead", "dead_letter_max_receives": 0, "dead_letter_after_ms": after_ms},
        )

    @precondition(has_queues)
    @rule(number=which, size=st.sampled_from([1300, 1400]))
    def send_large(self, number: int, size: int) -> None:
        if size <= self.pick(number).attributes["max_message_bytes"]:
            self.send(number, [(size, 0, 0)], "none", 0, 0)

    @precondition(has_queues)
    @rule(number=which, max_message_bytes=st.sampled_from([1024, 1350, 65_536]))
    def set_size(self, number: int, max_message_bytes: int) -> None:
        self.set_attributes(self.pick(number), {"max_message_bytes": max_message_bytes})

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8), ms=st.sampled_from([1000, 1100, 1500]))
    def leases_end(self, number: int, most: int, ms: int) -> None:
        self.receive(number, most, 0, 1000)
        self.time_passes(ms, None)

    @rule(ms=st.sampled_from([1000, 299_000, 300_000, 301_000]))
    def messages_age(self, ms: int) -> None:
        self.time_passes(ms, None)

    def note_back(self, queue: NaiveQueue, message: NaiveMessage) -> None:
        most = queue.attributes["dead_letter_max_receives"]
        if most and message.receive_count >= most:
            message.is_overdue = self.is_taken(queue, message, ROOM)

    def is_taken(self, queue: NaiveQueue, message: NaiveMessage, room: int = 1) -> bool:
        """True if the dead-letter queue takes dead letters."""
        target = self.named(queue.account, queue.attributes["dead_letter_queue"])
        if target is None or (queue.queue_id, message.position) in self.log.damaged:
            return False
        return target.takes_dead_letters(room) and len(message.body) <= target.attributes["max_message_bytes"]

    # ------------------------------------------------------------------ rejected by the consumer

    @precondition(has_queues)
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=8), each=st.booleans())
    def reject(self, number: int, picks: list[int], each: bool) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        reasons = [f"reason {place}" for place in range(len(handles))] if each else ["one for all"]
        self.waiter_id += 1
        waiter_id = self.waiter_id
        outcome = self.broker.dead_letter(queue.account, queue.name, waiter_id, handles, reasons, self.now_ms)
        if outcome.reply is WAITING:
            under_way = self.broker.runtime.rejections[queue.queue_id].by_position.values()
            accepted = {one.receipt_handle for one in under_way if one.request.waiter_id == waiter_id}
            refused = [handle for handle in handles if handle not in accepted]
        else:
            assert isinstance(outcome.reply, DeadLettersDone)
            refused = [handle for handle, why in outcome.reply.failures if isinstance(why, ReceiptHandleInvalid)]
        moving = {one.handle: one for one in queue.messages.values() if one.rejected_by}
        messages, invalid = queue.settle(handles, refused, self.now_ms)
        repeats = {handle: moving[handle] for handle in invalid if handle in moving}
        queue.use(self.now_ms)
        if outcome.reply is WAITING:
            assert not messages or self.why_not(queue, None) is None
            assert messages or repeats
            for message in messages:
                message.rejected_by = waiter_id
                message.rejection = reasons[handles.index(message.handle)] if each else reasons[0]
            by_handle = {message.handle: message for message in messages}
            self.rejections[waiter_id] = NaiveRejections(queue, by_handle, invalid, repeats)
        else:
            assert not repeats
            assert [handle for handle, _ in outcome.reply.failures] == list(dict.fromkeys(handles))
            for handle, why in outcome.reply.failures:
                assert type(why) is (ReceiptHandleInvalid if handle in invalid else self.why_not(queue, None))
                if isinstance(why, ReceiptHandleInvalid):
                    self.check_gone(queue, handle, why.gone)
        assert not outcome.records
        self.done(outcome)

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 4), ms=st.sampled_from([0, 500, 1100, 1100, 61_000, 1_300_000]))
    def reject_and_wait(self, number: int, most: int, ms: int) -> None:
        """During the read of the page leases end and messages expire, moving messages excepted."""
        self.send(number, [(1, 0, 0)] * most, "none", 0, 0)
        self.receive(number, most, 0, 1000)
        if self.reads:
            self.pages_arrive(5)
        self.reject(number, [6 * place for place in range(most)], True)
        self.time_passes(ms, None)

    def why_not(self, queue: NaiveQueue, message: NaiveMessage | None) -> type[DomainError] | None:
        """Why the dead-letter queue does not take a message (or any)."""
        target = self.named(queue.account, queue.attributes["dead_letter_queue"])
        if target is None:
            return NoDeadLetterQueue
        if any(position < target.dead_letter_floor for position in target.messages):
            return DeadLettersNotTaken
        if len(target.messages) >= target.attributes["max_backlog"]:
            return BacklogFull
        if message is not None and len(message.body) > target.attributes["max_message_bytes"]:
            return MessageTooLarge
        return None

    def judge_woken(self, waiter_id: int, reply: Any) -> bool:
        request = self.rejections.pop(waiter_id, None)
        if request is None:
            return super().judge_woken(waiter_id, reply)
        assert isinstance(reply, DeadLettersDone)
        failures = dict(reply.failures)
        assert len(failures) == len(reply.failures)
        assert reply.done == len(request.messages.keys() - failures.keys())
        assert [handle for handle in failures if handle not in request.messages] == request.invalid
        for handle, message in request.repeats.items():
            why = failures[handle]
            assert message.was_rejected == (isinstance(why, ReceiptHandleInvalid) and why.gone == GONE_MOVED)
        for handle, message in request.messages.items():
            is_there = request.queue.messages.get(message.position) is message
            why = failures.get(handle)
            assert message.was_rejected == (why is None), "the answer is not what was done"
            assert not (isinstance(why, ReceiptHandleInvalid) and is_there), "refused though it is there"
            if isinstance(why, BodyUnreadable):
                assert (request.queue.queue_id, message.position) in self.log.damaged
        return True

    @precondition(lambda self: bool(self.rejections))
    @rule(pick=which)
    def cancel_rejection(self, pick: int) -> None:
        """The client of a rejection disconnected; the rejection is carried out all the same."""
        waiter_id = sorted(self.rejections)[pick % len(self.rejections)]
        del self.rejections[waiter_id]
        assert self.broker.cancel_receive(waiter_id)
        assert not self.broker.cancel_receive(waiter_id)

    def done(self, outcome: Outcome[Any], own: int | None = None) -> Any:
        # Refused messages stay in flight, and retention may pass them in the same row; the answer, which may wait for
        # further messages, reports them later.
        moved = {
            (record.queue_id, position)
            for record in outcome.records
            if isinstance(record, MessagesDeadLettered)
            for position in unpack_runs(record.positions)
        }
        for queue in self.queues:
            rejections = self.broker.runtime.rejections.get(queue.queue_id)
            moving = rejections.by_position if rejections is not None else {}
            for message in queue.messages.values():
                is_decided = message.position not in moving and (queue.queue_id, message.position) not in moved
                if message.rejected_by and is_decided:
                    message.rejected_by = 0
        reply = super().done(outcome, own)
        for woken in outcome.woken:
            if isinstance(woken.reply, QueueDeleted) and woken.waiter_id in self.rejections:
                assert self.rejections.pop(woken.waiter_id).queue not in self.queues
        return reply

    # ------------------------------------------------------------------ the way back

    def is_redriven(self, queue: NaiveQueue) -> bool:
        redrive = self.redrives.get(queue.queue_id)
        return redrive is not None and not redrive.ended

    @precondition(has_queues)
    @rule(
        number=which,
        to=st.sampled_from([None, None, "orders", "mails", "dead", "nowhere"]),
        max_per_second=st.sampled_from([None, None, 1, 5, 1000]),
    )
    def start_redrive(self, number: int, to: str | None, max_per_second: int | None) -> None:
        queue = self.queues[0] if number % 3 else self.pick(number)
        named = None if to is None else self.named(queue.account, to)
        try:
            outcome = self.broker.start_redrive(queue.account, queue.name, to, max_per_second, self.now_ms)
        except RedriveRunning:
            assert self.is_redriven(queue)
            return
        except InvalidArgument:
            never_served = queue.dead_letter_floor == -1
            assert never_served or queue.attributes["dead_letter_queue"] or (to is not None and named in (None, queue))
            return
        assert queue.dead_letter_floor != -1
        assert not self.is_redriven(queue)
        wanted = {message.position for message in queue.active()}
        self.redrives[queue.queue_id] = NaiveRedrive(
            to or "", max_per_second or 0, queue.next_position, self.now_ms, wanted
        )
        self.check_status(queue, self.done(outcome))

    @precondition(lambda self: bool(self.redrives))
    @rule(pick=which)
    def cancel_redrive(self, pick: int) -> None:
        queues = [queue for queue in self.queues if queue.queue_id in self.redrives]
        if not queues:
            return
        queue = queues[pick % len(queues)]
        redrive = self.redrives[queue.queue_id]
        redrive.ended = redrive.ended or "cancelled"
        outcome = self.broker.cancel_redrive(queue.account, queue.name, self.now_ms)
        self.check_status(queue, self.done(outcome))
        assert self.went_out == self.delivered

    def check_status(self, queue: NaiveQueue, status: RedriveStatus) -> None:
        redrive = self.redrives[queue.queue_id]
        assert (status.queue, status.target or "") == (queue.name, redrive.target)
        assert (status.max_per_second or 0, status.started_ms) == (redrive.max_per_second, redrive.started_ms)
        assert status.moved == redrive.moved
        if redrive.ended:
            assert status.reason == redrive.ended
            assert status.ended_ms is not None
        else:
            assert status.ended_ms is None
            assert status.reason in ("", *(f"target full: {name}" for name in self.names))

    def judge_more(self, record: AnyRecord) -> None:
        match record:
            case DeadLettersFrom():
                assert record.floor == max(self.by_id(record.queue_id).dead_letter_floor, -1)
            case RedriveStarted():
                redrive = self.redrives[record.queue_id]
                assert record.stop_position == redrive.stop_position
            case RedriveEnded():
                redrive = self.redrives[record.queue_id]
                redrive.ended = redrive.ended or "done"
                assert record.reason == redrive.ended
                if record.reason == "done":
                    self.filter_wanted()
                    assert not redrive.wanted, "a redrive ended before all was moved"
            case _:
                super().judge_more(record)

    def note_received(self, record: MessagesReceived) -> None:
        redrive = self.redrives.get(record.queue_id)
        if redrive is not None:
            redrive.wanted.difference_update(unpack_runs(record.positions))

    def note_moved(self, queue: NaiveQueue, message: NaiveMessage, redriven: bool) -> None:
        if not redriven:
            return
        redrive = self.redrives[queue.queue_id]
        assert not redrive.ended
        assert message.position < redrive.stop_position, "it came after the redrive began"
        redrive.moved += 1
        redrive.wanted.discard(message.position)
        if redrive.max_per_second:
            seconds = (self.now_ms - redrive.started_ms) / 1000 + 2 * redrive.starts
            assert redrive.moved <= seconds * redrive.max_per_second, "redriven faster than wanted"

    def judge_move(self, source: NaiveQueue, target: NaiveQueue, message: NaiveMessage, reason: str) -> None:
        super().judge_move(source, target, message, reason)
        if reason == "redrive":
            name = self.redrives[source.queue_id].target
            assert target.name == (name or (message.origin.queue if message.origin else "?"))

    def goes_back_to(self, queue: NaiveQueue, position: int) -> NaiveQueue | None:
        """Where a redrive sends a message; None = nowhere."""
        message = queue.messages.get(position)
        if message not in queue.active() or (queue.queue_id, position) in self.log.damaged:
            return None
        if queue.is_expired(message, self.now_ms):
            return None
        name = self.redrives[queue.queue_id].target or (message.origin.queue if message.origin else "?")
        target = self.named(queue.account, name)
        if target is None or target is queue or len(message.body) > target.attributes["max_message_bytes"]:
            return None
        return target

    def filter_wanted(self) -> None:
        """Messages that cannot be read, or cannot be moved now, may stay behind."""
        for queue in self.queues:
            redrive = self.redrives.get(queue.queue_id)
            if redrive is not None:
                redrive.wanted = {position for position in redrive.wanted if self.goes_back_to(queue, position)}

    # ------------------------------------------------------------------ always

    def restart(self, from_checkpoint: bool, lost: bool) -> None:
        super().restart(from_checkpoint, lost)
        self.rejections.clear()
        for redrive in self.redrives.values():
            redrive.starts += 1

    def always(self) -> None:
        super().always()
        self.filter_wanted()
        for queue in self.queues:
            index = self.broker.queues[queue.queue_id].index
            assert index.dead_letter_floor == queue.dead_letter_floor
            # After a start dead letters are reserved before the first tick.
            is_planned = queue.queue_id in self.broker.runtime.agenda.reviews.due_ms
            is_read = any(read.queue_id == queue.queue_id for read in self.reads)
            assert not index.moving or is_read or is_planned, "moving, for ever"
            sources = [source.name for source in self.sources(queue)]
            listed = self.broker.dead_letter_sources(queue.account, queue.name)
            assert [name for _, name in listed] == sorted(sources)
            for message in queue.active():
                message.is_overdue &= self.is_taken(queue, message, ROOM)
            if queue.queue_id in self.redrives:
                self.check_status(queue, self.broker.redrive_status(queue.account, queue.name))

    def at_rest(self) -> None:
        super().at_rest()
        assert not self.rejections, "a rejection has no answer"
        for queue in self.queues:
            if queue.attributes["dead_letter_queue"]:
                left = [
                    message.position
                    for message in queue.active()
                    if queue.is_dead(message, self.now_ms - 2 * REST_MS, surely=True)
                    and self.is_taken(queue, message)
                    and not queue.is_expired(message, self.now_ms)
                ]
                assert not left, f"dead letters {left} are still where they were"
            redrive = self.redrives.get(queue.queue_id)
            if redrive is None or redrive.ended or redrive.max_per_second:
                continue
            left = [message for message in queue.active() if message.position < redrive.stop_position]
            assert left, "a redrive with nothing left does not end"
            if redrive.wanted:
                targets = [self.goes_back_to(queue, position) for position in sorted(redrive.wanted)]
                full = [one for one in targets if one and len(one.messages) >= one.attributes["max_backlog"]]
                assert full, "a redrive does not get on"
