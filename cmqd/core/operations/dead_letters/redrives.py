"""Redrives: moving dead letters back to their queues of origin, or to another queue."""

from pyroaring import BitMap64

from cmqd.core.domain_errors import InvalidArgument, RedriveNotFound, RedriveRunning, shown
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.operations.dead_letters.reservations import RETRY_MS, Reservations
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import Effects, Outcome
from cmqd.core.runtime.queue import Redriving
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import RedriveEnded, RedriveStarted
from cmqd_types.queues import RedriveStatus

PACE_SLACK_MS = 100
"""Lateness of a page that does not slow its redrive down."""


class Redrives:
    """Starts, paces and ends redrives."""

    def __init__(self, facts: Facts, runtime: Runtime, reservations: Reservations, serving: Serving) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._gates = runtime.gates
        self._reservations = reservations
        self._serving = serving

    def start(
        self, account: str, name: str, target: str | None, max_per_second: int | None, now_ms: int
    ) -> Outcome[RedriveStatus]:
        """Start a redrive in the background: move the present messages back to their origins, or to ``target``.

        Messages in flight or delayed stay. A message stays too if its origin does not exist or takes no body of that
        size, and the status counts it; a full target holds the redrive up until the target has room. A redrive survives
        a restart.

        Raises:
            QueueNotFound: of ``name``.
            InvalidArgument: the target does not exist or is the queue itself, or the queue has a dead-letter queue,
                or never served as a dead-letter queue.
            RedriveRunning: a redrive is under way.
        """
        queue = self._queues.find(account, name)
        runtime = self._runtime[queue.queue_id]
        index = queue.index
        if runtime.redriving is not None:
            raise RedriveRunning(name)
        if queue.dead_letters is not None:
            raise InvalidArgument(
                f"queue {name!r} has a dead-letter queue itself and cannot be redriven",
                field="queue",
                value=name,
                limit="a queue without a dead-letter queue",
            )
        if not index.held_dead_letters:
            # A mistyped name would otherwise move every message of a working queue.
            raise InvalidArgument(
                f"queue {name!r} has never been a dead-letter queue, so there is nothing to redrive",
                field="queue",
                value=name,
                limit="a queue that is or was a dead-letter queue",
            )
        if max_per_second is not None:
            check_range("max_per_second", max_per_second, 1, 1_000_000)
        if target is not None and (target == name or target not in self._queues.names[account]):
            raise InvalidArgument(
                f"the redrive cannot move messages to {shown(target)}: "
                + ("it is the queue itself" if target == name else "the queue does not exist"),
                field="target",
                value=target,
                limit="another queue of the account",
            )
        record = RedriveStarted(queue.queue_id, target or "", max_per_second or 0, index.next_position, now_ms)
        index.apply_redrive_started(record)
        runtime.redriving = Redriving()
        self._agenda.reviews.set(queue.queue_id, now_ms)
        return Outcome(self._status(queue), [record])

    def cancel(self, account: str, name: str, now_ms: int) -> Outcome[RedriveStatus]:
        """Stop a redrive; moved messages stay moved. No effect on a redrive that is over.

        Raises:
            QueueNotFound, RedriveNotFound
        """
        queue = self._queues.find(account, name)
        effects = Effects()
        if self._runtime[queue.queue_id].redriving is not None:
            self._end(queue, "cancelled", effects, now_ms)
            self._serving.serve(queue, effects, now_ms)
        return effects.outcome(self._status(queue))

    def status(self, account: str, name: str) -> RedriveStatus:
        """Return the progress of the redrive of a queue, or the result of the last redrive.

        Raises:
            QueueNotFound, RedriveNotFound
        """
        return self._status(self._queues.find(account, name))

    def _status(self, queue: Queue) -> RedriveStatus:
        index = queue.index
        redrive, under_way = index.redrive, self._runtime[queue.queue_id].redriving
        if redrive is None:
            raise RedriveNotFound(queue.name)
        remaining = 0
        if under_way is not None:
            remaining = index.active.range_cardinality(under_way.cursor, redrive.stop_position) + index.moving_count
        return RedriveStatus(
            queue=queue.name,
            target=redrive.target or None,
            max_per_second=redrive.max_per_second or None,
            started_ms=redrive.started_ms,
            ended_ms=redrive.ended_ms or None,
            reason=redrive.reason if under_way is None else under_way.held_up,
            moved=redrive.moved,
            remaining=remaining,
            missing_origins=dict(redrive.missing_origins if under_way is None else under_way.missing_origins),
        )

    def _end(self, queue: Queue, reason: str, effects: Effects, now_ms: int) -> None:
        runtime = self._runtime[queue.queue_id]
        missing = {} if runtime.redriving is None else runtime.redriving.missing_origins
        record = RedriveEnded(queue.queue_id, reason, now_ms, missing)
        queue.index.apply_redrive_ended(record)
        effects.records.append(record)
        runtime.redriving = None
        runtime.used_ms = now_ms
        self._reservations.release_all(queue)

    def go_on(self, queue: Queue, effects: Effects, now_ms: int) -> int | None:
        """Reserve the next page of a redrive, or end the redrive. Returns the time of the next review, if any."""
        under_way, redrive, index = self._runtime[queue.queue_id].redriving, queue.index.redrive, queue.index
        assert under_way is not None
        assert redrive is not None
        if self._reservations.is_reading(queue):
            return None
        if under_way.next_ms > now_ms:
            return under_way.next_ms
        if self._gates.moves_held_up:
            self._reservations.release_all(queue)
            under_way.held_up = self._gates.moves_held_up
            under_way.next_ms = now_ms + RETRY_MS
            return under_way.next_ms
        if index.moving_count:
            # The page before had a part of the reserved messages; the rest is read first.
            self._reservations.read(queue, effects)
            return None
        max_page = self._limits.page_messages
        if redrive.max_per_second:
            max_page = max(1, min(max_page, redrive.max_per_second // 10))
        active = index.active_from(max(under_way.cursor, index.floor), max_page)
        positions = BitMap64([position for position in active if position < redrive.stop_position])
        if not positions:
            self._end(queue, "done", effects, now_ms)
            return None
        self._reservations.reserve(queue, positions)
        self._reservations.read(queue, effects)
        return None

    def pace(self, queue: Queue, count: int, now_ms: int) -> None:
        """Keep to the rate of a redrive."""
        under_way, redrive = self._runtime[queue.queue_id].redriving, queue.index.redrive
        assert under_way is not None
        assert redrive is not None
        if redrive.max_per_second and not under_way.held_up:
            # A page that was a little late does not slow the redrive down. After a longer pause the rate starts anew;
            # catching up would send a burst to the consumers of the target.
            since_ms = under_way.next_ms if now_ms - under_way.next_ms <= PACE_SLACK_MS else now_ms
            under_way.next_ms = since_ms - (-count * 1000 // redrive.max_per_second)
