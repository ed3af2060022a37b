"""Handlers of a consumer: concurrency, failures and retries, order."""

import asyncio
from collections import defaultdict
from contextvars import ContextVar
from typing import Any

import pytest

from cmqd_client import Client, ConsumedMessage, Retry
from cmqd_protocol import messages as wire
from support.client.consumer_parts import running
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


async def test_handled_messages_are_deleted_together(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"%d" % number for number in range(100)])
    bodies: list[bytes] = []

    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)

    async with running(client, handle, prefetch=99) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 100)

    assert bodies == [b"%d" % number for number in range(100)]
    assert (await server.info("orders")).in_flight == 0
    assert len(server.link.of(wire.DeleteMessages)) < 20


async def test_as_many_handlers_run_as_allowed_and_no_more(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"x"] * 12)
    gate = asyncio.Event()
    in_progress: list[int] = []

    async def handle(message: ConsumedMessage) -> None:
        in_progress.append(1)
        await gate.wait()

    async with running(client, handle, concurrency=5, prefetch=2) as consumer:
        await eventually(lambda: consumer.statistics().held == 7 and len(in_progress) >= 5)
        assert (len(in_progress), consumer.statistics().waiting) == (5, 2)
        assert (await server.info("orders")).active == 5
        gate.set()
        await eventually(lambda: consumer.statistics().deleted == 12)


async def test_a_failed_message_comes_back_after_a_pause_that_grows(client: Client, server: LocalServer) -> None:
    """Three hours of retries."""
    await server.put("orders", b"x")
    receives: list[int] = []

    async def handle(message: ConsumedMessage) -> None:
        receives.append(message.receive_count)
        if message.receive_count < 28:
            raise ValueError("not yet")

    # Broker time turns while a message is on its way to the handler: its lease must not end meanwhile.
    async with running(client, handle, TurnedClock(), lease=3600) as consumer:
        seconds = 0
        for failures in range(1, 28):
            await eventually(lambda failures=failures: consumer.statistics().retried == failures)
            while len(receives) == failures:
                server.advance(10)
                seconds += 10
                await server.info("orders")
        await eventually(lambda: consumer.statistics().deleted)

    assert receives == list(range(1, 29))
    pauses = [request.visibility_timeout_ms / 1000 for request in server.link.of(wire.ChangeVisibility)]
    assert all(0.5 * 2**number <= pause <= 2**number for number, pause in enumerate(pauses[:10]))
    assert all(300 <= pause <= 600 for pause in pauses[10:])
    assert 5_000 < seconds < 13_000


async def test_a_retry_chooses_its_pause(client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    await server.put("orders", b"x")

    async def handle(message: ConsumedMessage) -> None:
        raise Retry(after=7200, reason="the shop is closed")

    async with running(client, handle) as consumer:
        await eventually(lambda: consumer.statistics().retried == 1)

    assert [request.visibility_timeout_ms for request in server.link.of(wire.ChangeVisibility)] == [7_200_000]
    (record,) = [record for record in caplog.records if "failed at receive 1" in record.getMessage()]
    assert record.exc_info is None
    facts: Any = record
    assert (facts.event, facts.queue, facts.receive_count, facts.pause) == ("handler_failed", "orders", 1, 7200)
    assert facts.message_id.startswith("Msg-")
    assert facts.why == "Retry('the shop is closed')"


async def test_a_handler_may_settle_its_message_by_process(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")
    workers: list[asyncio.Task[Any] | None] = []

    async def handle(message: ConsumedMessage) -> None:
        workers.append(asyncio.current_task())
        async with message.process():
            if message.body == b"a" and message.receive_count == 1:
                raise Retry(after=7200)

    async with running(client, handle, concurrency=1) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 2)
        server.advance(7200)
        await eventually(lambda: consumer.statistics().deleted == 3)

    assert len(workers) == 4
    assert len(set(workers)) == 1, "the worker outlives the end of process()"


async def test_a_message_that_the_handler_deletes_itself(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")

    async def handle(message: ConsumedMessage) -> None:
        if message.body == b"a":
            await message.delete()
        elif message.body == b"b":
            await message.change_visibility(3600)
        elif message.receive_count < 2:
            await message.release()

    async with running(client, handle) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 1)
        assert consumer.statistics().settled_by_caller == 3
        assert consumer.statistics().held == 0

    info = await server.info("orders")
    assert (info.active, info.in_flight) == (0, 1)


async def test_a_cancellation_inside_the_handler_is_a_failure_of_the_handler(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"x", b"y")

    async def handle(message: ConsumedMessage) -> None:
        if message.body == b"x":
            raise asyncio.CancelledError

    async with running(client, handle) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 1)
        assert consumer.statistics().retried == 1


async def test_a_handler_sees_no_context_variable_of_another_message(client: Client, server: LocalServer) -> None:
    variable: ContextVar[bytes] = ContextVar("variable", default=b"")
    await server.put("orders", b"a", b"b", b"c")
    seen: list[bytes] = []

    async def handle(message: ConsumedMessage) -> None:
        seen.append(variable.get())
        if message.body != b"b":
            variable.set(message.body)

    async with running(client, handle, prefetch=2) as consumer:
        await eventually(lambda: consumer.statistics().deleted == 3)

    assert seen == [b"", b"", b""]


def test_a_handler_must_be_an_async_function(server: LocalServer, client: Client) -> None:
    def handle(message: ConsumedMessage) -> None: ...

    with pytest.raises(TypeError, match="no async function"):
        client.queue("orders").consumer()(handle)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be 1 to 4096"),
        ({"prefetch": -1}, "prefetch is -1; it must be 0 to 4096"),
        ({"lease": 0.5}, "lease is 500 ms; it must be 1 s to 12 h"),
        ({"wait": 31}, "wait is 31; it must be 0 s to 30 s"),
        ({"ordered": True, "concurrency": 2}, "concurrency is 2; a consumer that keeps the order has 1"),
        ({"first_retry": 2, "longest_retry": 1}, "first_retry is 2 s and longest_retry 1 s"),
    ],
)
def test_numbers_out_of_range_are_refused(client: Client, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        client.queue("orders").consumer(**arguments)
    with pytest.raises(ValueError, match=text):
        client.queue("orders").consume(**arguments)


async def test_in_order_a_failed_message_is_tried_again_before_any_later_one(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    await server.put("orders", *[b"%d" % number for number in range(6)])
    handled: list[bytes] = []
    failures: defaultdict[bytes, int] = defaultdict(int)

    async def handle(message: ConsumedMessage) -> None:
        if message.body in (b"1", b"4") and failures[message.body] < 2:
            failures[message.body] += 1
            raise ValueError("not yet")
        handled.append(message.body)

    async with running(client, handle, clock, ordered=True, prefetch=3) as consumer:
        while consumer.statistics().deleted < 6:
            clock.advance(0.5)
            await server.info("orders")

    assert handled == [b"%d" % number for number in range(6)]
