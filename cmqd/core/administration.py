"""Queues: create, ensure, list, attributes, clear, delete."""

from collections.abc import Mapping

from pyroaring import BitMap64

from cmqd.core.errors import (
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueDeleted,
    QueueDiffers,
    QueueExists,
    RedriveRunning,
    TooManyQueues,
)
from cmqd.core.limits import check_each, check_range, checked_attributes
from cmqd.core.moving import Moving
from cmqd.core.names import check_queue_name, folded
from cmqd.core.outcome import Effects, Outcome, Woken
from cmqd.core.queue import Queue
from cmqd.core.state import ENDED_AT_ONCE
from cmqd_segment.records import (
    AnyRecord,
    DeadLettersFrom,
    QueueAttributes,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from cmqd_types.queues import QueueInfo

NAMES_EXAMINED = 10_000
"""Names that a list of the queues of all accounts examines in a call: no more than a full account has."""


class Administration(Moving):
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
        chosen = checked_attributes(QueueAttributes(), attributes, creating=True)
        taken = self._folded.get(account, {}).get(folded(name))
        if taken is not None:
            raise QueueExists(name, taken.name)
        limit = self.limits.max_queues_per_account
        if len(self._names.get(account, ())) >= limit:
            raise TooManyQueues(account, limit)
        target = self._dead_letter_queue(account, name, None, chosen)
        records: list[AnyRecord] = []
        self._reserve(records, queue_ids=1)
        queue_id = self.numbers.next_queue_id
        self.numbers.next_queue_id += 1
        record = QueueCreated(queue_id, account, name, chosen, now_ms)
        self._apply_created(record)
        records.append(record)
        queue = self.queues[queue_id]
        self._rebind(queue, target, records)
        return Outcome(self._info(queue, created=True), records)

    def ensure_queue(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Make a queue, or confirm that the one there is has these attributes (those not named may be anything).

        Raises:
            QueueDiffers: it has others; the difference is in the details.
            InvalidArgument, QueueExists, TooManyQueues: as :meth:`create_queue`.
        """
        check_queue_name(name)
        queue = self._names.get(account, {}).get(name)
        if queue is None:
            return self.create_queue(account, name, attributes, now_ms)
        # Whether they contradict one another is no question: what agrees with the queue cannot.
        check_each(queue.index.attributes, attributes, creating=True)
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

    def list_all_queues(
        self, search: str, after: tuple[str, str], limit: int
    ) -> tuple[list[tuple[str, int, str]], tuple[str, str] | None]:
        """Queues of all accounts with ``search`` in their name, behind ``after`` (account, name), by account and name.

        Returns (account, id, name) of at most ``limit`` queues, and where to go on, None at the end. A call examines a
        bounded number of names, because a search without a match would hold up the loop.
        """
        check_range("limit", limit, 1, self.limits.max_list)
        after_account, after_name = after
        page: list[tuple[str, int, str]] = []
        examined = 0
        for account in sorted(account for account in self._names if account >= after_account):
            if examined >= NAMES_EXAMINED:
                return page, (account, "")
            names = self._names[account]
            examined += len(names)
            behind = after_name if account == after_account else ""
            for name in sorted(name for name in names if name > behind and search in name):
                if len(page) == limit:
                    last_account, _, last_name = page[-1]
                    return page, (last_account, last_name)
                page.append((account, names[name].queue_id, name))
        return page, None

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
        target = self._dead_letter_queue(account, name, queue, chosen)
        most = chosen.dead_letter_max_receives
        if most != queue.index.attributes.dead_letter_max_receives:
            queue.overdue = queue.index.history.at_least(most) if most else BitMap64()
        record = queue.index.with_rewind_floor(QueueAttributesSet(queue.queue_id, chosen, now_ms))
        self._apply_attributes(record)
        self._schedule_expiry(queue)
        effects = Effects([record])
        self._rebind(queue, target, effects.records)
        for source in queue.sources.values():
            # It may take by now what it did not take before.
            source.unmovable.clear()
            self._set_agenda(source, now_ms)
        if queue.redriving is None:
            # By what rules messages die may have changed: those that were to be moved are looked at again.
            self._stop_moving(queue, BitMap64(queue.index.moving))
            queue.unmovable.clear()
            self._find_dead(queue, effects, now_ms)
            self._serve(queue, effects, now_ms)
        self._set_agenda(queue, now_ms)
        return effects.outcome(self._info(queue))

    def _dead_letter_queue(
        self, account: str, name: str, queue: Queue | None, attributes: QueueAttributes
    ) -> Queue | None:
        """The queue that a queue (None = a new one) with these attributes sends its dead letters to.

        Raises:
            InvalidArgument: that one does not exist, or may not be its dead-letter queue.
            RedriveRunning: the queue is being redriven, which one with a dead-letter queue cannot be.
        """
        wanted = attributes.dead_letter_queue
        if not wanted:
            return None
        field = "dead_letter_queue"
        target = self._names.get(account, {}).get(wanted)
        if wanted == name:
            raise InvalidArgument(field, wanted, "another queue than the queue itself")
        if target is None:
            raise InvalidArgument(field, wanted, "the name of a queue of the same account, which exists")
        if target.index.attributes.transactional:
            raise InvalidArgument(field, wanted, "a queue that is not transactional")
        if target.index.attributes.dead_letter_queue:
            raise InvalidArgument(field, wanted, "a queue without a dead-letter queue of its own")
        if queue is not None and queue.sources:
            names = ", ".join(sorted(source.name for source in queue.sources.values()))
            raise InvalidArgument(field, wanted, f"empty, because the queue is the dead-letter queue of {names}")
        if queue is not None and queue.redriving is not None:
            raise RedriveRunning(name)
        limit = self.limits.max_dead_letter_sources
        if len(target.sources) >= limit and (queue is None or queue.queue_id not in target.sources):
            raise InvalidArgument(field, wanted, f"a queue that serves fewer than {limit} others")
        return target

    def _rebind(self, queue: Queue, target: Queue | None, records: list[AnyRecord]) -> None:
        """Change where dead letters of a queue go, with the records that say what that makes of the other queues."""
        before = queue.dead_letters
        if before is target:
            return
        is_first = target is not None and not target.sources
        self._bind(queue, target)
        if before is not None and not before.sources:
            self._serve_as_dead_letter_queue(before, -1, records)
        if target is not None and is_first:
            # What it holds has nothing to do with dead letters: they come when that is consumed.
            self._serve_as_dead_letter_queue(target, target.index.next_position, records)

    def _serve_as_dead_letter_queue(self, queue: Queue, floor: int, records: list[AnyRecord]) -> None:
        record = DeadLettersFrom(queue.queue_id, floor)
        queue.index.apply_dead_letters_from(record)
        records.append(record)

    def clear_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Drop every message sent before now, in every state, in one step; their handles become invalid."""
        queue = self.queue(account, name)
        record = QueueCleared(queue.queue_id, queue.index.next_position)
        self._apply_floor(record)
        effects = Effects([record])
        self._answer_overdue(queue, effects)
        return effects.outcome(None)

    def delete_queue(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Remove a queue with its messages; receives waiting at it end with QueueDeleted."""
        queue = self.queue(account, name)
        if queue.sources:
            raise DeadLetterQueueInUse(name, sorted(source.name for source in queue.sources.values()))
        error = QueueDeleted(name)
        waiter_ids = [waiter.waiter_id for waiter in queue.line.take_all()]
        woken = [Woken(waiter_id, error) for waiter_id in waiter_ids[:ENDED_AT_ONCE]]
        for one in woken:
            del self._waiters[one.waiter_id]
        if len(waiter_ids) > ENDED_AT_ONCE:
            self._ended_waits.append((error, waiter_ids[ENDED_AT_ONCE:]))
        peeks = [read_id for read_id, peek in self._peeks.items() if peek.queue_id == queue.queue_id]
        woken.extend(Woken(self._peeks.pop(read_id).waiter_id, error) for read_id in peeks)
        rewinds = [read_id for read_id, rewind in self._rewind_reads.items() if rewind.queue_id == queue.queue_id]
        woken.extend(Woken(self._rewind_reads.pop(read_id).waiter_id, error) for read_id in rewinds)
        records: list[AnyRecord] = [QueueDeletedRecord(queue.queue_id)]
        self._rebind(queue, None, records)
        self._apply_queue_deleted(QueueDeletedRecord(queue.queue_id))
        return Outcome(None, records, woken=woken)
