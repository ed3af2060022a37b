"""Queues: create, ensure, list, attributes, clear, delete."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap64

from cmqd.core.attributes import check_queue_attributes, checked_attributes, new_queue_attributes
from cmqd.core.domain_errors import (
    DeadLetterQueueInUse,
    InvalidArgument,
    QueueDeleted,
    QueueDiffers,
    QueueExists,
    RedriveRunning,
    TooManyQueues,
    shown,
)
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.name_order import Selection, matching
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.names import check_queue_name, folded
from cmqd.core.operations.dead_letters.reservations import Reservations
from cmqd.core.operations.dead_letters.search import DeadLetterSearch
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.operations.receiving.wait_ends import Waits
from cmqd.core.operations.retention.floors import Floors
from cmqd.core.operations.transactions.transaction_checks import Checks
from cmqd.core.outcome import Effects, Outcome, Woken
from cmqd.core.runtime.pages import Lane
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import (
    AnyRecord,
    DeadLettersFrom,
    QueueAttributesSet,
    QueueCleared,
    QueueCreated,
)
from cmqd_segment.records import QueueDeleted as QueueDeletedRecord
from cmqd_types.attributes import QueueAttributes
from cmqd_types.queues import QueueInfo
from cmqd_types.sentences import Sentence, duration, sentence

NAMES_EXAMINED = 10_000
"""Names that a list of the queues of all accounts examines in a call: no more than a full account has."""


class QueueAdmin:
    """Administers queues."""

    def __init__(
        self,
        facts: Facts,
        runtime: Runtime,
        floors: Floors,
        serving: Serving,
        waits: Waits,
        checks: Checks,
        reservations: Reservations,
        dead_letters: DeadLetterSearch,
    ) -> None:
        self._limits = facts.limits
        self._numbers = facts.numbers
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._budget = runtime.budget
        self._consumers = runtime.consumers
        self._counted = runtime.counted
        self._pages = runtime.pages
        self._floors = floors
        self._serving = serving
        self._waits = waits
        self._checks = checks
        self._reservations = reservations
        self._dead_letters = dead_letters

    def create(self, account: str, name: str, attributes: Mapping[str, object], now_ms: int) -> Outcome[QueueInfo]:
        """Make a queue.

        Raises:
            InvalidArgument: the name or an attribute is not legal.
            QueueExists: the name is taken, in this or in another case.
            TooManyQueues: the account is at its limit of queues.
        """
        check_queue_name(name)
        chosen = new_queue_attributes(attributes)
        taken = self._queues.folded.get(account, {}).get(folded(name))
        if taken is not None:
            raise QueueExists(name, taken.name)
        limit = self._limits.max_queues_per_account
        if len(self._queues.names.get(account, ())) >= limit:
            raise TooManyQueues(account, limit)
        target = self._dead_letter_queue(account, name, None, chosen)
        records: list[AnyRecord] = []
        queue_id = self._numbers.take_queue_id(records)
        record = QueueCreated(queue_id, account, name, chosen, now_ms)
        queue = self._queues.apply_created(record)
        records.append(record)
        self._rebind(queue, target, records)
        if chosen.auto_delete_after_ms:
            self._note_change(queue, now_ms)
        return Outcome(self._info(queue, created=True), records)

    def ensure(self, account: str, name: str, attributes: Mapping[str, object], now_ms: int) -> Outcome[QueueInfo]:
        """Make a queue, or confirm that the existing queue has these attributes (attributes not named may differ).

        Raises:
            QueueDiffers: an attribute differs; the difference is in the details.
            InvalidArgument, QueueExists, TooManyQueues: as :meth:`create`.
        """
        check_queue_name(name)
        queue = self._queues.names.get(account, {}).get(name)
        if queue is None:
            return self.create(account, name, attributes, now_ms)
        # Values are checked one by one. A combination needs no check: values that agree with the queue agree with one
        # another, and other values are reported as a difference.
        check_queue_attributes(queue.index.attributes, attributes, creating=True)
        is_now = queue.attributes()
        difference: dict[str, dict[str, object]] = {
            field: {"is": is_now[field], "wanted": wanted}
            for field, wanted in attributes.items()
            if is_now[field] != wanted and isinstance(wanted, int | str)
        }
        if difference:
            raise QueueDiffers(name, difference)
        return Outcome(self._info(queue))

    def list_names(
        self, account: str, search: str, offset: int, limit: int, *, selects: Selection | None = None
    ) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of queues with ``search`` in their name, and a page of (id, name) in order of name.
        ``selects`` selects the names that the caller may see.
        """
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, self._limits.max_list)
        queues = matching(self._queues.in_order.of_account(account), search, selects)
        return len(queues), [(queue.queue_id, queue.name) for queue in queues[offset : offset + limit]]

    def list_all(
        self, search: str, after: tuple[str, str], limit: int, *, selects: Selection | None = None
    ) -> tuple[list[tuple[str, int, str]], tuple[str, str] | None]:
        """List queues of all accounts with ``search`` in their name, behind ``after`` (account, name). ``selects``
        selects the names that the caller may see.

        Returns (account, id, name) of at most ``limit`` queues by account and name, and the next ``after``, None at the
        end. A call examines a bounded number of names, because a search without a match would hold up the loop.
        """
        check_range("limit", limit, 1, self._limits.max_list)
        examined = self._queues.in_order.behind(None, after, NAMES_EXAMINED)
        queues = matching(examined, search, selects)
        page = [(queue.account, queue.queue_id, queue.name) for queue in queues[:limit]]
        if len(queues) > limit:
            last = queues[limit - 1]
        elif len(examined) == NAMES_EXAMINED:
            last = examined[-1]
        else:
            return page, None
        return page, (last.account, last.name)

    def info(self, account: str, name: str) -> QueueInfo:
        """Return the attributes, counts and facts of a queue."""
        return self._info(self._queues.find(account, name))

    def set_attributes(
        self, account: str, name: str, attributes: Mapping[str, object], now_ms: int
    ) -> Outcome[QueueInfo]:
        """Change the attributes named, with effect from now on, for messages already stored too.

        Raises:
            QueueNotFound, InvalidArgument: the queue is unchanged.
        """
        queue = self._queues.find(account, name)
        runtime = self._runtime[queue.queue_id]
        chosen = checked_attributes(queue.index.attributes, attributes)
        if chosen.auto_delete_after_ms and queue.sources:
            names = sorted(source.name for source in queue.sources.values())
            raise InvalidArgument(
                sentence(
                    "{auto_delete_after_ms} ({}) must be 0 for queue {}, which is the dead-letter queue of {}",
                    duration(chosen.auto_delete_after_ms),
                    repr(name),
                    ", ".join(map(repr, names)),
                ),
                named=names,
                field="auto_delete_after_ms",
                value=chosen.auto_delete_after_ms,
                limit="0 for a dead-letter queue",
                range=(0, 0),
            )
        target = self._dead_letter_queue(account, name, queue, chosen)
        max_receives = chosen.dead_letter_max_receives
        if max_receives != queue.index.attributes.dead_letter_max_receives:
            runtime.overdue = queue.index.history.at_least(max_receives) if max_receives else BitMap64()
        record = queue.index.with_rewind_floor(QueueAttributesSet(queue.queue_id, chosen, now_ms))
        self._queues.apply_attributes(queue, record)
        self._note_change(queue, now_ms)
        self._checks.take_up(queue)
        self._agenda.want_overflow(queue)
        self._agenda.plan_expiry(queue)
        effects = Effects([record])
        self._rebind(queue, target, effects.records)
        for source in queue.sources.values():
            # The queue may accept larger messages by now than before.
            self._runtime[source.queue_id].unmovable.clear()
            self._agenda.reviews.set(source.queue_id, now_ms)
        if runtime.redriving is None:
            # The dead-letter policy may have changed, so reserved messages are examined again under the new policy.
            self._reservations.release_all(queue)
            runtime.unmovable.clear()
            self._dead_letters.find(queue, effects, now_ms)
            self._serving.serve(queue, effects, now_ms)
        self._agenda.reviews.set(queue.queue_id, now_ms)
        return effects.outcome(self._info(queue))

    def dead_letter_sources(self, account: str, name: str) -> list[tuple[int, str]]:
        """Return (id, name) of the queues with this dead-letter queue, by name. Raises QueueNotFound."""
        sources = self._queues.find(account, name).sources.values()
        return sorted(((queue.queue_id, queue.name) for queue in sources), key=lambda found: found[1])

    def _dead_letter_queue(
        self, account: str, name: str, queue: Queue | None, attributes: QueueAttributes
    ) -> Queue | None:
        """Return the dead-letter queue that ``attributes`` name for ``queue`` (None = a new queue).

        Raises:
            InvalidArgument: the named queue does not exist, or cannot be the dead-letter queue of this queue.
            RedriveRunning: the queue is being redriven, and a queue with a dead-letter queue cannot be redriven.
        """
        target_name = attributes.dead_letter_queue
        if not target_name:
            return None

        def refuse(text: str | Sentence, limit: str, named: Sequence[str] = ()) -> InvalidArgument:
            return InvalidArgument(text, field="dead_letter_queue", value=target_name, limit=limit, named=named)

        target = self._queues.names.get(account, {}).get(target_name)
        if target_name == name:
            raise refuse(f"queue {name!r} cannot be its own dead-letter queue", "another queue")
        if target is None:
            raise refuse(
                f"dead-letter queue {shown(target_name)} does not exist; create it first",
                "an existing queue of the account",
            )
        if target.index.attributes.transactional:
            raise refuse(
                f"queue {target_name!r} is transactional and cannot be a dead-letter queue",
                "a queue that is not transactional",
            )
        if target.index.attributes.dead_letter_queue:
            raise refuse(
                f"queue {target_name!r} has a dead-letter queue itself and cannot be one",
                "a queue without a dead-letter queue",
            )
        if target.index.attributes.auto_delete_after_ms:
            raise refuse(
                sentence(
                    "queue {} is deleted when it is unused ({auto_delete_after_ms}) and cannot be a dead-letter queue",
                    repr(target_name),
                ),
                "a queue with auto_delete_after_ms 0",
            )
        if queue is not None and queue.sources:
            names = sorted(source.name for source in queue.sources.values())
            listed = ", ".join(map(repr, names))
            raise refuse(
                f"queue {name!r} is the dead-letter queue of {listed} and cannot have one itself", "empty", names
            )
        if queue is not None and self._runtime[queue.queue_id].redriving is not None:
            raise RedriveRunning(name)
        limit = self._limits.max_dead_letter_sources
        if len(target.sources) >= limit and (queue is None or queue.queue_id not in target.sources):
            raise refuse(
                f"queue {target_name!r} is the dead-letter queue of {limit} queues, which is the limit",
                f"at most {limit} queues",
            )
        return target

    def _note_change(self, queue: Queue, now_ms: int) -> None:
        """Note a change of attributes as a use, and plan the examination of a queue that is deleted when unused."""
        self._runtime[queue.queue_id].used_ms = now_ms
        self._agenda.plan_auto_delete(queue, now_ms + queue.index.attributes.auto_delete_after_ms)

    def _rebind(self, queue: Queue, target: Queue | None, records: list[AnyRecord]) -> None:
        """Change the dead-letter queue of a queue, and add the records of the changed roles of the other queues."""
        before = queue.dead_letters
        if before is target:
            return
        is_first = target is not None and not target.sources
        self._queues.bind(queue, target)
        if before is not None and not before.sources:
            self._serve_as_dead_letter_queue(before, -1, records)
        if target is not None and is_first:
            # Messages in the target are not dead letters. Dead letters are accepted once these are consumed, so that
            # a redrive never moves the messages of a working queue.
            self._serve_as_dead_letter_queue(target, target.index.next_position, records)

    def _serve_as_dead_letter_queue(self, queue: Queue, floor: int, records: list[AnyRecord]) -> None:
        record = DeadLettersFrom(queue.queue_id, floor)
        queue.index.apply_dead_letters_from(record)
        records.append(record)

    def clear(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Drop every message sent before now, in every state, in one step; the receipt handles become invalid."""
        queue = self._queues.find(account, name)
        record = QueueCleared(queue.queue_id, queue.index.next_position)
        self._floors.apply(queue, record, now_ms)
        self._agenda.plan_auto_delete(queue, now_ms)
        effects = Effects([record])
        self._serving.answer_overdue(queue, effects)
        return effects.outcome(None)

    def delete(self, account: str, name: str, now_ms: int) -> Outcome[None]:
        """Remove a queue with its messages; receives waiting at it end with QueueDeleted."""
        queue = self._queues.find(account, name)
        if queue.sources:
            raise DeadLetterQueueInUse(name, sorted(source.name for source in queue.sources.values()))
        effects = Effects()
        self.remove(queue, "", effects)
        return effects.outcome(None)

    def remove(self, queue: Queue, reason: str, effects: Effects) -> None:
        """Remove a queue that is not a dead-letter queue; ``reason`` is that of the record."""
        error = QueueDeleted(queue.name)
        woken = self._waits.end_at_deleted(queue, error)
        lanes: tuple[Lane[Any], ...] = (self._pages.peeks, self._pages.rewinds)
        for lane in lanes:
            for read_id, queue_id, request in list(lane.requests()):
                if queue_id == queue.queue_id:
                    self._pages.take(read_id)
                    woken.append(Woken(request.waiter_id, error))
        record = QueueDeletedRecord(queue.queue_id, reason)
        effects.records.append(record)
        effects.woken.extend(woken)
        self._rebind(queue, None, effects.records)
        self._queues.apply_deleted(record)
        self._counted.forget(queue.queue_id)
        self._checks.forget(queue)
        self._agenda.forget(queue.queue_id)
        runtime = self._runtime.pop(queue.queue_id)
        self._budget.clear(queue.queue_id, runtime.window)
        self._consumers.drop(queue.account, runtime.consumers, list(runtime.consumers))

    def _info(self, queue: Queue, created: bool = False) -> QueueInfo:
        # Without an entry for a queue that is only looked at: it takes 700 bytes.
        runtime = self._runtime.get(queue.queue_id)
        waiting = 0 if runtime is None else len(runtime.line.waiting)
        return QueueInfo(
            queue=queue.name,
            queue_id=queue.queue_id,
            attributes=queue.attributes(),
            counts=queue.counts(waiting),
            facts=queue.facts(),
            created=created,
        )
