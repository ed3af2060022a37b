"""Sending: batches, delays, numbered sends, dedup ids, and which bodies stay in memory."""

from collections.abc import Sequence
from typing import TypeVar

from cmqd.core.errors import BacklogFull, DomainError, InvalidArgument, OutOfOrder, SequenceTooOld
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits, check_range, checked_sizes
from cmqd.core.outcome import Effects, Outcome, SendRequest
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd.core.runtime.window import OVERHEAD_BYTES, cost
from cmqd_segment.records import AnyRecord, MessagesSent, StoredMessage
from cmqd_types.messages import Headers

T = TypeVar("T")


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
        dedup_ids: list[str | None] | None = None,
        after: str | None = None,
    ) -> Outcome[Sequence[int]]:
        """Store a batch, whole or not at all; the reply is its message ids.

        A numbered send (``session`` and ``sequence`` not 0) that was stored before gets the ids it got then. A body
        whose dedup id was used in this queue a short while ago, or further up in the batch, is not stored: it gets the
        id of the first message sent under it.

        ``after``: a dedup id that the queue must remember. A producer with several sends under way names in each the
        last message of the one before; so none is stored before its predecessor, whichever of them is refused, lost or
        repeated. The decision is made here, where the predecessor is stored or not, and nowhere on the way to here.

        Raises:
            QueueNotFound, InvalidArgument, MessageTooLarge, BatchTooLarge, BacklogFull, SequenceTooOld, OutOfOrder,
            TooManyRemembered.
        """
        queue = self.queue(account, name)
        index = queue.index
        attributes = index.attributes
        if session and sequence:
            # Before all else: what was stored stays stored, whatever the limits are by now.
            stored = self.sessions.find(account, session, sequence)
            if stored is not None:
                known = queue.dedup_ids
                return Outcome(stored_before(known, stored, sequence, len(bodies), dedup_ids, now_ms, self.limits))
        if after is not None and queue.dedup_ids.find(after, now_ms) is None:
            raise OutOfOrder("queue", name, after)
        sizes = checked_sizes(name, bodies, headers, attributes.max_message_bytes, self.limits)
        answer = None
        if dedup_ids is not None:
            new, answer = unrepeated(queue.dedup_ids, dedup_ids, len(sizes), now_ms, self.limits)
            if isinstance(delay_ms, list):
                self._visible_ms(delay_ms, len(sizes), now_ms)
                delay_ms = at_places(delay_ms, new)
            if not new:
                return Outcome(answer)
            sizes, bodies = at_places(sizes, new), at_places(bodies, new)
            dedup_ids = at_places(dedup_ids, new) if any(dedup_ids) else None
            headers = None if headers is None else at_places(headers, new)
        if session and sequence:
            self.promises.check_session(account, session, (), now_ms)
        if dedup_ids is not None:
            self.promises.check_dedup_ids(account, now_ms)
        count = len(sizes)
        if index.live_count + count > attributes.max_backlog:
            raise BacklogFull(name, index.live_count, count, attributes.max_backlog)
        visible_ms = None
        if delay_ms is not None or attributes.delay_ms:
            enqueue_ms = max(now_ms, index.last_enqueue_ms)
            visible_ms = self._visible_ms(attributes.delay_ms if delay_ms is None else delay_ms, count, enqueue_ms)
        records: list[AnyRecord] = []
        first_id = self._next_message_ids(count, records)
        record = MessagesSent(
            index.queue_id,
            index.next_position,
            first_id,
            max(now_ms, index.last_enqueue_ms),
            sizes,
            headers if headers is not None and any(headers) else None,
            visible_ms,
            session,
            sequence,
            dedup_ids=dedup_ids,
        )
        records.append(record)
        self._store_sent(queue, record, bodies)
        ids = range(first_id, first_id + count) if answer is None else answered(answer, first_id)
        if not (queue.line.waiting and index.active_count):
            return Outcome(ids, records, bodies)
        effects = Effects(records, bodies)
        self._serve(queue, effects, now_ms)
        return effects.outcome(ids)

    def send_all(
        self, account: str, name: str, requests: Sequence[SendRequest], now_ms: int
    ) -> Outcome[list[Sequence[int] | DomainError]]:
        """The sends of several clients to one queue, in this order; each as :meth:`send` would do it.

        Neighbours with nothing but bodies, and numbers of their producers, share a record: a send costs a fraction of
        what it costs alone. One that is refused has its refusal in its place of the reply, and hinders none of the
        others.

        Raises:
            QueueNotFound.
        """
        queue = self.queue(account, name)
        delay_ms = queue.index.attributes.delay_ms
        replies: list[Sequence[int] | DomainError] = []
        effects = Effects()
        place = 0
        while place < len(requests):
            request = requests[place]
            end = place
            while end < len(requests) and _is_plain(requests[end], delay_ms):
                end += 1
            if end > place + 1:
                self._send_plain(queue, requests[place:end], replies, effects, now_ms)
                place = end
                continue
            place += 1
            try:
                outcome = self.send(
                    account,
                    name,
                    request.bodies,
                    request.headers,
                    request.delay_ms,
                    request.session,
                    request.sequence,
                    now_ms,
                    request.dedup_ids,
                    request.after,
                )
            except DomainError as refusal:
                replies.append(refusal)
                continue
            replies.append(outcome.reply)
            if len(requests) == 1:
                # Nothing to add up, as is usual while few clients send.
                return Outcome(replies, outcome.records, outcome.bodies, outcome.woken, outcome.reads)
            effects.add(outcome)
        return effects.outcome(replies)

    def _send_plain(
        self,
        queue: Queue,
        requests: Sequence[SendRequest],
        replies: list[Sequence[int] | DomainError],
        effects: Effects,
        now_ms: int,
    ) -> None:
        """Sends that share a record."""
        index = queue.index
        attributes = index.attributes
        room = attributes.max_backlog - index.live_count
        sizes: list[int] = []
        taken: list[bytes] = []
        numbered: list[int] = []
        here: dict[tuple[int, int], range] = {}
        """Numbered sends of this call: a producer may have repeated one over another connection."""
        new_sessions: set[int] = set()
        next_id = self.numbers.next_message_id
        for request in requests:
            session, sequence = request.session, request.sequence
            is_numbered = session and sequence
            try:
                if is_numbered:
                    stored = here.get((session, sequence))
                    if stored is None:
                        stored = self.sessions.find(queue.account, session, sequence)
                    if stored is not None:
                        replies.append(stored)
                        continue
                own = checked_sizes(queue.name, request.bodies, None, attributes.max_message_bytes, self.limits)
                is_new = (
                    is_numbered
                    and session not in new_sessions
                    and not self.sessions.knows(queue.account, session, now_ms)
                )
                if is_new:
                    self.promises.check_session(queue.account, session, new_sessions, now_ms)
                if len(sizes) + len(own) > room:
                    raise BacklogFull(queue.name, index.live_count + len(sizes), len(own), attributes.max_backlog)
            except DomainError as refusal:
                replies.append(refusal)
                continue
            first_id = next_id + len(sizes)
            ids = range(first_id, first_id + len(own))
            if is_numbered:
                here[session, sequence] = ids
                if is_new:
                    new_sessions.add(session)
                numbered += (session, sequence, first_id, len(own))
            sizes += own
            taken += request.bodies
            replies.append(ids)
        if sizes:
            self._next_message_ids(len(sizes), effects.records)
            enqueue_ms = max(now_ms, index.last_enqueue_ms)
            record = MessagesSent(index.queue_id, index.next_position, next_id, enqueue_ms, sizes, numbered=numbered)
            effects.records.append(record)
            effects.bodies += taken
            self._store_sent(queue, record, taken)
            if queue.line.waiting and index.active_count:
                self._serve(queue, effects, now_ms)

    def _store_sent(self, queue: Queue, record: MessagesSent, bodies: list[bytes]) -> None:
        """Messages stand in their queue; the caller serves those who wait for them."""
        was_empty = not queue.index.active_count
        self._apply_sent(queue, record)
        if record.visible_ms is not None:
            self._want_overflow(queue)
        self._keep_bodies(queue, record, bodies, was_empty)

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
        origins, copies_of = record.origins, record.copies_of
        if visible is None and headers is None and origins is None and copies_of is None:
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
                copy_of=copies_of[offset] if copies_of else None,
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


def _is_plain(request: SendRequest, queue_delay_ms: int) -> bool:
    """Whether it brings nothing but bodies, active at once, and perhaps its producer's number."""
    if request.headers is not None or request.dedup_ids is not None or request.after is not None:
        return False
    return (queue_delay_ms if request.delay_ms is None else request.delay_ms) == 0


def unrepeated(
    known: DedupIds, dedup_ids: list[str | None], count: int, now_ms: int, limits: Limits
) -> tuple[list[int], list[int]]:
    """Which bodies of a batch are to be stored, and for each body the id of the message that it repeats, or, as
    ``-1 - n``, that it is the n-th of those stored.
    """
    if len(dedup_ids) != count:
        raise InvalidArgument("dedup_ids", len(dedup_ids), f"null, or one entry for each of the {count} bodies")
    most = limits.max_dedup_id_bytes
    new: list[int] = []
    answer: list[int] = []
    in_batch: dict[str, int] = {}
    for place, dedup_id in enumerate(dedup_ids):
        if dedup_id is not None:
            if not 1 <= len(dedup_id.encode()) <= most:
                raise InvalidArgument("dedup_ids", dedup_id, f"1 to {most} bytes of UTF-8")
            found = in_batch.get(dedup_id)
            if found is None:
                found = known.find(dedup_id, now_ms)
            if found is not None:
                answer.append(found)
                continue
            in_batch[dedup_id] = -1 - len(new)
        answer.append(-1 - len(new))
        new.append(place)
    return new, answer


def stored_before(
    known: DedupIds,
    stored: range,
    sequence: int,
    count: int,
    dedup_ids: list[str | None] | None,
    now_ms: int,
    limits: Limits,
    may_be_new: bool = False,
) -> Sequence[int]:
    """The answer to a numbered send of ``count`` bodies that was stored as ``stored``. ``may_be_new``: a dedup id
    that is not known may have been that of a new message which matched nobody.

    Raises:
        SequenceTooOld: some of its bodies were repeats under a dedup id that is forgotten by now.
    """
    if dedup_ids is None or len(stored) == count:
        return stored
    ids: list[int] = []
    following = stored.start
    for dedup_id in dedup_ids:
        found = following if dedup_id is None else known.find(dedup_id, now_ms)
        if found is None and may_be_new:
            found = following
        if found is None or found > following:
            break
        following += found == following
        ids.append(found)
    if len(ids) < count or following != stored.stop:
        raise SequenceTooOld(sequence, limits.session_answers)
    return ids


def at_places(items: list[T], places: list[int]) -> list[T]:
    """Those of the items."""
    return [items[place] for place in places]


def answered(answer: list[int], first_id: int) -> list[int]:
    """See ``unrepeated``; ``first_id`` is that of the first message stored."""
    return [found if found >= 0 else first_id - 1 - found for found in answer]
