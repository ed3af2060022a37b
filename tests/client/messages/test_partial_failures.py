"""Batches that fail in part: the exception group, its parts, and the successes."""

from collections.abc import Awaitable, Callable

import pytest

from cmqd_client import Client, Outgoing, Queue, TransactionStatus, connect
from cmqd_client.errors import (
    AlreadyCommitted,
    BatchTooLarge,
    Busy,
    Failure,
    InvalidArgument,
    OutcomeUnknown,
    PartialFailure,
    QueueNotFound,
    ReceiptHandleInvalid,
    TransactionNotFound,
)
from cmqd_client.messages.outgoing import Batch
from cmqd_client.results import BatchResult
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_BATCH_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.local_server import LocalServer

UNUSED = 12345


async def _delete(queue: Queue, handles: list[int], check: bool) -> BatchResult:
    return await queue.delete_batch(handles, check=check)


async def _release(queue: Queue, handles: list[int], check: bool) -> BatchResult:
    return await queue.release_batch(handles, check=check)


async def _change(queue: Queue, handles: list[int], check: bool) -> BatchResult:
    return await queue.change_visibility_batch(handles, 60, check=check)


@pytest.mark.parametrize("call", [_delete, _release, _change])
async def test_a_batch_that_fails_in_part_raises_with_its_successes(
    client: Client, server: LocalServer, call: Callable[[Queue, list[int], bool], Awaitable[BatchResult]]
) -> None:
    await server.put("orders", b"a", b"b")
    queue = client.queue("orders")
    handles = [message.receipt_handle for message in await queue.receive(2)]

    with pytest.raises(PartialFailure, match="1 of 3 failed; the first, receipt handle 12345 is not valid") as caught:
        await call(queue, [handles[0], UNUSED, handles[1]], True)

    error = caught.value
    assert str(error).count(str(UNUSED)) == 1, "the text of the server names the handle"
    assert str(Failure(UNUSED, Busy("busy"))) == "handle 12345: busy"
    assert list(error.done) == handles
    assert [(type(failed), failed.error) for failed in error.failures] == [(Failure, error.exceptions[0])]
    assert isinstance(error.exceptions[0], ReceiptHandleInvalid)
    result = await call(queue, [UNUSED], False)
    assert (result.done, [failed.receipt_handle for failed in result.failures]) == ([], [UNUSED])


async def test_a_batch_that_fails_whole_raises_too(client: Client, server: LocalServer) -> None:
    with pytest.raises(PartialFailure, match="2 of 2 failed") as caught:
        await client.queue("orders").delete_batch([1, 2])
    assert list(caught.value.done) == []


def test_the_group_is_split_by_the_error_of_its_entries() -> None:
    failures = [Failure(1, ReceiptHandleInvalid("old")), Failure(2, Busy("later")), Failure(3, Busy("later"))]
    caught: list[tuple[str, BaseException]] = []
    try:
        raise PartialFailure("3 of 4 failed", failures, done=[4], request_id=7)
    except* Busy as group:
        caught.append(("busy", group))
    except* ReceiptHandleInvalid as group:
        caught.append(("rest", group))

    handles: dict[str, list[int]] = {}
    for name, part in caught:
        assert isinstance(part, PartialFailure)
        assert (list(part.done), part.request_id) == ([4], 7)
        handles[name] = [failed.receipt_handle for failed in part.failures if isinstance(failed, Failure)]
    assert handles == {"busy": [2, 3], "rest": [1]}


async def test_a_request_that_fails_behind_another_leaves_its_handles_as_failures(
    client: Client, server: LocalServer
) -> None:
    await server.put("orders", *[b"x"] * 600)
    queue = client.queue("orders")
    handles = [message.receipt_handle for _ in range(3) for message in await queue.receive(200)]
    server.link.carry_out(wire.DeleteMessages)
    server.link.refuse(wire.DeleteMessages, ErrorCode.PERMISSION_DENIED)

    with pytest.raises(PartialFailure, match="344 of 600 failed") as caught:
        await queue.delete_batch(handles)

    assert list(caught.value.done) == handles[:256]
    assert len(caught.value.exceptions) == 1, "the handles share the error of their request"
    assert len(server.link.of(wire.DeleteMessages)) == 2, "no further request is made"


async def test_a_first_request_that_fails_raises_its_own_error(client: Client) -> None:
    with pytest.raises(QueueNotFound):
        await client.queue("missing").delete_batch(range(1, 600))


async def test_decisions_that_fail_raise_with_the_decided_ids(client: Client) -> None:
    queue = await client.create_queue("tx", transactional=True)
    ids = (await queue.send_half_batch([b"a", b"b"])).ids
    await queue.end_transactions(ids[:1], TransactionStatus.COMMIT)

    with pytest.raises(PartialFailure) as caught:
        await queue.end_transactions([*ids, "Msg-00000000000000ff"], TransactionStatus.ROLLBACK)

    assert list(caught.value.done) == [ids[1]]
    assert [type(error) for error in caught.value.exceptions] == [AlreadyCommitted, TransactionNotFound]


# ---------------------------------------------------------------------- split


async def test_a_batch_of_too_many_bytes_is_refused_unless_it_may_be_split(client: Client, server: LocalServer) -> None:
    queue = await client.create_queue("long", max_message_bytes=MAX_BATCH_BYTES)
    bodies = [letter * 600_000 for letter in (b"a", b"b", b"c")]
    with pytest.raises(BatchTooLarge) as caught:
        await queue.send_batch(bodies)
    assert caught.value.__notes__ == ["send_batch(..., split=True) sends the batch in several steps."]
    assert await server.bodies("long") == []

    assert len((await queue.send_batch(bodies, split=True)).ids) == 3

    assert await server.bodies("long") == bodies


async def test_a_batch_of_too_many_messages_is_split_when_told_to(client: Client, server: LocalServer) -> None:
    queue = client.queue("orders")
    bodies = [str(index).encode() for index in range(600)]
    with pytest.raises(InvalidArgument, match="at most 256") as caught:
        await server.admin.queue("orders").send_batch(bodies)  # not by the link: it cannot read these requests
    assert caught.value.__notes__ == ["send_batch(..., split=True) sends the batch in several steps."]

    sent = await queue.send_batch(bodies, split=True)

    assert await server.bodies("orders") == bodies
    assert len(sent.ids) == 600
    sends = server.link.of(wire.SendMessages)
    assert sent.request_ids == tuple(request.request_id for request in sends)
    assert sent.request_id == sent.request_ids[-1]
    assert [len(request.bodies) for request in sends] == [256, 256, 88]


def test_parts_keep_within_the_bytes_and_carry_the_fields_of_their_messages() -> None:
    half = MAX_BATCH_BYTES // 2
    messages = [
        Outgoing(b"a" * half, headers={"k": "v"}),
        Outgoing(b"b" * (half - 2), dedup_id="second"),
        Outgoing(b"c", delay=3),
        Outgoing(b"d" * (2 * half + 1)),
        Outgoing(b"e"),
    ]
    parts = list(Batch.of(messages, None, None, None).parts())

    assert [[len(body) for body in part.bodies] for part in parts] == [[half, half - 2], [1], [2 * half + 1], [1]]
    assert [part.headers for part in parts] == [[{"k": "v"}, None], None, None, None]
    assert [part.dedup_ids for part in parts] == [[None, "second"], None, None, None]
    assert [part.delays for part in parts] == [[None, None], [3000], [None], [None]]


async def test_a_failed_part_tells_the_stored_messages(server: LocalServer) -> None:
    async with connect(server.url, retries=0) as client:
        queue = client.queue("orders")
        bodies = [b"x"] * 300
        server.link.lose_answer(wire.SendMessages)
        with pytest.raises(OutcomeUnknown):
            await queue.send_batch(bodies, split=True)

        server.link.carry_out(wire.SendMessages)
        server.link.refuse(wire.SendMessages, ErrorCode.BACKLOG_FULL, "full")
        with pytest.raises(PartialFailure, match="44 of 300 failed; the first, message 256: full") as caught:
            await queue.send_batch(bodies, split=True)

    assert len(caught.value.done) == 256
    assert [type(error).__name__ for error in caught.value.exceptions] == ["BacklogFull"]
