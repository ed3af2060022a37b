"""The comparison with peers: jobs of the load generator, its checks of replies, and a run against cmqd."""

import signal
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from cmqd_bench.commands.plans import Peers
from cmqd_bench.figures.results import Gap, Row, read
from cmqd_bench.machine.servers import Server
from cmqd_bench.peers import compiler as compiling
from cmqd_bench.peers import postgres_peer as postgres
from cmqd_bench.peers import rabbitmq_peer as amqp
from cmqd_bench.peers.catalog import PEERS, catalog
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.errors import CompilationFailed, CompilerMissing, PeerFailed
from cmqd_bench.peers.harness import (
    Harness,
    Measured,
    Sampler,
    check_counts,
    print_peers,
    row_of,
    steadiest,
)
from cmqd_bench.peers.log_watch import LogActivity, LogWatch
from cmqd_bench.peers.nats_peer import NatsPeer
from cmqd_bench.peers.peer import Peer, pids_of, resume
from cmqd_bench.peers.redis_peer import RedisPeer, command
from cmqd_bench.peers.running import started
from cmqd_bench.peers.table import to_text
from cmqd_bench.peers.works import WORKS, Work, turn_order, works_of
from cmqd_load.failures import LoadError
from cmqd_load.native_job import MIN_BODY, Job, Line, Outcome, Request, Stop, body_of, parse_report, run
from cmqd_load.native_requests import NUMBER, request_of, without_last_list
from cmqd_load.wire import tag_of
from cmqd_protocol.messages import (
    DeleteMessages,
    HandlesDone,
    MessagesReceived,
    MessagesSent,
    ReceiveMessages,
    SendMessages,
    encoder,
)
from cmqd_segment.manifest import CheckpointEntry, Manifest, SegmentEntry, SegmentState, write_manifest
from cmqd_types.messages import ReceivedMessage
from support.bench.results_files import results_of

needs_compiler = pytest.mark.skipif(
    compiling.compiler() is None, reason="the load generator is a C program, and this machine has no C compiler"
)
OUTCOME = Outcome(
    seconds=2.0,
    sent=1_000,
    received=0,
    deleted=0,
    empty=0,
    total_sent=1_200,
    total_received=0,
    total_deleted=0,
    unanswered=0,
    cpu_seconds=0.01,
    wakeups=5,
    latency=[(100, 990), (200, 10)],
    late=[],
)
PLAN = Peers(turns=1, repeats=0, seconds=30, warm_up=0, limit=600)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_program(tmp_path_factory.mktemp("program"))


def nothing() -> None:
    pass


def answered(
    program: Path, job: Callable[[Line], Job], replies: Sequence[bytes], requests: list[bytes] | None = None
) -> Outcome:
    """Run a job of one connection against a server that gives each of ``replies`` after some bytes came.

    ``requests`` gets the bytes before each reply.
    """
    own, others = socket.socketpair()
    arrived = [] if requests is None else requests

    def serve() -> None:
        # The generator may end at any reply. A server that closes first would be an error of its own.
        with suppress(ConnectionError):
            for reply in replies:
                arrived.append(others.recv(1 << 20))
                others.sendall(reply)
            while others.recv(1 << 20):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return run(program, job(Line(own, Request(b""))), on_start=nothing, on_end=nothing)
    finally:
        own.close()
        thread.join()
        others.close()


def redis_sends(line: Line) -> Job:
    request = Request(command("XADD", "q", "*", "b", body_of(64)), is_stamped=True)
    return Job(
        protocol="redis",
        queue="q",
        producers=[Line(line.socket, request)],
        warm_up=0,
        seconds=30,
        limit=3,
    )


def redis_consumes(line: Line) -> Job:
    request = Request(command("XREADGROUP"), 2)
    return Job(
        protocol="redis",
        queue="q",
        group="g",
        consumers=[Line(line.socket, request)],
        warm_up=0,
        seconds=30,
        limit=2,
        records="pairs",
    )


def test_a_body_has_its_size_and_a_place_for_its_time() -> None:
    body = body_of(256)
    assert len(body) == 256
    assert body == body_of(256)
    assert Request(body * 2, is_stamped=True).stamps() == [12, 268]
    with pytest.raises(ValueError, match="at least 28 bytes"):
        body_of(MIN_BODY - 1)


def test_only_sends_have_times() -> None:
    assert Request(body_of(64)).stamps() == []
    assert Request(b"\x01\x02", 3, 4, 1).line() == "request 3 4 1 0 0102"


def test_connections_with_the_same_request_share_its_line() -> None:
    own, others = socket.socketpair()
    with own, others:
        request = Request(b"\xff")
        job = Job(protocol="cmqd", queue="q", producers=[Line(own, request), Line(others, request)], outstanding=7)
        lines = job.text().splitlines()
        assert lines[-3:] == [
            "request 1 1 -1 0 ff",
            f"connection {own.fileno()} produce 7",
            f"connection {others.fileno()} produce 7",
        ]


def test_a_report_with_an_error_ends_the_run_with_its_text() -> None:
    with pytest.raises(LoadError, match="the disk is full"):
        parse_report(b'{"error": "the disk is full"}')
    with pytest.raises(LoadError, match="without a report"):
        parse_report(b"")


def server_that_prints(folder: Path, command: str, line: str) -> None:
    program = folder / command
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nats-server: v2.15.1", ""),
        ("nats-server: v2.10.0", ""),
        ("nats-server: v2.9.10", "nats-server 2.9.10 has no sync_interval; 2.10 has"),
    ],
)
def test_a_server_that_a_package_put_beside_the_interpreter_is_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    # The shell of the program is not on this PATH, and need not be.
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    always = NatsPeer(syncs=True)
    absent = always.missing()
    server_that_prints(tmp_path, "nats-server", line)

    assert absent == "nats-server is not installed"
    assert always.missing() == reason
    assert always.version() == line.rpartition("v")[2]


def test_the_order_of_peers_changes_with_the_turn() -> None:
    orders = [turn_order(3, turn) for turn in range(1, 7)]
    assert {order[0] for order in orders} == {0, 1, 2}
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    followed = {(first, second) for order in orders for first, second in pairwise(order)}
    assert len(followed) == 6


def test_rows_are_chosen_by_name() -> None:
    assert list(works_of(())) == list(WORKS)
    assert [work.name for work in works_of(["cycle-64", "send-1x1"])] == ["send-1x1", "cycle-64"]
    rates = [work.name for work in works_of(["rates", "send-1x1"])]
    assert rates[0] == "send-1x1"
    assert {"rate-250", "rate-2000", "rate-16000"} < set(rates)
    assert len(rates) == len(set(rates)) == 9
    assert works_of(["rates"]) == [work for work in works_of(["table", "rates"]) if work.rate]
    with pytest.raises(ValueError, match="'send-2x2' is no row; the rows are send-1x1"):
        works_of(["send-2x2"])


def test_peers_are_chosen_by_name_and_builds_by_interpreter() -> None:
    assert [peer.name for peer in catalog(())] == list(PEERS)
    assert [peer.name for peer in catalog(["redis-always"])] == ["redis-always"]
    chosen = catalog(["cmqd"], ["before=/usr/bin/python3"])
    assert [(peer.name, peer.build) for peer in chosen] == [("cmqd", "pure"), ("cmqd", "before")]
    with pytest.raises(ValueError, match="'mq' is no peer"):
        catalog(["mq"])
    with pytest.raises(ValueError, match="NAME=INTERPRETER"):
        catalog(["cmqd"], ["before"])


def test_a_build_without_an_interpreter_is_missing() -> None:
    assert "no interpreter" in CmqdPeer(build="x", python="/nowhere/python").missing()


def test_only_cycles_bound_their_producers() -> None:
    assert {work.name: work.ahead for work in WORKS if work.ahead} == {"cycle-64": 1_024, "cycle-16-batch-16": 4_096}


class FakePeer(CmqdPeer):
    """A peer that reports a number of messages of the test's choice."""

    def __init__(self, left: Sequence[int]) -> None:
        super().__init__()
        self._left = list(left)

    def messages_left(self, queue: str) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


def test_counts_of_generator_and_peer_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_SECONDS", 0.0)
    check_counts(FakePeer([1_250]), "q", 50, OUTCOME)
    with pytest.raises(LoadError, match="cmqd has 1249 messages; by the load's count 1250 were sent and 0 deleted"):
        check_counts(FakePeer([1_249]), "q", 50, OUTCOME)


def test_a_peer_may_take_back_messages_of_closed_connections_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_PAUSE", 0.0)
    check_counts(FakePeer([1_192, 1_199, 1_200]), "q", 0, OUTCOME)


def test_deletes_inside_receives_without_a_reply_may_be_done_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_bench.peers.harness.COUNT_SECONDS", 0.0)
    outcome = msgspec.structs.replace(OUTCOME, total_deleted=200, unanswered=3)
    for left in (997, 1_000):
        check_counts(FakePeer([left]), "q", 0, outcome)
    for left in (996, 1_001):
        with pytest.raises(LoadError):
            check_counts(FakePeer([left]), "q", 0, outcome)


def test_a_row_divides_the_cpu_of_the_peer_by_its_messages() -> None:
    sampler = Sampler(CmqdPeer(), cpu=0.5, busy=1.31)
    row = row_of("send-1x1", CmqdPeer(), 2, 1_000, OUTCOME, sampler)
    assert (row.scenario, row.peer, row.turn, row.rate) == ("send-1x1", "cmqd", 2, 500.0)
    assert (row.cpu_us, row.load_us) == (500.0, 10.0)
    assert (row.p50_ms, row.p999_ms) == (0.1, 0.2)
    assert (row.other_cores, row.is_disturbed) == (0.4, True)


def test_the_table_divides_by_the_reference_of_the_same_turn() -> None:
    def row(peer: str, turn: int, cpu_us: float) -> Row:
        build = "pure" if peer == "cmqd" else "-"
        return Row(scenario="send-1x1", peer=peer, build=build, turn=turn, rate=1_000, cpu_us=cpu_us, p50_ms=1.0)

    measured = results_of(
        [
            *(row("cmqd", turn, cpu) for turn, cpu in enumerate((200.0, 300.0, 420.0), 1)),
            *(row("redis-always", turn, cpu) for turn, cpu in enumerate((100.0, 100.0, 140.0), 1)),
        ],
        peers=[],
        scenarios=[WORKS[0].scenario(), WORKS[1].scenario()],
    )
    text = to_text(measured)
    assert "| cmqd | 1,000 | 300 (200-420) | 3.00x (2.00-3.00) |" in text
    assert "redis-always varies by 1.40x, by more than 1.3: repeat this row" in text
    assert "send-64x1" not in text


def test_a_row_is_measured_again_while_the_reference_varies() -> None:
    def rows(*costs: float, peer: str = "redis-always", failures: int = 0) -> Measured:
        gaps = [Gap(scenario="s", peer=peer, reason="silent", is_failure=True)] * failures
        return Measured([Row(scenario="s", peer=peer, build="-", rate=1, cpu_us=cost) for cost in costs], gaps)

    def measured(*attempts: Measured, repeats: int) -> tuple[Measured, int]:
        left = list(attempts)
        return steadiest(lambda: left.pop(0), repeats), len(attempts) - len(left)

    steady, wild, wilder = rows(10, 12), rows(10, 14), rows(10, 20)
    assert measured(steady, wild, repeats=2) == (steady, 1)
    assert measured(wilder, wild, steady, repeats=5) == (steady, 3)
    assert measured(wild, wilder, repeats=1) == (wild, 2)
    assert measured(wild, repeats=0) == (wild, 1)
    # A row with all its figures is worth more than a steadier row without.
    assert measured(wild, rows(10, failures=1), repeats=1) == (wild, 2)
    # The limit was reached before the repetition.
    assert measured(wild, rows(), repeats=1) == (wild, 2)
    alone = rows(1, 9, peer="cmqd")
    assert measured(alone, repeats=3) == (alone, 1)


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


def test_a_machine_without_a_compiler_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerMissing, match="needs a C compiler"):
        load_program(tmp_path)


@needs_compiler
def test_a_refused_source_leaves_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { return nothing; }\n")
    monkeypatch.setattr(compiling, "SOURCE", source)
    with pytest.raises(CompilationFailed, match="nothing"):
        load_program(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@needs_compiler
def test_a_program_is_compiled_once(program: Path) -> None:
    before = program.stat().st_mtime_ns
    assert load_program(program.parent) == program
    assert program.stat().st_mtime_ns == before


@needs_compiler
def test_the_generator_counts_replies(program: Path) -> None:
    outcome = answered(program, redis_sends, [b"$3\r\n1-0\r\n"] * 3)
    assert (outcome.sent, outcome.total_sent, outcome.total_deleted) == (3, 3, 0)
    assert outcome.latencies().count == 3


@needs_compiler
def test_an_error_reply_ends_the_run_with_its_text(program: Path) -> None:
    with pytest.raises(LoadError, match="Redis: OOM command not allowed"):
        answered(program, redis_sends, [b"$3\r\n1-0\r\n", b"-OOM command not allowed\r\n"])


@needs_compiler
def test_a_reply_to_nothing_ends_the_run(program: Path) -> None:
    with pytest.raises(LoadError, match="a reply to nothing"):
        answered(program, lambda line: replace(redis_sends(line), limit=1), [b"$3\r\n1-0\r\n$3\r\n2-0\r\n"])


def entries(*ids: bytes, body: bytes | None = None) -> bytes:
    body = body_of(64) if body is None else body
    one = [b"*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nb\r\n$%d\r\n%b\r\n" % (len(each), each, len(body), body) for each in ids]
    return b"*1\r\n*2\r\n$1\r\nq\r\n*%d\r\n" % len(ids) + b"".join(one)


@needs_compiler
def test_received_messages_are_deleted_and_counted(program: Path) -> None:
    outcome = answered(program, redis_consumes, [entries(b"1-0", b"1-1"), b":2\r\n:2\r\n"])
    assert (outcome.total_received, outcome.total_deleted) == (2, 2)
    assert outcome.latencies().count == 1


@needs_compiler
def test_a_reply_may_come_in_parts(program: Path) -> None:
    # More bytes than one read takes.
    ids = [b"1-%d" % number for number in range(10, 90)]
    reply = entries(*ids, body=body_of(4_096))
    assert len(reply) > 2 * 65_536

    def consumes(line: Line) -> Job:
        return replace(redis_consumes(line), consumers=[Line(line.socket, Request(b"x", 80))], limit=80)

    outcome = answered(program, consumes, [reply, b":80\r\n:80\r\n"])
    assert outcome.total_deleted == 80


@needs_compiler
@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ([entries(b"1-0", b"1-1"), b":2\r\n:1\r\n"], "did not meet all messages"),
        ([entries(b"1-0", body=b"x" * 64)], "not a body of this run"),
        ([entries(b"1-0", b"1-1", b"1-2")], "3 messages came, 2 were asked for"),
    ],
)
def test_wrong_replies_to_consumers_end_the_run(program: Path, replies: Sequence[bytes], text: str) -> None:
    with pytest.raises(LoadError, match=text):
        answered(program, redis_consumes, replies)


BODY = body_of(64)


def delivery(tag: int) -> bytes:
    """Return the frames with which RabbitMQ delivers ``BODY``."""
    arguments = amqp.short("c") + struct.pack(">QB", tag, 0) + amqp.short("") + amqp.short("q")
    header = amqp.frame(amqp.HEADER, 1, struct.pack(">HHQH", 60, 0, len(BODY), 0))
    return amqp.method(1, 60, 60, arguments) + header + amqp.frame(amqp.BODY, 1, BODY)


def row(body: bytes, row_id: int = 7) -> bytes:
    """Return a row of PostgreSQL with an id and a body."""
    return postgres.message(b"D", struct.pack(">HIQI", 2, 8, row_id, len(body)) + body)


def ready(status: bytes) -> bytes:
    return postgres.message(b"Z", status)


INSERTED = postgres.message(b"C", b"INSERT 0 1\0")
SENDS: Mapping[str, tuple[Sequence[bytes], Sequence[bytes], str]] = {
    # protocol: replies to three sends, replies of which the last is an error, the text of the error
    "postgres": (
        [INSERTED + ready(b"I")] * 3,
        [postgres.message(b"E", b"SERROR\0Mdisk full\0\0") + ready(b"I")],
        "PostgreSQL: disk full",
    ),
    "amqp": (
        [amqp.method(1, 60, 80, struct.pack(">QB", number, 0)) for number in (1, 2, 3)],
        [amqp.method(1, 60, 120, struct.pack(">QB", 1, 0))],
        "was not confirmed",
    ),
    "nats": (
        [b'MSG _INBOX.p0.0256 1 22\r\n{"stream":"q","seq":1}\r\n'] * 3,
        [b'MSG _INBOX.p0.0256 1 22\r\n{"error":{"code":503}}\r\n'],
        "NATS: .*503",
    ),
}
CONSUMES: Mapping[str, Sequence[bytes]] = {
    # protocol: replies to two receives and deletes, beginning with a receive of nothing where the protocol has one
    "postgres": [
        ready(b"I"),
        *[row(BODY) + ready(b"I"), postgres.message(b"C", b"DELETE 1\0") + ready(b"I")] * 2,
    ],
    "nats": [
        b"HMSG _INBOX.c0.pull 2 28 28\r\nNATS/1.0 408 Request Timeout\r\n",
        *[
            b"MSG q 2 $JS.ACK.q.bench.1.1 64\r\n" + BODY + b"\r\n",
            b"PING\r\n+OK\r\nMSG _INBOX.c0.ack 3 0\r\n\r\n",
        ]
        * 2,
    ],
}


def job_of(protocol: str, line: Line, *, consumes: bool) -> Job:
    # A place for the numbers of the protocols that have numbers.
    request = Request(b"0000" + BODY, number_at=0 if protocol == "nats" and not consumes else None, is_stamped=True)
    one = Line(line.socket, request, b"delete\0")
    return Job(
        protocol=protocol,
        queue="q",
        producers=[] if consumes else [one],
        consumers=[one] if consumes else [],
        warm_up=0,
        seconds=30,
        limit=2 if consumes else 3,
        records="pairs" if consumes else "sends",
    )


@needs_compiler
@pytest.mark.parametrize("protocol", SENDS)
def test_a_protocol_counts_its_sends(program: Path, protocol: str) -> None:
    replies, wrong, text = SENDS[protocol]
    outcome = answered(program, lambda line: job_of(protocol, line, consumes=False), replies)
    assert (outcome.total_sent, outcome.latencies().count) == (3, 3)
    with pytest.raises(LoadError, match=text):
        answered(program, lambda line: job_of(protocol, line, consumes=False), wrong)


@needs_compiler
@pytest.mark.parametrize("protocol", CONSUMES)
def test_a_protocol_counts_its_deletes(program: Path, protocol: str) -> None:
    outcome = answered(program, lambda line: job_of(protocol, line, consumes=True), CONSUMES[protocol])
    assert (outcome.total_received, outcome.total_deleted, outcome.latencies().count) == (2, 2, 2)


@needs_compiler
def test_rows_of_postgresql_are_deleted_by_their_ids(program: Path) -> None:
    own, others = socket.socketpair()
    with own, others:
        others.sendall(row(BODY, 8) + row(BODY, 1 << 40) + ready(b"I"))
        others.sendall(postgres.message(b"C", b"DELETE 2\0") + ready(b"I"))
        line = Line(own, Request(b"take", 2), b"run")
        job = replace(job_of("postgres", line, consumes=True), consumers=[line])
        outcome = run(program, job, on_start=nothing, on_end=nothing)
        sent = others.recv(1 << 16)
    assert outcome.total_deleted == 2
    ids = struct.pack(">IIIII", 1, 0, 20, 2, 1) + b"".join(struct.pack(">IQ", 8, each) for each in (8, 1 << 40))
    assert sent == b"take" + postgres.execute(postgres.DONE, ids).removesuffix(postgres.run_bound()) + b"run"


@needs_compiler
def test_a_delete_that_misses_a_row_of_postgresql_ends_the_run(program: Path) -> None:
    replies = [row(BODY) + ready(b"I"), postgres.message(b"C", b"DELETE 0\0") + ready(b"I")]
    with pytest.raises(LoadError, match="DELETE 0 in place of 1 rows"):
        answered(program, lambda line: job_of("postgres", line, consumes=True), replies)


def cmqd_reply(message: object) -> bytes:
    """Return a reply of cmqd to the generator's request."""
    payload = encoder.encode(message)
    return len(payload).to_bytes(4, "big") + payload


@needs_compiler
def test_a_walker_sends_receives_and_deletes_in_queue_after_queue(program: Path) -> None:
    stops = [
        Stop(
            request_of(SendMessages(NUMBER, queue, [BODY]), 1, is_stamped=True),
            request_of(ReceiveMessages(NUMBER, queue, 1, 1_000), 1),
            without_last_list(DeleteMessages(NUMBER, queue, [])),
        )
        for queue in ("first", "second")
    ]
    sent: list[bytes] = []
    received = MessagesReceived(NUMBER, [ReceivedMessage(1, 1 << 30, BODY, 0, 0, 0, 1)])
    replies = [
        cmqd_reply(MessagesSent(NUMBER, [1])),
        # The message went to another walker of the queue, whose message follows.
        cmqd_reply(MessagesReceived(NUMBER, [])),
        cmqd_reply(received),
        cmqd_reply(HandlesDone(NUMBER, [])),
    ]

    def job(line: Line) -> Job:
        return Job(
            protocol="cmqd",
            queue="q",
            stops=stops,
            walkers=[line.socket],
            warm_up=0,
            seconds=30,
            limit=2,
            records="pairs",
        )

    outcome = answered(program, job, [*replies, replies[0], *replies[2:]], sent)
    assert (outcome.total_sent, outcome.total_received, outcome.total_deleted) == (2, 2, 2)
    assert (outcome.empty, outcome.latencies().count) == (1, 2)
    assert [b"first" in request for request in sent] == [True] * 4 + [False] * 3
    assert [msgspec.msgpack.decode(request[4:])[0] for request in sent[:4]] == [
        tag_of(kind) for kind in (SendMessages, ReceiveMessages, ReceiveMessages, DeleteMessages)
    ]


@needs_compiler
def test_pushed_messages_are_acknowledged(program: Path) -> None:
    own, others = socket.socketpair()
    with own, others:
        others.sendall(delivery(1) + delivery(2))
        job = job_of("amqp", Line(own, Request(b"")), consumes=True)
        outcome = run(program, job, on_start=nothing, on_end=nothing)
        acknowledged = others.recv(1 << 16)
    assert (outcome.total_received, outcome.total_deleted) == (2, 2)
    assert acknowledged == b"".join(amqp.method(1, 60, 80, struct.pack(">QB", tag, 0)) for tag in (1, 2))


@needs_compiler
def test_a_confirm_may_stand_for_all_earlier_messages(program: Path) -> None:
    def confirm(tag: int, *, multiple: bool) -> bytes:
        return amqp.method(1, 60, 80, struct.pack(">QB", tag, int(multiple)))

    def job(line: Line) -> Job:
        return replace(job_of("amqp", line, consumes=False), outstanding=5, limit=5)

    assert answered(program, job, [confirm(2, multiple=False) + confirm(5, multiple=True)]).total_sent == 5
    with pytest.raises(LoadError, match="a confirm of message 2, which was not sent"):
        answered(program, job, [confirm(2, multiple=True) + confirm(2, multiple=False)])


@needs_compiler
def test_an_open_loop_counts_from_the_intended_time(program: Path) -> None:
    # The server is silent until all sends have left: the latency of each is the wait since its intended time.
    def job(line: Line) -> Job:
        return replace(redis_sends(line), rate=1_000.0, outstanding=8, limit=3)

    own, others = socket.socketpair()
    size = len(command("XADD", "q", "*", "b", body_of(64)))
    stamps: list[int] = []

    def serve() -> None:
        data = b""
        while len(data) < 3 * size:
            data += others.recv(1 << 16)
        for number in range(3):
            start = data.index(b"@cmqd-bench:", number * size) + 12
            stamps.append(int(data[start : start + 16], 16))
        others.sendall(b"$3\r\n1-0\r\n" * 3)

    thread = threading.Thread(target=serve)
    thread.start()
    with own, others:
        outcome = run(program, job(Line(own, Request(b""))), on_start=nothing, on_end=nothing)
        thread.join()
    assert [later - earlier for earlier, later in pairwise(stamps)] == [1_000_000, 1_000_000]
    assert outcome.latencies().count == outcome.lateness().count == 3
    assert outcome.latencies().maximum >= outcome.latencies().minimum + 1_900


@needs_compiler
def test_an_open_loop_behind_its_broker_goes_on_with_the_replies(program: Path) -> None:
    # A single request may be outstanding, so most sends are due before the reply that lets them leave.
    def job(line: Line) -> Job:
        return replace(redis_sends(line), rate=100_000.0, outstanding=1, limit=5)

    outcome = answered(program, job, [b"$3\r\n1-0\r\n"] * 5)
    assert (outcome.total_sent, outcome.latencies().count, outcome.lateness().count) == (5, 5, 5)


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


def test_the_variants_of_redis_differ_in_durability() -> None:
    assert "before the answer" in RedisPeer("always").durability
    assert "once a second" in RedisPeer("everysec").durability
