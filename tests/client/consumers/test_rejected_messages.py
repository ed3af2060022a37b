"""Rejected messages of a consumer: dead letters with a reason, or delivered again."""

import logging

import pytest

from cmqd_client import Client, ConsumedMessage, Reject
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.consumer_parts import running, with_dead_letters
from support.client.local_server import LocalServer
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("an_older_server")


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
