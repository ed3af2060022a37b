"""Lists of queues with their messages by state, in any order: a page at a time, for consoles.

An account may have 10,000 queues, and no order but that of the names is kept: counts change with each message. A list
is therefore ranked anew for each page, in steps. A step ranks some queues and sorts them among themselves; the sorted
runs are merged in further steps, up to the end of the page. A sort of all queues in one call would hold the loop for 5
ms.

Queues come and go between the steps, and each queue is shown as of its own moment: a page may lack a queue that was
deleted meanwhile, and neighbours may have changed places.
"""

from collections.abc import Callable, Generator, Mapping
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.limits import check_range
from cmqd.core.names import every_name
from cmqd.core.runtime.queue import QueueRuntime
from cmqd.core.runtime.runtime import Runtime
from cmqd_types.queues import QUEUE_SELECTIONS, QUEUE_SORTS, QueueSummary
from cmqd_types.sentences import field_name, sentence

MAX_LIMIT = 1000
"""Largest ``limit`` of a page."""
RANKED_A_STEP = 400
"""Queues of a step that ranks: 0.3 ms, and 0.8 ms by age."""
MERGED_A_STEP = 1000
"""Ranks of a step that merges: less than 1 ms with 25 runs."""
SHOWN_A_STEP = 200
"""Queues of a step that collects figures: about 0.5 ms."""
HIDDEN_OF_A_QUEUE = 500
"""Half and delayed messages that cost a search for the oldest message as much time as a further queue."""

Rank: TypeAlias = tuple[int, int, int]
"""The figure that the list is sorted by (negated for a descending order), the place in the order of names, and the id:
queues with equal figures come in order of name."""


class QueueList(NamedTuple):
    """A page of a list."""

    total: int
    """Number of queues that match, on this page or not."""
    queues: list[QueueSummary]


def _same_name(name: str) -> str:
    return name


class QueueSummaries:
    """Makes lists of queues; see the module."""

    def __init__(self, facts: Facts, runtime: Runtime) -> None:
        self._queues = facts.queues
        self._runtime = runtime.queues

    @staticmethod
    def check(sort: str, selection: str, offset: int, limit: int) -> None:
        """Check the arguments of a list.

        Raises:
            InvalidArgument: the sort or the selection is unknown, or the offset or limit is out of range.
        """
        for field, value, allowed in (("sort", sort, QUEUE_SORTS), ("selection", selection, QUEUE_SELECTIONS)):
            if value not in allowed:
                raise InvalidArgument(
                    sentence("{} must be one of {}, not {}", field_name(field), ", ".join(allowed), shown(value)),
                    field=field,
                    value=value,
                    limit=f"one of {', '.join(allowed)}",
                )
        check_range("offset", offset, 0, 1 << 31)
        check_range("limit", limit, 1, MAX_LIMIT)

    def page(
        self,
        account: str,
        search: str,
        sort: str,
        descending: bool,
        selection: str,
        offset: int,
        limit: int,
        *,
        shows: Callable[[str], bool] = every_name,
        named: Callable[[str], str] = _same_name,
        most_compared: int = RANKED_A_STEP,
    ) -> Generator[None, None, QueueList]:
        """List queues of an account, in steps.

        Args:
            account: the account.
            search: only queues with this text in their name.
            sort: a figure, see ``QUEUE_SORTS``.
            descending: the largest figures first; queues with equal figures are always in order of name.
            selection: the kind of queues, see ``QUEUE_SELECTIONS``.
            offset: number of matching queues before the page.
            limit: most queues of the page.
            shows: selects the names that the caller may see.
            named: returns the name of a dead-letter queue as the caller may see it.
            most_compared: most names that a step compares by ``shows`` or ``named``; the cost of a comparison is the
                caller's.
        """
        at_once = min(RANKED_A_STEP, most_compared)
        runs, total = yield from self._ranked(account, search, sort, descending, selection, shows, at_once)
        ids: list[int] = []
        ranks = merge(*runs)
        # The merge has no way to skip: the pages before this page are merged too, at 1 us for each queue.
        stop = min(offset + limit, total)
        for start in range(0, stop, MERGED_A_STEP):
            end = min(start + MERGED_A_STEP, stop)
            ids += [
                queue_id for place, (_, _, queue_id) in enumerate(islice(ranks, end - start), start) if place >= offset
            ]
            yield
        at_once = min(SHOWN_A_STEP, most_compared)
        page: list[QueueSummary] = []
        shown = 0
        for queue_id in ids:
            # By id: a queue may have been deleted since it was ranked.
            queue = self._queues.by_id.get(queue_id)
            if queue is not None:
                page.append(self.summary(queue, named))
                shown += _weight(queue)
            shown += 1
            if shown >= at_once:
                shown = 0
                yield
        return QueueList(total, page)

    def _ranked(
        self,
        account: str,
        search: str,
        sort: str,
        descending: bool,
        selection: str,
        shows: Callable[[str], bool],
        at_once: int,
    ) -> Generator[None, None, tuple[list[list[Rank]], int]]:
        """Rank the matching queues, ``at_once`` a step; return a sorted run for each step, and the number of queues."""
        figure_of, is_selected = FIGURES[sort], SELECTIONS[selection]
        # Queues with equal figures come in order of name, whatever the direction; names themselves have no equals.
        sign = -1 if descending else 1
        sign_of_place = sign if sort == "name" else 1
        runs: list[list[Rank]] = []
        total = 0
        after = (account, "")
        while queues := self._queues.in_order.behind(account, after, at_once):
            run: list[Rank] = []
            examined = 0
            for queue in queues:
                if search in queue.name and is_selected(queue) and shows(queue.name):
                    figure = figure_of(queue, self._runtime.get(queue.queue_id))
                    run.append((sign * figure, sign_of_place * total, queue.queue_id))
                    total += 1
                    examined += _weight(queue) if sort == "age" else 0
                after = (account, queue.name)
                examined += 1
                if examined >= at_once:
                    # The rest is read again, because queues may be deleted before the next step.
                    break
            run.sort()
            runs.append(run)
            yield
        return runs, total

    def summary(self, queue: Queue, named: Callable[[str], str]) -> QueueSummary:
        """Return the figures of a queue; ``named`` returns a name as the caller may see it."""
        index = queue.index
        totals, attributes = index.totals, index.attributes
        oldest = index.oldest_unconsumed()
        target = attributes.dead_letter_queue
        return QueueSummary(
            queue.name,
            queue.queue_id,
            index.active_count + index.moving_count,
            index.readable_in_flight_count,
            index.delays.scheduled_count + index.delays.overflow_count,
            index.half_count,
            index.rewindable_count,
            index.damaged_count,
            _waiting_receives(queue, self._runtime.get(queue.queue_id)),
            None if oldest is None else index.steps.sent_at(oldest),
            queue.created_ms,
            attributes.transactional,
            named(target) if target else "",
            bool(queue.sources),
            _arrived(queue),
            totals.deleted,
            totals.dead_lettered,
        )


def _waiting_receives(queue: Queue, runtime: QueueRuntime | None) -> int:
    return 0 if runtime is None else len(runtime.line.waiting)


def _arrived(queue: Queue) -> int:
    totals = queue.index.totals
    return totals.sent + totals.copied + totals.dead_letters + totals.redriven_here


def _weight(queue: Queue) -> int:
    """Return the cost of the age of a queue, beyond that of a usual queue, in queues.

    With hidden messages the search for the oldest message makes a union and a difference of sets: about 0.4 ms with
    100,000 delayed messages at scattered positions.
    """
    index = queue.index
    return (index.half_count + index.delays.scheduled_count + index.delays.overflow_count) // HIDDEN_OF_A_QUEUE


def _age(queue: Queue) -> int:
    """Return a figure that grows with the age of the oldest message, and is lowest without a message."""
    oldest = queue.index.oldest_unconsumed()
    return -_BEYOND_ALL_TIMES if oldest is None else -queue.index.steps.sent_at(oldest)


_BEYOND_ALL_TIMES: Final = 1 << 62

FIGURES: Final[Mapping[str, Callable[[Queue, QueueRuntime | None], int]]] = {
    "name": lambda queue, runtime: 0,
    "active": lambda queue, runtime: queue.index.active_count + queue.index.moving_count,
    "in_flight": lambda queue, runtime: queue.index.readable_in_flight_count,
    "delayed": lambda queue, runtime: queue.index.delays.scheduled_count + queue.index.delays.overflow_count,
    "half": lambda queue, runtime: queue.index.half_count,
    "rewindable": lambda queue, runtime: queue.index.rewindable_count,
    "damaged": lambda queue, runtime: queue.index.damaged_count,
    "waiting_receives": _waiting_receives,
    "age": lambda queue, runtime: _age(queue),
    "created": lambda queue, runtime: queue.created_ms,
    "arrived": lambda queue, runtime: _arrived(queue),
    "deleted": lambda queue, runtime: queue.index.totals.deleted,
    "dead_lettered": lambda queue, runtime: queue.index.totals.dead_lettered,
}
"""The figure of each sort; a test compares the names with ``QUEUE_SORTS``."""

SELECTIONS: Final[Mapping[str, Callable[[Queue], bool]]] = {
    "all": lambda queue: True,
    "with_messages": lambda queue: queue.index.live_count > 0,
    "dead_letter_queues": lambda queue: bool(queue.sources),
    "with_dead_letter_queue": lambda queue: bool(queue.index.attributes.dead_letter_queue),
    "transactional": lambda queue: queue.index.attributes.transactional,
}
"""The test of each selection; a test compares the names with ``QUEUE_SELECTIONS``."""
