"""Long polls: they end with their connection and take no message with it."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from cmqd_client import Client, Message, Queue
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.server import DRAIN_SECONDS
from support.eventually import eventually
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig
from support.gateway.lost_answers import fail, lose_next_answer
from support.gateway.rest_calls import RestCalls
from support.processes.silent_port import reserve_port


def request_bytes(rig: GatewayRig, form: dict[str, bytes]) -> bytes:
    body = encoded(form)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def poll_form(rig: GatewayRig, **parameters: Any) -> dict[str, bytes]:
    return rig.sign({"Action": "ReceiveMessage", "queueName": "orders", "pollingWaitSeconds": 30} | parameters)


async def waiting_receives(rig: GatewayRig, count: int) -> None:
    """Wait until so many receives wait at the broker."""
    while await rig.server.status("waiting_receives") != count:
        pass


async def test_a_poll_is_answered_by_the_message_that_comes(rig: GatewayRig):
    poll = asyncio.create_task(rig.post(poll_form(rig)))
    await waiting_receives(rig, 1)
    await rig.server.put("orders", b"late")

    assert (await poll)["msgBody"] == "late"


@pytest.mark.parametrize(
    ("parameters", "waited"),
    [
        ({"pollingWaitSeconds": 3}, 3),
        ({"pollingWaitSeconds": 30}, 30),
        ({"pollingWaitSeconds": 31}, 30),
        ({"pollingWaitSeconds": 29_999}, 30),
        ({"pollingWaitSeconds": 30_001}, 30),
        ({"pollingWaitSeconds": 30_000}, 7),
        ({}, 7),
    ],
    ids=["3", "30", "31", "29999", "30001", "30000", "none"],
)
async def test_waits_over_30_seconds_follow_the_rule(rig: GatewayRig, parameters: dict[str, int], waited: int):
    """30,000 is the wait of the queue (7 s here), other values over 30 are 30 s."""
    await rig.server.admin.queue("orders").set_attributes(polling_wait=7)
    rig.server.broker.clock.stop()
    form = rig.sign({"Action": "ReceiveMessage", "queueName": "orders"} | parameters)
    poll = asyncio.create_task(rig.post(form))
    await waiting_receives(rig, 1)

    rig.server.advance(waited - 0.5)
    still_waiting = await rig.server.status("waiting_receives")
    rig.server.advance(0.5)

    assert (await poll)["code"] == 7000
    assert still_waiting == 1


async def native(rig: GatewayRig, wait_ms: int) -> str | None:
    messages = await rig.server.admin.queue("orders").receive(wait=wait_ms / 1000)
    return messages[0].body.decode() if messages else None


async def in_json(rig: GatewayRig, wait_ms: int) -> str | None:
    received = await RestCalls(rig).ok("receive_messages", queue="orders", body={"wait": wait_ms / 1000})
    return received.messages[0].body if received.messages else None


async def api_2_0(rig: GatewayRig, wait_ms: int) -> str | None:
    answer = await rig.post(
        rig.sign({"Action": "ReceiveMessage", "queueName": "orders", "pollingWaitSeconds": wait_ms // 1000})
    )
    return answer.get("msgBody")


@pytest.mark.parametrize(
    ("receive", "wait_ms"),
    [
        (native, 1000),
        (native, 1050),
        (native, 1100),
        (in_json, 1000),
        (in_json, 1050),
        (in_json, 1100),
        (api_2_0, 1000),
    ],
)
@pytest.mark.parametrize("stepwise", [False, True])
async def test_a_poll_as_long_as_the_delay_gets_the_message(
    rig: GatewayRig, receive: Callable[[GatewayRig, int], Coroutine[Any, Any, str | None]], wait_ms: int, stepwise: bool
):
    rig.server.broker.clock.stop()
    await rig.server.put("orders", b"late", delay=1)
    poll = asyncio.create_task(receive(rig, wait_ms))
    await waiting_receives(rig, 1)

    rig.server.broker.clock.advance(wait_ms / 1000, stepwise=stepwise)

    assert await poll == "late"


def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("end", [close, reset])
async def test_a_poll_ends_with_its_connection(rig: GatewayRig, end: Callable[[asyncio.StreamWriter], None]):
    _, writer = await rig.open_raw()
    writer.write(request_bytes(rig, poll_form(rig)))
    await waiting_receives(rig, 1)

    end(writer)
    await waiting_receives(rig, 0)
    await rig.server.put("orders", b"kept")
    received = await rig.call("ReceiveMessage", queueName="orders")

    assert (received["msgBody"], received["dequeueCount"]) == ("kept", 1)


async def test_messages_that_cross_the_end_of_a_poll_come_back_uncounted(rig: GatewayRig):
    await rig.server.put("orders", b"kept")
    await rig.call("ListQueue")  # the connection to the broker is open
    rig.server.link.hold()
    _, writer = await rig.open_raw()
    writer.write(request_bytes(rig, poll_form(rig)))
    while not (await rig.server.info("orders")).in_flight:
        pass
    writer.transport.abort()
    await rig.handlers_ended()
    rig.server.link.let_go()
    while not (await rig.server.info("orders")).active:
        pass

    received = await rig.call("ReceiveMessage", queueName="orders")

    assert (received["msgBody"], received["dequeueCount"]) == ("kept", 1)


@pytest.mark.parametrize("action", ["ReceiveMessage", "BatchReceiveMessage"])
async def test_messages_that_arrive_as_the_client_closes_come_back_uncounted(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, action: str
):
    """The client closes when the messages are here and the event loop has not seen the close yet."""
    await rig.server.put("orders", b"a", b"b")
    connection = socket.create_connection(rig.http_server.addresses[0])
    receive = Queue.receive
    closed: list[int] = []

    async def receive_and_lose(*arguments: Any, **named: Any) -> list[Message[bytes]]:
        monkeypatch.setattr(Queue, "receive", receive)
        messages = await receive(*arguments, **named)
        connection.close()
        closed.append(len(messages))
        return messages

    monkeypatch.setattr(Queue, "receive", receive_and_lose)
    connection.sendall(request_bytes(rig, poll_form(rig, Action=action, numOfMsg=16)))
    await eventually(lambda: closed)
    while (await rig.server.info("orders")).active != 2:
        pass

    received = await rig.call("BatchReceiveMessage", queueName="orders", numOfMsg=16)

    assert [message["dequeueCount"] for message in received["msgInfoList"]] == [1, 1]
    assert "request_failed" not in caplog.text


@pytest.mark.parametrize("wait", [0, 30])
async def test_messages_come_back_uncounted_also_if_the_client_of_their_receive_is_closed_by_then(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch, wait: int
):
    await rig.server.put("orders", b"kept")
    lost = lose_next_answer(rig, monkeypatch)
    _, writer = await rig.open_raw()
    writer.write(request_bytes(rig, poll_form(rig, pollingWaitSeconds=wait)))
    await lost.wait()
    while not (await rig.server.info("orders")).active:
        pass
    writer.close()

    received = await rig.call("ReceiveMessage", queueName="orders")

    assert (received["msgBody"], received["dequeueCount"]) == ("kept", 1)


async def test_messages_come_back_uncounted_also_if_all_connections_are_in_use_at_first(
    monkeypatch: pytest.MonkeyPatch,
):
    async with GatewayRig(gateway_connections=2) as rig, AsyncExitStack() as others:
        made = [await rig.server.admin.accounts.create(account) for account in ("shop", "mill")]
        keys = [KeySecret(key.secret_id, key.secret_key or "") for key in made]
        connections = rig.gateway.connections
        prepare, client = web.Response.prepare, connections.client
        asked: list[KeySecret] = []

        def asked_client(key: KeySecret) -> AbstractAsyncContextManager[Client]:
            asked.append(key)
            return client(key)

        async def lose(response: web.Response, request: web.BaseRequest) -> None:
            monkeypatch.setattr(web.Response, "prepare", prepare)
            for key in keys:
                await others.enter_async_context(client(key))
            raise ConnectionResetError("lost by the test")

        monkeypatch.setattr(web.Response, "prepare", lose)
        monkeypatch.setattr(connections, "client", asked_client)
        await rig.server.put("orders", b"kept")
        _, writer = await rig.open_raw()
        writer.write(request_bytes(rig, poll_form(rig)))
        await eventually(lambda: rig.own_key in asked)
        writer.close()
        await others.aclose()
        while not (await rig.server.info("orders")).active:
            pass

        received = await rig.call("ReceiveMessage", queueName="orders")

        assert (received["msgBody"], received["dequeueCount"]) == ("kept", 1)


@pytest.mark.parametrize("function", ["api2.message_answers._message_fields", "api2.endpoint.msgspec.json.encode"])
async def test_messages_of_an_answer_that_cannot_be_made_come_back_uncounted(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch, function: str
):
    await rig.server.put("orders", b"kept")
    _, writer = await rig.open_raw()
    with monkeypatch.context() as faulty:
        faulty.setattr(f"cmqd_gateway.cmq.{function}", fail)
        writer.write(request_bytes(rig, poll_form(rig)))
        while not (await rig.server.info("orders")).in_flight:
            pass
        while not (await rig.server.info("orders")).active:
            pass
    writer.close()

    received = await rig.call("ReceiveMessage", queueName="orders")

    assert (received["msgBody"], received["dequeueCount"]) == ("kept", 1)


async def test_polls_of_a_key_refuse_none_of_its_sends_and_deletes():
    """The broker refuses the fifth unanswered request in a connection; the polls are more."""
    async with GatewayRig(broker={"max_requests_per_connection": 4}) as rig:
        await rig.server.put("orders", b"taken")
        taken = await rig.call("ReceiveMessage", queueName="orders", pollingWaitSeconds=0)
        polls = [asyncio.create_task(rig.post(poll_form(rig))) for _ in range(8)]
        while await rig.server.status("waiting_receives") != len(polls):
            assert not [poll.result() for poll in polls if poll.done()]

        deleted = await rig.call("DeleteMessage", queueName="orders", receiptHandle=taken["receiptHandle"])
        sent = [await rig.call("SendMessage", queueName="orders", msgBody=f"{number}") for number in range(8)]

        assert deleted["code"] == 0
        assert [answer["code"] for answer in sent] == [0] * 8
        assert sorted([(await poll)["msgBody"] for poll in polls]) == [f"{number}" for number in range(8)]


async def test_pipelined_requests_are_answered_in_order(rig: GatewayRig):
    reader, writer = await rig.open_raw()
    forms = [rig.sign({"Action": "SendMessage", "queueName": "orders", "msgBody": f"{n}"}) for n in range(5)]
    writer.write(b"".join(request_bytes(rig, form) for form in [*forms, poll_form(rig)]))

    bodies = [await read_answer(reader) for _ in range(6)]
    writer.close()

    assert all(b'"code":0' in body for body in bodies)
    assert b'"msgBody":"0"' in bodies[5]
    assert await rig.server.bodies("orders") == [b"1", b"2", b"3", b"4"]


async def test_a_poll_behind_which_requests_wait_still_ends_with_its_connection(rig: GatewayRig):
    _, writer = await rig.open_raw()
    writer.write(request_bytes(rig, poll_form(rig)) + request_bytes(rig, poll_form(rig)))
    await waiting_receives(rig, 1)

    writer.close()

    await waiting_receives(rig, 0)


async def test_at_the_end_of_the_gateway_polls_end_empty_and_connections_close():
    # Reserved: behind the end no other program answers there.
    with reserve_port() as reserved:
        async with GatewayRig(listen=f"127.0.0.1:{reserved.getsockname()[1]}") as rig:
            reader, writer = await rig.open_raw()
            writer.write(request_bytes(rig, poll_form(rig)))
            await waiting_receives(rig, 1)

            closing = asyncio.create_task(rig.http_server.close())
            answer = await read_answer(reader)
            rest = await reader.read()
            await closing

            assert b'"code":7000' in answer
            assert rest == b""
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await rig.open_raw()


async def test_messages_of_an_answer_that_the_end_of_the_gateway_cuts_off_come_back_uncounted(
    rig: GatewayRig, monkeypatch: pytest.MonkeyPatch
):
    writing = asyncio.Event()

    async def write_without_end(response: web.Response, request: web.BaseRequest) -> None:
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("cmqd_gateway.server.DRAIN_SECONDS", 0.01)
    monkeypatch.setattr(web.Response, "prepare", write_without_end)
    await rig.server.put("orders", b"kept")
    _, writer = await rig.open_raw()
    writer.write(request_bytes(rig, poll_form(rig)))
    await writing.wait()

    await rig.http_server.close()

    (message,) = await rig.server.admin.queue("orders").receive()
    assert (message.body, message.receive_count) == (b"kept", 1)
    writer.close()


async def test_idle_connections_do_not_delay_the_end_of_the_gateway(rig: GatewayRig):
    connections = [await rig.open_raw() for _ in range(3)]
    for reader, writer in connections:
        writer.write(request_bytes(rig, rig.sign({"Action": "ListQueue"})))
        await read_answer(reader)
    loop = asyncio.get_running_loop()
    started = loop.time()

    await rig.http_server.close()

    # Not a measurement: with the fault that this test is for, the end takes the whole time for requests in progress.
    assert loop.time() - started < DRAIN_SECONDS
    for reader, writer in connections:
        assert await reader.read() == b""
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert head.startswith("http/1.1 200 ")
    return await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
