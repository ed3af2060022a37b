"""Writing a checkpoint: the facts in parts, every part with the LSN at which the part is true.

A checkpoint of a large broker takes seconds, and the loop serves clients between two parts. Parts therefore show
different moments. Recovery replays a record to a queue, topic or subscription only if the record's LSN is above the LSN
of the slice. An LSN read too early would not cover a record that the slice contains, and replay would count its
messages twice; an LSN read too late would cover a record that the slice lacks, and the record would be lost.

All parts of a queue show the same moment, because leases, history and half messages must agree with the sets in the
``QueueSlice``. A message that the sets show in flight, with a lease that ended before the leases were copied, would
never come back: replay passes over the end of a lease that it does not know.

The facts are those of appended rows, and the last rows may not be durable yet. The storage therefore counts a
checkpoint only when the LSN of its end is durable. Otherwise a crash could take back rows, and a slice would keep their
facts.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.facts.topic import Subscription, Topic
from cmqd_fold.delays import EMPTY
from cmqd_fold.half_messages import Checked
from cmqd_fold.leases import InFlight
from cmqd_segment.actor_runs import pack_actors
from cmqd_segment.checkpoint import (
    AnyPart,
    AuditSlice,
    CheckpointEnd,
    CheckpointHeader,
    DedupSlice,
    HalvesSlice,
    HistorySlice,
    LeasesSlice,
    QueueSlice,
    RetriesSlice,
    SessionsSlice,
    SubscriptionSlice,
    TopicSlice,
)

NO_STEPS = (b"", b"", b"")
"""Columns of the time index of a queue that remembers no message."""
LEASES_A_PART = 2000
CHUNKS_A_PART = 64
SESSIONS_A_PART = 64
HALVES_A_PART = 8192
RETRIES_A_PART = 8192
ACCOUNTS_A_PART = 256
AUDIT_BLOCKS_A_PART = 2
"""Sizes of parts: a part is made in about 2 ms at most, so that the loop can serve clients in between."""


class Checkpoint:
    """Makes the parts of a checkpoint."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._numbers = facts.numbers
        self._sessions = facts.promises.sessions
        self._queues = facts.queues
        self._topics = facts.topics

    def parts(self, last_lsn: Callable[[], int], now_ms: int, sealed_upto: int = 0) -> Iterator[AnyPart]:
        """Yield the parts of a checkpoint; other operations may run between two parts.

        ``last_lsn`` returns the LSN of the newest row with appended records. Each part is stamped with the LSN at its
        making, because replay must skip exactly the records that the part contains. ``sealed_upto``: every row up to
        this LSN is in a sealed segment, or gone.
        """
        # The header first, and its LSN with it: replay begins behind it. A record between the header and a slice is
        # replayed for the slices made before it, and skipped for those made after it.
        parts = 1
        yield self._header(last_lsn(), now_ms)
        # Directly behind the header, and as of one moment: later actors have a record behind the header.
        for part in self._facts.actors.slices(last_lsn(), sealed_upto):
            parts += 1
            yield part
        # A copy of the ids, because queues come and go between two parts. A queue that comes is in the log behind the
        # header; a queue that goes needs no slice.
        for queue_id in list(self._queues.by_id):
            queue = self._queues.by_id.get(queue_id)
            if queue is not None:
                # The LSN is read here, and the first step of the generator prepares all parts. No other operation runs
                # between the two, because the loop gets its turn at a ``yield`` alone.
                for part in self._queue_parts(queue, last_lsn()):
                    parts += 1
                    yield part
        for topic_id in list(self._topics.by_id):
            topic = self._topics.by_id.get(topic_id)
            if topic is not None:
                for part in self._topic_parts(topic, last_lsn):
                    parts += 1
                    yield part
        # A schedule that comes meanwhile is in the log behind the header, as a queue is.
        for schedule_id in list(self._facts.schedules.by_id):
            schedule = self._facts.schedules.by_id.get(schedule_id)
            if schedule is not None:
                parts += 1
                yield self._facts.schedules.slice(schedule, last_lsn())
        # After all queues and topics: a queue that went before its slice was made is known to this slice alone.
        # The accounts are copied as the keys of sessions are below.
        accounts = list(self._facts.gone_totals.by_account)
        for start in range(0, len(accounts), ACCOUNTS_A_PART):
            parts += 1
            yield self._facts.gone_totals.slice(accounts[start : start + ACCOUNTS_A_PART], last_lsn())
        for part in self._audit_parts(last_lsn()):
            parts += 1
            yield part
        # Sessions last: their slices then have all answers of the queues' slices, and replay can take a session as it
        # is. The keys are copied for the same reason as the ids: a session that ends is left out, and a session that
        # begins is in the log.
        keys = self._sessions.keys()
        for start in range(0, len(keys), SESSIONS_A_PART):
            parts += 1
            yield SessionsSlice(last_lsn(), self._sessions.packed(keys[start : start + SESSIONS_A_PART]))
        # A queue may have been deleted since its slice was made. The LSN of the end lets recovery accept records of
        # unknown queues up to here, and reject such records behind the checkpoint as damage. The number of parts shows
        # that none is missing: a frame has a checksum of its own alone, so without the number a file that lost a whole
        # frame would pass for a checkpoint with fewer queues.
        yield CheckpointEnd(last_lsn(), parts)

    def _header(self, lsn: int, now_ms: int) -> CheckpointHeader:
        """Return the header, with the ends of the reserved numbers, behind which a start continues.

        The next free numbers would not do: further numbers are handed out while the slices are made. A lease number
        that is given twice would let an old receipt handle delete another message.
        """
        numbers = self._numbers
        return CheckpointHeader(
            lsn,
            now_ms,
            numbers.message_id_until,
            numbers.lease_until,
            numbers.queue_id_until,
            self._facts.clock_offset_ms,
        )

    def _audit_parts(self, lsn: int) -> Iterator[AnyPart]:
        """Yield the audit trail as of the first part. A trail that had no entry yet has no part."""
        trail = self._facts.audit_trail
        # Copies of references: 100,000 take about half a millisecond.
        blocks, next_id = trail.blocks(), trail.next_id
        for start in range(0, len(blocks), AUDIT_BLOCKS_A_PART):
            entries = [entry for block in blocks[start : start + AUDIT_BLOCKS_A_PART] for entry in block]
            yield AuditSlice(lsn, entries[-1].entry_id + 1, entries)
        if next_id > 1:
            # The next id alone, also of a trail that ran empty: with an id that is given twice, a reader that asks for
            # newer entries would not get the entry.
            yield AuditSlice(lsn, next_id, [])

    def _queue_parts(self, queue: Queue, lsn: int) -> Iterator[AnyPart]:
        """Yield the parts of a queue, all as of the moment when the first part is made."""
        index = queue.index
        # No operation is under way between two parts, so no operation holds what the index lets go of.
        index.rest()
        # Copies of references: leases are frozen, so parts that are made later still show this moment. Leases below the
        # floor are left out: their messages are gone, the table keeps them only until their deadline, and replay passes
        # over a record of a lease that it does not know.
        leases = (
            [item for item in index.leases.by_number.items() if item[1].position >= index.floor]
            if index.is_made("leases")
            else []
        )
        history = index.history.entries() if index.is_made("history") else []
        halves = self._halves(queue) if index.has_halves else ()
        # All parts are prepared before the first is yielded. Behind a ``yield`` other operations may have run, and a
        # part made from the present state would show another moment than the slice.
        #
        # ``has_halves``, ``has_dedup_ids`` and the counts below are asked before the sets: reading a set that does not
        # exist makes the set, and a checkpoint would leave empty sets in every queue.
        dedup_ids = queue.dedup_ids.parts() if queue.has_dedup_ids else ()
        yield self._queue_slice(queue, lsn)
        yield from halves
        for entries in dedup_ids:
            yield DedupSlice(queue.queue_id, entries)
        for start in range(0, len(leases), LEASES_A_PART):
            yield self._leases_slice(queue.queue_id, leases[start : start + LEASES_A_PART])
        for start in range(0, len(history), CHUNKS_A_PART):
            yield HistorySlice(queue.queue_id, history[start : start + CHUNKS_A_PART])

    def _leases_slice(self, queue_id: int, leases: Sequence[tuple[int, InFlight]]) -> LeasesSlice:
        actors = [in_flight.actor for _, in_flight in leases]
        self._facts.actors.keep(set(actors))
        return LeasesSlice(
            queue_id,
            [
                (
                    lease,
                    in_flight.position,
                    in_flight.deadline_ms,
                    in_flight.receive_count,
                    in_flight.first_receive_ms,
                )
                for lease, in_flight in leases
            ],
            pack_actors([(len(list(equal)), actor) for actor, equal in groupby(actors)]),
        )

    def _queue_slice(self, queue: Queue, lsn: int) -> QueueSlice:
        """Return the first part of a queue."""
        index = queue.index
        # All queues share the buckets, so the buckets of the whole broker are searched for the entries of a queue. The
        # count spares the search for queues without delays, which are most.
        timers = self._queues.delays
        delays = timers.near.of_queue(queue.queue_id) if index.delays.scheduled_count else []
        far_delays = timers.far_of_queue(queue.queue_id) if index.delays.scheduled_count else []
        step_positions, step_starts, step_ends = index.steps.packed() if index.is_made("steps") else NO_STEPS
        settled = index.settled if index.is_made("settled") else None
        return QueueSlice(
            lsn=lsn,
            queue_id=queue.queue_id,
            account=queue.account,
            name=queue.name,
            attributes=index.attributes,
            created_ms=queue.created_ms,
            modified_ms=queue.modified_ms,
            next_position=index.next_position,
            floor=index.floor,
            last_enqueue_ms=index.last_enqueue_ms,
            live=index.packed_live(),
            # Damaged messages are written as active or overflow again: the operator may repair the log before the next
            # start, and a message that is still damaged is found by the next read.
            active=index.active_anew(),
            overflow=index.delays.overflow_anew(),
            delayed=index.delays.scheduled.serialize() if index.delays.scheduled_count else EMPTY,
            delays=[(due_ms, positions.tobytes()) for due_ms, positions in delays],
            step_positions=step_positions,
            step_starts=step_starts,
            step_ends=step_ends,
            rewindable=index.rewindable.serialize() if index.rewindable_count else b"",
            half=index.half.serialize() if index.half_count else b"",
            dead_letter_floor=index.dead_letter_floor,
            activations=index.activation_entries(),
            # A copy, because records change a redrive in place. The memory log keeps the part itself, and would show
            # moves of later rows, which replay would count a second time.
            redrive=None if index.redrive is None else msgspec.structs.replace(index.redrive),
            far_delays=[pairs.tobytes() for pairs in far_delays],
            # A copy for the same reason as the redrive's.
            totals=msgspec.structs.replace(index.totals),
            settled_since_ms=settled.since_ms if settled is not None else 0,
            settled=settled.packed() if settled is not None else [],
        )

    def _topic_parts(self, topic: Topic, last_lsn: Callable[[], int]) -> Iterator[AnyPart]:
        """Yield a topic as of the first part, then every subscription as of its own slice.

        Subscriptions have an LSN each, because 500 subscriptions with a million messages would hold up the loop if they
        had to show the same moment. They can differ: no fact of a subscription refers to another subscription.
        """
        lsn = last_lsn()
        step_positions, step_starts, step_ends = topic.steps.packed()
        known = topic.known_dedup_ids
        dedup_ids = known.parts() if known is not None and len(known) else ()
        yield TopicSlice(
            lsn=lsn,
            topic_id=topic.topic_id,
            account=topic.account,
            name=topic.name,
            attributes=topic.attributes,
            created_ms=topic.created_ms,
            modified_ms=topic.modified_ms,
            next_position=topic.next_position,
            floor=topic.floor,
            last_enqueue_ms=topic.last_enqueue_ms,
            step_positions=step_positions,
            step_starts=step_starts,
            step_ends=step_ends,
            totals=msgspec.structs.replace(topic.totals),
        )
        for entries in dedup_ids:
            yield DedupSlice(topic.topic_id, entries)
        # Listed now, after the slice of the topic. A subscription made in between has a slice here and a record behind
        # the topic's slice; replay drops the record, because the newer slice of the subscription covers it.
        for subscription_id in list(topic.subscriptions):
            subscription = topic.subscriptions.get(subscription_id)
            if subscription is not None:
                # Taken together with the slice, for the same reason as the parts of a queue. A first failure moves a
                # message from ``waiting`` to the retries: copied at two moments, the message could be in neither.
                retries = subscription.deliveries.retry_parts(RETRIES_A_PART)
                yield _subscription_slice(subscription, last_lsn())
                for some in retries:
                    yield RetriesSlice(topic.topic_id, subscription_id, *some)

    def _halves(self, queue: Queue) -> Iterator[HalvesSlice]:
        """Return the parts of the half messages as of now, even if the parts are taken from the iterator later."""
        halves = queue.index.halves
        # Copies, because due entries leave their buckets. (Delays need no copies: the slice has their bytes, and the
        # slice is made before the first part is yielded.)
        due = [(due_ms, positions[:]) for due_ms, positions in self._queues.checks.of_queue(queue.queue_id)]
        # Due checks have left their buckets, and wait for a client that answers.
        waiting = BitMap64(self._queues.due_checks.get(queue.queue_id, ()))
        sets = (halves.committed.serialize(), halves.rolled_back.serialize())
        # Entries are frozen like leases, so references are enough.
        checked = (list(halves.checked), list(halves.checked.values()))
        return _halves_parts(queue, queue.index.next_position, sets, due, waiting, checked)


def _subscription_slice(subscription: Subscription, lsn: int) -> SubscriptionSlice:
    deliveries = subscription.deliveries
    begun_ms, drops, older_drops = deliveries.drops.packed()
    return SubscriptionSlice(
        lsn=lsn,
        topic_id=subscription.topic.topic_id,
        subscription_id=subscription.subscription_id,
        name=subscription.name,
        attributes=subscription.attributes,
        created_ms=subscription.created_ms,
        modified_ms=subscription.modified_ms,
        waiting=deliveries.waiting.serialize() if deliveries.waiting else b"",
        exhausted=deliveries.exhausted.serialize() if deliveries.exhausted else b"",
        blocked=deliveries.blocked,
        delivered=deliveries.delivered,
        dropped=deliveries.dropped,
        last_error=deliveries.last_error,
        last_error_ms=deliveries.last_error_ms,
        failed=deliveries.failed,
        drops_known_from=deliveries.drops.known_from,
        drops_begun_ms=begun_ms,
        drops=drops,
        older_drops=older_drops,
    )


def _halves_parts(
    queue: Queue,
    stop: int,
    sets: tuple[bytes, bytes],
    due: "list[tuple[int, array[int]]]",
    waiting: BitMap64,
    checked: tuple[list[int], list[Checked]],
) -> Iterator[HalvesSlice]:
    """Yield the parts. ``stop`` was the first free position when :meth:`Checkpoint._halves` made the copies."""
    queue_id = queue.queue_id
    # The decisions come first, and in this part alone: empty bytes in a later part must not replace them.
    yield HalvesSlice(queue_id, [], *sets, [], [])
    # The runs are not copied, because runs never change. Runs below ``stop`` can only disappear, through a record of
    # the log, which replay applies too, or because there are too many runs, which a start repeats.
    runs = queue.index.halves.runs(0, stop, HALVES_A_PART)
    while runs:
        yield HalvesSlice(queue_id, runs, b"", b"", [], [])
        runs = queue.index.halves.runs(runs[-1][1] + 1, stop, HALVES_A_PART)
    for buckets in _cut(due):
        yield HalvesSlice(queue_id, [], b"", b"", buckets, [])
    # With time 0 they are due at the first tick after a start, and wait for a checker again.
    rest = iter(waiting)
    while positions := array("Q", islice(rest, HALVES_A_PART)):
        yield HalvesSlice(queue_id, [], b"", b"", [(0, positions.tobytes())], [])
    checked_positions, known = checked
    for start in range(0, len(checked_positions), HALVES_A_PART):
        stretch = slice(start, start + HALVES_A_PART)
        entries = [
            (position, entry.attempts, entry.last_check_ms, entry.last_unknown_ms, entry.next_check_ms)
            for position, entry in zip(checked_positions[stretch], known[stretch], strict=True)
        ]
        yield HalvesSlice(queue_id, [], b"", b"", [], entries)


def _cut(due: "list[tuple[int, array[int]]]") -> Iterator[list[tuple[int, bytes]]]:
    """Yield buckets in lists of about ``HALVES_A_PART`` positions.

    Large buckets are split, because a burst of half messages shares a time and would make a part that holds the loop.
    Small buckets are joined, because half messages sent over an hour have thousands of them.
    """
    together: list[tuple[int, bytes]] = []
    size = 0
    for due_ms, positions in due:
        for start in range(0, len(positions), HALVES_A_PART):
            piece = positions[start : start + HALVES_A_PART]
            together.append((due_ms, piece.tobytes()))
            size += len(piece)
            if size >= HALVES_A_PART:
                yield together
                together, size = [], 0
    if together:
        yield together
