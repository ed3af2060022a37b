"""Serving: taking messages for receives, and reading bodies ahead of receives from the log.

Leases are made only when the bodies are in memory. With a lease made before the read, a receive that is cancelled or
loses its connection during the read would hide messages until the visibility timeout ends, and count as a receive.

No receive overtakes another: the line is served in order, from the head of the queue. Serving a later receive first,
because memory has enough for its smaller batch, would starve receives that ask for large batches.

The order of a step (:meth:`Serving.take`):

1. Expired messages in front of the head are removed. An expired message must not be delivered, not even once, and the
   floor that passes it must be in the log before the receive.
2. The number of messages is fixed: by the request, the limit of messages in flight, the bodies in memory and the size
   of a reply. Every later step changes facts, so no step after this one may find a reason to stop. Receives are served
   together as long as memory has enough messages for all: no receive gets less than it would get alone.
3. Lease numbers are taken, then the record is made and applied. A number is reserved in the log before its first use.
   Otherwise a crash could give the number to another message, and an old receipt handle would delete that message.
4. Bodies leave the window last, because the reply is made of them.
"""

from collections.abc import Mapping, Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import reply_bytes
from cmqd.core.operations.receiving.lease_sweep import LeaseSweep
from cmqd.core.operations.retention.floors import Floors
from cmqd.core.outcome import Effects, Outcome, PageRead, T, Woken
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_fold.leases import InFlight
from cmqd_fold.receipts import ReceiptHandles
from cmqd_segment.records import (
    AnyRecord,
    MessagesExpired,
    MessagesReceived,
    Runs,
    StoredMessage,
    last_of,
    pack_runs,
    unpack_runs,
)
from cmqd_types.actors import Actor
from cmqd_types.messages import ReceivedMessage

MAX_TAKEN = 256
"""Largest number of messages that a step gives to several waiting receives."""


class Serving:
    """Gives active messages to receives."""

    def __init__(
        self, facts: Facts, runtime: Runtime, handles: ReceiptHandles, floors: Floors, lease_sweep: LeaseSweep
    ) -> None:
        self._limits = facts.limits
        self._max_in_flight = facts.limits.max_in_flight
        self._max_batch_bytes = facts.limits.max_batch_bytes
        self._numbers = facts.numbers
        self._actors = facts.actors
        self._queues = facts.queues
        self._lease_buckets = facts.queues.leases
        self._runtime = runtime.queues
        self._budget = runtime.budget
        self._waiters = runtime.waiters
        self._consumers = runtime.consumers
        self._lane = runtime.pages.receives
        self._handles = handles
        self._floors = floors
        self._lease_sweep = lease_sweep

    def take(
        self,
        queue: Queue,
        wanted: Sequence[int],
        visibility_timeout_ms: int,
        records: list[AnyRecord],
        now_ms: int,
        actors: Sequence[Actor],
    ) -> list[ReceivedMessage] | None:
        """Receive the messages at the head of the queue that are in memory, for receives of clients that ask for these
        numbers of messages, at least one receive. The caller deals the messages out from the first receive on.

        Returns None if no message can be received, or if the first body must be read first.
        """
        index = queue.index
        if not index.active_count:
            return None
        window = self._runtime[queue.queue_id].window
        in_window = window.messages
        first = index.first_active()
        head = in_window.get(first)
        if head is not None and head.enqueue_ms + index.attributes.retention_ms <= now_ms:
            first = self._pass_expired(queue, records, now_ms)
            head = in_window.get(first)
        if head is None:
            return None
        count = min(sum(wanted), index.active_count)
        # Most queues are far from the limit, also if all messages that are not active are in flight.
        if count + index.live_count - index.active_count > self._max_in_flight:
            # A delete of any message in flight makes room again, and serves the receives that are held up here.
            count = min(count, self._max_in_flight - index.in_flight_count)
        if count <= 0:
            return None
        # A queue that is consumed in order has a single run of active messages: a range, without a list.
        is_run = count == 1 or index.active.contains_range(first, first + count)
        positions = range(first, first + count) if is_run else index.active_from(first, count)
        if len(in_window) < index.active_count or window.size > self._max_batch_bytes:
            # Some active messages are not in memory, or a reply may not hold all messages: examine message by message.
            takeable = self._takeable(in_window, positions)
            if takeable < count:
                # The first receive gets as many messages as there are, as it would alone.
                count = _whole(wanted, takeable) or takeable
                positions = positions[:count]
        numbers = self._numbers
        first_lease = numbers.next_lease
        if first_lease + count > numbers.lease_until:
            numbers.ensure(records, leases=count)
        numbers.next_lease = first_lease + count
        runs = [first, count] if isinstance(positions, range) else pack_runs(positions)
        named = self._actors.joined(actors, wanted, count, records)
        record = MessagesReceived(index.queue_id, runs, first_lease, now_ms, now_ms + visibility_timeout_ms, named)
        leases = index.apply_received(record)
        # Only a bound, but a good one: the next receive searches for its first message from here, not from the start of
        # the set, which would cost more the more messages are in flight.
        index.head = positions[-1] + 1
        records.append(record)
        if self._lease_buckets.size > self._lease_sweep.sweep_above:
            # Paid for by receives, because receives add the entries. A sweep by time alone could fall behind them.
            self._lease_sweep.sweep(now_ms)
        return self._hand_out(queue, positions, record, leases, actors, wanted)

    def _hand_out(
        self,
        queue: Queue,
        positions: Sequence[int],
        record: MessagesReceived,
        leases: list[InFlight],
        actors: Sequence[Actor],
        wanted: Sequence[int],
    ) -> list[ReceivedMessage]:
        """Take the bodies of a record out of memory, as messages for consumers, and note the consumers.

        Bodies that were handed out are not kept. After a lost lease they are read from the log again, which is rare;
        kept, they would take the memory from messages that were never received.
        """
        runtime = self._runtime[queue.queue_id]
        messages = self._budget.take(queue.queue_id, runtime.window, positions)
        retention_ms, deadline_ms = queue.index.attributes.retention_ms, record.deadline_ms
        received: list[ReceivedMessage] = []
        size = 0
        for message, lease, handle in zip(
            messages, leases, self._handles.handles(record.first_lease, len(messages)), strict=True
        ):
            size += len(message.body)
            # Only the time in the reply is cut and not the lease: an expired message is gone anyway, and different
            # deadlines would need a record each.
            expires_ms = message.enqueue_ms + retention_ms
            received.append(
                ReceivedMessage(
                    message_id=message.message_id,
                    receipt_handle=handle,
                    body=message.body,
                    enqueue_ms=message.enqueue_ms,
                    first_receive_ms=lease.first_receive_ms,
                    next_visible_ms=deadline_ms if deadline_ms < expires_ms else expires_ms,
                    receive_count=lease.receive_count,
                    headers=message.headers,
                    origin=message.origin,
                    copy_of=message.copy_of,
                )
            )
        runtime.received_bytes += size
        try:
            (actor,) = actors
            consumer = runtime.consumers[actor]
        except (ValueError, KeyError):
            self._note_consumers(queue, actors, wanted, len(received), record.received_ms)
        else:
            # The usual receive, in line: a known client alone.
            consumer.last_receive_ms = record.received_ms
            consumer.received += len(received)
        return received

    def _note_consumers(
        self, queue: Queue, actors: Sequence[Actor], wanted: Sequence[int], left: int, now_ms: int
    ) -> None:
        """Note the clients that get messages, in the order in which the messages are dealt out."""
        of_queue = self._runtime[queue.queue_id].consumers
        for actor, share in zip(actors, wanted, strict=False):
            consumer = self._consumers.find(queue.account, of_queue, actor, now_ms)
            consumer.last_receive_ms = now_ms
            # A client at the end of the line may get fewer than it asked for.
            consumer.received += min(share, left)
            left -= share
            if left <= 0:
                return

    def _pass_expired(self, queue: Queue, records: list[AnyRecord], now_ms: int) -> int:
        """Expire the messages at the head; return the first active position behind them, -1 if there is none."""
        index = queue.index
        in_window = self._runtime[queue.queue_id].window.messages
        retention_ms = index.attributes.retention_ms
        first = index.first_active()
        # Every turn of the loop passes at least one expired message.
        while True:
            self._expire_head(queue, records, now_ms)
            # A first message that is still active means: a message in front of the expired head is moving to the
            # dead-letter queue and holds the floor. The row of this move comes soon, and serves the line.
            if not index.active_count or first in index.active:
                return -1
            first = index.first_active()
            head = in_window.get(first)
            if head is None or head.enqueue_ms + retention_ms > now_ms:
                return first

    def _takeable(self, in_window: Mapping[int, StoredMessage], positions: Sequence[int]) -> int:
        """Return how many of ``positions``, from the first on, are in memory and fit a reply. The first always fits."""
        size = taken = 0
        for message in map(in_window.get, positions):
            if message is None:
                break
            # Nearly all messages are plain, and a call for each would cost as much as the rest of the method.
            if message.headers or message.origin is not None or message.copy_of is not None:
                size += reply_bytes(message)
            else:
                size += len(message.body)
            # The first message may exceed the size of a reply alone: refused here, it would block the head of the queue
            # forever.
            if size > self._max_batch_bytes and taken:
                break
            taken += 1
        return taken

    def _expire_head(self, queue: Queue, records: list[AnyRecord], now_ms: int) -> None:
        """Move the floor over all expired messages, ahead of the tick that does so.

        A tick moves the floor once a whole time step has expired. Until then the head may be expired, and must not be
        delivered.
        """
        index = queue.index
        in_window = self._runtime[queue.queue_id].window.messages
        oldest_ms = now_ms - index.attributes.retention_ms
        floor = index.steps.floor_at(oldest_ms, index.next_position)
        for position in index.active.iter_equal_or_larger(floor):
            message = in_window.get(position)
            # Beyond whole time steps the exact time of a body in memory decides. The first message that is not in
            # memory ends the walk, and a page will tell its time.
            if message is None or message.enqueue_ms > oldest_ms:
                break
            floor = position + 1
        # Only a record may change facts. With a floor that moved in memory alone, the live broker and a replay of the
        # same rows would hold different messages.
        floor = self._floors.held(queue, floor)
        if floor <= index.floor:
            return
        record = MessagesExpired(index.queue_id, floor)
        self._floors.apply(queue, record, now_ms)
        records.append(record)

    def served(self, queue: Queue, effects: Effects, reply: T, now_ms: int) -> Outcome[T]:
        """Serve the receives in line, and return the outcome of the operation that made messages receivable."""
        self.serve(queue, effects, now_ms)
        return effects.outcome(reply)

    def serve(self, queue: Queue, effects: Effects, now_ms: int) -> None:
        """Give active messages to waiting receives, in order of their arrival."""
        runtime = self._runtime[queue.queue_id]
        line = runtime.line
        index = queue.index
        while line.waiting and index.active_count:
            # Receives with equal visibility timeouts share a record. With a record for every receive, a queue
            # with a thousand waiting consumers would write a thousand records for a batch of a thousand messages.
            waiters = line.alike(min(index.active_count, MAX_TAKEN))
            wanted = [waiter.max_messages for waiter in waiters]
            actors = [waiter.actor for waiter in waiters]
            messages = self.take(queue, wanted, waiters[0].visibility_timeout_ms, effects.records, now_ms, actors)
            if not messages:
                # Without room in flight a read is of no use: the delete that makes room serves the line again.
                if index.active_count and index.in_flight_count < self._max_in_flight:
                    self.want_page(queue, effects.reads)
                break
            # The messages are dealt out in the order of the line. The last receive of the group may get fewer messages
            # than requested, like a receive that is alone in line. A receive without messages keeps its position.
            start = 0
            for waiter in waiters:
                line.remove(waiter.waiter_id)
                del self._waiters[waiter.waiter_id]
                stop = start + waiter.max_messages
                effects.woken.append(Woken(waiter.waiter_id, messages[start:stop]))
                start = stop
                if start >= len(messages):
                    break
        if line.overdue:
            lane, queue_id = self._lane, queue.queue_id
            # The receives outlived their deadline for a page. No page is under way any more, so they get their answer.
            if not (index.active_count and (queue_id in lane.busy or queue_id in lane.line)):
                self.answer_overdue(queue, effects)
                # The receives were in line until now, and kept the queue in use.
                runtime.used_ms = now_ms
        # After the line is served: serving the line has moved the head, and a page read for the former head would hold
        # messages that were handed out.
        if runtime.window.cold and index.active_count:
            self.read_ahead(queue, effects.reads)

    def answer_overdue(self, queue: Queue, effects: Effects) -> None:
        """Answer expired receives with an empty list."""
        for waiter in self._runtime[queue.queue_id].line.take_overdue():
            del self._waiters[waiter.waiter_id]
            effects.woken.append(Woken(waiter.waiter_id, []))

    def want_page(self, queue: Queue, reads: list[PageRead]) -> None:
        """Read the body of the head, which is not in memory, and the bodies behind the head."""
        if queue.queue_id in self._lane.busy:
            # One page of a queue at a time. Its answer comes back here, and asks for the next page if one is needed.
            return
        index = queue.index
        in_window = self._runtime[queue.queue_id].window.messages
        positions = index.active_from(index.first_active(), self._limits.page_messages)
        complete = len(positions) < self._limits.page_messages
        if in_window:
            positions = [position for position in positions if position not in in_window]
        # All are in memory behind an expired head that waits for the floor.
        if not positions:
            return
        self._start_read(queue, positions, complete, reads)

    def read_ahead(self, queue: Queue, reads: list[PageRead]) -> None:
        """Keep a cold queue's window filled ahead of its receivers."""
        window = self._runtime[queue.queue_id].window
        page = self._limits.page_messages
        # From half a page down: early enough that consumers seldom wait for the storage, late enough that a page is
        # worth its round trip.
        if queue.queue_id in self._lane.busy or len(window.messages) > page // 2:
            return
        if not self._budget.has_room(queue.queue_id, self._limits.page_bytes):
            return
        positions = queue.index.active_from(max(window.paged_until, queue.index.head), page)
        if not positions:
            window.cold = False
            return
        self._start_read(queue, positions, len(positions) < page, reads)

    def _start_read(self, queue: Queue, positions: list[int], complete: bool, reads: list[PageRead]) -> None:
        lane, queue_id = self._lane, queue.queue_id
        if not lane.has_room:
            # The line is in order of arrival, so a queue with many receives does not take every page that comes free.
            lane.line[queue_id] = None
            return
        window = self._runtime[queue_id].window
        # Reads ahead go on from here. If the log answers with a prefix, ``_page_arrived`` sets the position back.
        window.paged_until = max(window.paged_until, positions[-1] + 1)
        if complete:
            # All active messages are in memory or in this read, so new messages continue the window without a gap.
            window.cold = False
        lane.want(queue_id, queue_id, positions, self._limits.page_bytes, None, reads)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Take a page into memory and serve the receives that wait for it."""
        lane = self._lane
        queue = self._queues.by_id.get(reading.owner_id)
        damaged = 0
        if queue is not None:
            damaged = self._page_arrived(queue, reading.read, messages, missing)
            # The page is served before other queues need room for their bodies, which may drop the page unserved and
            # lead to the same read again. The lane still counts the queue as busy, so this call starts no read:
            self.serve(queue, effects, now_ms)
        # queues in line come before the next page of this queue, or a long queue would starve the others.
        while (waiting_id := lane.next_in_line()) is not None:
            waiting = self._queues.by_id.get(waiting_id)
            if waiting is not None:
                self.serve(waiting, effects, now_ms)
        lane.busy.discard(reading.owner_id)
        if queue is not None:
            self.serve(queue, effects, now_ms)
        return damaged

    def _page_arrived(self, queue: Queue, read: PageRead, messages: Sequence[StoredMessage], missing: Runs) -> int:
        """Take a page into memory. The queue stays busy in the lane until the caller ends that."""
        index, window, budget = queue.index, self._runtime[queue.queue_id].window, self._budget
        active, in_window = index.active, window.messages
        # Messages that were received, cleared or expired during the read are dropped.
        fresh = [message for message in messages if message.position in active and message.position not in in_window]
        budget.keep_page(queue.queue_id, window, fresh)
        # The log may answer with a prefix, if the page reached its limit of bytes. The window continues behind the
        # prefix: with a gap in memory the bodies of the gap would never be read ahead.
        last_wanted = last_of(read.positions)
        last_settled = max(messages[-1].position if messages else -1, last_of(missing))
        if last_settled < last_wanted and last_settled >= 0:
            window.cold = True
            window.paged_until = min(window.paged_until, last_settled + 1)
        if not missing:
            return 0
        # A message in memory can be delivered even if its row is damaged.
        return index.set_damaged(
            pack_runs(position for position in unpack_runs(missing) if position not in window.messages)
        )


def _whole(wanted: Sequence[int], count: int) -> int:
    """Return the number of messages of the receives, from the first on, that ``count`` messages serve in full."""
    whole = 0
    for max_messages in wanted:
        if whole + max_messages > count:
            break
        whole += max_messages
    return whole
