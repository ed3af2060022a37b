"""The load generator in C: its jobs, its compilation, and its checks of replies."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from cmqd_bench.peers import compiler as compiling
from cmqd_bench.peers.compiler import load_program
from cmqd_bench.peers.errors import CompilationFailed, CompilerMissing
from cmqd_bench.peers.redis_peer import command
from cmqd_load.failures import LoadError
from cmqd_load.native_job import MIN_NATIVE_BODY, Job, Line, Request, body_of, parse_report, run
from support.bench.native_generator import answered, needs_compiler, nothing, redis_consumes, redis_sends


def test_a_body_has_its_size_and_a_place_for_its_time() -> None:
    body = body_of(256)
    assert len(body) == 256
    assert body == body_of(256)
    assert Request(body * 2, is_stamped=True).stamps() == [12, 268]
    with pytest.raises(ValueError, match="at least 28 bytes"):
        body_of(MIN_NATIVE_BODY - 1)


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
