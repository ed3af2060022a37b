"""Jobs of the load generator in C, against a server of the test."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from cmqd_bench.commands.plans import Peers
from cmqd_bench.peers import compiler as compiling
from cmqd_bench.peers.redis_peer import command
from cmqd_load.native_job import Job, Line, Outcome, Request, body_of, run

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
