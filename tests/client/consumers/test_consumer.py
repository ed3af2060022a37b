"""Consumers against a server with a clock that the test turns, behind a link that fails to order."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from types import FrameType
from typing import Any

import msgspec
import pytest

from cmqd_client import Client, ConsumedMessage, Consumer, Reject, Retry, connect
from cmqd_client.consumers.consumer import MessageStream
from cmqd_client.consumers.running import chained
from cmqd_client.consumers.settlements import Settlements
from cmqd_client.errors import ClientClosed, InternalError, PoisonMessage, QueueDeleted, QueueNotFound
from cmqd_client.events import ClientState
from cmqd_client.messages.typed_bodies import PoisonPolicy
from cmqd_client.queue import Queue
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.consumer_parts import options, running, source
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock
from support.eventually import eventually


@pytest.fixture(autouse=True)
def an_older_server(server: LocalServer) -> None:
    """Deletes in requests of their own, because the server does not name the feature ``acknowledge``.

    ``test_consumer_acknowledges.py`` has the deletes that ride in receives.
    """
    server.link.features = [word for word in Feature if word is not Feature.ACKNOWLEDGE]


# ---------------------------------------------------------------------- handlers


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


# ---------------------------------------------------------------------- leases


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


# ---------------------------------------------------------------------- dead letters


async def with_dead_letters(server: LocalServer, **attributes: Any) -> Queue:
    """Give ``orders`` the dead-letter queue ``dead`` with these attributes."""
    dead = await server.admin.create_queue("dead", **attributes)
    await server.admin.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=100)
    return dead


async def reject(message: ConsumedMessage) -> None:
    raise Reject("ß" * 200)


async def test_a_rejected_message_becomes_a_dead_letter_with_its_reason(client: Client, server: LocalServer) -> None:
    dead = await with_dead_letters(server)
    await server.put("orders", b"x", b"y")

    async with running(client, reject, prefetch=1) as consumer:
        await eventually(lambda: consumer.statistics().dead_lettered == 2)

    letters = await dead.receive(2)
    assert [letter.body for letter in letters] == [b"x", b"y"]
    assert [letter.origin and letter.origin.rejection for letter in letters] == ["ß" * 128] * 2
    info = await server.info("orders")
    assert (info.active, info.in_flight) == (0, 0)


async def test_a_handler_moves_a_message_to_the_dead_letter_queue_itself(client: Client, server: LocalServer) -> None:
    dead = await with_dead_letters(server)
    await server.put("orders", b"x")

    async def handle(message: ConsumedMessage) -> None:
        await message.reject("no such customer")

    async with running(client, handle) as consumer:
        await eventually(lambda: consumer.statistics().settled_by_caller == 1)

    (letter,) = await dead.receive()
    assert letter.origin is not None
    assert letter.origin.rejection == "no such customer"


def full(_: object, request: wire.DeadLetterMessages) -> wire.HandlesDone:
    code = ErrorCode.BACKLOG_FULL
    failures = [wire.HandleFailure(handle, code, "the queue dead is full") for handle in request.receipt_handles]
    return wire.HandlesDone(request.request_id, failures)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("NoDeadLetterQueue", "has no dead-letter queue"),
        ("MessageTooLarge", "(max_message_bytes)"),
        ("BacklogFull", "the queue dead is full"),
        ("DeadLettersNotTaken", "takes no dead letters yet"),
        ("UnknownOperation", "an operation of later servers"),
    ],
)
async def test_a_message_that_cannot_be_rejected_is_delivered_again_until_it_can(
    client: Client, server: LocalServer, caplog: pytest.LogCaptureFixture, error: str, text: str
) -> None:
    orders = server.admin.queue("orders")
    dead = await with_dead_letters(server, max_message_bytes=1024 if error == "MessageTooLarge" else 4096)
    if error == "NoDeadLetterQueue":
        await orders.set_attributes(dead_letter_queue="", dead_letter_max_receives=0)
    if error == "BacklogFull":
        server.link.answer(wire.DeadLetterMessages, full)  # a really full queue would need a million messages
    elif error == "DeadLettersNotTaken":
        # A dead-letter queue takes no dead letters while it holds messages from before its role.
        await orders.set_attributes(dead_letter_queue="", dead_letter_max_receives=0)
        await dead.send(b"first")
        await orders.set_attributes(dead_letter_queue="dead", dead_letter_max_receives=100)
    elif error == "UnknownOperation":
        server.link.refuse(wire.DeadLetterMessages, ErrorCode.UNKNOWN_OPERATION, text)
    await server.put("orders", b"x" * 2048)

    async with running(client, reject) as consumer:
        await eventually(lambda: consumer.statistics().retried == 1)
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "could not be settled (reject)" in errors[0]
        assert text in errors[0]
        (facts,) = [vars(record) for record in caplog.records if vars(record).get("event") == "not_settled"]
        assert (facts["queue"], facts["action"]) == ("orders", "reject")
        assert text in facts["why"]

        if error == "NoDeadLetterQueue":
            await orders.set_attributes(dead_letter_queue="dead", dead_letter_max_receives=100)
        await dead.set_attributes(max_message_bytes=4096)
        await dead.clear()
        server.advance(2)
        await eventually(lambda: consumer.statistics().dead_lettered == 1)

    assert [message.body for message in await dead.receive()] == [b"x" * 2048]


# ---------------------------------------------------------------------- typed bodies


class Order(msgspec.Struct):
    number: int


async def put_poison(client: Client, server: LocalServer) -> None:
    """Send an order, a body that is no order, and an order."""
    orders = client.queue("orders", Order)
    await orders.send(Order(1))
    await server.put("orders", b'{"number": "two"}')
    await orders.send(Order(3))


@pytest.mark.parametrize("policy", [PoisonPolicy.REJECT, PoisonPolicy.SKIP])
async def test_a_poison_message_reaches_no_handler(client: Client, server: LocalServer, policy: PoisonPolicy) -> None:
    dead = await with_dead_letters(server)
    await put_poison(client, server)
    numbers: list[int] = []

    @client.queue("orders", Order, poison=policy).consumer(prefetch=2)
    async def handle(message: ConsumedMessage[Order]) -> None:
        numbers.append(message.body.number)

    task = asyncio.create_task(handle.run())
    await eventually(lambda: numbers == [1, 3])
    await eventually(lambda: handle.statistics().held == 0)
    handle.stop()
    await task

    assert (await server.info("orders")).active == 0
    letters = await dead.receive(2, wait=0)
    if policy is PoisonPolicy.SKIP:
        assert (letters, handle.statistics().deleted) == ([], 3)
    else:
        (letter,) = letters
        assert letter.body == b'{"number": "two"}'
        assert letter.origin is not None
        assert letter.origin.rejection == "does not decode: Expected `int`, got `str` - at `$.number`"


async def test_a_poison_message_can_end_the_consumer_and_goes_back_uncounted(
    client: Client, server: LocalServer
) -> None:
    await put_poison(client, server)
    numbers: list[int] = []

    @client.queue("orders", Order, poison=PoisonPolicy.RAISE).consumer(prefetch=2)
    async def handle(message: ConsumedMessage[Order]) -> None:
        numbers.append(message.body.number)

    with pytest.raises(PoisonMessage) as raised:
        await client.run(handle)

    assert numbers == [1]
    assert raised.value.message.raw_body == b'{"number": "two"}'
    left = await server.admin.queue("orders").receive(3)
    assert [(message.body, message.receive_count) for message in left] == [
        (b'{"number": "two"}', 1),
        (b'{"number":3}', 1),
    ]


@pytest.mark.parametrize("policy", list(PoisonPolicy))
async def test_a_loop_sees_no_poison_message(client: Client, server: LocalServer, policy: PoisonPolicy) -> None:
    await with_dead_letters(server)
    await put_poison(client, server)
    numbers: list[int] = []

    async def loop() -> None:
        async for message in client.queue("orders", Order, poison=policy).consume(prefetch=2):
            async with message.process():
                numbers.append(message.body.number)
            if len(numbers) == 2:
                break

    if policy is PoisonPolicy.RAISE:
        with pytest.raises(PoisonMessage):
            await loop()
    else:
        await loop()

    assert numbers == ([1] if policy is PoisonPolicy.RAISE else [1, 3])


# ---------------------------------------------------------------------- outages


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


# ---------------------------------------------------------------------- stop


async def test_sigterm_finishes_begun_handlers_and_gives_back_the_rest_uncounted(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a", b"b", b"c")
    begun, gate = asyncio.Event(), asyncio.Event()
    former = signal.getsignal(signal.SIGTERM)

    @client.queue("orders").consumer(prefetch=2)
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await gate.wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: handle.statistics().given_back == 2)
    assert not task.done()
    gate.set()
    await task

    assert signal.getsignal(signal.SIGTERM) is former
    assert await server.bodies("orders") == [b"b", b"c"]
    assert [message.receive_count for message in await server.admin.queue("orders").receive(2)] == [1, 1]
    assert handle.statistics().deleted == 1


async def test_a_signal_also_reaches_the_handler_of_the_web_server_in_the_same_process(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    arrived: list[int] = []
    begun = asyncio.Event()

    def web_server(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    former = signal.signal(signal.SIGTERM, web_server)
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        assert arrived == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is web_server
    finally:
        signal.signal(signal.SIGTERM, former)


async def test_a_signal_also_reaches_the_handler_of_the_event_loop(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    arrived: list[str] = []
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    loop.add_signal_handler(signal.SIGTERM, arrived.append, "loop")
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        await eventually(lambda: arrived == ["loop"])
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: arrived == ["loop", "loop"])
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_handler_that_was_installed_during_a_run_stays(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()

    former = signal.getsignal(signal.SIGTERM)
    try:
        task = asyncio.create_task(client.run(handle))
        await begun.wait()

        def web_server(number: int, _: FrameType | None) -> None: ...

        signal.signal(signal.SIGTERM, web_server)
        handle.stop()
        await task
        assert signal.getsignal(signal.SIGTERM) is web_server
    finally:
        signal.signal(signal.SIGTERM, former)


def interrupts(number: int, frame: FrameType | None) -> None:
    """As the handler of Spark, which stays installed for the rest of a process."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("former", [signal.default_int_handler, interrupts])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_that_overlap_leave_the_former_effect_of_a_signal(
    number: signal.Signals, former: Callable[[int, FrameType | None], None], request: pytest.FixtureRequest
) -> None:
    before = signal.signal(number, former)
    request.addfinalizer(lambda: signal.signal(number, before))
    arrived: list[str] = []
    first = chained([number], lambda _: arrived.append("first"))
    second = chained([number], lambda _: arrived.append("second"))

    with ExitStack() as both:
        with first:
            both.enter_context(second)
            signal.raise_signal(number)
        signal.raise_signal(number)

    assert arrived == ["second", "first", "second"]
    assert signal.getsignal(number) is former


def test_a_signal_has_its_default_effect_after_a_web_server_that_outlives_a_run() -> None:
    program = (
        "import signal\n"
        "from cmqd_client.consumers.running import chained\n"
        "with chained([signal.SIGTERM], print):\n"
        "    during = signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGTERM, during)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    assert ended.returncode == -signal.SIGTERM


async def test_a_worker_is_declared_before_its_client_is_open(server: LocalServer) -> None:
    await server.put("orders", b"a")
    client = connect(server.url)
    bodies: list[bytes] = []

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        bodies.append(message.body)
        handle.stop()

    with pytest.raises(ClientClosed, match="not open"):
        await client.queue("orders").send(b"b")
    await client.run(handle)

    assert bodies == [b"a"]
    assert client.state is ClientState.CLOSED
    assert (await server.info("orders")).in_flight == 0


async def test_a_second_signal_cancels_the_handlers_and_their_messages_are_active_at_once(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    await task

    assert await server.bodies("orders") == [b"a"]
    assert handle.statistics().retried == 1


async def test_cancelling_cancels_the_handlers(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b")
    begun = asyncio.Event()

    @client.queue("orders").consumer(prefetch=1)
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await server.bodies("orders") == [b"a", b"b"]
    assert (handle.statistics().retried, handle.statistics().given_back) == (1, 1)


async def test_the_grace_ends_handlers_that_take_too_long(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle, grace=0.01))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await task

    assert await server.bodies("orders") == [b"a"]


async def test_there_must_be_a_consumer(client: Client) -> None:
    with pytest.raises(ValueError, match="no consumer"):
        await client.run()


async def test_a_consumer_runs_once_at_a_time_and_again_later(client: Client, server: LocalServer) -> None:
    async def handle(message: ConsumedMessage) -> None: ...

    async with running(client, handle) as consumer:
        with pytest.raises(RuntimeError, match="runs already"):
            await consumer.run()
    await server.put("orders", b"x")
    task = asyncio.create_task(consumer.run())
    await eventually(lambda: consumer.statistics().deleted == 1)
    consumer.stop()
    await task


# ---------------------------------------------------------------------- order


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


# ---------------------------------------------------------------------- iteration


async def test_a_loop_over_messages(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"bad", b"c")
    bodies: list[bytes] = []

    async for message in client.queue("orders").consume(prefetch=2):
        async with message.process():
            if message.body == b"bad" and message.receive_count == 1:
                raise Retry(after=0)
            bodies.append(message.body)
        if len(bodies) == 3:
            break
    await client.close()  # settles the processed messages

    assert sorted(bodies) == [b"a", b"bad", b"c"]
    assert (await server.info("orders")).in_flight == 0
    assert await server.bodies("orders") == []


async def test_leaving_the_loop_gives_back_messages_that_were_not_taken(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"a", b"b", b"c")

    async for message in client.queue("orders").consume(prefetch=2):
        await message.delete()
        break
    await server.wait_bodies("orders", b"b", b"c")

    assert [message.receive_count for message in await server.admin.queue("orders").receive(2)] == [1, 1]


async def test_a_message_that_the_program_keeps_stays_in_flight_until_its_lease_ends(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    stream = MessageStream(source(client), options())
    async with stream:
        async for message in stream:
            assert message.body == b"a"
            break
    assert (await server.info("orders")).in_flight == 1

    server.advance(31)
    assert await server.bodies("orders") == [b"a"]


async def test_the_body_is_cancelled_when_the_lease_is_lost_and_the_loop_goes_on(
    client: Client, server: LocalServer
) -> None:
    clock = TurnedClock()
    await server.put("orders", b"a")
    stream = MessageStream(source(client), options(clock))
    receives: list[int] = []

    async def lose() -> None:
        await eventually(lambda: receives)
        server.advance(31)
        clock.advance(10)

    losing = asyncio.create_task(lose())
    async with stream:
        async for message in stream:
            receives.append(message.receive_count)
            async with message.process():
                if message.receive_count == 1:
                    await asyncio.Event().wait()
            if message.receive_count == 2:
                break
    await losing

    assert receives == [1, 2]
    assert stream.statistics().deleted == 1
    assert asyncio.current_task().cancelling() == 0  # pyright: ignore[reportOptionalMemberAccess]


async def test_several_tasks_share_a_stream(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"x"] * 20)
    stream = client.queue("orders").consume(concurrency=4)
    bodies: list[bytes] = []

    async def work() -> None:
        async for message in stream:
            async with message.process():
                await asyncio.sleep(0)
                bodies.append(message.body)

    async with stream:
        tasks = [asyncio.create_task(work()) for _ in range(4)]
        await eventually(lambda: stream.statistics().deleted == 20)
        stream.stop()
        await asyncio.gather(*tasks)

    assert len(bodies) == 20


async def test_an_error_from_outside_goes_through_the_body_and_makes_the_message_active(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"a")
    begun = asyncio.Event()

    async def work() -> None:
        async with client.queue("orders").consume() as stream:
            async for message in stream:
                async with message.process():
                    begun.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await server.bodies("orders") == [b"a"]


# ---------------------------------------------------------------------- without a limit of concurrency


async def test_a_program_that_limits_itself_takes_what_it_can_handle(client: Client, server: LocalServer) -> None:
    await server.put("orders", *[b"%d" % number for number in range(20)])
    async with client.queue("orders").consume(concurrency=None) as stream:
        messages = aiter(stream)
        taken = [await anext(messages) for _ in range(5)]  # not settled
        info = await server.info("orders")
        # Receives of 1, 3 and 7 messages: the program asked for the fifth.
        assert (info.active, info.in_flight) == (9, 11)
        stream.stop()
        while (await server.info("orders")).active < 15:
            pass
        for message in taken:
            await message.delete()

    assert [message.body for message in taken] == [b"0", b"1", b"2", b"3", b"4"]
    assert (await server.info("orders")).in_flight == 0


async def test_a_task_that_asks_no_more_leaves_the_next_message_to_others(client: Client, server: LocalServer) -> None:
    async with client.queue("orders").consume(concurrency=None) as stream:

        async def ask() -> ConsumedMessage[bytes]:
            return await anext(aiter(stream))

        asking = asyncio.create_task(ask())
        await server.wait_status("waiting_receives", 1)
        asking.cancel()
        await asyncio.wait([asking])
        await server.put("orders", b"a")
        message = await ask()
        assert message.body == b"a"
        await message.delete()


async def test_a_run_ends_at_its_cancellation_after_its_client_was_closed(server: LocalServer) -> None:
    await server.put("orders", b"x")
    begun = asyncio.Event()
    client = connect(server.url, patience=0.05)
    await client.open(patience=300)

    @client.queue("orders").consumer()
    async def handle(message: ConsumedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.run(handle))
    await begun.wait()
    await client.close()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
