"""Queues: create, ensure, list, attributes, clear, delete."""

from collections.abc import Mapping

from cmqd.core.errors import QueueDeleted, QueueDiffers, QueueExists, TooManyQueues
from cmqd.core.limits import check_range, checked_attributes
from cmqd.core.names import check_queue_name, folded
from cmqd.core.outcome import Outcome, QueueInfo, Woken
from cmqd.core.receiving import Receiving
from cmqd_segment.records import AnyRecord, QueueAttributes, QueueAttributesSet, QueueCleared, QueueCreated
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord


class Administration(Receiving):
    """The administration part of the broker."""

    def create_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            QueueExists: the name, or one that differs only in case, is taken.
            TooManyQueues: the account has its limit.
        """
        check_queue_name(name)
        chosen = checked_attributes(QueueAttributes(), attributes)
        taken = self._folded.get(account, {}).get(folded(name))
        if taken is not None:
            raise QueueExists(name, taken.name)
        limit = self.limits.max_queues_per_account
        if len(self._names.get(account, ())) >= limit:
            raise TooManyQueues(account, limit)
        records: list[AnyRecord] = []
        self._reserve(records, queue_ids=1)
        queue_id = self.numbers.next_queue_id
        self.numbers.next_queue_id += 1
        record = QueueCreated(queue_id, account, name, chosen, now_ms)
        self._apply_created(record)
        records.append(record)
        return Outcome(self._info(self.queues[queue_id], created=True), records)

    def ensure_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue, or confirm that the one there is has these attributes (those not named may be anything).

        Raises:
            QueueDiffers: it has others; the difference is in the details.
            InvalidArgument, QueueExists, TooManyQueues: as :meth:`create_queue`.
        """
        check_queue_name(name)
        checked_attributes(QueueAttributes(), attributes)
        queue = self._names.get(account, {}).get(name)
        if queue is None:
            return self.create_queue(account, name, attributes, now_ms)
        is_now = queue.attributes()
        difference: dict[str, dict[str, object]] = {
            field: {"is": is_now[field], "wanted": wanted}
            for field, wanted in attributes.items()
            if is_now[field] != wanted and isinstance(wanted, int | str)
        }
        if difference:
            raise QueueDiffers(name, difference)
        return Outcome(self._info(queue))

    def list_queues(self, account: str, search: str, offset: int, limit: int) -> tuple[int, list[tuple[int, str]]]:
        """How many queues have ``search`` in their name, and a page of (id, name) in order of name."""
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self.limits.max_list)
        found = sorted(name for name in self._names.get(account, ()) if search in name)
        page = found[offset : offset + limit]
        return len(found), [(self._names[account][name].queue_id, name) for name in page]

    def queue_info(self, account: str, name: str) -> QueueInfo:
        """Attributes, counts and facts of a queue."""
        return self._info(self.queue(account, name))

    def set_queue_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Change the attributes named; it takes effect on what happens next, for messages already held too.

        Raises:
            QueueNotFound, InvalidArgument: nothing was changed.
        """
        queue = self.queue(account, name)
        chosen = checked_attributes(queue.index.attributes, attributes)
        record = QueueAttributesSet(queue.queue_id, chosen, now_ms)
        self._apply_attributes(record)
        self._schedule_expiry(queue)
        return Outcome(self._info(queue), [record])

    def clear_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Drop every message sent before now, in every state, in one step; their handles become invalid."""
        queue = self.queue(account, name)
        record = QueueCleared(queue.queue_id, queue.index.next_position)
        self._apply_floor(record)
        woken: list[Woken] = []
        self._answer_overdue(queue, woken)
        return Outcome(None, [record], woken=woken)

    def delete_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Remove a queue with its messages; receives waiting at it end with QueueDeleted."""
        queue = self.queue(account, name)
        error = QueueDeleted(name)
        woken = [Woken(waiter.waiter_id, error) for waiter in queue.line.take_all()]
        for one in woken:
            del self._waiters[one.waiter_id]
        peeks = [read_id for read_id, peek in self._peeks.items() if peek.queue_id == queue.queue_id]
        woken.extend(Woken(self._peeks.pop(read_id).waiter_id, error) for read_id in peeks)
        record = QueueDeletedRecord(queue.queue_id)
        self._apply_queue_deleted(record)
        return Outcome(None, [record], woken=woken)
