"""Reconciliation: messages stored in every queue by the hour, and their states, counted from the log at a fixed row.

Two readings are compared. Mode ``events`` counts the messages stored in the queue:

    sent       by a producer, half messages included; a committed message counts once, in the hour of its commit
    copied     from a topic               arrived   as a dead letter               returned   by a redrive

Mode ``all`` counts their states: ``consumed``, ``dead`` (moved to the dead-letter queue, where the message counts as
``arrived``), waiting (``active``, ``delayed``, ``in_flight``), ``half``, ``expired``, ``cleared``, ``redriven``,
``rolled_back``, ``queue_deleted`` (on request), ``queue_unused`` (with a queue that was deleted because it was unused),
or ``gone``: the message left, and the rows with the reason were reclaimed. For every queue and hour both sums must be
equal.

A reading is folded into the counts of its lines as it is read, so memory grows with the lines, and neither reading is
kept. Committed half messages are known by their ids, in a compressed bitmap: two bytes an id where one message in a
hundred is a half message, ten and more where such messages are rare.

Only messages with rows in the log are counted. Consumed messages go with their segment, usually soon; the setting
``keep_history_ms`` keeps them. Hours are hours of production (the enqueue time), in UTC. Accounts have separate lines;
queues that had the same name in an account, in turn, share a line.
"""

# pyarrow tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from pyroaring import BitMap64

from cmqd_log.data_folder.catalog import read_catalog
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import Task, View, bounds
from cmqd_log.errors import FolderError, SegmentReclaimedError
from cmqd_log.files import beside
from cmqd_log.options import Mode, Options, parse_options
from cmqd_log.reading.planning import check_names, plan_range, unsealed_rows
from cmqd_log.reading.tasks import Stretch, read_stretches

IN = ("sent", "copied", "arrived", "returned")
"""Messages stored in a queue."""
STATES: Mapping[str, str] = {
    "deleted": "consumed",
    "dead_lettered": "dead",
    "active": "active",
    "delayed": "delayed",
    "in_flight": "in_flight",
    "half": "half",
    "expired": "expired",
    "cleared": "cleared",
    "redriven": "redriven",
    "rolled_back": "rolled_back",
    "queue_deleted": "queue_deleted",
    "queue_unused": "queue_unused",
    "gone": "gone",
}
"""Column by state."""
OUT = tuple(STATES.values())
"""States of the messages."""
WAITING = ("active", "delayed", "in_flight")
HOUR_MS = 3_600_000
ATTEMPTS = 5
"""Attempts to count while the broker reclaims segments."""

_READ = ("account", "queue", "event", "enqueue_ts")

_Key: TypeAlias = tuple[str, str | None, str | None, int, str]
"""Side, account, queue, hour since 1970, kind; see :func:`lines_of`."""


@dataclass(frozen=True)
class Line:
    """A queue of an account in an hour."""

    queue: str | None
    """Name of the queue; None = no record left in the log names the queue."""
    hour: datetime
    """Beginning of the hour, UTC."""
    came: Mapping[str, int]
    """Messages stored in the queue, by the names of ``IN``; zeros are omitted."""
    became: Mapping[str, int]
    """States of the messages, by the names of ``OUT``; zeros are omitted."""
    account: str | None = None
    """Account of the queue; None = no record left in the log names it."""

    def count(self, column: str) -> int:
        """Return the number in a column of ``IN`` or ``OUT``, or in ``waiting``."""
        if column == "waiting":
            return sum(self.became.get(state, 0) for state in WAITING)
        return self.came.get(column, 0) or self.became.get(column, 0)

    @property
    def total(self) -> int:
        """Number of messages that were stored in the queue."""
        return sum(self.came.values())

    @property
    def difference(self) -> int:
        """Number of stored messages without a state (negative: states without a stored message).

        Not 0 means that one of the two readings understands the log wrongly.
        """
        return self.total - sum(self.became.values())


@dataclass(frozen=True)
class Reconciled:
    """Result of a reconciliation."""

    lsn: int
    """Row of the log as of which the messages were counted."""
    missing: Sequence[tuple[int, int]]
    """Ranges of missing rows up to that row; their messages are not counted."""
    lines: Sequence[Line]
    """Ascending by account, queue and hour."""
    unsealed: tuple[int, int] | None = None
    """First and last unsealed row above ``lsn``, not counted."""

    @property
    def holds(self) -> bool:
        """True if the sums of every line are equal."""
        return not any(line.difference for line in self.lines)

    @property
    def total(self) -> Line:
        """The sum of all lines, as a line without a queue."""
        came: Counter[str] = Counter()
        became: Counter[str] = Counter()
        for line in self.lines:
            came.update(line.came)
            became.update(line.became)
        return Line(None, _moment(0), came, became)


def ask(
    path: str,
    *,
    queues: Sequence[str] = (),
    account: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    include_active: bool = False,
) -> Options:
    """Return the options of a count of messages of queues (empty: all) sent at or after ``since`` and before ``until``.

    Raises:
        OptionError: a name or a time cannot be used.
        FolderError: there is no data folder, or it cannot be read.
    """
    given = {"path": path, "includeActive": str(include_active).lower(), "failOnDataLoss": "false"}
    if queues:
        given["queue"] = ",".join(queues)
    if account:
        given["account"] = account
    if since is not None:
        given["startingTimestamp"] = since.isoformat()
    if until is not None:
        given["endingTimestamp"] = until.isoformat()
    options = parse_options(given)
    folder = open_folder(options)
    view = folder.view(include_active=include_active)
    check_names(options, read_catalog(folder, view), folder, view)
    return options


def reconcile(options: Options, tell: Callable[[int, int], object] = lambda done, total: None) -> Reconciled:
    """Count with both readings; a count that meets the reclamation of a segment is begun again.

    Args:
        options: as of :func:`ask`.
        tell: called with the number of pieces of segments that were read, and the number of all pieces.

    Raises:
        CmqdSourceError: the log cannot be read, or its segments are reclaimed faster than they are read.
    """
    # Held over both readings, which fetch a file of a URL once.
    with open_folder(options) as folder:
        for _ in range(ATTEMPTS):
            view = folder.view(include_active=options.include_active)
            missing = _missing(options, view)
            try:
                lines = lines_of(_counts(options, folder, view, tell))
            except SegmentReclaimedError:
                continue
            after = folder.view(include_active=options.include_active)
            if _missing(options, replace(after, hi=view.hi)) == missing:
                return Reconciled(view.hi, missing, lines, unsealed_rows(folder, view, options))
            # A segment was reclaimed between the readings, so their sums cannot be compared.
    raise FolderError(
        f"the broker of {options.path} reclaims segments faster than they are read; "
        f"its setting keep_history_ms keeps them longer"
    )


def _missing(options: Options, view: View) -> list[tuple[int, int]]:
    return view.gaps_between(options.starting_ms, options.ending_ms)


def _counts(
    asked: Options, folder: Folder, view: View, tell: Callable[[int, int], object]
) -> Iterator[tuple[str, str | None, str | None, int, str, int]]:
    """Yield the counts of both readings, as :func:`lines_of` takes them."""

    def plan(mode: Mode, **changed: Any) -> list[Task]:
        options = replace(asked, mode=mode, **changed)
        return plan_range(folder, view, options, _READ, *bounds(view, options))

    events, states = plan(Mode.EVENTS), plan(Mode.ALL)
    counts: Counter[_Key] = Counter()
    total = len(events) + len(states)
    for number, task in enumerate(events, 1):
        for stretch in read_stretches(task):
            for what, messages in _origins(stretch):
                counts[_key("came", stretch, what)] += messages
        tell(number, total)
    for number, task in enumerate(states, len(events) + 1):
        for stretch in read_stretches(task):
            counts[_key("became", stretch, stretch.facts.event)] += stretch.stop - stretch.start
        tell(number, total)
    if any(side == "came" and what == "half" for side, *_, what in counts):
        # A commit stores the message again under its id, with the time of the commit. Committed messages are therefore
        # looked up without the range of time: the commit may lie outside of it.
        committed = BitMap64()
        for first, stop, _ in _ids_of("committed", plan(Mode.EVENTS, starting_ms=None, ending_ms=None)):
            committed.add_range(first, stop)
        for first, stop, stretch in _ids_of("half", events):
            counts[_key("again", stretch, "half")] += committed.range_cardinality(first, stop)
    for key, messages in counts.items():
        yield (*key, messages)


def _key(side: str, stretch: Stretch, what: str) -> _Key:
    return side, stretch.facts.account, stretch.facts.queue, stretch.run.enqueue_ms // HOUR_MS, what


def _origins(stretch: Stretch) -> Iterable[tuple[str, int]]:
    """Return how the messages came to their queue, with their number; messages of a topic itself are left out."""
    event, messages = stretch.facts.event, stretch.stop - stretch.start
    if event == "published":
        return ()
    if event == "moved":
        origins = stretch.run.origins
        of_stretch = (None,) * messages if origins is None else origins[stretch.start : stretch.stop]
        redriven = sum(1 for origin in of_stretch if origin is not None and origin.reason == "redrive")
        return ("returned", redriven), ("arrived", messages - redriven)
    return ((event if event in ("copied", "half") else "sent", messages),)


def _ids_of(event: str, tasks: Iterable[Task]) -> Iterator[tuple[int, int, Stretch]]:
    """Yield the ids of messages of an event, as first and stop of neighbours."""
    for task in tasks:
        for stretch in read_stretches(task):
            if stretch.facts.event == event:
                first = stretch.run.first_message_id
                yield first + stretch.start, first + stretch.stop, stretch


def lines_of(counts: Iterable[tuple[str, str | None, str | None, int, str, int]]) -> list[Line]:
    """Return the counted lines: side, account, queue, hour (since 1970), kind, count. The sides are ``came``,
    ``became``, and ``again`` for the messages of committed half messages.
    """
    came: dict[tuple[str | None, str | None, int], Counter[str]] = {}
    became: dict[tuple[str | None, str | None, int], Counter[str]] = {}
    for side, account, queue, hour, what, count in counts:
        key = (account, queue, hour)
        if side == "became":
            became.setdefault(key, Counter())[STATES[what]] += count
        else:
            name = "sent" if what == "half" else what
            came.setdefault(key, Counter())[name] += -count if side == "again" else count
    found = [
        Line(key[1], _moment(key[2]), _not_0(came.get(key)), _not_0(became.get(key)), key[0])
        for key in sorted({*came, *became}, key=lambda key: (key[0] or "", key[1] or "", key[2]))
    ]
    return [line for line in found if line.came or line.became]


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MS // 1000, UTC)


def _not_0(counts: "Counter[str] | None") -> dict[str, int]:
    return {name: count for name, count in (counts or {}).items() if count}


def write_parquet(result: Reconciled, file: Path) -> None:
    """Write the lines as rows with all columns.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = result.lines
    columns: dict[str, Any] = {
        "queue": pa.array([line.queue for line in lines], pa.string()),
        "hour": pa.array([line.hour for line in lines], pa.timestamp("us", tz="UTC")),
    }
    for name in (*IN, *OUT, "difference"):
        values = [line.difference if name == "difference" else line.count(name) for line in lines]
        columns[name] = pa.array(values, pa.int64())
    columns["lsn"] = pa.array([result.lsn] * len(lines), pa.int64())
    columns["account"] = pa.array([line.account for line in lines], pa.string())
    temporary = beside(file)
    try:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
