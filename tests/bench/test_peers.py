"""The comparison with peers: jobs of the load generator, its checks of replies, and a run against cmqd."""

import json
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

from cmqd_bench.peers import compiler as compiling
from cmqd_bench.peers import postgres_peer as postgres
from cmqd_bench.peers import rabbitmq_peer as amqp
from cmqd_bench.peers.catalog import PEERS, catalog
from cmqd_bench.peers.cmqd_peer import CmqdPeer
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.errors import CompilationFailed, CompilerMissing, LoadFailed
from cmqd_bench.peers.harness import (
    Harness,
    Plan,
    Sampler,
    check_counts,
    print_peers,
    row_of,
    started,
    steadiest,
)
from cmqd_bench.peers.job import MIN_BODY, Job, Line, Outcome, Request, body_of, parse_report, run
from cmqd_bench.peers.peer import pids_of, resume
from cmqd_bench.peers.redis_peer import RedisPeer, command
from cmqd_bench.peers.table import to_text
from cmqd_bench.peers.works import WORKS, Work, turn_order, works_of
from cmqd_bench.results import Conditions, Results, Row, read

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
PLAN = Plan(
    rows=(),
    peers=(),
    builds=(),
    moto=None,
    turns=1,
    repeats=0,
    seconds=30,
    warm_up=0,
    body=256,
    scratch=None,
    json=None,
    keep=False,
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_program(tmp_path_factory.mktemp("program"))


def nothing() -> None:
    pass


def answered(program: Path, job: Callable[[Line], Job], replies: Sequence[bytes]) -> Outcome:
    """Run a job of one connection against a server that gives each of ``replies`` after some bytes came."""
    own, others = socket.socketpair()

    def serve() -> None:
        # The generator may end at any reply. A server that closes first would be an error of its own.
        with suppress(ConnectionError):
            for reply in replies:
                others.recv(1 << 20)
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
    with pytest.raises(LoadFailed, match="the disk is full"):
        parse_report(b'{"error": "the disk is full"}')
    with pytest.raises(LoadFailed, match="without a report"):
        parse_report(b"")


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
    assert len(rates) == len(set(rates)) == 8
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
    with pytest.raises(LoadFailed, match="cmqd has 1249 messages; by the load's count 1250 were sent and 0 deleted"):
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
        with pytest.raises(LoadFailed):
            check_counts(FakePeer([left]), "q", 0, outcome)


def test_a_row_divides_the_cpu_of_the_peer_by_its_messages() -> None:
    sampler = Sampler(CmqdPeer(), cpu=0.5, busy=1.31)
    row = row_of(WORKS[0], CmqdPeer(), 2, OUTCOME, sampler)
    assert (row.scenario, row.peer, row.turn, row.rate) == ("send-1x1", "cmqd", 2, 500.0)
    assert (row.cpu_us, row.load_us) == (500.0, 10.0)
    assert (row.p50_ms, row.p999_ms) == (0.1, 0.2)
    assert (row.other_cores, row.is_disturbed) == (0.4, True)


def test_the_table_divides_by_the_reference_of_the_same_turn() -> None:
    def row(peer: str, turn: int, cpu_us: float) -> Row:
        build = "pure" if peer == "cmqd" else "-"
        return Row(scenario="send-1x1", peer=peer, build=build, turn=turn, rate=1_000, cpu_us=cpu_us, p50_ms=1.0)

    measured = Results(
        kind="peers",
        conditions=Conditions(
            commit="abc",
            started="2026-01-01T00:00:00+00:00",
            cpu="a processor",
            cores=2,
            kernel="6",
            python="3.11",
            sqlite="3.40",
            file_system="ext4",
            device="/dev/x",
            load_average=0.1,
            load="C generator",
            seconds=4,
            turns=3,
        ),
        peers=[],
        scenarios=[WORKS[0].scenario(), WORKS[1].scenario()],
        rows=[
            *(row("cmqd", turn, cpu) for turn, cpu in enumerate((200.0, 300.0, 420.0), 1)),
            *(row("redis-always", turn, cpu) for turn, cpu in enumerate((100.0, 100.0, 140.0), 1)),
        ],
    )
    text = to_text(measured)
    line = next(line for line in text.splitlines() if line.startswith("cmqd "))
    assert line.split()[:6] == ["cmqd", "1,000", "300.00", "200.0-420.0", "3.00", "2.00-3.00"]
    assert "redis-always varies by 1.40x, by more than 1.3: repeat this row" in text
    assert "send-64x1" not in text


def test_a_row_is_measured_again_while_the_reference_varies() -> None:
    def rows(*costs: float) -> list[Row]:
        return [Row(scenario="s", peer="redis-always", build="-", rate=1, cpu_us=cost) for cost in costs]

    def measured(*attempts: list[Row], repeats: int) -> tuple[list[Row], int]:
        left = list(attempts)
        return steadiest(lambda: left.pop(0), repeats), len(attempts) - len(left)

    steady, wild, wilder = rows(10, 12), rows(10, 14), rows(10, 20)
    assert measured(steady, wild, repeats=2) == (steady, 1)
    assert measured(wilder, wild, steady, repeats=5) == (steady, 3)
    assert measured(wild, wilder, repeats=1) == (wild, 2)
    assert measured(wild, repeats=0) == (wild, 1)
    alone = [Row(scenario="s", peer="cmqd", rate=1, cpu_us=cost) for cost in (1, 9)]
    assert measured(alone, repeats=3) == (alone, 1)


@needs_compiler
def test_an_error_passes_on_the_rows_before(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Row(scenario="send-1x1", peer="cmqd", rate=1, cpu_us=1)

    def same_folder(wanted: Path) -> Path:
        return wanted

    def no_peers(_plan: Plan) -> list[CmqdPeer]:
        return []

    def turns(_self: Harness, work: Work) -> list[Row]:
        if work.name == "send-1x1":
            return [good]
        raise LoadFailed("the disk is full")

    monkeypatch.setattr(Harness, "turns", turns)
    monkeypatch.setattr("cmqd_bench.peers.harness.load_program", lambda: program)
    monkeypatch.setattr("cmqd_bench.peers.harness.installed", no_peers)
    # The temporary folder of a test may be in memory.
    monkeypatch.setattr("cmqd_bench.peers.harness.scratch_root", same_folder)
    file = tmp_path / "results.json"
    with pytest.raises(LoadFailed, match="the disk is full"):
        print_peers(replace(PLAN, scratch=tmp_path, json=file))
    assert read(file).rows == [good]
    assert "send-1x1" in capsys.readouterr().out


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
    with pytest.raises(LoadFailed, match="Redis: OOM command not allowed"):
        answered(program, redis_sends, [b"$3\r\n1-0\r\n", b"-OOM command not allowed\r\n"])


@needs_compiler
def test_a_reply_to_nothing_ends_the_run(program: Path) -> None:
    with pytest.raises(LoadFailed, match="a reply to nothing"):
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
    with pytest.raises(LoadFailed, match=text):
        answered(program, redis_consumes, replies)


BODY = body_of(64)


def delivery(tag: int) -> bytes:
    """Return the frames with which RabbitMQ delivers ``BODY``."""
    arguments = amqp.short("c") + struct.pack(">QB", tag, 0) + amqp.short("") + amqp.short("q")
    header = amqp.frame(amqp.HEADER, 1, struct.pack(">HHQH", 60, 0, len(BODY), 0))
    return amqp.method(1, 60, 60, arguments) + header + amqp.frame(amqp.BODY, 1, BODY)


def row(body: bytes) -> bytes:
    """Return a row of PostgreSQL with one column."""
    return postgres.message(b"D", struct.pack(">HI", 1, len(body)) + body)


def ready(status: bytes) -> bytes:
    return postgres.message(b"Z", status)


def http(fields: object, status: str = "200 OK") -> bytes:
    body = json.dumps(fields).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


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
    "beanstalkd": ([b"INSERTED 1\r\n"] * 3, [b"OUT_OF_MEMORY\r\n"], "beanstalkd: OUT_OF_MEMORY"),
    "sqs": ([http({"MessageId": "1"})] * 3, [http({"m": "no queue"}, "400 Bad Request")], "no queue"),
}
CONSUMES: Mapping[str, Sequence[bytes]] = {
    # protocol: replies to two receives and deletes, beginning with a receive of nothing where the protocol has one
    "postgres": [
        ready(b"T"),
        ready(b"I"),
        *[row(BODY) + ready(b"T"), postgres.message(b"C", b"COMMIT\0") + ready(b"I")] * 2,
    ],
    "nats": [
        b"HMSG _INBOX.c0.pull 2 28 28\r\nNATS/1.0 408 Request Timeout\r\n",
        *[
            b"MSG q 2 $JS.ACK.q.bench.1.1 64\r\n" + BODY + b"\r\n",
            b"PING\r\n+OK\r\nMSG _INBOX.c0.ack 3 0\r\n\r\n",
        ]
        * 2,
    ],
    "beanstalkd": [b"RESERVED 7 64\r\n" + BODY + b"\r\n", b"DELETED\r\n"] * 2,
    "sqs": [
        http({}),
        *[http({"Messages": [{"ReceiptHandle": "abc", "Body": BODY.decode()}]}), http({})] * 2,
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
    with pytest.raises(LoadFailed, match=text):
        answered(program, lambda line: job_of(protocol, line, consumes=False), wrong)


@needs_compiler
@pytest.mark.parametrize("protocol", CONSUMES)
def test_a_protocol_counts_its_deletes(program: Path, protocol: str) -> None:
    outcome = answered(program, lambda line: job_of(protocol, line, consumes=True), CONSUMES[protocol])
    assert (outcome.total_received, outcome.total_deleted, outcome.latencies().count) == (2, 2, 2)


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
    with pytest.raises(LoadFailed, match="a confirm of message 2, which was not sent"):
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
    with started([peer], tmp_path, keep=False):
        harness = Harness(program, [peer], PLAN)
        row = harness.measure(work, peer, 1)
        # The run ends with the last of the 300 messages, long before its time.
        assert row.rate > 10
        assert row.p50_ms is not None
        resume(pids_of(peer))
        with pytest.raises(LoadFailed, match="cmqd: queue_not_found"):
            harness._run(work, peer, "no-such-queue", 0, Sampler(peer))  # pyright: ignore[reportPrivateUsage]
    assert not list(tmp_path.iterdir())


def test_the_variants_of_redis_differ_in_durability() -> None:
    assert "before the answer" in RedisPeer("always").durability
    assert "once a second" in RedisPeer("everysec").durability
