"""The client after ended connections and lost answers."""

import asyncio

import msgspec
import pytest

from cmqd_client import Client, connect
from cmqd_client.address import parse_address
from cmqd_client.errors import (
    AuthenticationFailed,
    Busy,
    ClientClosed,
    OutcomeUnknown,
    ProtocolViolation,
    QueueNotFound,
    ReceiptHandleInvalid,
    ServerUnreachable,
    TooManyConnections,
    WrongRegion,
)
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.impatient import impatient
from support.client.local_server import LocalServer
from support.eventually import eventually

TOO_MANY = wire.error(
    0, ErrorCode.TOO_MANY_CONNECTIONS, "account 'admin' has reached its limit of 5 connections", retry_after_ms=1000
)


async def _drop(client: Client, server: LocalServer) -> None:
    """Lose the connection, and wait until the client has noticed."""
    server.link.connection.drop()
    await _until_down(client)


async def _until_down(client: Client) -> None:
    channel = client._channel  # pyright: ignore[reportPrivateUsage]
    assert channel is not None
    await eventually(lambda: not channel.connections())


async def test_a_send_whose_answer_was_lost_is_repeated_and_stored_once(client: Client, server: LocalServer) -> None:
    server.link.lose_answer(wire.SendMessages)

    sent = await client.queue("orders").send(b"one")

    first, second = server.link.of(wire.SendMessages)
    assert (first.session, first.sequence) == (second.session, second.sequence)
    assert first.session != 0
    assert await server.bodies("orders") == [b"one"]
    assert sent.id == (await client.queue("orders").peek()).messages[0].id
    assert server.link.connections_made == 2


async def test_too_many_connections_are_told_to_the_caller_and_tried_again_at_the_suggested_pace(
    server: LocalServer,
) -> None:
    server.link.refusal = msgspec.structs.replace(TOO_MANY, retry_after_ms=8000)

    with pytest.raises(TooManyConnections, match="its limit of 5 connections") as caught:
        async with connect(server.url, patience=1.5, retries=0):
            pass

    assert caught.value.retryable
    assert caught.value.retry_after == 8
    assert server.link.connections_made == 1, "the next attempt waits for as long as the server suggested"


async def test_a_send_with_too_many_connections_was_not_sent(server: LocalServer) -> None:
    async with impatient(server.url, patience=2, retries=0) as client:
        server.link.refusal = TOO_MANY
        await _drop(client, server)

        with pytest.raises(TooManyConnections):
            await client.queue("orders").send(b"one")

    assert not server.link.of(wire.SendMessages)


async def test_a_request_that_never_arrived_is_made_again(client: Client, server: LocalServer) -> None:
    server.link.drop_request(wire.SendMessages, 2)

    await client.queue("orders").send(b"one")

    assert await server.bodies("orders") == [b"one"]


async def test_a_send_that_is_never_answered_ends_as_outcome_unknown(server: LocalServer) -> None:
    server.link.lose_answer(wire.SendMessages, 3)
    async with connect(server.url, retries=2) as client:
        with pytest.raises(OutcomeUnknown, match="connection was lost"):
            await client.queue("orders").send(b"one")

    assert len(server.link.of(wire.SendMessages)) == 3
    assert await server.bodies("orders") == [b"one"]


async def test_a_repeat_that_is_refused_leaves_the_first_attempt_unknown(server: LocalServer) -> None:
    server.link.lose_answer(wire.DeleteMessages)
    server.link.refuse(wire.DeleteMessages, ErrorCode.INTERNAL_ERROR)
    async with connect(server.url) as client:
        with pytest.raises(OutcomeUnknown, match="an earlier attempt was not answered"):
            await client.queue("orders").delete(1)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("create", wire.CreateQueue),
        ("delete", wire.DeleteQueue),
        ("clear", wire.ClearQueue),
        ("create_key", wire.CreateKey),
        ("delete_key", wire.DeleteKey),
        ("create_account", wire.CreateAccount),
        ("delete_account", wire.DeleteAccount),
    ],
)
async def test_what_is_not_safe_to_repeat_is_not_repeated(
    client: Client, server: LocalServer, operation: str, kind: type[wire.Request]
) -> None:
    server.link.lose_answer(kind)
    calls = {
        "create": lambda: client.create_queue("new"),
        "delete": lambda: client.delete_queue("orders"),
        "clear": lambda: client.queue("orders").clear(),
        "create_key": lambda: client.accounts.create_key(),
        "delete_key": lambda: client.accounts.delete_key("AKIDx"),
        "create_account": lambda: client.accounts.create("kitchen"),
        "delete_account": lambda: client.accounts.delete("kitchen"),
    }

    with pytest.raises(OutcomeUnknown) as caught:
        await calls[operation]()

    assert len(server.link.of(kind)) == 1
    assert caught.value.request_id == server.link.of(kind)[0].request_id


async def test_ensure_reads_and_settings_are_repeated(client: Client, server: LocalServer) -> None:
    for kind in (wire.EnsureQueue, wire.ListQueues, wire.SetQueueAttributes, wire.GetQueueAttributes):
        server.link.lose_answer(kind)

    await client.ensure_queue("new")
    assert list(await client.queues()) == ["new", "orders"]
    await client.queue("new").set_attributes(delay=1)
    assert (await client.queue("new").attributes()).delay == 1.0


async def test_a_delete_whose_answer_was_lost_succeeds_when_repeated(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    (message,) = await client.queue("orders").receive()
    server.link.lose_answer(wire.DeleteMessages)

    await message.delete()

    assert len(server.link.of(wire.DeleteMessages)) == 2
    assert (await server.info("orders")).in_flight == 0


async def test_a_release_whose_answer_was_lost_succeeds_when_repeated(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    (message,) = await client.queue("orders").receive()
    server.link.lose_answer(wire.ReleaseMessages)

    await message.release()

    assert await server.bodies("orders") == [b"a"]


async def test_an_invalid_handle_is_no_success_after_a_refusal_that_did_nothing(
    client: Client, server: LocalServer
) -> None:
    server.link.refuse(wire.DeleteMessages, ErrorCode.BUSY)

    with pytest.raises(ReceiptHandleInvalid):
        await client.queue("orders").delete(12345)
    assert len(server.link.of(wire.DeleteMessages)) == 2


async def test_an_invalid_handle_is_no_success_when_a_change_of_visibility_is_repeated(
    client: Client, server: LocalServer
) -> None:
    server.link.lose_answer(wire.ChangeVisibility)

    with pytest.raises(ReceiptHandleInvalid):
        await client.queue("orders").change_visibility(12345, 60)


async def test_a_refusal_that_may_pass_is_tried_again_and_then_reported(client: Client, server: LocalServer) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=2)
    await client.queue("orders").send(b"x")
    assert len(server.link.of(wire.SendMessages)) == 3

    server.link.refuse(wire.SendMessages, ErrorCode.BUSY, times=3, retry_after_ms=1)
    with pytest.raises(Busy) as caught:
        await client.queue("orders").send(b"x")
    assert caught.value.retryable
    assert caught.value.retry_after == 0.001
    assert len(server.link.of(wire.SendMessages)) == 6


async def test_a_pause_that_outlasts_the_patience_goes_to_the_caller_at_once(server: LocalServer) -> None:
    server.link.refuse(wire.SendMessages, ErrorCode.DISK_NEARLY_FULL, retry_after_ms=60_000)
    async with connect(server.url, patience=50) as client:
        with pytest.raises(Exception, match="refused") as caught:
            await client.queue("orders").send(b"x")
    assert getattr(caught.value, "retry_after", None) == 60.0
    assert len(server.link.of(wire.SendMessages)) == 1


async def test_a_final_refusal_is_not_repeated(client: Client, server: LocalServer) -> None:
    with pytest.raises(QueueNotFound):
        await client.queue("nowhere").send(b"x")
    assert len(server.link.of(wire.SendMessages)) == 1


async def test_a_waiting_receive_is_made_again_with_the_rest_of_its_wait(client: Client, server: LocalServer) -> None:
    receive = asyncio.create_task(client.queue("orders").receive(wait=20))
    for count in range(1, 5):
        await server.link.wait_handled(wire.ReceiveMessages, count)
        server.link.connection.drop()
    await server.link.wait_handled(wire.ReceiveMessages, 5)
    await server.put("orders", b"a")

    (message,) = await receive

    assert message.body == b"a"
    waits = [request.wait_ms for request in server.link.of(wire.ReceiveMessages)]
    assert waits == sorted(waits, reverse=True)
    assert 10_000 < waits[-1] < waits[0] == 20_000


async def test_a_receive_that_names_no_wait_names_none_when_made_again(client: Client, server: LocalServer) -> None:
    server.link.drop_request(wire.ReceiveMessages)
    await server.put("orders", b"a")

    assert len(await client.queue("orders").receive()) == 1
    assert [request.wait_ms for request in server.link.of(wire.ReceiveMessages)] == [None, None]


async def test_a_server_that_shuts_down_is_left_for_its_successor(client: Client, server: LocalServer) -> None:
    old = server.link.connection
    server.link.refuse(wire.ReceiveMessages, ErrorCode.SHUTTING_DOWN)

    receive = asyncio.create_task(client.queue("orders").receive(wait=20))
    await server.link.wait_handled(wire.ReceiveMessages, 2)
    await server.put("orders", b"a")

    assert len(await receive) == 1
    assert old.requests == server.link.of(wire.ReceiveMessages)[:1]
    assert server.link.connections_made == 2


async def test_calls_wait_while_the_server_restarts(client: Client, server: LocalServer) -> None:
    await server.link.stop()
    send = asyncio.create_task(client.queue("orders").send(b"x"))
    receive = asyncio.create_task(client.queue("orders").receive(wait=20))
    await asyncio.sleep(0)
    await server.link.start()

    await send
    assert len(await receive) == 1


async def test_an_idle_client_reconnects_by_itself(client: Client, server: LocalServer) -> None:
    await _drop(client, server)
    await eventually(
        lambda: server.link.connections_made == 2 and server.link.connections and server.link.connection.is_open
    )

    await client.queue("orders").send(b"x")
    assert server.link.connections_made == 2


async def test_nothing_listens_there(silent_ports: tuple[int, int]) -> None:
    with pytest.raises(ServerUnreachable, match="refused"):
        async with connect(f"cmq://a:b@127.0.0.1:{silent_ports[0]}", patience=1):
            pass


async def test_a_host_that_cannot_exist_is_unreachable() -> None:
    with pytest.raises(ServerUnreachable, match="label"):
        async with connect(f"cmq://a:b@{'x' * 70}", patience=1):
            pass


async def test_a_bug_in_connecting_reaches_the_waiting_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("cmqd_client.client.Connection.open", broken)
    with pytest.raises(ServerUnreachable, match="surprise"):
        async with connect("cmq://a:b@localhost"):
            pass


async def test_a_server_that_is_gone_for_good_is_reported_as_unreachable(server: LocalServer) -> None:
    async with impatient(server.url, patience=1) as client:
        await server.link.stop()
        await _until_down(client)
        with pytest.raises(ServerUnreachable):
            await client.queue("orders").send(b"x")
        with pytest.raises(ServerUnreachable):
            await client.queue("orders").receive(wait=0.1)


async def test_a_wrong_key_is_not_tried_again(server: LocalServer) -> None:
    address = msgspec.structs.replace(parse_address(server.url), secret_key="wrong")
    with pytest.raises(AuthenticationFailed):
        async with connect(address):
            pass
    assert server.link.connections_made == 1


async def test_a_key_that_was_disabled_meanwhile_fails_calls_until_it_is_enabled(server: LocalServer) -> None:
    keys = server.admin.accounts
    key = await keys.create_key()
    address = msgspec.structs.replace(
        parse_address(server.url), secret_id=key.secret_id, secret_key=key.secret_key or ""
    )
    async with connect(address, patience=2) as client:
        await keys.set_key_enabled(key.secret_id, False)
        await _until_down(client)
        with pytest.raises(AuthenticationFailed):
            await client.queue("orders").send(b"x")

        await keys.set_key_enabled(key.secret_id, True)
        await client.queue("orders").send(b"x")


async def test_another_region_is_refused(server: LocalServer) -> None:
    with pytest.raises(WrongRegion, match="local"):
        async with connect(server.url, region="mars"):
            pass
    async with connect(server.url + "/?region=local") as client:
        await client.status()


async def test_another_service_on_the_port_is_told_from_a_server() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(http, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    with pytest.raises(ProtocolViolation, match="not the cmqd protocol"):
        async with connect(f"cmq://a:b@127.0.0.1:{port}"):
            pass
    other.close()
    await other.wait_closed()


async def test_a_silent_service_is_given_up() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(ServerUnreachable, match="did not answer"):
        async with connect(f"cmq://a:b@127.0.0.1:{port}", connect_timeout=0.2, patience=1):
            pass
    silent.close()
    await silent.wait_closed()


async def test_closing_ends_waiting_receives_and_lets_sends_finish(server: LocalServer) -> None:
    client = connect(server.url)
    await client.open()
    await server.admin.create_queue("elsewhere")
    receive = asyncio.create_task(client.queue("orders").receive(wait=20))
    await server.link.wait_handled(wire.ReceiveMessages)
    send = asyncio.create_task(client.queue("elsewhere").send(b"x"))
    await asyncio.sleep(0)

    await client.close()

    await send
    with pytest.raises(ClientClosed):
        await receive
    with pytest.raises(ClientClosed):
        await client.queue("orders").send(b"x")
    assert len(server.link.of(wire.Cancel)) == 1
    await client.close()


async def test_calls_on_a_client_that_was_not_opened_say_so() -> None:
    with pytest.raises(ClientClosed, match="async with"):
        await connect("cmq://a:b@localhost").queue("orders").send(b"x")
    with pytest.raises(ClientClosed, match="async with"):
        await connect("cmq://a:b@localhost").queues()


async def test_several_connections_are_used_in_turn(server: LocalServer) -> None:
    async with connect(server.url, connections=3) as client:
        await eventually(lambda: sum(one.is_open for one in server.link.connections) == 3)
        links = client._channel._links  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        await eventually(lambda: all(link.connection for link in links))
        for _ in range(6):
            await client.queue("orders").send(b"x")

        assert sorted(len(peer.requests) for peer in server.link.connections) == [2, 2, 2]
        numbers = [request.request_id for request in server.link.of(wire.SendMessages)]
        assert len(set(numbers)) == 6
