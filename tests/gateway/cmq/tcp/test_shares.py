"""Shares of a connection of CMQ's TCP protocol: memory that the budget counts, and work in a turn of the event loop."""

import asyncio
import gc
import tracemalloc
from typing import Any

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import HEADER, SEND_REQUEST, Envelope
from cmqd_gateway.cmq.tcp.connection import Answer, Connection
from cmqd_gateway.cmq.tcp.connections import CANCELLED_AT_ONCE, Connections
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_gateway.cmq.tcp.proto2 import encode_bytes
from cmqd_gateway.http.hand_over import HandOver
from cmqd_protocol.messages import SendMessages
from support.cases import each_case
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram

READERS = ["*/cmq/tcp/*.py"]
UNKNOWN_COMMAND = 1_900
NO_SEND = encode_bytes(b"\x08\x01", 200)
"""The body of a send, whose name of the queue is a number."""


def send_frame(seqno: int, body: bytes) -> bytes:
    header = HEADER.encode({"seqno": seqno, "cmd": commands.SEND})
    return to_frame(header + encode_bytes(SEND_REQUEST.encode({"queueName": "orders", "msgBody": body}), 200))


def held_by_readers() -> int:
    """Return the bytes in use that the readers of requests have allocated."""
    snapshot = tracemalloc.take_snapshot()
    traces = snapshot.filter_traces([tracemalloc.Filter(True, reader) for reader in READERS]).traces
    return sum(trace.size for trace in traces)


async def test_a_body_is_held_once_while_its_request_is_in_progress(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    count, size = 5, 60_000
    rig.server.link.ignore(SendMessages, times=count)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            program.write(send_frame(1_000 + number, bytes(size)))
        await rig.server.link.wait_handled(SendMessages, count)
        held, counted = held_by_readers(), rig.gateway.bodies.bytes_in_use
    finally:
        tracemalloc.stop()

    assert counted > count * size
    assert held < 1.2 * counted
    for connection in list(connections):
        connection.end("silent")
    await eventually(lambda: not rig.gateway.bodies.bytes_in_use)


class Waiting:
    """Performs no request; counts the cancelled requests in each turn of the loop."""

    def __init__(self, connections: Connections) -> None:
        self.cancelled = 0
        connections.answer = self.answer

    async def answer(self, connection: Connection, envelope: Envelope, key: KeySecret, hand_over: HandOver) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        raise AssertionError("the request is cancelled")


async def test_the_requests_of_an_ended_connection_are_cancelled_in_slices(
    connections: Connections, program: TcpProgram
) -> None:
    waiting = Waiting(connections)
    count = CANCELLED_AT_ONCE * 10
    (connection,) = connections
    program.write(b"".join(send_frame(number, b"x") for number in range(count)))
    await eventually(lambda: len(connection.requests) == count)
    await asyncio.sleep(0)

    connection.end("silent")
    greatest = 0
    while connection.requests:
        before = waiting.cancelled
        await asyncio.sleep(0)
        greatest = max(greatest, waiting.cancelled - before)

    assert waiting.cancelled == count
    assert greatest <= CANCELLED_AT_ONCE


async def test_the_end_of_the_gateway_waits_for_requests_that_are_not_cancelled_so_far(
    connections: Connections, program: TcpProgram
) -> None:
    waiting = Waiting(connections)
    count = CANCELLED_AT_ONCE * 3
    (connection,) = connections
    program.write(b"".join(send_frame(number, b"x") for number in range(count)))
    await eventually(lambda: len(connection.requests) == count)
    await asyncio.sleep(0)

    connection.connection_lost(None)
    await connections.close(0)

    assert waiting.cancelled == count


def no_request(case: str, seqno: int) -> bytes:
    """Return the payload of a frame that is no request: the rate of the key does not bound the frame."""
    if case == "no envelope":
        return HEADER.encode({"seqno": seqno})
    if case == "malformed body":
        return HEADER.encode({"seqno": seqno, "cmd": commands.SEND}) + NO_SEND
    return HEADER.encode({"seqno": seqno, "cmd": UNKNOWN_COMMAND})


@each_case("case", ["unknown command", "malformed body", "no envelope"])
async def test_frames_that_are_no_requests_have_a_turn_each(
    connections: Connections, program: TcpProgram, case: str
) -> None:
    count = 50
    (connection,) = connections
    connections.results.clear()
    connection.data_received(b"".join(to_frame(no_request(case, 1_000 + number)) for number in range(count)))
    greatest = answered = connections.results.total()
    while answered < count:
        await asyncio.sleep(0)
        greatest = max(greatest, connections.results.total() - answered)
        answered = connections.results.total()

    assert greatest == 1
    assert {(await program.next()).seqno for _ in range(count)} == set(range(1_000, 1_000 + count))


# ---------------------------------------------------------------------- whole frames that wait


async def stick(connection: Connection, program: TcpProgram) -> None:
    """Let a client not read its answers."""
    transport: Any = program.writer.transport
    transport.pause_reading()
    while connection.stuck_since is None:
        connection.write(bytes(1 << 20))
        await asyncio.sleep(0)


async def test_whole_frames_of_a_client_that_does_not_read_count_in_the_memory_of_bodies(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    (connection,) = connections
    await stick(connection, program)
    frames = send_frame(1_000, bytes(50_000)) * 5

    connection.data_received(frames)
    assert rig.gateway.bodies.bytes_in_use == len(frames)

    connection.end("slow reader")
    await eventually(lambda: not rig.gateway.bodies.bytes_in_use)


async def test_whole_frames_that_find_no_memory_end_the_connection_of_a_client_that_does_not_read(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    (connection,) = connections
    await stick(connection, program)
    held = rig.gateway.bodies.hold(0, rig.settings.body_memory_bytes // 4 * 3)

    connection.data_received(send_frame(1_000, bytes(50_000)) * 5)
    await eventually(lambda: not len(connections))

    assert connections.ended["no memory"] == 1
    assert rig.gateway.bodies.hold(held, 0) == rig.gateway.bodies.bytes_in_use == 0
