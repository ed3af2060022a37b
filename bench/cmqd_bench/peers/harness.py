"""Runs the rows: starts the peers, lets one at a time work while the others stand still, and measures.

A measurement is one row with one peer in one turn: a new queue, the run, a comparison of the generator's counts with
the peer's own figure, the end of the queue. All peers live in folders on the same disk for the whole run.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from cmqd_bench import results
from cmqd_bench.broker import BrokerFailed
from cmqd_bench.histogram import Histogram
from cmqd_bench.machine import conditions, raise_file_limit, scratch_root
from cmqd_bench.peers.catalog import catalog
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.errors import LoadFailed, PeerFailed
from cmqd_bench.peers.job import Job, Outcome, body_of, run
from cmqd_bench.peers.peer import Peer, halt, pids_of, resume, rss_mib_of
from cmqd_bench.peers.table import REFERENCE_SPREAD, reference_variation, to_text
from cmqd_bench.peers.works import Work, turn_order, works_of
from cmqd_bench.processes import cpu_seconds, machine_busy_seconds

FILES = 4096
FILL_LINES = 8
FILL_BATCH = 64
FILL_OUTSTANDING = 2
FILL_SECONDS = 300.0
SETTLE_SECONDS = 0.3
"""Pause between the making of a queue and the load, for work that a peer does after its answer."""
COUNT_SECONDS = 15.0
"""Time in which a peer's own figure must agree: some peers take back the messages of closed connections late."""
COUNT_PAUSE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The flags of the command ``peers``."""

    rows: Sequence[str]
    peers: Sequence[str]
    builds: Sequence[str]
    moto: str | None
    turns: int
    repeats: int
    seconds: float
    warm_up: float
    body: int
    scratch: Path | None
    json: Path | None
    keep: bool


@dataclass(slots=True)
class Sampler:
    """CPU of a peer and of the machine at the start and the end of the measured time."""

    peer: Peer
    cpu: float = 0.0
    busy: float = 0.0
    _pids: list[int] = field(default_factory=list[int])

    def start(self) -> None:
        """Read the counters at the start."""
        self.cpu, self.busy = -cpu_seconds(pids_of(self.peer)), -machine_busy_seconds()

    def end(self) -> None:
        """Read the counters at the end."""
        # Busy time first: the look at all processes is the harness's own work.
        self.busy += machine_busy_seconds()
        self.cpu += cpu_seconds(pids_of(self.peer))


class Harness:
    """Running peers and the program that loads them."""

    def __init__(self, program: Path, peers: Sequence[Peer], plan: Plan) -> None:
        self._program = program
        self._peers = peers
        self._plan = plan
        self._body = body_of(plan.body)
        self._queues = 0

    def measure(self, work: Work, peer: Peer, turn: int) -> results.Row:
        """Measure a row with a peer, while the other peers stand still.

        Raises:
            LoadFailed: a reply was an error, or the counts of generator and peer differ.
        """
        self._queues += 1
        queue = f"bench-{self._queues}"
        resume(pids_of(peer))
        try:
            peer.create_queue(queue)
            filled = self._fill(work, peer, queue) if work.fill_per_second else 0
            time.sleep(SETTLE_SECONDS)
            sampler = Sampler(peer)
            outcome = self._run(work, peer, queue, filled, sampler)
            rss_mib = rss_mib_of(peer)
            check_counts(peer, queue, filled, outcome)
            peer.drop_queue(queue)
        finally:
            halt(pids_of(peer))
        return row_of(work, peer, turn, outcome, sampler, rss_mib)

    def turns(self, work: Work) -> list[results.Row]:
        """Measure a row with all peers that take part, in all turns."""
        able = [peer for peer in self._peers if peer.can_run(work)]
        rows: list[results.Row] = []
        for turn in range(1, self._plan.turns + 1):
            for index in turn_order(len(able), turn):
                rows.append(self.measure(work, able[index], turn))
                _tell(line_of(rows[-1]))
        return rows

    def _run(self, work: Work, peer: Peer, queue: str, filled: int, sampler: Sampler) -> Outcome:
        plan = self._plan
        load = peer.open(
            queue,
            producers=work.producers,
            consumers=work.consumers,
            batch=work.batch,
            body=self._body,
            outstanding=work.outstanding,
        )
        try:
            fields: dict[str, Any] = {"outstanding": work.outstanding, **load.fields}
            job = Job(
                protocol=peer.protocol,
                queue=queue,
                producers=load.producers,
                consumers=load.consumers,
                warm_up=plan.warm_up,
                seconds=plan.seconds,
                rate=work.rate,
                limit=filled,
                ahead=work.ahead,
                records=work.records,
                **fields,
            )
            return run(self._program, job, on_start=sampler.start, on_end=sampler.end)
        finally:
            load.close()

    def _fill(self, work: Work, peer: Peer, queue: str) -> int:
        """Send the messages of a row that begins with a full queue; return their number."""
        wanted = round(min(work.fill_per_second, peer.fastest) * (self._plan.seconds + self._plan.warm_up))
        load = peer.open(
            queue, producers=FILL_LINES, consumers=0, batch=FILL_BATCH, body=self._body, outstanding=FILL_OUTSTANDING
        )
        try:
            fields: dict[str, Any] = {"outstanding": FILL_OUTSTANDING, **load.fields}
            job = Job(
                protocol=peer.protocol,
                queue=queue,
                producers=load.producers,
                warm_up=0,
                seconds=FILL_SECONDS,
                limit=wanted,
                **fields,
            )
            outcome = run(self._program, job, on_start=_nothing, on_end=_nothing)
        finally:
            load.close()
        if outcome.total_sent < wanted:
            raise LoadFailed(f"{peer.name} took {outcome.total_sent} of {wanted} messages in {FILL_SECONDS:.0f} s")
        return outcome.total_sent


def _nothing() -> None:
    pass


def check_counts(peer: Peer, queue: str, filled: int, outcome: Outcome) -> None:
    """Check that the peer has exactly the messages that were sent and not deleted.

    Deletes inside receives without a reply may be done or not.

    Raises:
        LoadFailed: the figures differ.
    """
    highest = filled + outcome.total_sent - outcome.total_deleted
    lowest = highest - outcome.unanswered
    deadline = time.monotonic() + COUNT_SECONDS
    while not lowest <= (left := peer.messages_left(queue)) <= highest:
        if time.monotonic() > deadline:
            raise LoadFailed(
                f"{peer.name} has {left} messages; by the load's count {filled + outcome.total_sent} were sent"
                f" and {outcome.total_deleted} deleted"
            )
        time.sleep(COUNT_PAUSE)


def completed(work: Work, outcome: Outcome) -> int:
    """Return the messages of the measured time: deleted, where the row deletes, else sent."""
    return outcome.deleted if work.consumers else outcome.sent


def row_of(
    work: Work, peer: Peer, turn: int, outcome: Outcome, sampler: Sampler, rss_mib: float | None = None
) -> results.Row:
    """Return a measurement as a row of the file of results."""
    messages = completed(work, outcome)
    if not messages:
        raise LoadFailed(f"{peer.name} completed no message of {work.name}")
    other_cores = max(0.0, (sampler.busy - sampler.cpu - outcome.cpu_seconds) / outcome.seconds)
    latency = outcome.latencies()
    return results.Row(
        scenario=work.name,
        peer=peer.name,
        build=peer.build,
        turn=turn,
        rate=round(messages / outcome.seconds, 1),
        cpu_us=round(sampler.cpu / messages * 1e6, 2),
        p50_ms=_milliseconds(latency, 50),
        p90_ms=_milliseconds(latency, 90),
        p99_ms=_milliseconds(latency, 99),
        p999_ms=_milliseconds(latency, 99.9),
        load_us=round(outcome.cpu_seconds / messages * 1e6, 2),
        rss_mib=None if rss_mib is None else round(rss_mib, 1),
        other_cores=round(other_cores, 2),
        is_disturbed=other_cores > results.DISTURBED_CORES,
        remark=peer.remark,
    )


def _milliseconds(latency: Histogram, percent: float) -> float | None:
    return latency.percentile(percent) / 1000 if latency.count else None


@contextmanager
def started(peers: Sequence[Peer], root: Path, *, keep: bool) -> Generator[None]:
    """Start all peers, each in a folder of its own, and let them stand still; at the end all are stopped."""
    folder = Path(tempfile.mkdtemp(prefix="cmqd-peers-", dir=root))
    running: list[Peer] = []
    try:
        for index, peer in enumerate(peers):
            running.append(peer)
            peer.start(folder / f"{index}-{peer.name}")
            halt(pids_of(peer))
        yield
    finally:
        for peer in running:
            with suppress(PeerFailed, BrokerFailed, AssertionError):
                resume(pids_of(peer))
                peer.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def installed(plan: Plan) -> list[Peer]:
    """Return the chosen peers that this machine has; the other peers are named with the reason."""
    peers: list[Peer] = []
    for peer in catalog(plan.peers, plan.builds, plan.moto):
        if reason := peer.missing():
            _tell(f"{peer.name} is skipped: {reason}")
        else:
            peers.append(peer)
    return peers


def steadiest(measure_row: Callable[[], list[results.Row]], repeats: int) -> list[results.Row]:
    """Measure a row, and again while the reference peer varies too much, up to ``repeats`` times more.

    Returns the rows of the repetition in which the reference varied least.
    """
    best = measure_row()
    for _ in range(repeats):
        if reference_variation(best) <= REFERENCE_SPREAD:
            break
        again = measure_row()
        best = min(best, again, key=reference_variation)
    return best


def run_peers(plan: Plan, on_results: Callable[[results.Results], None]) -> None:
    """Run all rows with all peers that this machine has, and pass the results on.

    An error passes on the results of the rows that were complete before the error.

    Raises:
        ConditionsError: the folder for data is in memory.
        CompilerMissing: there is no C compiler.
        LoadFailed: a reply was an error, or counts differ.
        PeerFailed: a peer did not start or ended.
    """
    works = works_of(plan.rows)
    program = load_program()
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    facts: dict[str, Any] = conditions(root)
    peers = installed(plan)
    rows: list[results.Row] = []
    with started(peers, root, keep=plan.keep):
        described = [
            results.Peer(name=peer.name, title=peer.title, version=peer.version(), durability=peer.durability)
            for peer in peers
        ]
        for each in described:
            _tell(f"{each.title} {each.version}: {each.durability}")
        harness = Harness(program, peers, plan)
        try:
            for work in works:
                rows += steadiest(partial(harness.turns, work), plan.repeats)
        finally:
            if rows:
                on_results(results_of(plan, facts, started_at, described, works, rows))


def results_of(
    plan: Plan,
    facts: Mapping[str, Any],
    started_at: str,
    peers: Sequence[results.Peer],
    works: Sequence[Work],
    rows: list[results.Row],
) -> results.Results:
    """Return the file of results of a run; builds of cmqd share an entry of ``peers``."""
    unique = {peer.name: peer for peer in reversed(peers)}
    return results.Results(
        kind="peers",
        conditions=results.Conditions(
            started=started_at,
            load="C generator",
            seconds=plan.seconds,
            turns=plan.turns,
            body=plan.body,
            **{name: value for name, value in facts.items() if name in results.Conditions.__struct_fields__},
        ),
        peers=[unique[name] for name in dict.fromkeys(peer.name for peer in peers)],
        scenarios=[work.scenario() for work in works],
        rows=rows,
    )


def line_of(row: results.Row) -> str:
    """Return a measurement as a line of text."""
    name = row.peer if row.build == "-" else f"{row.peer} ({row.build})"
    line = f"{row.scenario} turn {row.turn}: {name}: {row.rate:,.0f}/s, {row.cpu_us} us"
    if row.p50_ms is not None:
        line += f", p50 {row.p50_ms} ms, p99 {row.p99_ms} ms"
    line += f", load {row.load_us} us"
    return line + (f"; DISTURBED: other programs used {row.other_cores} cores" if row.is_disturbed else "")


def _tell(line: str) -> None:
    """Print progress; on standard error, because standard output is for the report."""
    print(line, file=sys.stderr, flush=True)


def print_peers(plan: Plan) -> None:
    """Run and print the table; with ``json`` the file of results is written, too."""

    def report(measured: results.Results) -> None:
        if plan.json is not None:
            results.write(plan.json, measured)
        print(to_text(measured))

    run_peers(plan, report)
