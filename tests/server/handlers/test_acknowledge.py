"""Deletes that ride in a receive: every rule of SPEC.md, ``receive_messages``, from bytes to bytes."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmqd.core.limits import Limits
from cmqd.log.log_errors import LogFailed
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MIN_MAX_FRAME_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_segment.records import MessagesDeleted, MessagesReceived
from cmqd_types.messages import ReceivedMessage
from support.server.server_rig import RigClient, ServerRig, a_queue, beat, code_of

MIB = 1024 * 1024
LONG_MS = 30_000


async def received(client: RigClient, *bodies: bytes, queue: str = "jobs") -> list[int]:
    """Send messages and receive them; return their handles."""
    await client.send(queue, *bodies)
    messages = await client.receive(queue)
    assert [message.body for message in messages] == list(bodies)
    return [message.receipt_handle for message in messages]


def begin(client: RigClient, handles: list[int] | None, *, most: int = 1, wait_ms: int = 0, queue: str = "jobs") -> int:
    return client.begin(wire.ReceiveMessages(client.next_id(), queue, most, wait_ms, None, handles))


async def ask(client: RigClient, handles: list[int] | None, **named: Any) -> wire.AnyReply:
    request_id = begin(client, handles, **named)
    await client.settle()
    return client.replies.pop(request_id)


def messages_of(reply: wire.AnyReply) -> wire.MessagesReceived:
    assert isinstance(reply, wire.MessagesReceived), reply
    return reply


def bodies_of(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def failed(reply: wire.MessagesReceived) -> list[int]:
    assert reply.failures is not None
    assert {failure.code for failure in reply.failures} <= {ErrorCode.RECEIPT_HANDLE_INVALID}
    return [failure.receipt_handle for failure in reply.failures]


async def in_flight(client: RigClient, queue: str = "jobs") -> int:
    return (await client.counts(queue))["in_flight"]


async def test_deletes_and_receive_are_one_row_of_the_log_deletes_first(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    handles = await received(client, b"1", b"2")
    await client.send("jobs", b"3")
    lsn = rig.log.last_lsn

    reply = messages_of(await ask(client, handles))

    assert (bodies_of(reply.messages), reply.failures, reply.error) == ([b"3"], [], None)
    assert rig.log.last_lsn == lsn + 1
    records = rig.log.disk.rows[-1].records
    assert [type(record) for record in records] == [MessagesDeleted, MessagesReceived]
    assert await client.counts("jobs") == await client.counts("jobs") | {"in_flight": 1, "active": 0}
    assert rig.server.part(Counters).deleted == 2


async def test_a_receive_without_deletes_is_answered_without_failures(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)

    assert messages_of(await ask(client, None)) == wire.MessagesReceived(2, [], None, None)


async def test_each_handle_is_valid_invalid_or_repeated_as_in_a_delete(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    first, second, third = await received(client, b"1", b"2", b"3")
    await client.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [third])

    reply = messages_of(await ask(client, [first, 99, second, first, third, 99]))

    assert sorted(failed(reply)) == sorted([99, third])
    assert await in_flight(client) == 0


async def test_a_handle_of_another_queue_is_invalid(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    await a_queue(client, "other")
    (handle,) = await received(client, b"1", queue="other")

    assert failed(messages_of(await ask(client, [handle]))) == [handle]
    assert await in_flight(client, "other") == 1


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("acknowledge", {"acknowledge": []}),
        ("acknowledge", {"acknowledge": list(range(1, 258))}),
        ("max_messages", {"max_messages": 0}),
        ("wait_ms", {"wait_ms": 30_001}),
        ("visibility_timeout_ms", {"visibility_timeout_ms": 999}),
        ("queue", {"queue": "nowhere"}),
    ],
)
async def test_the_request_is_checked_whole_before_a_delete(rig: ServerRig, field: str, change: dict[str, Any]) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    lsn = rig.log.last_lsn

    request = wire.ReceiveMessages(client.next_id(), "jobs", 1, 0, None, [handle])
    request_id = client.begin(msgspec.structs.replace(request, **change))
    await client.settle()

    reply = client.replies.pop(request_id)
    assert isinstance(reply, wire.Error)
    assert reply.details is not None
    assert reply.details.get("field", "queue") == field
    assert rig.log.last_lsn == lsn
    assert await in_flight(client) == 1


async def test_a_refused_request_does_not_touch_the_requests_of_its_group(rig: ServerRig) -> None:
    clients = [await rig.client() for _ in range(3)]
    await a_queue(clients[0])
    handles = await received(clients[0], b"1", b"2", b"3")
    await clients[0].send("jobs", b"4", b"5")

    ids = [
        begin(clients[0], [handles[0]]),
        begin(clients[1], [handles[1]], most=300),
        begin(clients[2], [handles[2], handles[0]]),
    ]
    for client in clients:
        await client.settle()

    first, second, third = (client.replies[request_id] for client, request_id in zip(clients, ids, strict=True))
    assert (bodies_of(messages_of(first).messages), failed(messages_of(first))) == ([b"4"], [])
    assert code_of(second) == "invalid_argument"
    assert (bodies_of(messages_of(third).messages), failed(messages_of(third))) == ([b"5"], [handles[0]])
    assert await in_flight(clients[0]) == 3


async def test_the_receives_of_a_batch_with_and_without_deletes_share_call_record_and_row(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [await rig.client() for _ in range(4)]
    await a_queue(clients[0])
    handles = await received(clients[0], b"1", b"2", b"3")
    await clients[0].send("jobs", b"4", b"5", b"6", b"7")
    calls: list[int] = []
    real = rig.broker.receive_all

    def noted(account: str, name: str, requests: Any, *rest: Any, **named: Any) -> Any:
        calls.append(len(requests))
        return real(account, name, requests, *rest, **named)

    monkeypatch.setattr(rig.broker, "receive_all", noted)
    lsn = rig.log.last_lsn

    ids = [begin(client, [handle]) for client, handle in zip(clients, handles, strict=False)]
    ids.append(begin(clients[3], None))
    for client in clients:
        await client.settle()

    assert calls == [4]
    assert rig.log.last_lsn == lsn + 1
    records = rig.log.disk.rows[-1].records
    assert [type(record) for record in records] == [MessagesDeleted, MessagesReceived]
    replies = [messages_of(client.replies[number]) for client, number in zip(clients, ids, strict=True)]
    assert [bodies_of(reply.messages) for reply in replies] == [[b"4"], [b"5"], [b"6"], [b"7"]]
    assert [reply.failures for reply in replies] == [[], [], [], None]


async def test_deletes_are_done_while_the_receive_waits_and_told_with_its_messages(rig: ServerRig) -> None:
    client, other = await rig.client(), await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")

    request_id = begin(client, [handle, 99], wait_ms=LONG_MS)
    await client.settle()

    assert request_id not in client.replies, "no second, early reply"
    assert await in_flight(other) == 0
    assert rig.server.part(Counters).deleted == 1
    assert [
        failure.receipt_handle
        for failure in (await other.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [handle])).failures
    ] == [handle]
    await other.send("jobs", b"2")
    await client.settle()
    reply = messages_of(client.replies[request_id])
    assert (bodies_of(reply.messages), failed(reply), reply.error) == ([b"2"], [99], None)
    assert client.connection.unread_receives == 0


async def test_a_receive_that_waits_keeps_its_failed_handles_and_no_objects(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    handles = list(range(2**64 - 256, 2**64))

    request_id = begin(client, handles, wait_ms=LONG_MS)
    await client.settle()

    waiting_requests = rig.server.part(WaitingRequests)
    (waiter_id,) = waiting_requests.ids()
    waiting = waiting_requests.get(waiter_id)
    assert waiting is not None
    # Objects of 256 handles with their texts take 76 KB, and thousands of receives can wait.
    assert sum(map(sys.getsizeof, waiting_requests.deletes[waiter_id])) < 2_500
    assert isinstance(waiting[1], wire.ReceiveMessages)
    assert waiting[1].acknowledge is None

    await client.send("jobs", b"1")
    reply = messages_of(client.replies.pop(request_id))
    assert (bodies_of(reply.messages), failed(reply)) == ([b"1"], handles)


async def test_deletes_stay_when_the_wait_ends_empty(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    request_id = begin(client, [handle], wait_ms=1_000)
    await client.settle()

    rig.clock.advance(1_100)
    await rig.tick()
    await client.settle()

    assert messages_of(client.replies[request_id]) == wire.MessagesReceived(request_id, [], [], None)
    assert await in_flight(client) == 0


async def test_a_cancelled_receive_tells_of_its_deletes(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    waiting = begin(client, [handle, 99], wait_ms=LONG_MS)
    plain = begin(client, None, wait_ms=LONG_MS)
    await client.settle()

    client.cancel(waiting)
    client.cancel(plain)
    await client.settle()

    reply = messages_of(client.replies[waiting])
    assert (reply.messages, failed(reply)) == ([], [99])
    assert reply.error is not None
    assert (reply.error.name, reply.error.request_id) == ("cancelled", waiting)
    assert code_of(client.replies[plain]) == "cancelled"
    assert await in_flight(client) == 0
    assert rig.server.part(WaitingRequests).deletes == {}


async def test_a_receive_that_is_cancelled_before_it_was_decided_is_decided_first(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")

    request_id = begin(client, [handle], wait_ms=LONG_MS)
    client.cancel(request_id)
    await client.settle()

    reply = messages_of(client.replies[request_id])
    assert reply.error is not None
    assert (reply.error.name, reply.failures) == ("cancelled", [])
    assert await in_flight(client) == 0


async def test_the_answer_to_a_cancel_waits_until_the_deletes_are_durable(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    rig.log.hold()
    request_id = begin(client, [handle], wait_ms=LONG_MS)
    await client.settle()

    client.cancel(request_id)
    await client.settle()
    assert request_id not in client.replies

    rig.log.let_go()
    await client.settle()
    assert messages_of(client.replies[request_id]).failures == []


async def test_messages_of_a_cancelled_receive_go_back_and_its_deletes_stay(rig: ServerRig) -> None:
    """The cancel comes while the reply with messages waits for the disk."""
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    await client.send("jobs", b"2")
    rig.log.hold()
    request_id = begin(client, [handle, 99])
    await client.settle()

    client.cancel(request_id)
    await client.settle()
    rig.log.let_go()
    await client.settle()

    reply = messages_of(client.replies[request_id])
    assert (reply.messages, failed(reply)) == ([], [99])
    assert reply.error is not None
    assert reply.error.name == "cancelled"
    counts = await client.counts("jobs")
    assert (counts["active"], counts["in_flight"]) == (1, 0)
    (message,) = await client.receive("jobs")
    assert (message.body, message.receive_count) == (b"2", 1)


async def test_deletes_stay_when_the_connection_is_lost(rig: ServerRig) -> None:
    client, other = await rig.client(), await rig.client()
    await a_queue(other)
    (handle,) = await received(client, b"1")
    begin(client, [handle], wait_ms=LONG_MS)
    await client.settle()

    client.transport.lose()
    await other.send("jobs", b"2")

    assert bodies_of(await other.receive("jobs")) == [b"2"]
    assert await in_flight(other) == 1
    assert rig.server.part(WaitingRequests).deletes == {}


async def test_the_limit_in_flight_is_judged_after_the_deletes(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, limits=Limits(max_in_flight=2))
    client = await rig.client()
    await a_queue(client)
    handles = await received(client, b"1", b"2")
    await client.send("jobs", b"3", b"4")

    reply = messages_of(await ask(client, [handles[0]], most=16))
    assert (bodies_of(reply.messages), reply.error) == ([b"3"], None)

    reply = messages_of(await ask(client, [handles[0]]))
    assert (reply.messages, failed(reply)) == ([], [handles[0]])
    assert reply.error is not None
    assert reply.error.name == "too_many_in_flight"
    assert reply.error.retryable
    assert code_of(await ask(client, None)) == "too_many_in_flight"
    assert rig.server.part(Counters).refusals == 2
    rig.check()
    rig.close()


async def test_errors_beside_deletes_are_counted_as_errors(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, limits=Limits(max_in_flight=2))
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")

    cancelled = begin(client, [handle], wait_ms=LONG_MS)
    await client.settle()
    client.cancel(cancelled)
    await client.settle()
    await received(client, b"2", b"3")
    full = messages_of(await ask(client, [99]))

    assert full.error is not None
    errors = rig.server.part(Counters).errors
    assert (errors["cancelled"], errors["too_many_in_flight"]) == (1, 1)
    rig.close()


async def test_deletes_make_room_for_the_receives_in_line_first(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, limits=Limits(max_in_flight=2))
    waiting, client = await rig.client(), await rig.client()
    await a_queue(client)
    (first,) = await received(client, b"1")
    in_line = begin(waiting, None, wait_ms=LONG_MS, most=1)
    also_in_line = begin(waiting, None, wait_ms=LONG_MS, most=1)
    await waiting.settle()
    await client.send("jobs", b"2", b"3", b"4")
    await waiting.settle()
    assert bodies_of(messages_of(waiting.replies[in_line]).messages) == [b"2"]
    assert also_in_line not in waiting.replies

    reply = messages_of(await ask(client, [first], wait_ms=0))
    await waiting.settle()

    assert bodies_of(messages_of(waiting.replies[also_in_line]).messages) == [b"3"]
    assert reply.messages == []
    assert reply.error is not None
    assert reply.error.name == "too_many_in_flight"
    rig.check()
    rig.close()


async def test_a_limit_of_waiting_receives_is_judged_after_the_deletes(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=1)
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    begin(client, None, wait_ms=LONG_MS)
    await client.settle()

    reply = messages_of(await ask(client, [handle], wait_ms=LONG_MS))

    assert reply.error is not None
    assert (reply.error.name, reply.failures) == ("too_many_requests", [])
    assert await in_flight(client) == 0
    rig.check()
    rig.close()


async def test_a_receive_that_waits_at_a_deleted_queue_tells_of_its_deletes(rig: ServerRig) -> None:
    client, other = await rig.client(), await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    request_id = begin(client, [handle, 99], wait_ms=LONG_MS)
    await client.settle()

    await other.expect(wire.Done, wire.DeleteQueue, "jobs")
    await client.settle()

    reply = messages_of(client.replies[request_id])
    assert failed(reply) == [99]
    assert reply.error is not None
    assert (reply.error.name, reply.error.details) == ("queue_deleted", {"queue": "jobs"})


async def test_a_shutdown_tells_of_the_deletes_when_they_are_durable(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    request_id = begin(client, [handle], wait_ms=LONG_MS)
    await client.settle()

    drained = asyncio.ensure_future(rig.server.drain(0.2))
    await client.settle()
    await drained
    await client.settle()

    reply = messages_of(client.replies[request_id])
    assert reply.error is not None
    assert (reply.error.name, reply.failures) == ("shutting_down", [])


async def test_a_failed_storage_leaves_the_outcome_unknown(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    (handle,) = await received(client, b"1")
    rig.log.hold()
    request_id = begin(client, [handle], wait_ms=LONG_MS)
    await client.settle()

    rig.log.fail(LogFailed("the disk is gone"))
    await client.settle()

    assert code_of(client.replies[request_id]) == "outcome_unknown"


async def test_a_key_without_the_role_is_refused_before_a_delete(rig: ServerRig) -> None:
    admin = await rig.client()
    await a_queue(admin)
    (handle,) = await received(admin, b"1")

    for roles, names in ((["send", "read", "manage"], ["*"]), (["consume"], ["other-*"])):
        key = await rig.accounts.create_role_key("admin", None, roles, names, 1)
        assert code_of(await ask(await rig.client(key), [handle])) == "permission_denied"

    assert await in_flight(admin) == 1
    consumer = await rig.client(await rig.accounts.create_role_key("admin", None, ["consume"], ["jobs"], 1))
    assert failed(messages_of(await ask(consumer, [handle]))) == []


async def test_a_waiting_receive_that_loses_its_role_tells_of_its_deletes(rig: ServerRig) -> None:
    admin = await rig.client()
    await a_queue(admin)
    key = await rig.accounts.create_role_key("admin", None, ["consume"], ["*"], 1)
    consumer = await rig.client(key)
    (handle,) = await received(admin, b"1")
    request_id = begin(consumer, [handle], wait_ms=LONG_MS)
    await consumer.settle()

    await admin.expect(wire.Done, wire.SetKeyRoles, key.secret_id, ["send"], ["*"])
    await consumer.settle()

    reply = messages_of(consumer.replies[request_id])
    assert reply.error is not None
    assert (reply.error.name, reply.failures) == ("permission_denied", [])
    assert await in_flight(admin) == 0


# ---------------------------------------------------------------------- clients that leave replies unread


async def a_stuck(rig: ServerRig, slow: RigClient, other: RigClient) -> None:
    """Let the socket of ``slow`` be stuck in large replies."""
    await a_queue(other, "big", max_message_bytes=MIB)
    for _ in range(2):
        await other.send("big", bytes(MIB))
    slow.transport.stuck = True
    for _ in range(2):
        slow.begin(wire.ReceiveMessages(slow.next_id(), "big", 1, 0, 60_000))
    await rig.turn()


async def test_the_wait_of_a_slow_reader_with_deletes_ends_early_and_is_not_begun_again(rig: ServerRig) -> None:
    slow, other = await rig.client(), await rig.client()
    await a_queue(other)
    (handle,) = await received(slow, b"1")
    waiting = begin(slow, [handle], wait_ms=LONG_MS)
    await slow.settle()
    await a_stuck(rig, slow, other)

    beat(rig, 400)
    await other.send("jobs", b"for others")
    assert bodies_of(await other.receive("jobs")) == [b"for others"]
    slow.transport.stuck = False
    await slow.settle()
    await slow.settle()

    assert messages_of(slow.replies[waiting]) == wire.MessagesReceived(waiting, [], [], None)
    assert slow.connection.unread_receives == 0


async def test_a_parked_receive_has_deleted_no_message(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, max_unread_receives=2)
    slow, other = await rig.client(), await rig.client()
    await a_queue(other)
    handles = await received(slow, b"1", b"2")
    await other.send("jobs", b"3", b"4")
    rig.log.hold()
    first, second = begin(slow, None), begin(slow, None)
    cancelled, parked = begin(slow, [handles[0]]), begin(slow, [handles[1]])
    await rig.turn()
    assert rig.server.part(Counters).deleted == 0

    slow.cancel(cancelled)
    rig.log.let_go()
    await slow.settle()
    await slow.settle()

    assert code_of(slow.replies[cancelled]) == "cancelled", "nothing was decided, so nothing changed"
    assert failed(messages_of(slow.replies[parked])) == []
    assert [len(messages_of(slow.replies[number]).messages) for number in (first, second)] == [1, 1]
    assert await in_flight(other) == 3
    rig.check()
    rig.close()


async def test_unsent_messages_of_a_lost_connection_return_and_the_deletes_stay(rig: ServerRig) -> None:
    client, other = await rig.client(), await rig.client()
    await a_queue(other)
    (handle,) = await received(client, b"1")
    await other.send("jobs", b"2")
    rig.log.hold()
    begin(client, [handle])
    await rig.turn()

    client.transport.lose()
    rig.log.let_go()
    await rig.turn()

    (message,) = await other.receive("jobs")
    assert (message.body, message.receive_count) == (b"2", 1)
    assert await in_flight(other) == 1


# ---------------------------------------------------------------------- a storage that hangs


async def test_a_receive_with_deletes_that_waits_for_bodies_of_a_hanging_storage_has_an_unknown_outcome(
    tmp_path: Path,
) -> None:
    rig = await ServerRig.make(tmp_path, storage_patience_ms=5_000)
    client = await rig.client()
    await a_queue(client)
    await a_queue(client, "late", delay_ms=10_000)
    (handle,) = await received(client, b"1", queue="jobs")
    await client.send("late", b"2", b"3")
    (other_handle,) = await received(client, b"4", queue="jobs")
    rig.log.hold_pages()
    # Bodies of delayed messages are not kept in memory.
    rig.clock.advance(11_000)
    await rig.tick()
    with_deletes = begin(client, [handle, other_handle], queue="late", wait_ms=LONG_MS)
    plain = begin(client, None, queue="late", wait_ms=LONG_MS)
    await client.settle()

    now_ms = 1_000_000
    for _ in range(120):
        now_ms += 100
        rig.server.part(StorageWatch).beat(now_ms)
    await client.settle()

    assert code_of(client.replies[with_deletes]) == "outcome_unknown"
    assert code_of(client.replies[plain]) == "busy"
    assert rig.server.part(WaitingRequests).deletes == {}
    rig.log.let_pages_go()
    await client.settle()
    rig.close()


# ---------------------------------------------------------------------- sizes


async def test_a_full_reply_with_every_handle_refused_fits_the_smallest_frame(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await rig.client(max_frame_bytes=MIN_MAX_FRAME_BYTES)
    assert client.opened is not None
    assert client.opened.max_frame_bytes == MIN_MAX_FRAME_BYTES
    name = "q" * 64
    await a_queue(client, name, max_message_bytes=MIB)
    refused = list(range(2**64 - 256, 2**64))
    headers = {f"{number:0512d}": "" for number in range(31)}
    await client.expect(wire.MessagesSent, wire.SendMessages, name, [bytes(MIB)], [headers])
    await client.expect(wire.MessagesSent, wire.SendMessages, name, [bytes(4_096)] * 256)

    large = messages_of(await ask(client, refused, most=256, queue=name))
    many = messages_of(await ask(client, refused, most=256, queue=name))

    assert (len(large.messages), len(failed(large))) == (1, 256)
    assert (len(many.messages), len(failed(many))) == (256, 256)
    rig.check()
    rig.close()
