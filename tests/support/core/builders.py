"""A broker of the core with the clock, the log and the page-ins that the edge and the storage would give it."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError, InvalidArgument
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd.core.limits import Limits
from cmqd.core.outcome import (
    Check,
    DeadLettersDone,
    Outcome,
    PageRead,
    Published,
    PublishedRead,
    PublishRequest,
    Push,
    PushResult,
    TransactionsDone,
    Waiting,
)
from cmqd.core.runtime.queue import QueueRuntime
from cmqd_segment.checkpoint import AnyPart, CheckpointHeader
from cmqd_segment.published import published_message
from cmqd_segment.records import (
    AnyRecord,
    MessagesPublished,
    MessagesSent,
    PublishedMessage,
    QueueAttributesSet,
    Runs,
    StoredMessage,
    pack_runs,
    unpack_runs,
)
from cmqd_segment.rows import extra_bytes, sent_runs, stored_messages
from cmqd_types.messages import Headers, Labels, ReceivedMessage
from cmqd_types.queues import RedriveStatus, RewindPreview, Rewound
from support.core import alone
from support.core.invariants import check_broker

Result = TypeVar("Result")

T = TypeVar("T")

KEY = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x2545F4914F6CDD1D)
ACCOUNT = "admin"
START_MS = 1_700_000_000_000


def every(cron: str, zone: str, after_ms: int) -> int | None:
    """A calendar of the core without a calendar: ``cron`` is a number, and its multiples in ms are the times; 0 has no
    time. Zone ``Atlantis`` is unknown.
    """
    if not cron.isdigit() or zone == "Atlantis":
        raise InvalidArgument("no such time", field="cron", value=cron, limit="a number")
    return (after_ms // int(cron) + 1) * int(cron) if int(cron) else None


def counts(**some: int) -> dict[str, int]:
    """The counts of a queue: 0 by default."""
    states = ("active", "in_flight", "delayed", "half", "rewindable", "damaged", "waiting_receives")
    assert set(some) <= set(states)
    return {state: some.get(state, 0) for state in states}


class NaiveLog:
    """Rows of records in a list, every body ever sent in a dict; rows are never reclaimed."""

    def __init__(self) -> None:
        self.rows: list[list[AnyRecord]] = []
        self.stored: dict[tuple[int, int], StoredMessage] = {}
        """By queue id and position."""
        self.damaged: set[tuple[int, int]] = set()
        """Positions with unreadable bodies."""

    @property
    def last_lsn(self) -> int:
        return len(self.rows)

    def append(self, records: Sequence[AnyRecord], bodies: Sequence[bytes] = ()) -> None:
        """A row."""
        if not records:
            return
        self.rows.append(list(records))
        rest = iter(bodies)
        for record in records:
            if isinstance(record, MessagesSent):
                self._store(record, [next(rest) for _ in record.sizes])
            elif isinstance(record, MessagesPublished):
                self._store_published(record, [next(rest) for _ in record.sizes])
        assert next(rest, None) is None, "a body without a record"

    def _store_published(self, record: MessagesPublished, bodies: list[bytes]) -> None:
        assert [len(body) for body in bodies] == record.sizes
        for queue_id, run in sent_runs([record]):
            for message in stored_messages(run, b"".join(bodies)):
                assert (queue_id, message.position) not in self.stored, "a position was used twice"
                self.stored[queue_id, message.position] = message

    def _store(self, record: MessagesSent, bodies: list[bytes]) -> None:
        for offset, body in enumerate(bodies):
            assert len(body) == record.sizes[offset]
            visible = record.visible_ms
            due_ms = visible[offset] if isinstance(visible, list) else visible or 0
            position = record.first_position + offset
            assert (record.queue_id, position) not in self.stored, "a position was used twice"
            self.stored[record.queue_id, position] = StoredMessage(
                position,
                record.first_message_id + offset,
                record.enqueue_ms,
                body,
                record.headers[offset] if record.headers else None,
                due_ms if due_ms > record.enqueue_ms else 0,
                record.origins[offset] if record.origins else None,
                copy_of=record.copies_of[offset] if record.copies_of else None,
            )

    def only(self, rows: Sequence[Sequence[AnyRecord]]) -> "NaiveLog":
        """Return a log with these rows of this log, and the bodies in these rows."""
        log = NaiveLog()
        log.rows = [list(row) for row in rows]
        for row in rows:
            for queue_id, run in sent_runs(row):
                for position in range(run.first_position, run.first_position + len(run.sizes)):
                    log.stored[queue_id, position] = self.stored[queue_id, position]
        log.damaged = set(self.damaged)
        return log

    def records(self) -> list[tuple[int, AnyRecord]]:
        """(LSN of its row, record), in order."""
        return [(lsn, record) for lsn, row in enumerate(self.rows, 1) for record in row]

    def published(self, read: PublishedRead) -> PublishedMessage | None:
        """The answer to a read of a published message."""
        for _, record in self.records():
            if isinstance(record, MessagesPublished) and record.topic_id == read.topic_id:
                for position in range(record.first_position, record.first_position + len(record.sizes)):
                    is_readable = (read.topic_id, position) not in self.damaged
                    if read.start <= position < read.stop and is_readable:
                        return published_message(record, position)
        return None

    def page(self, read: PageRead, at_most: int | None = None) -> tuple[list[StoredMessage], Runs]:
        """The answer to a read: a prefix that fits (at least a position), and its missing positions."""
        found: list[StoredMessage] = []
        missing: list[int] = []
        size = 0
        for settled, position in enumerate(unpack_runs(read.positions)):
            key = (read.queue_id, position)
            message = self.stored[key]
            size += len(message.body) + extra_bytes(message.headers, message.origin, message.labels, message.copy_of)
            if settled and (size > read.max_bytes or settled == at_most):
                break
            if key in self.damaged:
                missing.append(position)
            else:
                found.append(message)
        return found, pack_runs(missing)


class Rig:
    """A broker driven by hand, with a single account."""

    def __init__(self, limits: Limits | None = None, broker: Broker | None = None, log: NaiveLog | None = None) -> None:
        self.limits = limits or Limits()
        self.broker = broker or Broker(KEY, self.limits, calendar=every)
        self.log = log or NaiveLog()
        self.now_ms = START_MS
        self.reads: list[PageRead] = []
        """Asked and not yet answered."""
        self.woken: list[tuple[int, Any]] = []
        """(waiter, reply), oldest first."""
        self.checks: list[Check] = []
        """Sent to producers, oldest first."""
        self.pushes: list[Push] = []
        """Being posted, oldest first."""
        self.published_reads: list[PublishedRead] = []
        self.published_reads_asked = 0
        self._waiter_id = 0

    def done(self, outcome: Outcome[T]) -> T:
        """Take an outcome over; its reply."""
        self.log.append(outcome.records, outcome.bodies)
        self.woken.extend((one.waiter_id, one.reply) for one in outcome.woken)
        self.reads.extend(outcome.reads)
        self.checks.extend(outcome.checks)
        self.pushes.extend(outcome.pushes)
        self.published_reads.extend(outcome.published_reads)
        self.published_reads_asked += len(outcome.published_reads)
        return outcome.reply

    # ------------------------------------------------------------------ operations

    def queue(self, name: str = "q") -> Queue:
        return self.broker.facts.queues.find(ACCOUNT, name)

    def runtime(self, name: str = "q") -> QueueRuntime:
        return self.broker.runtime.queues[self.queue(name).queue_id]

    def create(self, name: str = "q", **attributes: int | str | bool) -> Queue:
        self.done(self.broker.create_queue(ACCOUNT, name, attributes, self.now_ms))
        return self.queue(name)

    def set(self, name: str = "q", **attributes: int | str | bool) -> None:
        self.done(self.broker.set_queue_attributes(ACCOUNT, name, attributes, self.now_ms))

    def force(self, name: str = "q", **attributes: int | str | bool) -> None:
        """Attributes outside the range that an owner may set, as a fact of the log."""
        queue = self.queue(name)
        chosen = msgspec.structs.replace(queue.index.attributes, **attributes)
        record = QueueAttributesSet(queue.queue_id, chosen, self.now_ms)
        self.log.append([record])
        self.broker.replay(record, self.log.last_lsn)

    def send(
        self,
        *bodies: bytes,
        name: str = "q",
        headers: Sequence[Headers | None] | None = None,
        delay_ms: int | list[int] | None = None,
        session: int = 0,
        sequence: int = 0,
        at_ms: int | None = None,
    ) -> list[int]:
        listed = None if headers is None else list(headers)
        now_ms = self.now_ms
        sent = alone.send(
            self.broker, ACCOUNT, name, list(bodies), listed, delay_ms, session, sequence, now_ms, at_ms=at_ms
        )
        return list(self.done(sent))

    def send_half(self, *bodies: bytes, name: str = "q", first_check_ms: int | None = None) -> list[int]:
        sent = alone.send_half(self.broker, ACCOUNT, name, list(bodies), None, first_check_ms, 0, 0, self.now_ms)
        return list(self.done(sent))

    def end(self, decision: int, *message_ids: int, name: str = "q") -> list[Exception]:
        """1 commit, 2 roll back, 3 unknown; return the refusals, page-ins included."""
        waiter_id = self._new_waiter()
        outcome = self.broker.end_transactions(ACCOUNT, name, waiter_id, list(message_ids), [decision], self.now_ms)
        done: TransactionsDone = self._settled(waiter_id, self.done(outcome))
        return [error for _, error in done.failures]

    def rewind(self, time_ms: int, name: str = "q", strict: bool = False) -> Rewound:
        """Page-ins included."""
        waiter_id = self._new_waiter()
        outcome = self.broker.rewind(ACCOUNT, name, waiter_id, time_ms, strict, self.now_ms)
        return self._settled(waiter_id, self.done(outcome))

    def preview_rewind(self, time_ms: int | None = None, name: str = "q") -> RewindPreview:
        """Page-ins included."""
        waiter_id = self._new_waiter()
        outcome = self.broker.preview_rewind(ACCOUNT, name, waiter_id, time_ms, self.now_ms)
        return self._settled(waiter_id, self.done(outcome))

    def redrive(self, name: str = "dlq", target: str | None = None, max_per_second: int | None = None) -> RedriveStatus:
        return self.done(self.broker.start_redrive(ACCOUNT, name, target, max_per_second, self.now_ms))

    # ------------------------------------------------------------------ topics

    def create_topic(self, name: str = "news", **attributes: int | str) -> Topic:
        self.done(self.broker.create_topic(ACCOUNT, name, attributes, self.now_ms))
        return self.broker.facts.topics.find(ACCOUNT, name)

    def subscribe(self, endpoint: str, topic: str = "news", name: str | None = None, **attributes: Any) -> Subscription:
        """To a queue (made if there is none) or a URL, under ``name``, or the queue's name made long enough."""
        name = name or ("web" if "://" in endpoint else endpoint if len(endpoint) > 2 else f"to-{endpoint}")
        if "://" not in endpoint:
            self.done(self.broker.ensure_queue(ACCOUNT, endpoint, {}, self.now_ms))
        self.done(self.broker.subscribe(ACCOUNT, topic, name, {"endpoint": endpoint, **attributes}, self.now_ms))
        return self.broker.facts.topics.find_subscription(ACCOUNT, topic, name)

    def publish(
        self,
        *bodies: bytes,
        topic: str = "news",
        labels: Labels | None = None,
        each: list[Labels] | None = None,
        headers: Sequence[Headers | None] | None = None,
        session: int = 0,
        sequence: int = 0,
        dedup_ids: list[str | None] | None = None,
        all_or_none: bool = False,
    ) -> Published:
        """``labels``: tags or a routing key for all bodies; ``each``: an entry per body."""
        if labels is not None:
            each = [labels]
        listed = None if headers is None else list(headers)
        request = PublishRequest(list(bodies), listed, each, session, sequence, dedup_ids, all_or_none=all_or_none)
        (reply,) = self.done(self.broker.publish(ACCOUNT, topic, [request], self.now_ms))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def end_push(self, push: Push, error: str | None = None, started_ms: int | None = None) -> None:
        """The attempt is over; started just now unless said otherwise."""
        self.pushes.remove(push)
        started_ms = self.now_ms if started_ms is None else started_ms
        result = PushResult(push.subscription_id, push.message.position, started_ms, error)
        self.done(self.broker.pushes_ended([result], self.now_ms))

    def _new_waiter(self) -> int:
        self._waiter_id += 1
        return self._waiter_id

    def _settled(self, waiter_id: int, reply: Any) -> Any:
        """Return the reply, or the answer after the read of its pages."""
        if isinstance(reply, Waiting):
            self.answer_reads(until=lambda: bool(self.replies(waiter_id)))
            (reply,) = self.replies(waiter_id)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def ask(self, call: Callable[[int], Outcome[Any]]) -> Any:
        """Call an operation with the id of a waiter; return its reply, with reads answered, or raise its refusal."""
        waiter_id = self._new_waiter()
        return self._settled(waiter_id, self.done(call(waiter_id)))

    def wait(
        self,
        name: str = "q",
        most: int = 16,
        wait_ms: int | None = 0,
        visibility_timeout_ms: int | None = None,
    ) -> tuple[int, list[ReceivedMessage] | Waiting]:
        """Receive without answers to page-ins; return (waiter, reply)."""
        self._waiter_id += 1
        got = alone.receive(
            self.broker, ACCOUNT, name, self._waiter_id, most, wait_ms, visibility_timeout_ms, self.now_ms
        )
        return self._waiter_id, self.done(got)

    def receive(
        self, name: str = "q", most: int = 16, visibility_timeout_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """Receive without a wait, page-ins included."""
        waiter_id, reply = self.wait(name, most, 0, visibility_timeout_ms)
        if isinstance(reply, Waiting):
            self.answer_reads(until=lambda: bool(self.replies(waiter_id)))
            (reply,) = self.replies(waiter_id)
        return reply

    def bodies(self, name: str = "q", most: int = 16) -> list[bytes]:
        """The bodies that a receive gets."""
        return [message.body for message in self.receive(name, most)]

    def handles(self, name: str = "q", most: int = 16, visibility_timeout_ms: int | None = None) -> list[int]:
        """The handles that a receive gets."""
        return [message.receipt_handle for message in self.receive(name, most, visibility_timeout_ms)]

    def delete(self, *handles: int, name: str = "q") -> list[int]:
        """The handles that failed."""
        done = self.done(alone.delete(self.broker, ACCOUNT, name, list(handles), self.now_ms))
        return [failure.receipt_handle for failure in done.failures]

    def release(self, *handles: int, name: str = "q", counted: bool = True) -> list[int]:
        done = self.done(self.broker.release(ACCOUNT, name, list(handles), counted, self.now_ms))
        return [failure.receipt_handle for failure in done.failures]

    def reject(self, *handles: int, name: str = "q", reasons: Sequence[str] = ("why",)) -> dict[int, DomainError]:
        """The handles that were refused, with their refusals; pages are answered."""
        waiter_id, reply = self.reject_later(*handles, name=name, reasons=reasons)
        done: DeadLettersDone = self._settled(waiter_id, reply)
        return dict(done.failures)

    def reject_later(
        self, *handles: int, name: str = "q", reasons: Sequence[str] = ("why",)
    ) -> tuple[int, DeadLettersDone | Waiting]:
        """Move without answers to page-ins; return (waiter, reply)."""
        waiter_id = self._new_waiter()
        outcome = self.broker.dead_letter(ACCOUNT, name, waiter_id, list(handles), list(reasons), self.now_ms)
        return waiter_id, self.done(outcome)

    def hide(self, *handles: int, name: str = "q", timeout_ms: int) -> int:
        """The reply's next visible time; no handle may fail."""
        done = self.done(self.broker.change_visibility(ACCOUNT, name, list(handles), timeout_ms, self.now_ms))
        assert not done.failures
        return done.next_visible_ms

    def clear(self, name: str = "q") -> None:
        self.done(self.broker.clear_queue(ACCOUNT, name, self.now_ms))

    def delete_queue(self, name: str = "q") -> None:
        self.done(self.broker.delete_queue(ACCOUNT, name, self.now_ms))

    # ------------------------------------------------------------------ the work of the server

    def counts(self, name: str = "q") -> dict[str, int]:
        return self.broker.queue_info(ACCOUNT, name).counts

    def replies(self, waiter_id: int) -> list[Any]:
        """Return the replies to a waiter: a single reply at most, if all is well."""
        return [reply for one, reply in self.woken if one == waiter_id]

    def answer(self, read: PageRead, at_most: int | None = None) -> int:
        """Read a page from the log; return the number of newly damaged messages."""
        self.reads.remove(read)
        messages, missing = self.log.page(read, at_most)
        return self.done(self.broker.pages_read(read.read_id, messages, missing, self.now_ms))

    def answer_published(self) -> None:
        """Read the oldest wanted message of a topic."""
        read = self.published_reads.pop(0)
        self.done(self.broker.published_read(read.read_id, self.log.published(read), self.now_ms))

    def answer_reads(self, until: Callable[[], bool] = lambda: False) -> None:
        """Read pages in the order of their requests, until no page is wanted."""
        for _ in range(10_000):
            if until() or not (self.reads or self.published_reads):
                return
            if self.published_reads:
                self.answer_published()
            else:
                self.answer(self.reads[0])
        raise AssertionError("page-ins without end")

    def tick(self) -> None:
        self.done(self.broker.tick(self.now_ms))

    def due(self) -> bool:
        """True if a tick has work now."""
        due_ms = self.broker.next_deadline_ms()
        return due_ms is not None and due_ms <= self.now_ms

    def advance(self, ms: int) -> int:
        """Let time pass, then tick until no work is due; return the number of ticks."""
        self.now_ms += ms
        for ticks in range(100_000):
            if not self.due():
                return ticks
            self.tick()
        raise AssertionError("the ticker spins")

    def settle(self, ms: int = 0) -> None:
        """Let time pass, then answer all reads and tick, until no work is due and no read is open."""
        self.now_ms += ms
        for _ in range(10_000):
            if self.reads:
                self.answer(self.reads[0])
            elif self.due():
                self.tick()
            else:
                return
        raise AssertionError("it never comes to rest")

    # ------------------------------------------------------------------ crash and recovery

    def crash(self, records: int | None = None, step_to_ms: int | None = None) -> "Rig":
        """Make a broker from the first records of the log (all by default); its time may step back."""
        broker = Broker(KEY, self.limits, calendar=every)
        for lsn, record in self.log.records()[:records]:
            broker.replay(record, lsn)
        return self._recovered(broker, step_to_ms=step_to_ms)

    def crash_after_row(self, rows: int) -> "Rig":
        """Make a broker from the first rows, as if later rows had not been written."""
        broker = Broker(KEY, self.limits, calendar=every)
        log = self.log.only(self.log.rows[:rows])
        for lsn, record in log.records():
            broker.replay(record, lsn)
        return self._recovered(broker, log)

    def crash_after(self, parts: Sequence[AnyPart], rows: int | None = None) -> "Rig":
        """Make a broker from a checkpoint and the rows above, up to a row (all by default)."""
        log = None if rows is None else self.log.only(self.log.rows[:rows])
        broker = Broker(KEY, self.limits, calendar=every)
        for part in parts:
            broker.load(part)
        header = parts[0]
        assert isinstance(header, CheckpointHeader)
        for lsn, record in (log or self.log).records():
            if lsn > header.lsn:
                broker.replay(record, lsn)
        return self._recovered(broker, log)

    def checkpoint(self) -> list[AnyPart]:
        """All parts of a checkpoint, without operations in between."""
        return list(self.broker.checkpoint(lambda: self.log.last_lsn, self.now_ms))

    def _recovered(self, broker: Broker, log: NaiveLog | None = None, step_to_ms: int | None = None) -> "Rig":
        if log is None:
            log = NaiveLog()
            log.rows = [list(row) for row in self.log.rows]
            log.stored = dict(self.log.stored)
            log.damaged = set(self.log.damaged)
        first: Sequence[AnyRecord] = ()
        if step_to_ms is not None:
            first = broker.set_clock_offset(0, step_to_ms, stepped=True).records
        log.append([*first, *broker.recovered()])
        rig = Rig(self.limits, broker, log)
        rig.now_ms = self.now_ms if step_to_ms is None else step_to_ms
        check_broker(broker)
        return rig


def end_of(steps: Generator[None, None, Result]) -> Result:
    """Return the result of work in steps, after all of its steps."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def reread(parts: list[AnyPart]) -> list[AnyPart]:
    """Return the parts of a checkpoint as they come back from a file."""
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=AnyPart) for part in parts]
