"""``Queue.receive(acknowledge=...)``: deletes in the request of a receive, against a server behind a faulty link."""

import asyncio

import msgspec
import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import InvalidArgument, OutcomeUnknown, PartialFailure, QueueDeleted, ReceiptHandleInvalid
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer
from support.eventually import eventually

OLDER = [word for word in Feature if word is not Feature.ACKNOWLEDGE]


async def in_flight(server: LocalServer) -> int:
    return (await server.info("orders")).in_flight


def of(server: LocalServer) -> tuple[int, int]:
    """Numbers of receives with deletes, and of deletes."""
    receives = [request for request in server.link.of(wire.ReceiveMessages) if request.acknowledge is not None]
    return len(receives), len(server.link.of(wire.DeleteMessages))


async def test_handled_messages_are_deleted_by_the_next_receive(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1", b"2", b"3")
    queue = client.queue("orders")
    first, second = await queue.receive(2)

    (third,) = await queue.receive(16, wait=0, acknowledge=[first, second.receipt_handle, first])

    assert third.body == b"3"
    assert of(server) == (1, 0)
    assert await queue.receive(wait=0, acknowledge=[third]) == []
    assert await in_flight(server) == 0


async def test_a_receive_without_messages_to_acknowledge_is_a_plain_receive(
    client: Client, server: LocalServer
) -> None:
    assert await client.queue("orders").receive(wait=0, acknowledge=[]) == []
    assert of(server) == (0, 0)


async def test_an_older_server_gets_a_delete_and_a_plain_receive(server: LocalServer) -> None:
    server.link.features = OLDER
    await server.put("orders", b"1", b"2")
    async with connect(server.url) as client:
        queue = client.queue("orders")
        (first,) = await queue.receive()

        (second,) = await queue.receive(acknowledge=[first])
        with pytest.raises(PartialFailure):
            await queue.receive(wait=0, acknowledge=[first, second])

    assert of(server) == (0, 2)
    assert await in_flight(server) == 0


async def test_failed_messages_are_told_and_received_messages_released_uncounted(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"1", b"2")
    queue = client.queue("orders")
    (first,) = await queue.receive()

    with pytest.raises(PartialFailure) as failed:
        await queue.receive(acknowledge=[7, first])

    assert [entry.receipt_handle for entry in failed.value.failures] == [7]  # pyright: ignore
    assert isinstance(failed.value.exceptions[0], ReceiptHandleInvalid)
    assert failed.value.done == [first.receipt_handle]
    (second,) = await queue.receive(wait=0)
    assert (second.body, second.receive_count) == (b"2", 1)


async def test_a_repeat_after_a_lost_reply_is_no_failure(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    server.link.lose_answer(wire.ReceiveMessages)

    assert await queue.receive(wait=0, acknowledge=[first]) == []

    assert of(server) == (2, 0)
    assert await in_flight(server) == 0


async def test_a_request_that_was_lost_is_repeated_with_its_deletes(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    server.link.drop_request(wire.ReceiveMessages)

    assert await queue.receive(wait=0, acknowledge=[first]) == []

    assert of(server) == (2, 0)
    assert await in_flight(server) == 0


async def test_a_server_that_is_older_after_a_lost_reply_gets_the_deletes_apart(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    server.link.features = OLDER
    server.link.lose_answer(wire.ReceiveMessages)

    assert await queue.receive(wait=0, acknowledge=[first]) == []

    assert of(server) == (1, 1)
    assert await in_flight(server) == 0


async def test_without_any_reply_the_outcome_is_unknown(server: LocalServer) -> None:
    await server.put("orders", b"1")
    async with connect(server.url, retries=0) as client:
        queue = client.queue("orders")
        (first,) = await queue.receive()
        server.link.lose_answer(wire.ReceiveMessages, times=5)

        with pytest.raises(OutcomeUnknown, match="not known whether the messages were deleted"):
            await queue.receive(wait=0, acknowledge=[first])


async def test_a_refusal_before_the_deletes_leaves_the_messages(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()

    with pytest.raises(InvalidArgument) as refused:
        await queue.receive(0, acknowledge=[first])
    assert "acknowledged" not in refused.value.details
    assert await in_flight(server) == 1


async def test_an_error_after_the_deletes_says_so(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    waiting = asyncio.create_task(queue.receive(wait=30, acknowledge=[first]))
    await server.wait_status("waiting_receives", 1)

    await server.admin.delete_queue("orders")

    with pytest.raises(QueueDeleted) as ended:
        await waiting
    assert ended.value.details["acknowledged"] is True


async def test_an_error_after_deletes_that_failed_is_the_cause(client: Client, server: LocalServer) -> None:
    waiting = asyncio.create_task(client.queue("orders").receive(wait=30, acknowledge=[7]))
    await server.wait_status("waiting_receives", 1)

    await server.admin.delete_queue("orders")

    with pytest.raises(PartialFailure) as ended:
        await waiting
    assert isinstance(ended.value.__cause__, QueueDeleted)


async def test_a_retry_after_an_error_leaves_the_deletes_out(client: Client, server: LocalServer) -> None:
    """The receive is refused for a moment after its deletes: the repeat must not report the handles as invalid."""
    await server.put("orders", b"1", b"2")
    queue = client.queue("orders")
    (first,) = await queue.receive()

    def refused_after_deletes(_: object, request: wire.ReceiveMessages) -> wire.AnyReply:
        refusal = wire.error(request.request_id, ErrorCode.TOO_MANY_IN_FLIGHT, "full", retry_after_ms=1)
        return wire.MessagesReceived(request.request_id, [], [], refusal)

    server.link.answer(wire.ReceiveMessages, refused_after_deletes)

    (second,) = await queue.receive(acknowledge=[first])

    assert second.body == b"2"
    assert [request.acknowledge for request in server.link.of(wire.ReceiveMessages)] == [
        None,
        [first.receipt_handle],
        None,
    ]


async def test_a_shutdown_after_the_deletes_sends_further_requests_to_the_successor(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", b"1", b"2")
    (first,) = await client.queue("orders").receive()
    made = server.link.connections_made

    def shut_down(_: object, request: wire.Request) -> wire.AnyReply:
        error = wire.error(request.request_id, ErrorCode.SHUTTING_DOWN, "the server is shutting down")
        return wire.MessagesReceived(request.request_id, [], [], error)

    server.link.answer(wire.ReceiveMessages, shut_down)
    (second,) = await client.queue("orders").receive(wait=5, acknowledge=[first])

    assert second.body == b"2"
    assert server.link.connections_made == made + 1
    assert of(server) == (1, 0)


async def test_a_cancelled_receive_keeps_its_deletes_and_takes_no_message(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    waiting = asyncio.create_task(queue.receive(wait=30, acknowledge=[first]))
    await server.link.wait_handled(wire.ReceiveMessages, 2)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await server.put("orders", b"2")

    assert [message.body for message in await queue.receive()] == [b"2"]
    assert await in_flight(server) == 1


async def test_messages_on_their_way_to_a_cancelled_receive_are_released(client: Client, server: LocalServer) -> None:
    await server.put("orders", b"1", b"2")
    queue = client.queue("orders")
    (first,) = await queue.receive()
    server.link.hold()
    waiting = asyncio.create_task(queue.receive(acknowledge=[first]))
    await server.link.wait_handled(wire.ReceiveMessages, 2)
    await eventually(lambda: server.link.held)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.link.let_go()
    await server.wait_bodies("orders", b"2")

    assert await in_flight(server) == 0


def test_the_request_of_a_receive_without_deletes_is_as_before() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wire.ReceiveMessages(1, "q")))[-1] is None
