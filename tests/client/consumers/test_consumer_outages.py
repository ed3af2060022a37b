"""Consumers during outages, refusals and the loss of their queue."""

import asyncio
import logging

import pytest

from cmqd_client import Client, ConsumedMessage, Consumer, connect
from cmqd_client.consumers.settlements import Settlements
from cmqd_client.errors import InternalError, QueueDeleted, QueueNotFound
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.consumer_parts import options, running, source
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


async def test_an_outage_ends_nothing(server: LocalServer) -> None:
    bodies: list[bytes] = []

    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)

    async with connect(server.url, retries=0) as client, running(client, handle) as consumer:
        for number in range(3):
            await server.put("orders", b"%d" % number)
            await eventually(lambda number=number: consumer.statistics().deleted == number + 1)
            await server.link.stop()
            await server.link.start()

    assert bodies == [b"0", b"1", b"2"]


async def test_errors_that_pass_are_waited_for_and_logged_once(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cmqd_client.consumer")
    clock = TurnedClock()
    await server.put("orders", b"x")
    server.link.refuse(wire.ReceiveMessages, ErrorCode.INTERNAL_ERROR, times=3)

    async def handle(message: ConsumedMessage) -> None: ...

    async with running(client, handle, clock) as consumer:
        for attempt in range(1, 4):
            await server.link.wait_handled(wire.ReceiveMessages, attempt)
            await eventually(lambda: clock.timers)
            clock.advance(2)
        await eventually(lambda: consumer.statistics().deleted == 1)

    texts = [record.getMessage() for record in caplog.records if "receive" in record.getMessage()]
    assert [text.partition(":")[2].split(",")[0] for text in texts] == [
        " cannot receive",
        " receives again after 6.0 s",
    ]


async def test_a_consumer_with_patience_ends_with_an_error_that_says_how_long_it_waited(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    server.link.refuse(wire.ReceiveMessages, ErrorCode.INTERNAL_ERROR, times=100)

    async def handle(message: ConsumedMessage) -> None: ...

    consumer = Consumer(source(client), handle, options(clock, patience=60))
    task = asyncio.create_task(consumer.run())
    attempts = 0
    while not task.done():
        attempts += 1
        await server.link.wait_handled(wire.ReceiveMessages, attempts)
        await eventually(lambda: clock.timers or task.done())
        clock.advance(2)
    with pytest.raises(InternalError) as raised:
        await task

    assert raised.value.waited is not None
    assert 57 <= raised.value.waited <= 60
    assert raised.value.attempts == attempts == len(server.link.of(wire.ReceiveMessages))
    # The first answer after an outage is wanted at once, so only the first receive waits.
    assert [request.wait_ms for request in server.link.of(wire.ReceiveMessages)] == [30_000] + [0] * (attempts - 1)


async def test_an_unexpected_error_inside_ends_the_consumer_instead_of_silencing_it(
    client: Client, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(settlements: Settlements, *arguments: object, **named: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Settlements, "delete", broken)
    await server.put("orders", b"x")

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None: ...

    with pytest.raises(ZeroDivisionError):
        await client.run(handle)


async def test_a_delete_without_an_answer_is_repeated_after_the_channels_own_repeats(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    await server.put("orders", b"x")
    server.link.refuse(wire.DeleteMessages, ErrorCode.BUSY, times=3)

    async def handle(message: ConsumedMessage) -> None: ...

    async with running(client, handle, clock) as consumer:
        await server.link.wait_handled(wire.DeleteMessages, 3)
        await eventually(lambda: clock.timers >= 2)
        clock.advance(1)
        await eventually(lambda: consumer.statistics().deleted == 1)

    assert (await server.info("orders")).in_flight == 0


async def test_a_consumer_of_a_missing_queue_ends_with_an_error(client: Client, server: LocalServer) -> None:
    @client.queue("nowhere").consumer()
    async def handle(message: ConsumedMessage) -> None: ...

    with pytest.raises(QueueNotFound):
        await client.run(handle)


async def test_an_empty_queue_costs_a_request_for_each_of_the_longest_polls(
    client: Client, server: LocalServer
) -> None:
    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None: ...

    before = client.statistics().requests
    task = asyncio.create_task(handle.run())
    for polls in range(1, 6):
        await eventually(lambda polls=polls: len(server.link.of(wire.ReceiveMessages)) == polls)
        await server.wait_status("waiting_receives", 1)
        server.advance(30)
    await eventually(lambda: len(server.link.of(wire.ReceiveMessages)) == 6)

    assert client.statistics().requests - before == 6
    assert {request.wait_ms for request in server.link.of(wire.ReceiveMessages)} == {30_000}
    handle.stop()
    await task


async def test_a_deleted_queue_ends_its_consumer_and_stops_the_others(client: Client, server: LocalServer) -> None:
    await server.admin.create_queue("other")
    await server.put("orders", b"x")
    begun, gate, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await gate.wait()
        finished.set()

    @client.queue("other").consumer()
    async def handle_other(message: ConsumedMessage) -> None: ...

    task = asyncio.create_task(client.run(handle, handle_other))
    await begun.wait()
    await server.wait_status("waiting_receives", 1)
    await server.admin.delete_queue("other")
    await server.wait_status("waiting_receives", 0)
    assert handle.statistics().begun == 1
    gate.set()
    with pytest.raises((QueueDeleted, QueueNotFound)):
        await task

    assert finished.is_set()
    assert handle.statistics().deleted == 1
