"""Messages that a consumer moves to the dead-letter queue."""

import pytest

from cmqd_client import Client, Message
from cmqd_client.errors import (
    DeadLettersNotTaken,
    InvalidArgument,
    MessageTooLarge,
    NoDeadLetterQueue,
    PartialFailure,
    ReceiptHandleInvalid,
)
from cmqd_protocol import messages as wire
from support.client.local_server import LocalServer


async def received(client: Client, server: LocalServer, *bodies: bytes) -> list[Message]:
    """Messages of ``orders``, which has the dead-letter queue ``dead``."""
    await client.ensure_queue("dead")
    await client.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=10)
    await server.put("orders", *bodies)
    return await client.queue("orders").receive(len(bodies))


async def test_a_message_is_moved_with_its_reason(client: Client, server: LocalServer) -> None:
    (message,) = await received(client, server, b"a")

    result = await message.reject("no such customer")

    assert result.next_visible_time is None
    assert (await server.info("orders")).in_flight == 0
    (dead,) = await client.queue("dead").receive()
    assert dead.body == b"a"
    assert dead.origin is not None
    assert (dead.origin.queue, dead.origin.id, dead.origin.receive_count) == ("orders", message.id, 1)
    assert (dead.origin.reason, dead.origin.rejection) == ("rejected", "no such customer")
    with pytest.raises(ReceiptHandleInvalid):
        await message.delete()
    with pytest.raises(ReceiptHandleInvalid):
        await message.reject()


async def test_a_batch_has_a_reason_for_each_or_one_for_all(client: Client, server: LocalServer) -> None:
    first, second, third = await received(client, server, b"a", b"b", b"c")
    queue = client.queue("orders")

    result = await queue.reject_batch([first, 12345, second.receipt_handle, first], ["1", "", "2", "3"], check=False)

    assert result.done == [first.receipt_handle, second.receipt_handle]
    (failure,) = result.failures
    assert failure.receipt_handle == 12345
    assert isinstance(failure.error, ReceiptHandleInvalid)
    with pytest.raises(PartialFailure):
        result.raise_for_failures()
    assert (await queue.reject_batch([third], "all")).ok
    assert (await queue.reject_batch([], "nothing")).ok
    dead = await client.queue("dead").receive(10)
    assert [one.origin.rejection for one in dead if one.origin] == ["1", "2", "all"]
    with pytest.raises(ValueError, match="2 reasons for 1 messages"):
        await queue.reject_batch([third], ["a", "b"])


async def test_more_than_256_take_several_requests_each_with_its_reasons(client: Client, server: LocalServer) -> None:
    bodies = [b"%d" % number for number in range(300)]
    await received(client, server, b"first")
    await server.put("orders", *bodies)
    queue = client.queue("orders")
    messages = await queue.receive(256)
    messages += await queue.receive(256)
    assert len(messages) == 300

    result = await queue.reject_batch(messages, [message.body.decode() for message in messages])

    assert result.ok
    assert [len(request.reasons) for request in server.link.of(wire.DeadLetterMessages)] == [256, 44]
    dead = client.queue("dead")
    found: list[Message] = []
    while some := await dead.receive(256, wait=0):
        found += some
    assert [one.body.decode() for one in found] == [one.origin.rejection for one in found if one.origin]
    assert len(found) == 300


async def test_a_message_that_the_dead_letter_queue_does_not_take_stays_in_flight(
    client: Client, server: LocalServer
) -> None:
    small, large, last = await received(client, server, b"a", b"x" * 1025, b"c")
    dead = client.queue("dead")
    await dead.set_attributes(max_message_bytes=1024)

    with pytest.raises(MessageTooLarge):
        await large.reject()
    await small.reject()
    await client.queue("orders").set_attributes(dead_letter_queue="")
    with pytest.raises(NoDeadLetterQueue):
        await large.reject()
    # Its messages are from before the queue became a dead-letter queue again.
    await client.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=10)
    with pytest.raises(DeadLettersNotTaken) as raised:
        await last.reject()

    assert raised.value.retryable
    assert (await server.info("orders")).in_flight == 2
    await last.delete()
    with pytest.raises(InvalidArgument):
        await large.reject("é" * 129)
    await large.delete()


async def test_a_move_whose_answer_was_lost_succeeds_when_repeated(client: Client, server: LocalServer) -> None:
    (message,) = await received(client, server, b"a")
    server.link.lose_answer(wire.DeadLetterMessages)

    await message.reject("why")

    assert len(server.link.of(wire.DeadLetterMessages)) == 2
    assert await server.bodies("dead") == [b"a"]


async def test_dead_letter_of_a_message_is_an_alias_of_reject(client: Client, server: LocalServer) -> None:
    (message,) = await received(client, server, b"a")

    assert (await message.dead_letter("old name")).next_visible_time is None

    (dead,) = await client.queue("dead").receive()
    assert dead.origin is not None
    assert dead.origin.rejection == "old name"


async def test_dead_letter_of_a_consumed_message_settles_it_as_reject_does(client: Client, server: LocalServer) -> None:
    await client.ensure_queue("dead")
    queue = client.queue("orders")
    await queue.set_attributes(dead_letter_queue="dead", dead_letter_max_receives=10)
    await server.put("orders", b"a")

    async for message in queue.consume():
        await message.dead_letter("old name")
        break

    assert (await server.info("orders")).in_flight == 0
    assert len(await client.queue("dead").receive()) == 1


async def test_dead_letter_of_a_queue_is_an_alias_of_reject(client: Client, server: LocalServer) -> None:
    (message,) = await received(client, server, b"a")

    await client.queue("orders").dead_letter(message.receipt_handle, "old name")

    (dead,) = await client.queue("dead").receive()
    assert dead.origin is not None
    assert dead.origin.rejection == "old name"


async def test_dead_letter_batch_is_an_alias_of_reject_batch(client: Client, server: LocalServer) -> None:
    first, second = await received(client, server, b"a", b"b")

    result = await client.queue("orders").dead_letter_batch([first, second, 12345], ["1", "2", "3"], check=False)

    assert result.done == [first.receipt_handle, second.receipt_handle]
    letters = await client.queue("dead").receive(10)
    assert [letter.origin.rejection for letter in letters if letter.origin] == ["1", "2"]
