"""The load generator in C against the replies of each protocol."""

import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cmqd_bench.peers import postgres_peer as postgres
from cmqd_bench.peers import rabbitmq_peer as amqp
from cmqd_load.failures import LoadError
from cmqd_load.native_job import Job, Line, Request, Stop, body_of, run
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
from cmqd_types.messages import ReceivedMessage
from support.bench.native_generator import answered, needs_compiler, nothing

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
