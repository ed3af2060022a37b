"""A connection: authentication, limits, bad requests and silence."""

from pathlib import Path

import pytest

from cmqd.server.monitoring.counters import Counters
from cmqd.server.process.listening import connection_limit
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.limits import HANDSHAKE_FRAME_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from support.server.server_rig import ServerRig, a_queue, beat, code_of


async def test_a_wrong_key_is_refused_and_the_connection_closed(rig: ServerRig) -> None:
    client = rig.connect(secret_key="wrong")
    await client.settle()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.AUTHENTICATION_FAILED
    assert client.transport.lost
    assert len(rig.server.connections) == 0
    assert rig.server.part(Counters).authentications_failed == 1


async def test_another_region_is_refused(rig: ServerRig) -> None:
    client = rig.connect(region="elsewhere")
    await client.settle()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.WRONG_REGION


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        encode_preamble(1, 1) + (HANDSHAKE_FRAME_BYTES + 1).to_bytes(4, "big") + b"x",
        encode_preamble(1, 1) + (2**31).to_bytes(4, "big"),
        encode_preamble(1, 1) + frame(b"\xc1"),
        encode_preamble(9, 8),
    ],
)
async def test_garbage_before_authentication_gets_the_door(rig: ServerRig, garbage: bytes) -> None:
    other = await rig.client()
    await a_queue(other)
    client = rig.connect()

    client.connection.data_received(garbage)
    await rig.turn()

    assert client.transport.lost
    assert len(rig.server.connections) == 1
    await other.send("jobs", b"still served")


async def test_a_connection_without_authentication_in_time_is_closed(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, authentication_timeout_ms=300)
    client = rig.connect()
    await rig.turn()

    beat(rig, 200)
    await rig.turn()
    assert not client.transport.lost
    beat(rig, 300)
    await rig.turn()

    assert client.transport.lost
    rig.close()


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_connections=2)
    await rig.client()
    await rig.client()

    third = rig.connect()
    await third.settle()

    assert third.ended is not None
    assert third.ended.code == ErrorCode.TOO_MANY_CONNECTIONS
    assert third.ended.retryable
    assert third.ended.retry_after_ms == 1_000
    assert len(rig.server.connections) == 2
    rig.close()


async def test_one_connection_too_many_of_an_account_is_told_so(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_connections_per_account=1)
    first = await rig.client()
    second = rig.connect()
    await second.settle()
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))

    assert second.ended is not None
    assert second.ended.code == ErrorCode.TOO_MANY_CONNECTIONS
    assert second.ended.retry_after_ms == 1_000
    assert second.opened is None, "a welcome would invite requests whose outcome nobody learns"
    assert rig.server.part(Counters).connections_refused == 1
    assert first.ended is None
    assert other.ended is None
    first.transport.lose()
    again = await rig.client()
    assert again.ended is None
    rig.close()


def test_the_limit_of_connections_leaves_descriptors_for_the_server_itself() -> None:
    assert connection_limit(0, 1024) == 960
    assert connection_limit(100, 1024) == 100
    assert connection_limit(5_000, 1024) == 960
    assert connection_limit(0, 10) == 1
    assert connection_limit(0, 100_000, pushes=4_096) == 95_840
    assert connection_limit(0, 1024, pushes=4_096) == 704


async def test_a_disabled_key_closes_its_live_connections_and_no_others(rig: ServerRig) -> None:
    key = await rig.accounts.create_key("admin", None, 1)
    admin, doomed = await rig.client(), await rig.client(key)

    await admin.expect(wire.Done, wire.SetKeyEnabled, key.secret_id, False)
    await rig.turn(50)
    doomed.read()

    assert doomed.transport.lost
    assert doomed.ended is not None
    assert doomed.ended.code == ErrorCode.AUTHENTICATION_FAILED
    assert admin.ended is None


async def test_a_bad_request_of_one_connection_never_hurts_others(rig: ServerRig) -> None:
    good, bad = await rig.client(), await rig.client()
    await a_queue(good)
    waiting = good.begin(wire.ReceiveMessages(good.next_id(), "jobs", 1, 5_000))

    bad.connection.data_received(frame(wire.encoder.encode([16, 1, "jobs", "not a list"])))
    bad.connection.data_received(frame(wire.encoder.encode([190, 2])))
    await rig.turn()
    bad.machine._outstanding.update({1, 2})  # type: ignore[attr-defined]
    bad.read()
    assert [code_of(reply) for reply in bad.replies.values()] == ["invalid_argument", "unknown_operation"]
    bad.connection.data_received(frame(b"\xc1\xc1"))
    await bad.settle()
    await good.send("jobs", b"x")

    assert bad.ended is not None
    assert bad.ended.code == ErrorCode.MALFORMED_FRAME
    assert isinstance(good.replies[waiting], wire.MessagesReceived)


async def test_more_requests_than_allowed_at_once_are_refused(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_requests_per_connection=3)
    client = await rig.client()
    await a_queue(client)
    for _ in range(3):
        client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 5_000))

    assert code_of(await client.ask(wire.ListQueues)) == "too_many_requests"
    rig.close()


async def test_silence_for_two_heartbeats_ends_a_connection(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, heartbeat_ms=1_000)
    client = await rig.client()

    beat(rig, 1_000)
    await rig.turn()
    assert client.transport.unread == 4  # a heartbeat
    beat(rig, 1_800)
    await rig.turn()
    client.read()

    assert client.ended is not None
    assert client.ended.code == ErrorCode.HEARTBEAT_TIMEOUT
    assert client.transport.lost
    rig.close()


async def test_a_held_connection_is_not_taken_for_silent(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, heartbeat_ms=1_000)
    client = await rig.client()
    client.connection.hold()

    for _ in range(4):
        beat(rig, 1_000)
        await rig.turn()
    client.read()
    assert client.ended is None
    client.connection.release()

    await client.expect(wire.QueueList, wire.ListQueues)
    rig.close()


async def test_a_connection_that_does_not_take_its_last_bytes_is_cut_off(rig: ServerRig) -> None:
    client = await rig.client()
    client.transport.stuck = True

    client.connection.end(ErrorCode.SHUTTING_DOWN, "bye")
    await rig.turn()
    assert client.transport.is_closing()
    assert not client.transport.lost
    beat(rig, 40_000)
    await rig.turn()

    assert client.transport.lost
