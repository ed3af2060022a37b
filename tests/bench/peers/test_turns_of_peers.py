"""The turns of a comparison: failures, interruptions, limits, and a run against cmqd."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cmqd_bench.commands.plans import Peers
from cmqd_bench.figures.results import Gap, Row, read
from cmqd_bench.machine.servers import Server
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.errors import PeerFailed
from cmqd_bench.peers.harness import (
    Harness,
    Measured,
    Sampler,
    print_peers,
)
from cmqd_bench.peers.log_watch import LogActivity, LogWatch
from cmqd_bench.peers.peer import Peer, pids_of, resume
from cmqd_bench.peers.running import started
from cmqd_bench.peers.works import WORKS, Work
from cmqd_load.failures import LoadError
from cmqd_segment.manifest import CheckpointEntry, Manifest, SegmentEntry, SegmentState, write_manifest
from support.bench.native_generator import PLAN, needs_compiler


class ScriptedPeer(CmqdPeer):
    """A peer without processes, whose starts and measurements fail by the test's choice."""

    def __init__(self, name: str, failing_starts: Sequence[int] = (), refused: str = "") -> None:
        super().__init__()
        self.name = name
        self.starts = 0
        self.running = False
        self._failing_starts = failing_starts
        self._refused = refused

    def start(self, folder: Path) -> None:
        self.starts += 1
        if self.starts in self._failing_starts:
            raise PeerFailed(f"{self.name} ended with exit code 1:\na long log")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def roots(self) -> Sequence[int]:
        return []

    def refusal(self, work: Work) -> str:
        return self._refused


def run_turns(
    tmp_path: Path, peers: Sequence[ScriptedPeer], outcomes: Mapping[str, Sequence[bool]], plan: Peers
) -> Measured:
    """Run the turns of a row; ``outcomes`` has the successes of the measurements of a peer in their order."""
    left = {name: list(successes) for name, successes in outcomes.items()}

    class Scripted(Harness):
        def measure(self, work: Work, peer: Peer, turn: int) -> Row:
            assert peer in peers
            assert next(each for each in peers if each is peer).running
            if left[peer.name].pop(0):
                return Row(scenario=work.name, peer=peer.name, turn=turn, rate=1, cpu_us=1)
            raise LoadError("the disk is full\nfurther lines")

    with started(peers, tmp_path, keep=False) as (running, gaps):
        measured = Scripted(Path("load"), running, plan).turns(WORKS[0])
    measured.gaps.extend(gaps)
    assert not any(peer.running for peer in peers)
    assert not list(tmp_path.iterdir())
    return measured


def test_an_error_of_a_peer_costs_a_turn_and_no_other_measurement(tmp_path: Path) -> None:
    peers = [ScriptedPeer("cmqd"), ScriptedPeer("redis-always")]
    outcomes = {"cmqd": [True, True, True], "redis-always": [True, False, True]}

    measured = run_turns(tmp_path, peers, outcomes, replace(PLAN, turns=3))

    assert {(row.peer, row.turn) for row in measured.rows} == {
        *(("cmqd", turn) for turn in (1, 2, 3)),
        *(("redis-always", turn) for turn in (1, 3)),
    }
    failed = Gap(scenario="send-1x1", peer="redis-always", turn=2, reason="the disk is full", is_failure=True)
    assert measured.gaps == [failed]
    # The data of a failed measurement is no data of the next.
    assert [peer.starts for peer in peers] == [1, 2]


def test_a_peer_that_fails_twice_in_a_row_of_the_table_rests(tmp_path: Path) -> None:
    measured = run_turns(tmp_path, [ScriptedPeer("cmqd")], {"cmqd": [False, False]}, replace(PLAN, turns=4))

    assert measured.rows == []
    assert [(gap.turn, gap.is_failure) for gap in measured.gaps] == [(1, True), (2, True), (3, False), (4, False)]
    assert measured.gaps[2].reason == "2 earlier turns failed"


def test_a_peer_that_does_not_start_is_named_with_the_reason(tmp_path: Path) -> None:
    peers = [
        ScriptedPeer("nats", failing_starts=[1]),
        ScriptedPeer("redis-always", failing_starts=[2]),
        ScriptedPeer("beanstalkd", refused="a reserve takes a single job"),
    ]

    measured = run_turns(tmp_path, peers, {"redis-always": [False]}, replace(PLAN, turns=2))

    reasons = {(gap.peer, gap.scenario, gap.turn): gap.reason for gap in measured.gaps}
    assert reasons == {
        ("nats", "", 0): "did not start: nats ended with exit code 1:",
        ("redis-always", "send-1x1", 1): "the disk is full",
        ("redis-always", "send-1x1", 2): "did not start: redis-always ended with exit code 1:",
        ("beanstalkd", "send-1x1", 0): "a reserve takes a single job",
    }


def test_an_interruption_ends_the_peers_that_start_and_that_run(tmp_path: Path) -> None:
    class Interrupted(ScriptedPeer):
        def start(self, folder: Path) -> None:
            super().start(folder)
            raise KeyboardInterrupt

        def stop(self) -> None:
            super().stop()
            raise KeyboardInterrupt

    peers = [ScriptedPeer("cmqd"), Interrupted("redis-always")]

    with pytest.raises(KeyboardInterrupt), started(peers, tmp_path, keep=False):
        pass

    assert not any(peer.running for peer in peers)
    assert not list(tmp_path.iterdir())


def test_an_interruption_of_the_wait_for_a_server_kills_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "trap '' TERM; echo ready; while :; do sleep 1; done"
    server = Server(["sh", "-c", command], tmp_path / "log")
    server.wait_until(lambda: server.log_tail() == "ready", "sh")

    def interrupted(_seconds: float) -> int:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(server.process, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                server.stop()

        assert server.process.wait(20) == -signal.SIGKILL
    finally:
        server.process.kill()


def test_no_turn_begins_beyond_the_limit(tmp_path: Path) -> None:
    measured = run_turns(tmp_path, [ScriptedPeer("cmqd")], {}, replace(PLAN, turns=2, limit=-1.0))

    assert [(gap.turn, gap.reason) for gap in measured.gaps] == [
        (turn, "the limit of -1 s was reached") for turn in (1, 2)
    ]


@needs_compiler
def test_the_rows_before_an_interruption_are_in_the_file(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Row(scenario="send-1x1", peer="cmqd", rate=1, cpu_us=1)

    def same_folder(chosen: Path) -> Path:
        return chosen

    def no_peers(*_: object) -> list[CmqdPeer]:
        return []

    def turns(_self: Harness, work: Work) -> Measured:
        if work.name == "send-1x1":
            return Measured([good])
        raise KeyboardInterrupt

    monkeypatch.setattr(Harness, "turns", turns)
    monkeypatch.setattr("cmqd_bench.peers.harness.load_program", lambda: program)
    monkeypatch.setattr("cmqd_bench.peers.harness.catalog", no_peers)
    # The temporary folder of a test may be in memory.
    monkeypatch.setattr("cmqd_bench.peers.harness.scratch_root", same_folder)
    file = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        print_peers(replace(PLAN, scratch=tmp_path, json=file))
    assert read(file).rows == [good]


def manifest(checkpoints: Sequence[int], **segments: SegmentState) -> Manifest:
    return Manifest(
        segments=[SegmentEntry(int(name[1:]), state) for name, state in segments.items()],
        checkpoints=[CheckpointEntry(number, 0, 0, 0, 0, "") for number in checkpoints],
    )


def test_the_activity_of_a_log_is_counted_from_its_manifests() -> None:
    sealed, active, retired = SegmentState.SEALED, SegmentState.ACTIVE, SegmentState.RETIRED
    activity = LogActivity(manifest([4], s1=sealed, s2=active))
    assert set(activity.counts().values()) == {0}

    activity.add(manifest([4, 5], s1=sealed, s2=retired, s3=active))
    activity.add(manifest([5, 6], s2=sealed, s3=retired, s4=active))
    activity.add(manifest([5, 6], s3=sealed, s4=active))

    assert activity.counts() == {"segments sealed": 2, "checkpoints written": 2, "segments dropped": 2}


def test_a_run_that_fails_ends_the_watch_of_the_log(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest([1], s1=SegmentState.ACTIVE))
    threads = threading.active_count()

    class Watched(ScriptedPeer):
        def watch(self) -> Callable[[], str]:
            return LogWatch(tmp_path).end

    sampler = Sampler(Watched("cmqd"))
    sampler.start()
    assert threading.active_count() == threads + 1
    sampler.close()

    assert threading.active_count() == threads


def test_a_log_at_rest_is_no_rolling_log(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest([1], s1=SegmentState.ACTIVE))

    with pytest.raises(PeerFailed, match="0 segments sealed, 0 checkpoints written, 0 segments dropped"):
        LogWatch(tmp_path).end()


@needs_compiler
@pytest.mark.parametrize("deletes_inside", [False, True])
def test_cmqd_is_measured_and_the_counts_agree(program: Path, tmp_path: Path, *, deletes_inside: bool) -> None:
    work = Work(name="drain", title="", consumers=2, fill_per_second=10, records="pairs")
    peer = CmqdPeer(deletes_inside=deletes_inside)
    with started([peer], tmp_path, keep=False) as (running, _):
        harness = Harness(program, running, PLAN)
        row = harness.measure(work, peer, 1)
        # The run ends with the last of the 300 messages, long before its time.
        assert row.rate > 10
        assert row.p50_ms is not None
        resume(pids_of(peer))
        with pytest.raises(LoadError, match="cmqd: queue_not_found"):
            harness._run(work, peer, "no-such-queue", 0, Sampler(peer))  # pyright: ignore[reportPrivateUsage]
    assert not list(tmp_path.iterdir())
