"""Repeats of deletes, moves and releases behind a lost answer: success only for what the first try did."""

from collections.abc import Awaitable, Callable

import pytest

from cmqd_client import Client, Message
from cmqd_client.errors import PartialFailure, ReceiptHandleInvalid
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer

INVALID = int(ErrorCode.RECEIPT_HANDLE_INVALID)
Settle = Callable[[Message], Awaitable[object]]


async def received(client: Client, server: LocalServer) -> Message:
    """A message of ``orders``, which has a dead-letter queue."""
    await server.admin.ensure_queue("dead")
    await server.admin.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=10)
    await server.put("orders", b"a")
    (message,) = await client.queue("orders").receive()
    return message


async def delete(message: Message) -> object:
    return await message.delete()


async def reject(message: Message) -> object:
    return await message.reject("why")


async def release(message: Message) -> object:
    return await message.release()


KINDS: dict[Settle, type[wire.Request]] = {
    delete: wire.DeleteMessages,
    reject: wire.DeadLetterMessages,
    release: wire.ReleaseMessages,
}


@pytest.mark.parametrize("settle", [delete, reject])
async def test_a_repeat_is_no_success_for_a_message_that_lives(
    client: Client, server: LocalServer, settle: Settle
) -> None:
    message = await received(client, server)
    server.advance(3600)
    server.link.drop_request(KINDS[settle])

    with pytest.raises(ReceiptHandleInvalid) as refused:
        await settle(message)

    assert refused.value.details["gone"] == 0
    assert await server.bodies("orders") == [b"a"]


async def test_a_batch_and_a_receive_report_the_message_that_lives(client: Client, server: LocalServer) -> None:
    message = await received(client, server)
    queue = client.queue("orders")
    server.advance(3600)

    server.link.drop_request(wire.DeleteMessages)
    result = await queue.delete_batch([message], check=False)
    server.link.drop_request(wire.ReceiveMessages)
    with pytest.raises(PartialFailure) as refused:
        await queue.receive(wait=0, acknowledge=[message])

    assert [failure.receipt_handle for failure in result.failures] == [message.receipt_handle]
    assert refused.value.done == []
    assert await server.bodies("orders") == [b"a"]


@pytest.mark.parametrize("settle", [delete, reject, release])
async def test_a_repeat_behind_a_lost_answer_is_a_success(client: Client, server: LocalServer, settle: Settle) -> None:
    message = await received(client, server)
    server.link.lose_answer(KINDS[settle])

    await settle(message)

    assert len(server.link.of(KINDS[settle])) == 2


@pytest.mark.parametrize(("first", "then"), [(delete, reject), (delete, release), (reject, delete), (reject, release)])
async def test_the_end_by_another_operation_is_no_success(
    client: Client, server: LocalServer, first: Settle, then: Settle
) -> None:
    message = await received(client, server)
    await first(message)
    server.link.drop_request(KINDS[then])

    with pytest.raises(ReceiptHandleInvalid) as refused:
        await then(message)

    assert refused.value.details["gone"] == (1 if first is delete else 2)


async def test_a_cleared_message_was_not_deleted(client: Client, server: LocalServer) -> None:
    message = await received(client, server)
    await server.admin.queue("orders").clear()
    server.link.drop_request(wire.DeleteMessages)

    with pytest.raises(ReceiptHandleInvalid):
        await message.delete()


async def test_a_repeat_at_an_older_server_counts_as_a_success_as_before(client: Client, server: LocalServer) -> None:
    message = await received(client, server)
    failure = wire.HandleFailure(message.receipt_handle, INVALID, "not valid")
    server.link.drop_request(wire.DeleteMessages)
    server.link.answer(
        wire.DeleteMessages,
        lambda connection, request: wire.HandlesDone(request.request_id, [failure]),
    )

    await message.delete()


async def test_a_first_try_that_is_refused_is_a_failure_whatever_happened_before(
    client: Client, server: LocalServer
) -> None:
    message = await received(client, server)
    await message.delete()

    with pytest.raises(ReceiptHandleInvalid) as refused:
        await message.delete()

    assert refused.value.details["gone"] == 1
