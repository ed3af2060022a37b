"""Pieces of work: segments, cut by ranges of rows. Pure.

A *view* is the log at a moment: the segments to be read, up to the row ``hi``. A query works on a single view, so rows
that are written meanwhile change no answer.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import structs

from cmqd_log.options import LAST_LSN, Options
from cmqd_reading.message_search import TIME_SLACK_MS
from cmqd_segment.manifest import CheckpointEntry, SegmentEntry, SegmentState, SourceName, StartEntry

if TYPE_CHECKING:
    from cmqd_reading.states import QueueStates

ROW_BYTES = 1 << 16
"""Size of a full row."""
GATHERED_BYTES = 4 << 20
"""Smaller pieces are gathered into a partition of up to this number of bytes. A task of a Python source costs Spark
some 50 ms, the time to read as much; Spark gathers its own files by the same number
(``spark.sql.files.openCostInBytes``).
"""


@dataclass(frozen=True)
class View:
    """The log at a moment."""

    hi: int
    """Last row of the view. All rows up to ``hi`` are in the extents or gone."""
    extents: tuple[SegmentEntry, ...]
    """Readable segments, ascending by LSN; an unsealed segment with the rows that it had at this moment."""
    checkpoints: tuple[CheckpointEntry, ...] = ()
    log_id: str = ""
    """Id of the log; empty if no version with ids has opened the folder yet."""
    starts: tuple[StartEntry, ...] = ()
    names: tuple[SourceName, ...] = ()
    """Names of the queues and topics in the ``sources`` of the extents."""

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges of missing rows within ``first`` to ``last`` (both included, at most ``hi``)."""
        missing: list[tuple[int, int]] = []
        last = min(last, self.hi)
        for extent in self.extents:
            if extent.last_lsn < first:
                continue
            if extent.first_lsn > last:
                break
            if extent.first_lsn > first:
                missing.append((first, extent.first_lsn - 1))
            first = extent.last_lsn + 1
        if first <= last:
            missing.append((first, last))
        return missing

    def gaps_between(self, starting_ms: "int | None", ending_ms: "int | None") -> list[tuple[int, int]]:
        """Return the missing rows that may hold messages sent in a span of time.

        Missing rows are no younger than the next row, or checkpoint, above them.
        """
        found: list[tuple[int, int]] = []
        for first, last in self.gaps(1, self.hi):
            before = max((one.last_ms for one in self.extents if one.last_lsn < first), default=0)
            behind = [one.first_ms for one in self.extents if one.first_lsn > last]
            behind += [one.time_ms for one in self.checkpoints if one.lsn >= last]
            if starting_ms is not None and behind and min(behind) < starting_ms:
                continue
            if ending_ms is not None and before - TIME_SLACK_MS >= ending_ms:
                continue
            found.append((first, last))
        return found


@dataclass(frozen=True)
class Piece:
    """Rows ``above < lsn <= upto`` of a segment: the work of a partition."""

    extent: SegmentEntry
    above: int
    upto: int

    @property
    def weight(self) -> int:
        """Approximate number of bytes to read, at least 1."""
        whole = self.extent.last_lsn - self.extent.first_lsn + 1
        return max(self.extent.bytes, 1) * (self.upto - self.above) // whole or 1


@dataclass(frozen=True)
class Task:
    """The work on a piece; a process that does it gets it pickled."""

    piece: Piece
    options: Options
    columns: tuple[str, ...]
    sources: Mapping[int, SourceName] = field(default_factory=dict[int, SourceName])
    """Names by id; other names are unknown."""
    wanted: frozenset[int] | None = None
    """Ids of queues and topics; None = all."""
    states: "Mapping[int, QueueStates]" = field(default_factory=dict[int, "QueueStates"])
    """States by id of the queues with messages in the piece; empty in mode ``events``."""
    weight: int = 1
    """Approximate number of bytes to read."""
    may_be_reclaimed: bool = False
    """The query has no first row or time: a segment reclaimed after the plan is left out, as in a plan made a moment
    later.
    """
    actors: Mapping[int, str] = field(default_factory=dict[int, str])
    """Texts of clients by number, if columns show clients: of an unsealed piece, and of ``states``. A sealed segment
    has a table of the others."""
    as_of_lsn: int | None = None
    """The row of the log as of which the states hold; None in mode ``events``."""


class _HasWeight(Protocol):
    @property
    def weight(self) -> int: ...


_Weighed = TypeVar("_Weighed", bound=_HasWeight)


def is_sealed(extent: SegmentEntry) -> bool:
    """True if the segment is sealed, and so never changes."""
    return extent.state is SegmentState.SEALED


def sources_of(extent: SegmentEntry) -> dict[int, int] | None:
    """Return the bytes of each queue and topic in a segment by id; None if only the segment tells."""
    if is_sealed(extent) and (extent.sources or not extent.messages):
        return {number: size for number, _, size in extent.sources}
    return None


def pieces_of(view: View, options: Options, above: int, upto: int) -> list[Piece]:
    """Return a piece for each segment with rows ``above < lsn <= upto`` in the requested time."""
    pieces: list[Piece] = []
    above, upto = max(above, options.only_lsns[0] - 1), min(upto, options.only_lsns[1])
    for extent in view.extents:
        low, high = max(above, extent.first_lsn - 1), min(upto, extent.last_lsn)
        if low >= high:
            continue
        if options.starting_ms is not None and extent.last_ms and extent.last_ms < options.starting_ms:
            continue
        if options.ending_ms is not None and extent.first_ms - TIME_SLACK_MS >= options.ending_ms:
            continue
        pieces.append(Piece(extent, low, high))
    return pieces


def alike(piece: Piece) -> Piece:
    """Return a piece weighed by its rows alone: the bytes of a segment change until the seal."""
    extent = piece.extent
    size = (extent.last_lsn - extent.first_lsn + 1) * ROW_BYTES
    return replace(piece, extent=structs.replace(extent, bytes=size))


def split(pieces: Sequence[Piece], least: int) -> list[Piece]:
    """Cut pieces into at least ``least`` pieces if the rows suffice; heavier pieces are cut into more."""
    if len(pieces) >= least:
        return list(pieces)
    counts = [1] * len(pieces)
    heaviest = [(-piece.weight, place) for place, piece in enumerate(pieces) if piece.upto - piece.above > 1]
    heapify(heaviest)
    for _ in range(least - len(pieces)):
        if not heaviest:
            break
        _, place = heappop(heaviest)
        counts[place] += 1
        piece = pieces[place]
        if counts[place] < piece.upto - piece.above:
            heappush(heaviest, (-piece.weight // counts[place], place))
    parts: list[Piece] = []
    for piece, count in zip(pieces, counts, strict=True):
        rows = piece.upto - piece.above
        cuts = [piece.above + rows * place // count for place in range(count + 1)]
        parts += [replace(piece, above=low, upto=high) for low, high in pairwise(cuts)]
    return parts


def gathered(tasks: Sequence[_Weighed], least: int) -> list[tuple[_Weighed, ...]]:
    """Group tasks into partitions, in order. Small neighbours share a partition while at least ``least`` remain."""
    most = min(GATHERED_BYTES, sum(task.weight for task in tasks) // least)
    partitions: list[list[_Weighed]] = []
    weight = 0
    for task in tasks:
        weight += task.weight
        if partitions and weight <= most:
            partitions[-1].append(task)
        else:
            partitions.append([task])
            weight = task.weight
    return [tuple(each) for each in partitions]


def bounds(view: View, options: Options) -> tuple[int, int]:
    """Return the requested rows of a batch as ``above < lsn <= upto``."""
    starting = options.starting_lsn
    above = max(starting - 1, 0) if isinstance(starting, int) else view.hi if starting == "latest" else 0
    return above, min(options.ending_lsn, view.hi, LAST_LSN)


def is_choosing(options: Options) -> bool:
    """True if the options name queues, topics or an account."""
    named = options.queues or options.queue_id or options.queue_pattern or options.topics or options.account
    return bool(named) or options.only_queues is not None or options.only_accounts is not None


def wanted_ids(sources: Mapping[int, SourceName], options: Options) -> frozenset[int] | None:
    """Return the ids of the queues and topics that the options name; None = all."""
    if not is_choosing(options):
        return None
    only, only_accounts = options.only_queues, options.only_accounts
    pattern = re.compile(options.queue_pattern)

    def fits(source: SourceName) -> bool:
        if options.account and source.account != options.account:
            return False
        if only_accounts is not None and source.account not in only_accounts:
            return False
        if only is not None and (source.is_topic or source.name not in only):
            return False
        if options.queue_id:
            return source.id == options.queue_id
        if options.queues:
            return not source.is_topic and source.name in options.queues
        if options.queue_pattern:
            return not source.is_topic and pattern.fullmatch(source.name) is not None
        if options.topics:
            return source.is_topic and source.name in options.topics
        return True

    if options.queue_id and options.queue_id not in sources:
        # Rows may have messages of a queue whose name is lost. A filter by name or account lets none of them through.
        is_filtered = options.account or only is not None or only_accounts is not None
        return frozenset() if is_filtered else frozenset({options.queue_id})
    return frozenset(number for number, source in sources.items() if fits(source))


def describe(ranges: Iterable[tuple[int, int]], most: int = 3) -> str:
    """Return ranges of rows as text (``row 4``, ``rows 1, 3 to 5``); at most ``most`` ranges are listed."""
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges]
    noun = "row" if len(texts) == 1 and texts[0].isdigit() else "rows"
    more = f" and {len(texts) - most} more ranges" if len(texts) > most else ""
    return f"{noun} {', '.join(texts[:most])}{more}"
