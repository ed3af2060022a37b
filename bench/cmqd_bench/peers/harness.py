"""Runs the rows: starts the peers, lets one at a time work while the others stand still, and measures.

A measurement is one row with one peer in one turn: a new queue, the run, a comparison of the generator's counts with
the peer's own figure, the end of the queue. All peers live in folders on the same disk for the whole run.

An error of a measurement ends neither the row nor the run, see bench/README.md. A peer that does not start has no
further measurement.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cmqd_bench.commands.plans import Peers
from cmqd_bench.figures import results
from cmqd_bench.machine.conditions import raise_file_limit, scratch_root
from cmqd_bench.machine.processes import cpu_seconds, machine_busy_seconds
from cmqd_bench.peers.catalog import catalog
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.peer import Peer, halt, pids_of, resume, rss_mib_of
from cmqd_bench.peers.running import RunningPeers, gap_of, reason_of, run_conditions, started, tell
from cmqd_bench.peers.table import REFERENCE_SPREAD, reference_variation, to_text
from cmqd_bench.peers.works import Work, turn_order, works_of
from cmqd_load.failures import LoadError
from cmqd_load.histogram import Histogram
from cmqd_load.native_job import Job, Outcome, body_of, run

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
MAX_FAILURES = 2
MIN_BEYOND = 100
"""Items times the percent beyond a percentile: an item beyond."""


@dataclass(slots=True)
class Sampler:
    """CPU of a peer and of the machine at the start and the end of the measured time, and the peer's remark."""

    peer: Peer
    cpu: float = 0.0
    busy: float = 0.0
    remark: str = ""
    _end_watch: Callable[[], str] = str

    def start(self) -> None:
        """Read the counters at the start."""
        self._end_watch = self.peer.watch()
        self.cpu, self.busy = -cpu_seconds(pids_of(self.peer)), -machine_busy_seconds()

    def end(self) -> None:
        """Read the counters at the end."""
        # Busy time first: the look at all processes is the harness's own work.
        self.busy += machine_busy_seconds()
        self.cpu += cpu_seconds(pids_of(self.peer))
        end_watch, self._end_watch = self._end_watch, str
        self.remark = end_watch() or self.peer.remark

    def close(self) -> None:
        """End the watch of a run that failed; otherwise the watch would go on beside the next measurements."""
        with suppress(PeerFailed):
            self._end_watch()


@dataclass(frozen=True, slots=True)
class Measured:
    """All turns of a row of the table."""

    rows: list[results.Row] = field(default_factory=list[results.Row])
    gaps: list[results.Gap] = field(default_factory=list[results.Gap])

    def add(self, other: "Measured") -> None:
        """Append the turns of a further row."""
        self.rows.extend(other.rows)
        self.gaps.extend(other.gaps)


class Harness:
    """Running peers and the program that loads them."""

    def __init__(self, program: Path, running: RunningPeers, plan: Peers) -> None:
        self._program = program
        self._running = running
        self._plan = plan
        self._body = body_of(plan.body)
        self._queues = 0
        self._deadline = time.monotonic() + plan.limit

    def measure(self, work: Work, peer: Peer, turn: int) -> results.Row:
        """Measure a row with a peer, while the other peers stand still.

        Raises:
            LoadError: a reply was an error, or the counts of generator and peer differ.
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
            if not work.consumers:
                sampler.remark = ""  # remarks are about receives and deletes
            rss_mib = rss_mib_of(peer)
            check_counts(peer, queue, filled, outcome)
            peer.drop_queue(queue)
        finally:
            halt(pids_of(peer))
        return row_of(work.name, peer, turn, completed(work, outcome), outcome, sampler, rss_mib)

    def turns(self, work: Work) -> Measured:
        """Measure a row with all peers that take part, in all turns."""
        measured = Measured()
        able: list[Peer] = []
        for peer in self._running.peers:
            if reason := peer.refusal(work):
                measured.gaps.append(gap_of(peer, reason, work.name))
            else:
                able.append(peer)
        failures = dict.fromkeys((id(peer) for peer in able), 0)
        for turn in range(1, min(self._plan.turns, work.max_turns) + 1):
            for index in turn_order(len(able), turn):
                peer = able[index]
                if reason := self._hindrance(peer, failures[id(peer)]):
                    measured.gaps.append(gap_of(peer, reason, work.name, turn))
                    continue
                try:
                    measured.rows.append(self.measure(work, peer, turn))
                    tell(line_of(measured.rows[-1]))
                # Any error: an unattended run goes on after a reply that a parser does not know, too.
                except Exception as error:
                    failures[id(peer)] += 1
                    measured.gaps.append(gap_of(peer, reason_of(error), work.name, turn, is_failure=True))
                    tell(f"{work.name} turn {turn}: {peer.name} FAILED: {reason_of(error)}")
                    self._running.restart(peer)
        return measured

    def _hindrance(self, peer: Peer, failures: int) -> str:
        """Return the reason why a peer has no further turn in a row; empty if the next turn may begin."""
        if reason := self._running.ended.get(id(peer)):
            return reason
        if failures >= MAX_FAILURES:
            return f"{failures} earlier turns failed"
        if time.monotonic() > self._deadline:
            return f"the limit of {self._plan.limit:,.0f} s was reached"
        return ""

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
            sampler.close()

    def _fill(self, work: Work, peer: Peer, queue: str) -> int:
        """Send the messages of a row that begins with a full queue; return their number."""
        messages = round(min(work.fill_per_second, peer.fastest) * (self._plan.seconds + self._plan.warm_up))
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
                limit=messages,
                **fields,
            )
            outcome = run(self._program, job)
        finally:
            load.close()
        if outcome.total_sent < messages:
            raise LoadError(f"{peer.name} took {outcome.total_sent} of {messages} messages in {FILL_SECONDS:.0f} s")
        return outcome.total_sent


def check_counts(peer: Peer, queue: str, filled: int, outcome: Outcome) -> None:
    """Check that the peer has exactly the messages that were sent and not deleted.

    Deletes inside receives without a reply may be done or not.

    Raises:
        LoadError: the figures differ.
    """
    highest = filled + outcome.total_sent - outcome.total_deleted
    lowest = highest - outcome.unanswered
    deadline = time.monotonic() + COUNT_SECONDS
    while not lowest <= (left := peer.messages_left(queue)) <= highest:
        if time.monotonic() > deadline:
            raise LoadError(
                f"{peer.name} has {left} messages; by the load's count {filled + outcome.total_sent} were sent"
                f" and {outcome.total_deleted} deleted"
            )
        time.sleep(COUNT_PAUSE)


def completed(work: Work, outcome: Outcome) -> int:
    """Return the messages of the measured time: deleted, where the row deletes, else sent."""
    return outcome.deleted if work.consumers else outcome.sent


def row_of(
    scenario: str,
    peer: Peer,
    turn: int,
    items: int,
    outcome: Outcome,
    sampler: Sampler,
    rss_mib: float | None = None,
    *,
    x: float = 0.0,
) -> results.Row:
    """Return a measurement with ``items`` completed messages or copies as a row of the file of results.

    Raises:
        LoadError: no item was completed.
    """
    if not items:
        raise LoadError(f"{peer.name} completed no {'step' if x else 'message'} of {scenario}")
    other_cores = max(0.0, (sampler.busy - sampler.cpu - outcome.cpu_seconds) / outcome.seconds)
    latency = outcome.latencies()
    return results.Row(
        scenario=scenario,
        peer=peer.name,
        build=peer.build,
        turn=turn,
        x=x,
        rate=round(items / outcome.seconds, 1),
        cpu_us=round(sampler.cpu / items * 1e6, 3),
        p50_ms=_milliseconds(latency, 50),
        p90_ms=_milliseconds(latency, 90),
        p99_ms=_milliseconds(latency, 99),
        p999_ms=_milliseconds(latency, 99.9),
        load_us=round(outcome.cpu_seconds / items * 1e6, 3),
        rss_mib=None if rss_mib is None else round(rss_mib, 1),
        other_cores=round(other_cores, 2),
        is_disturbed=other_cores > results.DISTURBED_CORES,
        remark=sampler.remark,
    )


def _milliseconds(latency: Histogram, percent: float) -> float | None:
    # A percentile needs an item beyond itself: of 300 items the highest is no 99.9th percentile.
    return latency.percentile(percent) / 1000 if round(latency.count * (100 - percent), 6) >= MIN_BEYOND else None


def steadiest(measure_row: Callable[[], Measured], repeats: int) -> Measured:
    """Measure a row, and again while the reference peer varies too much, up to ``repeats`` times more.

    Returns the repetition with the most turns, because an error or the limit may cost turns; among repetitions with as
    many turns, the repetition in which the reference varied least.
    """

    def unsteadiness(measured: Measured) -> tuple[int, float]:
        return -len(measured.rows), reference_variation(measured.rows)

    best = measure_row()
    for _ in range(repeats):
        if reference_variation(best.rows) <= REFERENCE_SPREAD:
            break
        best = min(best, measure_row(), key=unsteadiness)
    return best


def run_peers(plan: Peers, on_results: Callable[[results.Results], None]) -> results.Results:
    """Run all rows with all peers that this machine has; return the results.

    ``on_results`` gets the results so far after each row of the table, so that an interrupted run keeps its rows.

    Raises:
        ConditionsError: the folder for data is in memory.
        CompilerMissing: there is no C compiler.
    """
    works = works_of(plan.rows)
    program = load_program()
    raise_file_limit(FILES)
    root = scratch_root(plan.scratch)
    facts = run_conditions(plan, root, plan.body)
    with started(catalog(plan.peers, plan.builds), root, keep=plan.keep) as (running, gaps):
        described = [
            results.Peer(name=peer.name, title=peer.title, version=peer.version(), durability=peer.durability)
            for peer in running.peers
        ]
        for entry in described:
            tell(f"{entry.title} {entry.version}: {entry.durability}")
        harness = Harness(program, running, plan)
        measured = Measured(gaps=gaps)
        so_far = results.Results(
            kind="peers",
            conditions=facts,
            # Builds of cmqd share an entry: that of the first.
            peers=list({entry.name: entry for entry in [*described, *reversed(described)]}.values()),
            scenarios=[work.scenario() for work in works],
            rows=measured.rows,
            gaps=measured.gaps,
        )
        for work in works:
            measured.add(steadiest(partial(harness.turns, work), plan.repeats))
            on_results(so_far)
    return so_far


def line_of(row: results.Row) -> str:
    """Return a measurement as a line of text."""
    name = row.peer if row.build == "-" else f"{row.peer} ({row.build})"
    step = f" {row.x:,.0f}" if row.x else ""
    line = f"{row.scenario}{step} turn {row.turn}: {name}: {row.rate:,.0f}/s, {row.cpu_us} us"
    if row.p50_ms is not None:
        line += f", p50 {row.p50_ms} ms"
    if row.p99_ms is not None:
        line += f", p99 {row.p99_ms} ms"
    line += f", load {row.load_us} us"
    line += f"; {row.remark}" if row.remark else ""
    return line + (f"; DISTURBED: other programs used {row.other_cores} cores" if row.is_disturbed else "")


def print_peers(plan: Peers) -> None:
    """Run and print the table; with ``json`` the file of results is written after each row of the table.

    Raises:
        LoadError: no measurement succeeded.
    """

    def save(measured: results.Results) -> None:
        if plan.json is not None:
            results.write(plan.json, measured)

    measured = run_peers(plan, save)
    print(to_text(measured))
    if not measured.rows:
        raise LoadError("no measurement succeeded")
