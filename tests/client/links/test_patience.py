"""Patience: how long a call goes on, what its error says, and handles with a patience of their own."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import ConnectionLost, OutcomeUnknown, QueueNotFound, RequestTimeout, ServerUnreachable
from cmqd_protocol import messages as wire
from support.client.impatient import impatient
from support.client.local_server import LocalServer
from support.eventually import eventually


async def _down(client: Client, server: LocalServer) -> None:
    await server.link.stop()
    channel = client._channel  # pyright: ignore[reportPrivateUsage]
    assert channel is not None
    await eventually(lambda: not channel.connections())


async def test_a_call_is_repeated_for_as_long_as_its_patience_lasts(server: LocalServer) -> None:
    server.link.lose_answer(wire.SendMessages, 5)

    async with connect(server.url, patience=300) as client:
        sent = await client.queue("orders").send(b"one")

    assert len(server.link.of(wire.SendMessages)) == 6
    assert await server.bodies("orders") == [b"one"]
    assert sent.request_id == server.link.of(wire.SendMessages)[-1].request_id


async def test_the_error_says_how_long_the_client_waited(server: LocalServer) -> None:
    server.link.ignore(wire.GetServerStatus, 1000)
    async with impatient(server.url, patience=0.6, request_timeout=0.2) as client:
        with pytest.raises(RequestTimeout, match=r"waited \d+\.\d s, \d attempts?\)") as caught:
            await client.status()

    error = caught.value
    assert error.waited is not None
    assert round(error.waited, 3) >= 0.2
    assert error.attempts == len(server.link.of(wire.GetServerStatus))


async def test_a_refusal_needs_no_wait_and_names_none(client: Client) -> None:
    with pytest.raises(QueueNotFound, match="missing") as caught:
        await client.queue("missing").send(b"x")
    assert caught.value.waited is None
    assert "waited" not in str(caught.value)


async def test_a_wait_for_a_connection_counts(server: LocalServer) -> None:
    async with impatient(server.url, patience=0.3) as client:
        await _down(client, server)
        with pytest.raises(ServerUnreachable, match=r"no connection within \d+(\.\d+)? s") as caught:
            await client.queue("orders").send(b"x")
        assert caught.value.waited is not None
        # The loop's timers are rounded to its clock's resolution, and may fire that much early: here and below.
        assert round(caught.value.waited, 3) >= 0.3
        with pytest.raises(ServerUnreachable) as caught:
            await client.queue("orders").receive(wait=0.1)
        assert caught.value.waited is not None
        assert round(caught.value.waited, 3) >= 0.4


async def test_a_handle_can_wait_without_limit(server: LocalServer) -> None:
    async with impatient(server.url, patience=0.2) as client:
        await _down(client, server)
        sending = asyncio.create_task(client.queue("orders", patience=None).send(b"late"))
        ordinary = client.queue("orders")
        with pytest.raises(ServerUnreachable):
            await ordinary.send(b"never")
        assert not sending.done()

        await server.link.start()
        await sending

    assert await server.bodies("orders") == [b"late"]


async def test_a_client_without_limit_waits_for_its_server(server: LocalServer) -> None:
    await server.link.stop()
    client = connect(server.url, patience=None)
    opening = asyncio.create_task(client.open())
    # Several failed attempts later, the client still tries.
    for _ in range(3):
        done, _ = await asyncio.wait([opening], timeout=0.1)
        assert not done

    await server.link.start()
    await opening
    assert (await client.topics()).total == 0
    await client.close()


async def test_opening_can_have_less_patience_than_calls(silent_ports: tuple[int, int]) -> None:
    client = connect(f"cmq://a:b@127.0.0.1:{silent_ports[0]}", patience=None)
    with pytest.raises(ServerUnreachable) as caught:
        await client.open(patience=timedelta(seconds=0.2))
    assert caught.value.waited is not None


async def test_a_call_that_may_not_be_repeated_is_not_repeated_by_patience(server: LocalServer) -> None:
    server.link.lose_answer(wire.ClearQueue)
    async with connect(server.url, patience=300) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.queue("orders").clear()
    assert isinstance(caught.value.__cause__, ConnectionLost)
    assert caught.value.attempts == 1
    assert len(server.link.of(wire.ClearQueue)) == 1


@pytest.mark.parametrize(
    ("patience", "error"), [(0, ValueError), (-1, ValueError), ("9", TypeError), (True, TypeError)]
)
def test_a_patience_must_be_a_positive_duration(patience: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="patience"):
        connect("cmq://a:b@h", patience=patience)
