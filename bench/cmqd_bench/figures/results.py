"""The file of results that `peers` and `curves` write and the report reads: conditions, and a row per measurement.

A file keeps every turn of every row. Medians, spreads and ratios are computed by readers, so a figure in a table can
be traced to the turns behind the figure, and a reader can apply another rule to old measurements.

A row belongs to a scenario, a peer, a build and a value of ``x``. Scenarios say what ``x`` is: the offered rate, the
number of queues, the size of a body. Rows that differ only in ``turn`` repeat the same measurement.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from cmqd_bench.failures import BenchFailed

FORMAT = 1
"""Number of the format, raised with a change that an older reader would misread. New fields with defaults are none."""
KEPT_RATE = 0.95
"""Share of an offered rate, below which a measurement shows an overload."""
CMQD = "cmqd"
"""The peer that the report is about."""
REFERENCE_PEER = "redis-always"
"""The peer of the ratios: Redis Streams with ``appendfsync always``."""
DISTURBED_CORES = 0.15
"""Cores used by other programs, above which a row is marked. Kernel threads that write to the disk stay below."""


class ResultsUnreadable(BenchFailed):
    """The file is no file of results; the text names the file and the reason."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that was measured."""

    name: str
    """The key of rows: ``cmqd``, ``redis-always``, ``rabbitmq-quorum``."""
    title: str
    """The name for readers, such as "Redis Streams, appendfsync always"."""
    version: str
    durability: str
    """The meaning of an answered send: "fsync before the answer", "fsync once a second"."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The work of rows with this name."""

    name: str
    title: str
    """The work for readers, such as "send, 64 connections, one request outstanding each"."""
    x: str = ""
    """The meaning and unit of ``Row.x``, such as "queues" or "bytes per body"; empty for a work without a variable."""
    item: str = "message"
    """The unit of rate and CPU: a message, or a copy of a message."""
    is_curve: bool = False
    """True for a scale curve: CPU per item against ``x``, of which neighbours should differ little."""
    is_log_x: bool = False
    """True if plots have a logarithmic axis for ``x``."""
    is_offered_rate: bool = False
    """True if ``x`` is the rate of an open loop: with a lower completed rate the broker or the load is overloaded."""
    expected_slope: float = 0.0
    """The power of ``x`` with which the cost is expected to grow: 0 for a flat curve, 1 for a cost in proportion to
    ``x``. A cliff is judged against this expectation."""
    fixed_cost_x: float = 0.0
    """The ``x`` below which a cost in proportion disappears behind the fixed cost; 0 with ``expected_slope`` 0."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a reader needs to judge or repeat a run."""

    commit: str
    """The measured commit of cmqd, with ``+`` for local changes."""
    started: str
    """Start of the run, UTC, in ISO 8601."""
    cpu: str
    cores: int
    kernel: str
    python: str
    sqlite: str
    file_system: str
    device: str
    load_average: float
    """Of the minute before the start."""
    load: str
    """The program that made the load: "C generator", "Python harness"."""
    seconds: float
    """Measured time of a row, after the warm-up."""
    turns: int
    """Repetitions of a row; peers take turns row by row."""
    body: int = 256
    """Bytes of a body, where ``x`` is not the body."""
    versions: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Versions of the Python packages."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measurement of one scenario with one peer in one turn. Unknown figures are None."""

    scenario: str
    peer: str
    build: str = "pure"
    """Of cmqd: ``pure`` or ``native``; ``-`` of a peer."""
    turn: int = 1
    x: float = 0.0
    rate: float
    """Completed items a second."""
    cpu_us: float
    """User and system time of all processes of the broker, divided by the completed items; microseconds."""
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    load_us: float | None = None
    """CPU of the load generator per item, microseconds."""
    rss_mib: float | None = None
    """Resident memory of all processes of the broker at the end."""
    other_cores: float = 0.0
    """Cores used meanwhile by programs that belong neither to the broker nor to the load."""
    is_disturbed: bool = False
    """True if other programs used more than ``DISTURBED_CORES``: the row counts less than a row of a quiet machine."""
    remark: str = ""
    """A fact that a reader needs beside the figures, such as "acknowledgements are not confirmed"."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measurement that a file does not have, and the reason."""

    scenario: str = ""
    """Empty: no scenario was measured with the peer."""
    peer: str
    build: str = "pure"
    turn: int = 0
    """The turn without a figure; 0 = all turns."""
    x: float = 0.0
    reason: str
    is_failure: bool = False
    """True after an error; False if the peer takes no part, or if the run ended before."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A file of results."""

    kind: str
    """``peers`` or ``curves``."""
    conditions: Conditions
    peers: list[Peer]
    scenarios: list[Scenario]
    rows: list[Row]
    gaps: list[Gap] = msgspec.field(default_factory=list[Gap])
    format: int = FORMAT


class Spread(msgspec.Struct, frozen=True):
    """The median of several turns with the smallest and the largest value."""

    median: float
    low: float
    high: float
    turns: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All turns of a measurement."""

    scenario: str
    peer: str
    build: str
    x: float
    rows: list[Row]

    @property
    def is_disturbed(self) -> bool:
        """True if other programs used the machine in at least half of the turns."""
        return 2 * sum(row.is_disturbed for row in self.rows) >= len(self.rows)

    def spread(self, figure: Callable[[Row], float | None]) -> Spread | None:
        """Return the spread of a figure over the turns that have the figure; None if no turn has it."""
        return spread([value for row in self.rows if (value := figure(row)) is not None])


def spread(values: Sequence[float]) -> Spread | None:
    """Return median, smallest and largest value; None without values."""
    if not values:
        return None
    return Spread(median(values), min(values), max(values), len(values))


def is_overloaded(scenario: Scenario, point: Point) -> bool:
    """Return True for a measurement at an offered rate that was not reached: its latency is that of a growing queue."""
    rate = point.spread(lambda row: row.rate)
    return scenario.is_offered_rate and rate is not None and rate.median < KEPT_RATE * point.x


def points(rows: Iterable[Row]) -> list[Point]:
    """Group rows into measurements, in the order of their first rows."""
    groups: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.scenario, row.peer, row.build, row.x), []).append(row)
    return [
        Point(scenario=scenario, peer=peer, build=build, x=x, rows=group)
        for (scenario, peer, build, x), group in groups.items()
    ]


def ratio(point: Point, reference: Point, figure: Callable[[Row], float | None]) -> Spread | None:
    """Return the spread of a figure divided by the figure of the reference.

    Turns with the same number are divided by each other, because they ran next to each other: a slow minute of the
    machine meets both. Returns None if no turn has both figures.
    """
    of_turn = {row.turn: figure(row) for row in reference.rows}
    pairs = ((figure(row), of_turn.get(row.turn)) for row in point.rows)
    return spread([value / base for value, base in pairs if value is not None and base])


def to_json(results: Results) -> bytes:
    """Return the content of a file: a line per row and per gap, so that a diff shows rows."""
    head = msgspec.to_builtins(results)
    lists = {"rows": results.rows, "gaps": results.gaps}
    head.update(dict.fromkeys(lists, ()))
    text = msgspec.json.format(msgspec.json.encode(head), indent=1)
    for name, entries in lists.items():
        before, empty, after = text.rpartition(b'"%b": []' % name.encode())
        lines = b",\n  ".join(msgspec.json.encode(entry) for entry in entries)
        text = before + (b'"%b": [\n  %b\n ]' % (name.encode(), lines) if entries else empty) + after
    return text + b"\n"


def write(path: Path, results: Results) -> None:
    """Write a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(results))


def read(path: Path) -> Results:
    """Read a file of results.

    Raises:
        ResultsUnreadable: the file does not exist, is no file of results, or has a newer format.
    """
    try:
        results = msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultsUnreadable(f"{path} is no file of results: {error}") from error
    if results.format > FORMAT:
        raise ResultsUnreadable(f"{path} has format {results.format}; this version reads formats up to {FORMAT}")
    return results
