"""Receiving: taking messages, serving those who wait, and paging bodies in from the log.

A receive is answered from memory, or it stands in the queue's line until it can be: because nothing is active, or
because the body at the head must be read first. Leases are made only when the bodies are there, so a receive that is
cancelled or whose connection died while it waited leaves nothing behind. Nobody overtakes: the line is served in order,
from the head of the queue.
"""

from array import array
from collections.abc import Mapping, Sequence

from msgspec import structs

from cmqd.core.errors import DomainError, TooManyInFlight, TooManyWaiting
from cmqd.core.limits import ORIGIN_BYTES, check_range, copy_bytes, headers_bytes
from cmqd.core.outcome import WAITING, Effects, Outcome, PageRead, ReceiveRequest, Waiting, Woken
from cmqd.core.queue import Queue
from cmqd.core.runtime.waiters import Waiter
from cmqd.core.state import LEASE_SWEEP_ABOVE, BrokerState
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
from cmqd_types.messages import ReceivedMessage

MAX_TAKEN = 256
"""Messages that go to several who wait in one step."""


class Receiving(BrokerState):
    """The receiving part of the broker."""

    def receive(
        self,
        account: str,
        name: str,
        waiter_id: int,
        max_messages: int,
        wait_ms: int | None,
        visibility_timeout_ms: int | None,
        now_ms: int,
        *,
        waiting: int = 0,
        max_waiting: int = 0,
    ) -> Outcome[list[ReceivedMessage] | Waiting]:
        """Take up to ``max_messages`` active messages: what there is, at once, or what comes first within the wait.

        ``waiter_id`` names this receive to :meth:`cancel_receive` and in ``Outcome.woken`` if the reply is WAITING
        (which it may be without any wait, while bodies are read from the log). ``waiting`` receives of the account wait
        already, and ``max_waiting`` may (0 = any number): a receive that finds messages is never refused by that.

        Raises:
            QueueNotFound, InvalidArgument, TooManyInFlight, TooManyWaiting.
        """
        queue = self.queue(account, name)
        wait_ms, visibility_timeout_ms = self._receive_times(queue, max_messages, wait_ms, visibility_timeout_ms)
        index = queue.index
        if index.in_flight_count >= self.limits.max_in_flight:
            raise TooManyInFlight(name, self.limits.max_in_flight)
        records: list[AnyRecord] = []
        reads: list[PageRead] = []
        if index.active_count and not queue.line.waiting:
            messages = self._take(queue, max_messages, visibility_timeout_ms, records, now_ms)
            if messages:
                if queue.window.cold:
                    self._read_ahead(queue, reads)
                return Outcome(messages, records, reads=reads)
        if not wait_ms and not index.active_count:
            return Outcome([], records)
        if wait_ms and max_waiting and waiting >= max_waiting and len(queue.line.waiting) >= index.active_count:
            raise TooManyWaiting(account, max_waiting)
        deadline_ms = now_ms + wait_ms
        waiter = Waiter(
            waiter_id, queue.queue_id, max_messages, visibility_timeout_ms, deadline_ms, overdue=not wait_ms
        )
        self._waiters[waiter_id] = waiter
        queue.line.add(waiter)
        if wait_ms:
            self._wait_buckets.bucket(deadline_ms, queue.queue_id).append(waiter_id)
            self._wait_buckets.size += 1
        if index.active_count:
            self._want_page(queue, reads)
        return Outcome(WAITING, records, reads=reads)

    def receive_all(
        self,
        account: str,
        name: str,
        requests: Sequence[ReceiveRequest],
        waiter_ids: Sequence[int],
        now_ms: int,
        *,
        waiting: int = 0,
        max_waiting: int = 0,
    ) -> Outcome[list[list[ReceivedMessage] | Waiting | DomainError]]:
        """The receives of several clients from one queue, in this order; each as :meth:`receive` would do it.

        Neighbours with one visibility timeout are served in one step and one record, as far as memory has what they
        ask for. One that is refused has its refusal in its place of the reply, and hinders none of the others.

        Raises:
            QueueNotFound.
        """
        queue = self.queue(account, name)
        index = queue.index
        replies: list[list[ReceivedMessage] | Waiting | DomainError] = []
        records: list[AnyRecord] = []
        reads: list[PageRead] = []
        place = alone_until = 0
        while place < len(requests):
            request = requests[place]
            if place >= alone_until and index.active_count and not queue.line.waiting:
                end = place + 1
                timeout_ms = request.visibility_timeout_ms
                while end < len(requests) and requests[end].visibility_timeout_ms == timeout_ms:
                    end += 1
                if end > place + 1:
                    served = self._receive_together(queue, requests[place:end], replies, records, now_ms)
                    place += served
                    if served:
                        continue
                    # Not looked at again for each of them.
                    alone_until = end
            try:
                outcome = self.receive(
                    account,
                    name,
                    waiter_ids[place],
                    request.max_messages,
                    request.wait_ms,
                    request.visibility_timeout_ms,
                    now_ms,
                    waiting=waiting,
                    max_waiting=max_waiting,
                )
            except DomainError as refusal:
                replies.append(refusal)
            else:
                waiting += outcome.reply is WAITING
                replies.append(outcome.reply)
                records += outcome.records
                reads += outcome.reads
            place += 1
        if queue.window.cold and index.active_count:
            self._read_ahead(queue, reads)
        return Outcome(replies, records, reads=reads)

    def _receive_together(
        self,
        queue: Queue,
        requests: Sequence[ReceiveRequest],
        replies: list[list[ReceivedMessage] | Waiting | DomainError],
        records: list[AnyRecord],
        now_ms: int,
    ) -> int:
        """Serve receives from memory with messages that are taken in one step; how many of them were answered: from the
        first on, until one that there is nothing for, or that is refused.
        """
        timeout_ms = 0
        wanted: list[int] = []
        for request in requests:
            try:
                _, timeout_ms = self._receive_times(
                    queue, request.max_messages, request.wait_ms, request.visibility_timeout_ms
                )
            except DomainError:
                break
            wanted.append(request.max_messages)
        del wanted[self._served_together(queue, wanted) :]
        if len(wanted) < 2:
            return 0
        messages = self._take(queue, sum(wanted), timeout_ms, records, now_ms)
        if not messages:
            return 0
        start = served = 0
        for most in wanted:
            replies.append(messages[start : start + most])
            served += 1
            start += most
            if start >= len(messages):
                break
        return served

    def _served_together(self, queue: Queue, wanted: list[int]) -> int:
        """How many receives of so many messages each, from the first on, one step can serve without giving any of them
        less than it would get alone: what memory has, and one reply may hold, is enough for all of them together.
        """
        index, window = queue.index, queue.window
        if len(window.messages) >= index.active_count and window.size <= self.limits.max_batch_bytes:
            return len(wanted)
        count = min(sum(wanted), index.active_count)
        if count <= 0:
            return 0
        fits = self._takeable(window.messages, index.active_from(index.first_active(), count))
        if fits == count:
            return len(wanted)
        for served, most in enumerate(wanted):
            fits -= most
            if fits < 0:
                return served
        return len(wanted)

    def _receive_times(
        self, queue: Queue, max_messages: int, wait_ms: int | None, visibility_timeout_ms: int | None
    ) -> tuple[int, int]:
        """How long a receive waits and hides what it gets. Raises InvalidArgument."""
        limits = self.limits
        attributes = queue.index.attributes
        if not 1 <= max_messages <= limits.max_batch:
            check_range("max_messages", max_messages, 1, limits.max_batch)
        if wait_ms is None:
            wait_ms = attributes.polling_wait_ms
        elif not 0 <= wait_ms <= limits.max_wait_ms:
            check_range("wait_ms", wait_ms, 0, limits.max_wait_ms)
        if visibility_timeout_ms is None:
            visibility_timeout_ms = attributes.visibility_timeout_ms
        else:
            low, high = limits.min_visibility_timeout_ms, limits.max_visibility_timeout_ms
            check_range("visibility_timeout_ms", visibility_timeout_ms, low, high)
        return wait_ms, visibility_timeout_ms

    def cancel_receive(self, waiter_id: int) -> bool:
        """Forget a waiting receive, peek or rewind, or the answer to decisions about half messages, which are carried
        out all the same; False if it was answered already (or never waited).
        """
        waiter = self._waiters.pop(waiter_id, None)
        if waiter is None:
            if self._deciding.pop(waiter_id, None) is not None:
                return True
            for read_id, rewind in self._rewind_reads.items():
                if rewind.waiter_id == waiter_id:
                    del self._rewind_reads[read_id]
                    return True
            for read_id, peek in self._peeks.items():
                if peek.waiter_id == waiter_id:
                    del self._peeks[read_id]
                    return True
            return False
        queue = self.queues.get(waiter.queue_id)
        # Else the queue is gone, and the receive would have been told so by a tick.
        if queue is not None:
            queue.line.remove(waiter_id)
        return True

    def _take(
        self, queue: Queue, most: int, visibility_timeout_ms: int, records: list[AnyRecord], now_ms: int
    ) -> list[ReceivedMessage] | None:
        """Receive from memory what the head of the queue has there; None if its first body must be read first."""
        index = queue.index
        in_window = queue.window.messages
        retention_ms = index.attributes.retention_ms
        while index.active_count:
            first = index.first_active()
            head = in_window.get(first)
            if head is None:
                return None
            if head.enqueue_ms + retention_ms > now_ms:
                break
            self._expire_head(queue, records, now_ms)
        else:
            return None
        count = min(most, index.active_count, self.limits.max_in_flight - index.in_flight_count)
        if count <= 0:
            return None
        positions: Sequence[int]
        if count == 1 or index.active.contains_range(first, first + count):
            positions = range(first, first + count)
        else:
            positions = index.active_from(first, count)
        taken = count
        if len(in_window) < index.active_count or queue.window.size > self.limits.max_batch_bytes:
            # Not all that is active is in memory, or not all of it fits a reply: look at each.
            taken = self._takeable(in_window, positions)
            positions = positions[:taken]
        numbers = self.numbers
        first_lease = numbers.next_lease
        if first_lease + taken > numbers.lease_until:
            self._reserve(records, leases=taken)
        numbers.next_lease = first_lease + taken
        deadline_ms = now_ms + visibility_timeout_ms
        runs = [positions.start, taken] if isinstance(positions, range) else pack_runs(positions)
        record = MessagesReceived(index.queue_id, runs, first_lease, now_ms, deadline_ms)
        held = index.apply_received(record)
        index.head = positions[-1] + 1
        records.append(record)
        if self._lease_buckets.size > self._lease_sweep_above:
            self._sweep_leases(now_ms)
        messages = self._budget.take(index.queue_id, queue.window, positions)
        received = [
            ReceivedMessage(
                message.message_id,
                handle,
                message.body,
                message.enqueue_ms,
                lease.first_receive_ms,
                deadline_ms,
                lease.receive_count,
                message.headers,
                message.origin,
                message.copy_of,
            )
            for message, lease, handle in zip(messages, held, self.handles.handles(first_lease, taken), strict=True)
        ]
        if head.enqueue_ms + retention_ms < deadline_ms:
            # Send times never fall within a queue, so the head expires first. The lease itself is not cut: a message
            # that has expired is gone, whatever its lease says.
            for place, message in enumerate(received):
                cut_ms = min(deadline_ms, message.enqueue_ms + retention_ms)
                received[place] = structs.replace(message, next_visible_ms=cut_ms)
        return received

    def _takeable(self, in_window: Mapping[int, StoredMessage], positions: Sequence[int]) -> int:
        """How many of ``positions``, from the first on, are in memory and fit one reply; at least the first does."""
        size = taken = 0
        for position in positions:
            message = in_window.get(position)
            if message is None:
                break
            size += len(message.body)
            if message.headers:
                size += headers_bytes(message.headers)
            if message.origin is not None:
                size += ORIGIN_BYTES
            if message.copy_of is not None:
                size += copy_bytes(message.copy_of)
            if size > self.limits.max_batch_bytes and taken:
                break
            taken += 1
        return taken

    def _expire_head(self, queue: Queue, records: list[AnyRecord], now_ms: int) -> None:
        """The head has expired, ahead of the tick that would have seen it: move the floor over all that has."""
        index = queue.index
        in_window = queue.window.messages
        oldest_ms = now_ms - index.attributes.retention_ms
        floor = index.steps.floor_at(oldest_ms, index.next_position)
        for position in index.active.iter_equal_or_larger(floor):
            message = in_window.get(position)
            if message is None or message.enqueue_ms > oldest_ms:
                break
            floor = position + 1
        record = MessagesExpired(index.queue_id, floor)
        self._apply_floor(record)
        records.append(record)

    def _serve(self, queue: Queue, effects: Effects, now_ms: int) -> None:
        """Give active messages to waiting receives, in order of their arrival."""
        line = queue.line
        index = queue.index
        while line.waiting and index.active_count:
            waiters = line.alike(min(index.active_count, MAX_TAKEN))
            wanted = [waiter.max_messages for waiter in waiters]
            if len(waiters) > 1:
                del waiters[max(1, self._served_together(queue, wanted)) :]
                del wanted[len(waiters) :]
            messages = self._take(queue, sum(wanted), waiters[0].visibility_timeout_ms, effects.records, now_ms)
            if not messages:
                if index.active_count and index.in_flight_count < self.limits.max_in_flight:
                    self._want_page(queue, effects.reads)
                break
            start = 0
            for waiter in waiters:
                line.remove(waiter.waiter_id)
                del self._waiters[waiter.waiter_id]
                stop = start + waiter.max_messages
                effects.woken.append(Woken(waiter.waiter_id, messages[start:stop]))
                start = stop
                if start >= len(messages):
                    break
        if line.overdue and not (index.active_count and (queue.reading or queue.read_wanted)):
            self._answer_overdue(queue, effects)
        if queue.window.cold and index.active_count:
            self._read_ahead(queue, effects.reads)

    def _sweep_leases(self, now_ms: int) -> None:
        """Long visibility timeouts, moved ones and quick deletes leave stale entries behind; remove some."""
        kept = self._lease_buckets.sweep(
            lambda due_ms, queue_id, pairs: pairs if due_ms <= now_ms else self._leases_due(due_ms, queue_id, pairs)
        )
        if kept is not None:
            self._lease_sweep_above = max(LEASE_SWEEP_ABOVE, 2 * kept)

    def _leases_due(self, due_ms: int, queue_id: int, pairs: "array[int]") -> "array[int]":
        """Those of ``pairs`` with a lease that ends in this bucket; one that was moved has an entry in another."""
        queue = self.queues.get(queue_id)
        kept = array("Q")
        if queue is not None:
            in_flight = queue.index.in_flight
            after_ms = due_ms - self._lease_buckets.width_ms
            for at in range(0, len(pairs), 2):
                first, count = pairs[at], pairs[at + 1]
                for lease in range(first, first + count):
                    held = in_flight.get(lease)
                    if held is not None and after_ms < held.deadline_ms <= due_ms:
                        kept.extend((first, count))
                        break
        return kept

    def _answer_overdue(self, queue: Queue, effects: Effects) -> None:
        for waiter in queue.line.take_overdue():
            del self._waiters[waiter.waiter_id]
            effects.woken.append(Woken(waiter.waiter_id, []))

    def _want_page(self, queue: Queue, reads: list[PageRead]) -> None:
        """The head's body is not in memory: read it, and what follows it."""
        if queue.reading:
            return
        index = queue.index
        in_window = queue.window.messages
        positions = index.active_from(index.first_active(), self.limits.page_messages)
        complete = len(positions) < self.limits.page_messages
        if in_window:
            positions = [position for position in positions if position not in in_window]
        self._start_read(queue, positions, complete, reads)

    def _read_ahead(self, queue: Queue, reads: list[PageRead]) -> None:
        """Keep a cold queue's window filled ahead of its receivers."""
        window = queue.window
        page = self.limits.page_messages
        if queue.reading or len(window.messages) > page // 2:
            return
        if not self._budget.has_room(queue.queue_id, self.limits.page_bytes):
            return
        positions = queue.index.active_from(max(window.paged_until, queue.index.head), page)
        if not positions:
            window.cold = False
            return
        self._start_read(queue, positions, len(positions) < page, reads)

    def _start_read(self, queue: Queue, positions: list[int], complete: bool, reads: list[PageRead]) -> None:
        if len(self._reads) >= self.limits.max_reads:
            if not queue.read_wanted:
                queue.read_wanted = True
                self._read_line.append(queue.queue_id)
            return
        window = queue.window
        window.paged_until = max(window.paged_until, positions[-1] + 1)
        if complete:
            # All that is active is in memory or in this read: what is sent from now on joins on to it.
            window.cold = False
        queue.reading = True
        read = self._page_read(queue, positions, self.limits.page_bytes)
        self._reads[read.read_id] = (queue.queue_id, read)
        reads.append(read)

    def _page_arrived(self, queue: Queue, read: PageRead, messages: Sequence[StoredMessage], missing: Runs) -> int:
        """Take a page into memory; the queue counts as reading until the caller says otherwise."""
        index, window, budget = queue.index, queue.window, self._budget
        active = index.active
        for message in messages:
            # What was received, cleared or expired meanwhile is not wanted any more.
            if message.position in active and message.position not in window.messages:
                budget.keep(queue.queue_id, window, message)
        last_wanted = last_of(read.positions)
        last_settled = max(messages[-1].position if messages else -1, last_of(missing))
        if last_settled < last_wanted and last_settled >= 0:
            window.cold = True
            window.paged_until = min(window.paged_until, last_settled + 1)
        if not missing:
            return 0
        # What is in memory can be delivered, whatever became of its row.
        return index.set_damaged(pack_runs(one for one in unpack_runs(missing) if one not in window.messages))
