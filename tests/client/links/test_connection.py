"""A connection: coalesced writes, time limits, cancelled receives, heartbeats, the end."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from cmqd_client import Client, connect
from cmqd_client.connection import WRITERS_AT_ONCE, Connection
from cmqd_client.errors import (
    ClientClosed,
    ConnectionLost,
    NotSupported,
    QueueNotFound,
    RequestTimeout,
    ServerUnreachable,
)
from cmqd_protocol import client_connection as machine
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature, ServerFacts
from cmqd_protocol.limits import DEFAULT_MAX_WAITING_REQUESTS
from support.client.cmq_runs import ThreadedServer
from support.client.local_server import LocalServer
from support.eventually import eventually, eventually_elsewhere


@pytest.fixture
async def connection(server: LocalServer) -> AsyncIterator[Connection]:
    connection = await Connection.open(server.url)
    yield connection
    await connection.close()


def _send(connection: Connection, body: bytes = b"x") -> "asyncio.Future[wire.AnyReply]":
    return connection.request(wire.SendMessages(connection.next_request_id(), "orders", [body]))


def _receive(
    connection: Connection, timeout: float = 30, wait_ms: int = 20_000
) -> "asyncio.Task[wire.MessagesReceived]":
    request = wire.ReceiveMessages(connection.next_request_id(), "orders", 16, wait_ms)
    return asyncio.create_task(connection.receive(request, timeout))


async def _answered_receive(
    connection: Connection, server: LocalServer, *bodies: bytes
) -> "asyncio.Task[wire.MessagesReceived]":
    """A receive with its answer on the way: in the link, which holds all answers back."""
    server.link.hold()
    receive = _receive(connection)
    await server.link.wait_handled(wire.ReceiveMessages)
    await server.put("orders", *bodies)
    await eventually(lambda: server.link.held)
    return receive


async def test_the_connection_knows_its_server(connection: Connection) -> None:
    number = connection.connection_id
    assert (connection.account, connection.region, connection.server) == ("admin", "local", "cmqd")
    assert number > 0
    assert repr(connection) == f"<Connection {number} usable, 0 pending>"


async def test_the_connection_knows_the_facts_of_the_server(connection: Connection) -> None:
    assert connection.facts == ServerFacts(DEFAULT_MAX_WAITING_REQUESTS, frozenset(Feature) - {Feature.LONG_DELAYS})


async def test_a_field_that_the_server_would_ignore_is_not_sent(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "FIELD_FEATURES", {wire.ReceiveMessages: {"wait_ms": "patience"}})
    connection = await Connection.open(server.url)
    request = wire.ReceiveMessages(connection.next_request_id(), "orders", 1, 0)

    with pytest.raises(NotSupported, match="did not name feature 'patience'") as refused:
        await connection.receive(request, 1)

    assert refused.value.details == {"field": "wait_ms", "feature": "patience"}
    assert not refused.value.retryable
    assert connection.statistics().outstanding == 0
    await connection.close()


async def test_requests_of_one_wake_up_go_out_in_one_write(connection: Connection, server: LocalServer) -> None:
    before = connection.statistics().writes

    replies = await asyncio.gather(*(_send(connection, str(number).encode()) for number in range(100)))

    assert len(replies) == 100
    assert connection.statistics().writes == before + 1
    assert await server.bodies("orders") == [str(number).encode() for number in range(100)]


async def test_tasks_woken_by_one_read_write_together(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")
    connection = await Connection.open(server.url)

    async def produce() -> None:
        for _ in range(10):
            await _send(connection)

    before = connection.statistics()
    await asyncio.gather(*(produce() for _ in range(50)))
    after = connection.statistics()

    # 500 requests; each round of 50 goes out in one write, however the answers are split into pieces.
    assert after.writes - before.writes <= after.reads - before.reads + 1
    assert after.writes - before.writes <= 50
    assert (await queue.attributes()).active == 500
    await connection.close()


async def test_replies_may_come_in_any_order(connection: Connection, server: LocalServer) -> None:
    receive = _receive(connection)
    await server.link.wait_handled(wire.ReceiveMessages)

    # The waiting receive delays no request; this send then answers the receive.
    await _send(connection, b"late")

    assert [message.body for message in (await receive).messages] == [b"late"]


async def test_an_error_answer_fails_only_its_own_request(connection: Connection) -> None:
    request = wire.SendMessages(connection.next_request_id(), "nowhere", [b"x"])
    failing, fine = connection.request(request), _send(connection)

    with pytest.raises(QueueNotFound) as caught:
        await failing

    assert (caught.value.request_id, caught.value.connection_id) == (request.request_id, connection.connection_id)
    assert str(request.request_id) not in str(caught.value), "the number is an attribute"
    await fine


async def test_no_answer_in_time_fails_the_request(connection: Connection, server: LocalServer) -> None:
    server.link.ignore(wire.SendMessages)
    request = wire.SendMessages(connection.next_request_id(), "orders", [b"x"])

    with pytest.raises(RequestTimeout, match="SendMessages"):
        await connection.request(request, timeout=0.05)

    # An answer that comes after all is no surprise.
    server.link.connection.answer(wire.MessagesSent(request.request_id, [1]))
    await _send(connection)


async def test_a_shorter_time_limit_is_kept_beside_a_longer_one(connection: Connection, server: LocalServer) -> None:
    server.link.ignore(wire.SendMessages, 3)
    long = connection.request(wire.SendMessages(connection.next_request_id(), "orders", [b"x"]), timeout=3600)
    for _ in range(2):
        short = connection.request(wire.SendMessages(connection.next_request_id(), "orders", [b"x"]), timeout=0.05)
        with pytest.raises(RequestTimeout):
            await short
    assert not long.done()
    await server.link.wait_handled(wire.SendMessages, 3)
    for request in server.link.of(wire.SendMessages):
        server.link.connection.answer(wire.MessagesSent(request.request_id, [1]))
    await long


async def test_cancelling_a_receive_tells_the_server(connection: Connection, server: LocalServer) -> None:
    receive = _receive(connection)
    await server.link.wait_handled(wire.ReceiveMessages)

    receive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receive
    await server.link.wait_handled(wire.Cancel)

    await server.wait_status("waiting_receives", 0)
    await server.put("orders", b"a")
    await _send(connection)
    assert await server.bodies("orders") == [b"a", b"x"]


async def test_messages_that_cross_a_cancellation_are_handed_back_uncounted(
    connection: Connection, server: LocalServer
) -> None:
    receive = await _answered_receive(connection, server, b"a", b"b")

    # The answer is on its way when the receive is cancelled.
    receive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receive
    await server.link.wait_handled(wire.Cancel)
    server.link.let_go()
    await server.link.wait_handled(wire.ReleaseMessages)

    (release,) = server.link.of(wire.ReleaseMessages)
    assert not release.count_receive
    await server.wait_bodies("orders", b"a", b"b")
    assert [message.receive_count for message in await server.admin.queue("orders").peek()] == [0, 0]
    assert connection.statistics().handed_back == 2


async def test_messages_that_arrive_in_the_wake_up_of_the_cancellation_are_handed_back(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Task[wire.MessagesReceived]] = []
    data_received = Connection.data_received

    def cancel_after_reading(connection: Connection, data: bytes) -> None:
        data_received(connection, data)
        # The future has its result by now, and the task has not gone on yet.
        for task in tasks:
            if connection is opened:
                task.cancel()

    monkeypatch.setattr(Connection, "data_received", cancel_after_reading)
    opened = await Connection.open(server.url)
    tasks.append(_receive(opened))
    await server.link.wait_handled(wire.ReceiveMessages)
    await server.put("orders", b"a")

    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    await server.link.wait_handled(wire.ReleaseMessages)

    assert not server.link.of(wire.Cancel)
    await server.wait_bodies("orders", b"a")
    await opened.close()


async def test_messages_for_a_receive_that_was_given_up_are_handed_back(
    connection: Connection, server: LocalServer
) -> None:
    server.link.ignore(wire.Cancel)
    receive = _receive(connection, timeout=0.05)
    await server.link.wait_handled(wire.Cancel)
    with pytest.raises(RequestTimeout):
        await receive

    await server.put("orders", b"a")
    await server.link.wait_handled(wire.ReleaseMessages)

    await server.wait_bodies("orders", b"a")


async def test_messages_for_a_cancelled_future_are_handed_back_too(connection: Connection, server: LocalServer) -> None:
    future = connection.request(wire.ReceiveMessages(connection.next_request_id(), "orders", 1, 20_000))
    await server.link.wait_handled(wire.ReceiveMessages)
    future.cancel()

    await server.put("orders", b"a")
    await server.link.wait_handled(wire.ReleaseMessages)

    await server.wait_bodies("orders", b"a")


async def test_a_time_out_around_a_receive_of_the_client_loses_nothing(client: Client, server: LocalServer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.queue("orders").receive(wait=20)
    await server.link.wait_handled(wire.Cancel)

    await client.queue("orders").send(b"a")
    assert len(await client.queue("orders").receive()) == 1


async def test_the_end_of_the_connection_fails_waiting_requests(connection: Connection, server: LocalServer) -> None:
    receive = _receive(connection)
    await server.link.wait_handled(wire.ReceiveMessages)
    server.link.connection.drop()

    with pytest.raises(ConnectionLost):
        await receive
    assert not connection.usable
    assert connection.is_closed
    with pytest.raises(ServerUnreachable):
        _send(connection)


async def test_closing_fails_receives_and_hands_back_messages_on_their_way(server: LocalServer) -> None:
    connection = await Connection.open(server.url)
    receive = await _answered_receive(connection, server, b"a")

    closing = asyncio.create_task(connection.close())
    await server.link.wait_handled(wire.Cancel)
    server.link.let_go()
    await closing

    with pytest.raises(ClientClosed):
        await receive
    await server.link.wait_handled(wire.ReleaseMessages)
    await server.wait_bodies("orders", b"a")
    await connection.close()


async def test_closing_does_not_wait_for_ever(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cmqd_client.connection.CLOSE_TIMEOUT", 0.05)
    server.link.ignore(wire.SendMessages)
    connection = await Connection.open(server.url)
    send = _send(connection)

    await connection.close()

    with pytest.raises(ConnectionLost):
        await send


async def test_a_client_knows_the_servers_limit_of_waiting_requests() -> None:
    async with LocalServer(max_requests_per_connection=7) as server:
        client = connect(server.url, patience=300, request_timeout=300, connect_timeout=300)
        assert client.max_waiting_requests is None
        async with client:
            assert client.max_waiting_requests == 7
        assert client.max_waiting_requests is None


async def test_heartbeats_keep_an_idle_connection_alive() -> None:
    async with LocalServer(heartbeat_ms=1000) as server:
        connection = await Connection.open(server.url, heartbeat=1)
        through = server.link.connection
        reads = through.reads
        await eventually(lambda: through.reads > reads)
        # A server that keeps silent is given up after two heartbeats.
        through.is_mute = True
        await eventually(lambda: not connection.usable)
        await connection.close()


async def test_a_send_waits_while_the_socket_takes_no_more(server: LocalServer) -> None:
    await server.admin.queue("orders").set_attributes(max_message_bytes=1_048_576)
    async with connect(server.url, patience=300, request_timeout=300) as client:
        queue = client.queue("orders")
        server.link.connection.transport.pause_reading()
        channel = client._channel  # pyright: ignore[reportPrivateUsage]
        assert channel is not None
        connection = channel._pick()  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        writes = connection.statistics().writes
        sends = [asyncio.create_task(queue.send(b"x" * 1_000_000)) for _ in range(8)]
        await eventually(lambda: _paused(client))
        assert connection.statistics().writes == writes + 1, (
            "paused by the write of the sends, not by a heartbeat later"
        )
        late = asyncio.create_task(queue.send(b"late"))
        await asyncio.sleep(0)
        server.link.connection.transport.resume_reading()
        await asyncio.gather(*sends, late)

    assert (await server.bodies("orders"))[-1] == b"late"


def _paused(client: Client) -> bool:
    connection = client._channel._pick()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    return connection is not None and connection.write_paused


async def test_writers_that_wait_have_their_turns_until_the_socket_is_full_again(server: LocalServer) -> None:
    connection = await Connection.open(server.url)
    connection.pause_writing()
    count = 3 * WRITERS_AT_ONCE
    writers = [asyncio.create_task(connection.wait_writable(300)) for _ in range(count)]
    await asyncio.sleep(0)
    writers[0].cancel()

    connection.resume_writing()
    # The write of the first writers fills the buffer.
    connection.pause_writing()
    for _ in range(5):
        await asyncio.sleep(0)

    assert [writer for writer in writers if writer.done()] == writers[:1]
    assert writers[0].cancelled()
    connection.resume_writing()
    await asyncio.sleep(0)
    assert sum(writer.done() for writer in writers) <= count // 2
    await asyncio.gather(*writers[1:])
    await connection.close()


async def test_an_answer_that_arrived_while_the_loop_stood_still_counts() -> None:
    server = ThreadedServer()
    try:
        connection = await Connection.open(server.local.url)
        send = connection.request(wire.SendMessages(connection.next_request_id(), "orders", [b"x"]), timeout=1.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        # The request is written; this loop stands still until the answer is in its socket and the time limit is over.
        eventually_elsewhere(lambda: server.local.link.answered)
        server.do(lambda: None)
        time.sleep(1.5)

        await send
        await connection.close()
    finally:
        server.close()
