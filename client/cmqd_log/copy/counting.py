"""Counts for a replay: messages at a fixed row of the log, cut into slices.

The count reads records and no bodies, by the code that also reads for the sends, so count and replay select the same
messages.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import msgspec

from cmqd_log.copy.journal import Slice, Slicer
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import Task, View, bounds
from cmqd_log.data_folder.positions import start_at
from cmqd_log.errors import OptionError
from cmqd_log.message_states.states_at import StatesBySegment
from cmqd_log.options import Mode, Options
from cmqd_log.reading.arrow_batches import Facts
from cmqd_log.reading.planning import plan_batch, unsealed_rows
from cmqd_log.reading.tasks import read_stretches
from cmqd_log.schema import COLUMNS
from cmqd_segment.rows import Run


@dataclass
class Tally:
    """Totals of an event of a queue or topic."""

    rows: int = 0
    """Number of rows of the log with such messages."""
    messages: int = 0
    bytes: int = 0
    """Bytes of the bodies."""
    first_ms: int = 0
    last_ms: int = 0
    last_lsn: int = 0


@dataclass
class Count:
    """Result of a count."""

    position: int
    """Row of the log as of which the messages were counted."""
    log_id: str = ""
    """Id of the log; ``start`` is the start that wrote the row at ``position``, see ``data_folder.positions``."""
    start: str = ""
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict[tuple[str, str], Tally])
    """Totals of the messages to send, by queue or topic and by event."""
    left_out: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Number of messages with events that are not sent, by queue or topic and by event."""
    rows: int = 0
    slices: list[Slice] = field(default_factory=list[Slice])
    largest: int = 0
    """Bytes of the largest body."""
    most_headers: int = 0
    most_header_bytes: int = 0
    without_key: int = 0
    """Number of messages without a routing key."""
    unsealed: tuple[int, int] | None = None
    """First and last unsealed row that may hold wanted messages."""
    states: StatesBySegment = field(default_factory=StatesBySegment)

    @property
    def messages(self) -> int:
        """Number of messages to send."""
        return sum(one.messages for one in self.tallies.values())

    @property
    def bytes(self) -> int:
        """Bytes of the bodies to send."""
        return sum(one.bytes for one in self.tallies.values())


@dataclass(frozen=True)
class Counting:
    """Plan of a count, fixed at a row."""

    folder: Folder
    view: View
    options: Options
    """The options of the replay, with the fixed row as their end."""
    tasks: list[Task]


def plan_count(options: Options) -> Counting:
    """Fix the row of the count, and plan the pieces of the log to read.

    Raises:
        CmqdSourceError: the folder or an option cannot be used, or a name belongs to several accounts.
    """
    folder = open_folder(options)
    view = folder.view(include_active=options.include_active)
    _, position = bounds(view, options)
    fixed = replace(options, ending_lsn=position)
    tasks = plan_batch(fixed, tuple(COLUMNS))
    accounts = sorted({task.sources[number].account for task in tasks for number in task.wanted or task.sources})
    if len(accounts) > 1 and not options.account:
        raise OptionError(
            "account", None, f"accounts {', '.join(accounts)} have queues or topics of this name; choose an account"
        )
    return Counting(folder, view, fixed, tasks)


def count(
    counting: Counting,
    events: "Callable[[str], bool]",
    most: int,
    *,
    tell: "Callable[[int, int], None] | None" = None,
) -> Count:
    """Count the messages, and cut the rows into slices.

    Args:
        counting: the plan from :func:`plan_count`.
        events: events, or states, to send.
        most: maximum number of messages of a slice.
        tell: called with the number of pieces read so far and the number of messages counted so far.

    Raises:
        SegmentReclaimedError: a segment of the plan was reclaimed; make a new plan.
        CmqdSourceError: the log cannot be read.
    """
    options, view = counting.options, counting.view
    found = Count(options.ending_lsn, view.log_id, start_at(view, options.ending_lsn))
    slicer = Slicer(most, view.gaps(1, view.hi))
    row = 0
    for number, task in enumerate(counting.tasks, 1):
        for facts, run, start, stop, _ in read_stretches(task):
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
    """Add a stretch of messages to the count, and return the bytes of their bodies."""
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
    """Return the checksums of the rows that are still in the log, by row."""
    wanted = sorted(lsns)
    found: dict[int, int] = {}
    for extent in view.extents:
        here = [lsn for lsn in wanted if extent.first_lsn <= lsn <= extent.last_lsn]
        if here:
            with folder.opened(extent) as raw:
                for lsn in here:
                    found.update(raw.execute("SELECT lsn, meta_crc FROM log WHERE lsn = ?", (lsn,)).fetchall())
    return found
