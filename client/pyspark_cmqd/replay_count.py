"""Counts for a replay: messages at a fixed row of the log, cut into slices. No Spark session.

Records are read, and no bodies. The code that reads for Spark makes the count, so both agree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from cmqd_segment.rows import Run
from pyspark_cmqd.arrow_batches import Facts
from pyspark_cmqd.driver import plan_batch, unsealed_rows
from pyspark_cmqd.errors import OptionError
from pyspark_cmqd.executor import read_stretches
from pyspark_cmqd.folder import Folder, open_folder
from pyspark_cmqd.options import Mode, Options
from pyspark_cmqd.plan import Task, View, bounds
from pyspark_cmqd.positions import start_at
from pyspark_cmqd.replay_journal import Slice, Slicer
from pyspark_cmqd.schema import COLUMNS
from pyspark_cmqd.states_at import StatesBySegment


@dataclass
class Tally:
    """Of one queue (or topic) and event."""

    rows: int = 0
    """Of the log."""
    messages: int = 0
    bytes: int = 0
    """Of bodies."""
    first_ms: int = 0
    last_ms: int = 0
    last_lsn: int = 0


@dataclass
class Count:
    """See the module."""

    position: int
    """The row of the count."""
    log_id: str = ""
    """Of the log, and the start that wrote the row at ``position``: see :mod:`pyspark_cmqd.positions`."""
    start: str = ""
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict[tuple[str, str], Tally])
    """By queue or topic, and event; of those that are sent."""
    left_out: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Messages of events that are not sent."""
    rows: int = 0
    slices: list[Slice] = field(default_factory=list[Slice])
    largest: int = 0
    """Bytes of the largest body."""
    most_headers: int = 0
    most_header_bytes: int = 0
    without_key: int = 0
    """Messages that have no routing key."""
    unsealed: tuple[int, int] | None = None
    """Rows that may be wanted, and are not sealed yet."""
    states: StatesBySegment = field(default_factory=StatesBySegment)

    @property
    def messages(self) -> int:
        """All that are sent."""
        return sum(one.messages for one in self.tallies.values())

    @property
    def bytes(self) -> int:
        """Of their bodies."""
        return sum(one.bytes for one in self.tallies.values())


@dataclass(frozen=True)
class Counting:
    """Plan of a count, fixed at a row."""

    folder: Folder
    view: View
    options: Options
    """Ending at the row."""
    tasks: list[Task]


def plan_count(options: Options) -> Counting:
    """Fix the row and find what is to be read. Raises CmqdSourceError."""
    folder = open_folder(options)
    view = folder.view(include_active=options.include_active)
    _, position = bounds(view, options)
    fixed = replace(options, ending_lsn=position)
    tasks = plan_batch(fixed, tuple(COLUMNS))
    accounts = sorted({task.sources[number].account for task in tasks for number in task.wanted or task.sources})
    if len(accounts) > 1 and not options.account:
        raise OptionError("account", None, f"there are queues or topics of that name in {', '.join(accounts)}")
    return Counting(folder, view, fixed, tasks)


def count(
    counting: Counting,
    events: "Callable[[str], bool]",
    most: int,
    *,
    tell: "Callable[[int, int], None] | None" = None,
) -> Count:
    """Count, and cut into slices of ``most`` messages.

    Args:
        counting: of :func:`plan_count`.
        events: events, or states, to be sent.
        most: messages of a slice.
        tell: called with the numbers of segment parts read and of messages found.

    Raises CmqdSourceError; SegmentReclaimedError if a segment of the plan was reclaimed, and a new plan is needed.
    """
    options, view = counting.options, counting.view
    found = Count(options.ending_lsn, view.log_id, start_at(view, options.ending_lsn))
    slicer = Slicer(most, view.gaps(1, view.hi))
    row = 0
    for number, task in enumerate(counting.tasks, 1):
        for facts, run, start, stop in read_stretches(task):
            source = facts.queue or facts.topic or "?"
            if not events(facts.event):
                name = source, str(facts.event)
                found.left_out[name] = found.left_out.get(name, 0) + stop - start
                continue
            size = _note(found, source, facts, run, start, stop)
            if facts.lsn != row:
                row = facts.lsn
                found.rows += 1
            slicer.add(row, stop - start, size)
        if tell is not None:
            tell(number, found.messages)
    slices = slicer.slices()
    checks = row_checks(counting.folder, view, [one.first_lsn for one in slices])
    found.slices = [msgspec.structs.replace(one, check=checks.get(one.first_lsn, 0)) for one in slices]
    if options.mode is not Mode.EVENTS:
        found.states = {task.piece.extent.number: dict(task.states) for task in counting.tasks}
    found.unsealed = unsealed_rows(counting.folder, view, options)
    return found


def _note(found: Count, source: str, facts: Facts, run: Run, start: int, stop: int) -> int:
    """Returns the bytes of the bodies."""
    whole = stop - start == len(run.sizes)
    sizes = run.sizes if whole else run.sizes[start:stop]
    size = sum(sizes)
    tally = found.tallies.setdefault((source, str(facts.event)), Tally(first_ms=run.enqueue_ms))
    if tally.last_lsn != facts.lsn:
        tally.rows += 1
        tally.last_lsn = facts.lsn
    tally.messages += stop - start
    tally.bytes += size
    tally.first_ms = min(tally.first_ms, run.enqueue_ms)
    tally.last_ms = max(tally.last_ms, run.enqueue_ms)
    found.largest = max(found.largest, *sizes)
    if run.headers is not None:
        for headers in run.headers[start:stop]:
            if headers:
                found.most_headers = max(found.most_headers, len(headers))
                names = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
                found.most_header_bytes = max(found.most_header_bytes, names)
    labels = run.labels
    if not labels:
        found.without_key += stop - start
    else:
        shown = labels * (stop - start) if len(labels) == 1 else labels[start:stop]
        found.without_key += sum(1 for label in shown if not isinstance(label, str))
    return size


def row_checks(folder: Folder, view: View, lsns: Iterable[int]) -> dict[int, int]:
    """Checksums of rows, of those that are there."""
    wanted = sorted(lsns)
    found: dict[int, int] = {}
    for extent in view.extents:
        here = [lsn for lsn in wanted if extent.first_lsn <= lsn <= extent.last_lsn]
        if here:
            with folder.opened(extent) as raw:
                for lsn in here:
                    found.update(raw.execute("SELECT lsn, meta_crc FROM log WHERE lsn = ?", (lsn,)).fetchall())
    return found
