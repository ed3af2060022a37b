"""Small input that comes when the time of an I/O batch is over: it waits in line, and the line is served in order."""

from collections.abc import Callable
from typing import Any

import pytest

from cmqd.server.binary.deferred_input import PIECE_BYTES
from cmqd.server.loop.io_batch import IO_BATCH_SECONDS, LATE_INPUT_SECONDS
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import HEARTBEAT
from cmqd_protocol.server_connection import ServerConnection
from support.server.server_rig import RigClient, ServerRig, a_queue

REQUEST_SECONDS = 0.001
IN_TIME = round((IO_BATCH_SECONDS + LATE_INPUT_SECONDS) / REQUEST_SECONDS)
"""Requests that an I/O batch takes up on arrival, about."""


@pytest.fixture(autouse=True)
def requests_take_time(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request take ``REQUEST_SECONDS``."""

    def slowly(original: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any) -> Any:
            taken = original(*arguments)
            if taken:
                rig.timer.seconds += REQUEST_SECONDS
            return taken

        return take

    for name in ("lone_request", "receive"):
        monkeypatch.setattr(ServerConnection, name, slowly(getattr(ServerConnection, name)))


def begin_send(client: RigClient, body: bytes = b"x") -> int:
    return client.begin(wire.SendMessages(client.next_id(), "jobs", [body]))


async def late_clients(rig: ServerRig, count: int) -> list[RigClient]:
    """Return clients that have a send in line each; the time of the I/O batch is used up by other clients."""
    clients = [await rig.client() for _ in range(2 * IN_TIME + count)]
    await a_queue(clients[0])
    while not len(rig.server.io_batch.late):
        begin_send(clients.pop())
    late = clients[: count - 1]
    for index, client in enumerate(late):
        begin_send(client, b"late %d" % index)
    assert len(rig.server.io_batch.late) == count
    return late


def is_late(client: RigClient) -> bool:
    return client.connection.turns in client.rig.server.io_batch.late._entry_of  # pyright: ignore[reportPrivateUsage]


async def test_clients_with_one_request_outstanding_are_served_alike(rig: ServerRig) -> None:
    """The clients send again at once, in an order that stays: those behind the first ``IN_TIME`` are always late."""
    clients = [await rig.client() for _ in range(6 * IN_TIME)]
    await a_queue(clients[0])
    begun = [begin_send(client) for client in clients]
    answered = [0] * len(clients)

    for _ in range(400):
        await rig.turn(1)
        for index, client in enumerate(clients):
            client.read()
            if client.replies.pop(begun[index], None) is not None:
                answered[index] += 1
                begun[index] = begin_send(client)

    assert min(answered) > 10
    assert max(answered) <= 1.5 * min(answered)


async def test_late_input_is_served_before_the_next_commit(rig: ServerRig) -> None:
    late = await late_clients(rig, 5)

    await rig.turn(1)

    assert not len(rig.server.io_batch.late)
    for client in late:
        await client.settle()
        assert [type(reply) for reply in client.replies.values()] == [wire.MessagesSent]


async def test_a_client_of_another_account_does_not_wait_for_all_late_connections(rig: ServerRig) -> None:
    lonely = await rig.client(await rig.accounts.create_account("admin", "other", 1))
    await a_queue(lonely)
    late = await late_clients(rig, 10 * IN_TIME)
    sending = begin_send(lonely)

    await rig.turn(3)

    lonely.read()
    assert sending in lonely.replies
    assert sum(map(is_late, late)) > 5 * IN_TIME


async def test_a_late_request_is_taken_up_before_the_end_of_its_connection(rig: ServerRig) -> None:
    consumer = await rig.client()
    (client,) = await late_clients(rig, 2)

    client.connection.eof_received()
    client.transport.lose()
    await rig.turn()

    assert b"late 0" in [message.body for message in await consumer.receive("jobs", 256)]
    assert not len(rig.server.io_batch.late)


async def test_a_connection_with_several_late_requests_is_not_read_from(rig: ServerRig) -> None:
    """A request can hold the connection, and the end of the stream must not overtake the requests behind it."""
    other = await rig.client()
    (client,) = await late_clients(rig, 2)
    other.feed(*(wire.SendMessages(other.next_id(), "jobs", [b"x"]) for _ in range(2)))
    client.feed(wire.SendMessages(client.next_id(), "jobs", [b"second"]))

    for each in (client, other):
        assert is_late(each)
        assert not each.transport.is_reading()
    await rig.turn()

    for each in (client, other):
        assert each.transport.is_reading()
        each.read()
        assert len(each.replies) >= 2


async def test_requests_behind_a_late_request_keep_their_order(rig: ServerRig) -> None:
    (client,) = await late_clients(rig, 2)
    assert client.transport.is_reading()
    bodies = [b"first", b"second", bytes(PIECE_BYTES), b"last"]
    for body in bodies:
        client.feed(wire.SendMessages(client.next_id(), "jobs", [body]))
    assert not client.transport.is_reading(), "more than a piece waits in turns"
    assert not is_late(client)
    assert len(rig.server.turns) == 1

    await client.settle()
    await client.settle()

    assert client.transport.is_reading()
    sent = [reply.message_ids[0] for reply in client.replies.values() if isinstance(reply, wire.MessagesSent)]
    assert len(sent) == 5
    assert sent == sorted(sent)


async def test_a_late_handshake_does_not_rest(rig: ServerRig) -> None:
    await late_clients(rig, 2)
    stranger = rig.connect()
    stranger.deliver()
    assert is_late(stranger)

    await rig.turn()

    assert stranger.transport.is_reading()


async def test_a_late_flood_without_a_request_rests(rig: ServerRig) -> None:
    (client,) = await late_clients(rig, 2)
    await client.settle()
    early = [await rig.client() for _ in range(IN_TIME + 10)]
    for other in early:
        begin_send(other)

    client.connection.data_received(HEARTBEAT * 1000)
    await rig.turn()

    assert not client.transport.is_reading()
    listener: Any = rig.server.listener
    listener.pass_time(listener._shared.time_ms + 100)
    await rig.turn()
    assert client.transport.is_reading()
