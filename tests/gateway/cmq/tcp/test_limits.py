"""Limits of CMQ's TCP protocol, and bytes that strangers send: a connection ends or is answered, others go on."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest

from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import HEADER, SEND_REQUEST
from cmqd_gateway.cmq.tcp.connection import BYTES_AT_ONCE, FRAMES_AT_ONCE, LOG_IN_BYTES, LOG_IN_SECONDS
from cmqd_gateway.cmq.tcp.connections import Connections
from cmqd_gateway.cmq.tcp.frames import HEAD_BYTES, to_frame
from cmqd_gateway.cmq.tcp.proto2 import encode_bytes
from support.cases import naming
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_program import TcpProgram


def send_frame(seqno: int, body: bytes, queue: str = "orders") -> bytes:
    header = HEADER.encode({"seqno": seqno, "cmd": commands.SEND})
    return to_frame(header + encode_bytes(SEND_REQUEST.encode({"queueName": queue, "msgBody": body}), 200))


_opened: list[TcpProgram] = []


@pytest.fixture(autouse=True)
async def closing() -> AsyncGenerator[None]:
    """Close the connections of a test."""
    yield
    while _opened:
        await _opened.pop().__aexit__(None, None, None)


async def open_program(rig: GatewayRig) -> TcpProgram:
    _opened.append(program := TcpProgram(rig))
    return await program.__aenter__()


async def make_program(rig: GatewayRig) -> TcpProgram:
    """Return a program that has logged in."""
    program = await open_program(rig)
    assert (await program.log_in()).result == 0
    return program


async def store_large(rig: GatewayRig, count: int) -> Any:
    """Store messages of 500,000 bytes in the queue, and return the queue."""
    queue = rig.server.admin.queue("orders")
    await queue.set_attributes(max_message_bytes=1 << 20)
    for _ in range(count):
        await queue.send(bytes(500_000))
    return queue


# ---------------------------------------------------------------------- frames


NO_FRAMES = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a first word of 1": b"\1\0",
    "a length of 5": b"\0\0\5\0\0\0",
    "a length of 2^32 - 1": b"\0\0\xff\xff\xff\xff",
}


async def test_bytes_that_are_no_frame_end_the_connection_and_no_other(
    rig: GatewayRig, connections: Connections, program: TcpProgram, caplog: pytest.LogCaptureFixture
) -> None:
    for number, (name, data) in enumerate(NO_FRAMES.items(), 1):
        with naming(name):
            async with TcpProgram(rig) as stranger:
                stranger.write(data)
                await stranger.ended()
            assert connections.ended["no frame"] == number
    await program.ok(commands.SEND, queueName="orders", msgBody=b"x")
    assert {record.getMessage().partition(" ")[0] for record in caplog.records} == {"event='cmq_tcp_connection_ended'"}


async def test_a_frame_before_the_log_in_has_at_most_4096_bytes(rig: GatewayRig, connections: Connections) -> None:
    async with TcpProgram(rig) as stranger:
        stranger.write(send_frame(1, bytes(LOG_IN_BYTES - 40)))
        assert (await stranger.answer(1)).result == 306
        stranger.write(b"\0\0" + (LOG_IN_BYTES + 1).to_bytes(4, "little"))
        await stranger.ended()
    assert connections.ended["no frame"] == 1


async def test_bytes_behind_a_log_in_under_way_are_bounded(rig: GatewayRig, connections: Connections) -> None:
    rig.table.answers.clear()
    async with TcpProgram(rig) as stranger:
        body: dict[str, Any] = {"secretId": "AKID", "signature": "x", "clientId": "c", "signatureMethod": "HmacSHA1"}
        stranger.send(commands.LOG_IN, **body)
        stranger.write(send_frame(2, bytes(LOG_IN_BYTES)) * 4)
        await stranger.ended()
    assert connections.ended["bytes before the log-in"] == 1
    rig.table.answers.set()


async def test_a_frame_has_at_most_the_bytes_of_a_request(rig: GatewayRig, program: TcpProgram) -> None:
    largest = rig.settings.max_request_bytes
    body = bytes(largest - len(send_frame(1, b"", "nowhere")) - 6)
    frame = send_frame(9, body, "nowhere")
    assert largest - 6 <= len(frame) <= largest
    program.write(frame)
    # The body has more than a message may have.
    assert (await program.answer(9)).result == 4400

    program.write(b"\0\0" + (largest + 1).to_bytes(4, "little"))
    await program.ended()


async def test_a_frame_a_byte_a_second_ends_the_connection(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    rig.clock.hold()
    frame = send_frame(9, bytes(40))
    for byte in frame[:-1]:
        program.write(bytes([byte]))
        bytes_in = connections.bytes_in
        await program.writer.drain()
        await eventually(lambda bytes_in=bytes_in: connections.bytes_in > bytes_in)
        rig.clock.advance(1)
        connections.check()
        if connections.ended["slow frame"]:
            break
    await program.ended()
    assert connections.ended["slow frame"] == 1


async def test_whole_frames_in_time_are_never_slow(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    rig.clock.hold()
    frame = send_frame(9, b"x")
    bytes_in = connections.bytes_in
    # Each read ends within a frame, but no frame takes long.
    for count in range(4):
        program.write((frame * 2)[: len(frame) + 5] if not count else frame[5:] + frame[:5])
        await eventually(lambda count=count: connections.bytes_in == bytes_in + len(frame) * (count + 1) + 5)
        rig.clock.advance(rig.settings.slow_client_seconds - 1)
        connections.check()
    assert connections.ended["slow frame"] == 0


async def test_a_tcp_frame_at_the_http_port_ends_that_connection(rig: GatewayRig) -> None:
    reader, writer = await rig.open_raw()
    writer.write(send_frame(1, b"x"))

    answer = await reader.read()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()

    assert answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")) or not answer


async def test_the_end_of_the_connection_is_no_error(rig: GatewayRig, caplog: pytest.LogCaptureFixture) -> None:
    program = await make_program(rig)
    program.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
    while await rig.server.status("waiting_receives") != 1:
        pass
    program.writer.transport.abort()

    while await rig.server.status("waiting_receives"):
        pass
    assert not caplog.records


# ---------------------------------------------------------------------- silence


async def test_a_connection_without_log_in_ends_after_5_seconds(rig: GatewayRig, connections: Connections) -> None:
    rig.clock.hold()
    async with TcpProgram(rig) as stranger:
        seqno = stranger.send(commands.SEND, queueName="orders", msgBody=b"x")
        assert (await stranger.answer(seqno)).result == 306
        rig.clock.advance(LOG_IN_SECONDS - 0.125)
        connections.check()
        assert not connections.ended["no log-in"]
        rig.clock.advance(0.125)
        connections.check()
        await stranger.ended()
    assert connections.ended["no log-in"] == 1


async def test_a_refused_log_in_begins_the_time_anew(rig: GatewayRig, connections: Connections) -> None:
    rig.clock.hold()
    async with TcpProgram(rig) as stranger:
        rig.clock.advance(LOG_IN_SECONDS - 1)
        assert (await stranger.log_in(signature="x")).result == 4100
        rig.clock.advance(LOG_IN_SECONDS - 1)
        connections.check()
        assert (await stranger.log_in()).result == 0
        rig.clock.advance(LOG_IN_SECONDS)
        connections.check()
        await stranger.ok(commands.SEND, queueName="orders", msgBody=b"x")


async def test_a_silent_connection_ends_and_heartbeats_keep_it(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    rig.clock.hold()
    for _ in range(3):
        bytes_in = connections.bytes_in
        program.send(commands.HEARTBEAT)
        await eventually(lambda bytes_in=bytes_in: connections.bytes_in > bytes_in)
        rig.clock.advance(rig.settings.cmq_tcp_silence_seconds - 1)
        connections.check()
    assert connections.results[commands.HEARTBEAT, 0] == 3
    rig.clock.advance(1)
    connections.check()
    # Heartbeats have no answer.
    await program.ended()
    assert connections.ended["silent"] == 1


# ---------------------------------------------------------------------- numbers


async def test_connections_count_together_with_those_of_http() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", max_connections=2) as rig:
        first = await open_program(rig)
        await eventually(lambda: rig.gateway.guards.other_connections == 1)
        reader, writer = await rig.open_raw()
        await eventually(lambda: len(rig.gateway.guards) == 1)

        second = await open_program(rig)
        await second.ended()
        assert rig.gateway.guards.refused == 1
        third, third_writer = await rig.open_raw()
        assert await third.read() == b""
        third_writer.close()

        first.writer.close()
        await eventually(lambda: not rig.gateway.guards.other_connections)
        await make_program(rig)
        writer.close()
        del reader


async def test_a_connection_has_a_limit_of_requests_in_progress() -> None:
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", cmq_tcp_requests=3) as rig:
        program = await make_program(rig)
        waiting = [program.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30) for _ in range(3)]
        refused = await program.ask(commands.DELETE, queueName="orders", receiptHandle=1)
        assert (refused.result, refused.error[:7]) == (4420, "(10250)")

        await rig.server.admin.queue("orders").send(b"x")
        await next(asyncio.as_completed([program.next()]))
        # One has ended, so another has room.
        await program.ok(commands.SEND, queueName="orders", msgBody=b"y")
        assert len(waiting) == 3


async def test_many_frames_in_a_read_are_all_answered(rig: GatewayRig, program: TcpProgram) -> None:
    count = FRAMES_AT_ONCE * 5 + 3
    program.write(b"".join(send_frame(number, b"x") for number in range(1000, 1000 + count)))

    replies = {(await program.next()).seqno for _ in range(count)}

    assert replies == set(range(1000, 1000 + count))


async def test_large_frames_in_a_read_have_several_turns(connections: Connections, program: TcpProgram) -> None:
    (connection,) = connections
    connection.data_received(b"".join(send_frame(number, bytes(BYTES_AT_ONCE // 2)) for number in range(1000, 1010)))

    assert len(connection.requests) == 2
    assert {(await program.next()).seqno for _ in range(10)} == set(range(1000, 1010))


# ---------------------------------------------------------------------- memory


@pytest.fixture
async def small() -> AsyncGenerator[GatewayRig]:
    """A gateway with the least memory for bodies: 4 MiB, of which large ones have 3."""
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0", body_memory_bytes=4 << 20, max_request_bytes=3 << 20) as rig:
        yield rig


async def test_unfinished_frames_use_the_memory_of_bodies_and_give_it_back(small: GatewayRig) -> None:
    program = await make_program(small)
    frame = send_frame(9, bytes(1 << 20), "nowhere")
    program.write(frame[: 1 << 20])
    await eventually(lambda: small.gateway.bodies.bytes_in_use == 1 << 20)

    program.write(frame[1 << 20 :])
    assert (await program.answer(9)).result == 4440
    await eventually(lambda: not small.gateway.bodies.bytes_in_use)

    program.write(frame[: 1 << 20])
    await eventually(lambda: small.gateway.bodies.bytes_in_use == 1 << 20)
    program.writer.transport.abort()
    await eventually(lambda: not small.gateway.bodies.bytes_in_use)


async def test_a_request_without_memory_is_refused_and_the_connection_goes_on(small: GatewayRig) -> None:
    holder, program = await make_program(small), await make_program(small)
    holder.write(send_frame(9, bytes(3_000_000), "nowhere")[:2_900_000])
    await eventually(lambda: small.gateway.bodies.bytes_in_use == 2_900_000)

    program.write(send_frame(7, bytes(1 << 20)))
    refused = await program.answer(7)
    assert (refused.result, refused.cmd) == (4420, commands.SEND)

    # The rest of the refused frame was dropped, and the next frame is found.
    await program.ok(commands.SEND, queueName="orders", msgBody=b"small")
    holder.writer.transport.abort()
    await eventually(lambda: not small.gateway.bodies.bytes_in_use)
    program.write(send_frame(8, bytes(60_000)))
    assert (await program.answer(8)).result == 0


async def test_a_frame_without_memory_and_number_ends_the_connection(
    small: GatewayRig,
) -> None:
    holder, program = await make_program(small), await make_program(small)
    holder.write(send_frame(9, bytes(3_000_000))[:2_900_000])
    await eventually(lambda: small.gateway.bodies.bytes_in_use == 2_900_000)

    # The number of the call stands behind the body, so no answer can name the call.
    body = encode_bytes(SEND_REQUEST.encode({"queueName": "orders", "msgBody": bytes(1 << 20)}), 200)
    program.write(to_frame(body + HEADER.encode({"seqno": 1, "cmd": commands.SEND})))

    await program.ended()
    assert small.gateway.cmq_tcp is not None
    assert small.gateway.cmq_tcp.ended["no memory"] == 1


# ---------------------------------------------------------------------- slow readers


async def stuck_program(rig: GatewayRig, connections: Connections) -> TcpProgram:
    """Return a program whose socket takes no more bytes, with requests for many large messages under way."""
    program = await make_program(rig)
    transport: Any = program.writer.transport
    transport.pause_reading()
    for _ in range(40):
        program.send(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=1, pollingWaitSeconds=0)
    await eventually(lambda: any(connection.stuck_since is not None for connection in connections))
    return program


async def test_a_reader_that_does_not_read_ends_and_its_messages_come_back(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    rig.clock.hold()
    count = 40
    queue = await store_large(rig, count)
    stuck = await stuck_program(rig, connections)

    # Other connections go on.
    await program.ok(commands.SEND, queueName="orders", msgBody=b"small")
    rig.clock.advance(rig.settings.slow_client_seconds)
    connections.check()
    await eventually(lambda: connections.ended["slow reader"] == 1)

    # Messages that the socket took are out; all others came back, without counting as received.
    async def active() -> int:
        info = await queue.attributes()
        return info.active

    await eventually(lambda: not any(connection.requests for connection in connections))
    while await active() < count // 2:
        pass
    for message in await queue.receive(16, wait=0):
        assert message.receive_count == 1
    del stuck


async def test_a_closing_connection_waits_no_longer_for_its_reader(rig: GatewayRig, connections: Connections) -> None:
    rig.clock.hold()
    await store_large(rig, 40)
    await stuck_program(rig, connections)
    (connection,) = connections

    # As after a second log-in with another key.
    connection.close()
    rig.clock.advance(rig.settings.slow_client_seconds)
    connections.check()

    await eventually(lambda: not len(connections))
    await eventually(lambda: not connection.requests)


async def test_a_reader_that_does_not_read_has_no_more_requests_served_until_it_reads(
    rig: GatewayRig, connections: Connections, program: TcpProgram
) -> None:
    await store_large(rig, 40)
    stuck = await stuck_program(rig, connections)
    sent = [stuck.send(commands.SEND, queueName="orders", msgBody=b"late") for _ in range(10)]
    for _ in range(10):
        await program.ok(commands.SEND, queueName="orders", msgBody=b"small")
    assert connections.results[commands.SEND, 0] == 10

    transport: Any = stuck.writer.transport
    transport.resume_reading()

    for seqno in sent:
        assert (await stuck.answer(seqno)).result == 0
    received = [*stuck.kept, *[await stuck.next() for _ in range(40 - len(stuck.kept))]]
    assert sum(len(reply.messages) for reply in received) == 40


async def test_messages_that_wait_for_a_reader_count_in_the_memory_of_bodies(
    small: GatewayRig,
) -> None:
    assert small.gateway.cmq_tcp is not None
    await store_large(small, 40)
    stuck = await stuck_program(small, small.gateway.cmq_tcp)
    del stuck
    results = small.gateway.cmq_tcp.results
    await eventually(lambda: results[commands.BATCH_RECEIVE, 4420] > 0)

    assert small.gateway.bodies.bytes_in_use <= 4 << 20
    assert HEAD_BYTES == 6
