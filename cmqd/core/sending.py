"""Sending: batches, delays, numbered sends, and which bodies stay in memory."""

from collections.abc import Sequence

from cmqd.core.errors import BacklogFull, InvalidArgument
from cmqd.core.limits import check_range, checked_sizes
from cmqd.core.outcome import Outcome, PageRead, Woken
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd.core.window import OVERHEAD_BYTES, cost
from cmqd_segment.records import AnyRecord, Headers, MessagesSent, StoredMessage


class Sending(Receiving):
    """The sending part of the broker."""

    def send(
        self,
        account: str,
        name: str,
        bodies: list[bytes],
        headers: list[Headers | None] | None,
        delay_ms: int | list[int] | None,
        session: int,
        sequence: int,
        now_ms: int,
    ) -> Outcome[Sequence[int]]:
        """Store a batch, whole or not at all; the reply is its message ids.

        A numbered send (``session`` and ``sequence`` not 0) that was stored before gets the ids it got then.

        Raises:
            QueueNotFound, InvalidArgument, MessageTooLarge, BatchTooLarge, BacklogFull, SequenceTooOld.
        """
        queue = self.queue(account, name)
        index = queue.index
        attributes = index.attributes
        if session and sequence:
            # Before all else: what was stored stays stored, whatever the limits are by now.
            stored = self.sessions.find(account, session, sequence)
            if stored is not None:
                return Outcome(stored)
        sizes = checked_sizes(name, bodies, headers, attributes.max_message_bytes, self.limits)
        count = len(sizes)
        if index.live_count + count > attributes.max_backlog:
            raise BacklogFull(name, index.live_count, count, attributes.max_backlog)
        enqueue_ms = now_ms if now_ms > index.last_enqueue_ms else index.last_enqueue_ms
        visible_ms = None
        if delay_ms is not None or attributes.delay_ms:
            visible_ms = self._visible_ms(attributes.delay_ms if delay_ms is None else delay_ms, count, enqueue_ms)

        records: list[AnyRecord] = []
        numbers = self.numbers
        if numbers.next_message_id + count > numbers.message_id_until:
            self._reserve(records, message_ids=count)
        first_id = numbers.next_message_id
        numbers.next_message_id = first_id + count
        record = MessagesSent(
            index.queue_id,
            index.next_position,
            first_id,
            enqueue_ms,
            sizes,
            headers if headers is not None and any(headers) else None,
            visible_ms,
            session,
            sequence,
        )
        was_empty = not index.active_count
        self._apply_sent(queue, record)
        if visible_ms is not None:
            self._want_overflow(queue)
        records.append(record)
        self._keep_bodies(queue, record, bodies, was_empty)
        woken: list[Woken] = []
        reads: list[PageRead] = []
        if queue.line.waiting and index.active_count:
            self._serve(queue, records, woken, reads, now_ms)
        return Outcome(range(first_id, first_id + count), records, bodies, woken, reads)

    def _visible_ms(self, delay_ms: int | list[int], count: int, enqueue_ms: int) -> int | list[int] | None:
        high = self.limits.max_delay_ms
        if isinstance(delay_ms, int):
            check_range("delay_ms", delay_ms, 0, high)
            return enqueue_ms + delay_ms if delay_ms else None
        if len(delay_ms) != count:
            raise InvalidArgument("delay_ms", len(delay_ms), f"one number, or one for each of the {count} bodies")
        for one in delay_ms:
            check_range("delay_ms", one, 0, high)
        return [enqueue_ms + one for one in delay_ms] if any(delay_ms) else None

    def _keep_bodies(self, queue: Queue, record: MessagesSent, bodies: list[bytes], was_empty: bool) -> None:
        """Keep in memory what is near enough to the head to be received from there."""
        window = queue.window
        budget = self._budget
        headers = record.headers
        visible = record.visible_ms
        if visible is not None:
            self._keep_soon(queue, record, bodies)
        if window.cold:
            if not was_empty:
                return
            window.cold = False
        # What goes out at once needs no room; but who waits may be held up, by its page or by the limit in flight.
        goes_out = was_empty and len(queue.line.waiting) > 0
        origins = record.origins
        if visible is None and headers is None and origins is None:
            count = len(bodies)
            size = sum(record.sizes) + count * OVERHEAD_BYTES
            if goes_out or budget.has_room(queue.queue_id, size):
                position, message_id, at_ms = record.first_position, record.first_message_id, record.enqueue_ms
                messages = window.messages
                for body in bodies:
                    messages[position] = StoredMessage(position, message_id, at_ms, body)
                    position += 1
                    message_id += 1
                budget.kept(queue.queue_id, window, size)
                return
        position, message_id, enqueue_ms = record.first_position, record.first_message_id, record.enqueue_ms
        for offset, body in enumerate(bodies):
            if visible is not None:
                due_ms = visible if isinstance(visible, int) else visible[offset]
                if due_ms > enqueue_ms:
                    continue
            else:
                due_ms = 0
            message = StoredMessage(
                position + offset,
                message_id + offset,
                enqueue_ms,
                body,
                headers[offset] if headers else None,
                due_ms,
                origins[offset] if origins else None,
            )
            if not goes_out and not budget.has_room(queue.queue_id, cost(message)):
                window.cold = True
                window.paged_until = position + offset
                return
            budget.keep(queue.queue_id, window, message)

    def _keep_soon(self, queue: Queue, record: MessagesSent, bodies: list[bytes]) -> None:
        """Keep delayed bodies that are due so soon that they would be paged in right away."""
        visible, headers = record.visible_ms, record.headers
        for offset, body in enumerate(bodies):
            due_ms = visible if isinstance(visible, int) else visible[offset] if visible else 0
            position = record.first_position + offset
            if record.enqueue_ms < due_ms <= self._prefetched_until_ms and position in queue.index.delayed:
                message = StoredMessage(
                    position,
                    record.first_message_id + offset,
                    record.enqueue_ms,
                    body,
                    headers[offset] if headers else None,
                    due_ms,
                )
                if not self._budget.has_room(queue.queue_id, cost(message)):
                    return
                self._budget.keep_soon(queue.queue_id, queue.window, message)
