"""Leases of a consumer: kept in common requests, lost, and ended in an outage."""

import asyncio

import pytest

from cmqd_client import Client, ConsumedMessage
from cmqd_protocol import messages as wire
from support.client.consumer_parts import running
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


async def test_the_leases_of_everything_held_are_kept_in_common_requests(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", *[b"x"] * 6)
    gate = asyncio.Event()

    async def handle(message: ConsumedMessage) -> None:
        await gate.wait()

    async with running(client, handle, clock, concurrency=4, prefetch=2) as consumer:
        await eventually(lambda: consumer.statistics().held == 6)
        for _ in range(60):  # ten minutes
            server.advance(10)
            extensions = consumer.statistics().extensions
            clock.advance(10)
            await eventually(lambda extensions=extensions: consumer.statistics().extensions == extensions + 6)
        assert (await server.info("orders")).in_flight == 6
        gate.set()
        await eventually(lambda: consumer.statistics().deleted == 6)

    requests = server.link.of(wire.ChangeVisibility)
    assert len(requests) == 60
    assert {request.visibility_timeout_ms for request in requests} == {30_000}


async def test_the_handler_of_a_lost_lease_is_cancelled_and_told_why(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", b"x")
    reasons: list[object] = []

    async def handle(message: ConsumedMessage) -> None:
        if message.receive_count == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                reasons.extend([error.args[0], message.lost])
                raise

    async with running(client, handle, clock) as consumer:
        await eventually(lambda: consumer.statistics().begun == 1)
        server.advance(31)
        clock.advance(10)
        await eventually(lambda: consumer.statistics().deleted == 1)  # received again, by the same worker

    assert reasons == ["the server says that the lease ended or the message is gone"] * 2
    assert (consumer.statistics().lost, consumer.statistics().received) == (1, 2)


async def test_in_an_outage_the_handler_is_cancelled_when_its_lease_has_ended_here(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    await server.put("orders", b"x")
    cancelled: list[object] = []

    async def handle(message: ConsumedMessage) -> None:
        if message.receive_count == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.lost)
                raise

    async with running(client, handle, clock) as consumer:
        await eventually(lambda: consumer.statistics().begun == 1)
        await server.link.stop()
        clock.advance(29.9)
        await asyncio.sleep(0)
        assert not cancelled
        clock.advance(0.1)
        await eventually(lambda: cancelled)
        await server.link.start()
        server.advance(31)
        await eventually(lambda: consumer.statistics().deleted == 1)

    assert cancelled == ["the lease of 30 s ended without an answer to its extension"]


async def test_a_handler_that_ignores_the_loss_settles_nothing(client: Client, server: LocalServer) -> None:
    clock = TurnedClock()
    await server.put("orders", b"x")
    receives: list[int] = []

    async def handle(message: ConsumedMessage) -> None:
        receives.append(message.receive_count)
        if message.receive_count == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

    async with running(client, handle, clock) as consumer:
        await eventually(lambda: consumer.statistics().begun == 1)
        server.advance(31)
        clock.advance(10)
        await eventually(lambda: consumer.statistics().deleted == 1)

    assert receives == [1, 2]
    assert len(server.link.of(wire.DeleteMessages)) == 1
