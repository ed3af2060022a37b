"""Moves to the dead-letter queue through the server: the answer comes when the row is durable."""

import pytest

from cmqd.log.values import LogState
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.monitoring.counters import Counters
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import Origin
from support.server.server_rig import RigClient, ServerRig, code_of


async def a_consumer(rig: ServerRig, **attributes: int) -> RigClient:
    """A client, and ``jobs`` with the dead-letter queue ``dead``."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.EnsureQueue, "dead", {})
    await client.expect(
        wire.QueueInfo,
        wire.EnsureQueue,
        "jobs",
        {"dead_letter_queue": "dead", "dead_letter_max_receives": 10, **attributes},
    )
    return client


async def test_a_rejected_message_has_its_reason_in_the_dead_letter_queue(rig: ServerRig) -> None:
    client = await a_consumer(rig)
    first_id, _ = await client.send("jobs", b"one", b"two")
    first, second = await client.receive("jobs")

    done = await client.expect(
        wire.HandlesDone,
        wire.DeadLetterMessages,
        "jobs",
        [first.receipt_handle, 77, second.receipt_handle],
        ["why", "", "wherefore"],
    )

    assert [(one.receipt_handle, one.code) for one in done.failures] == [(77, ErrorCode.RECEIPT_HANDLE_INVALID)]
    assert done.next_visible_ms == 0
    dead = await client.receive("dead")
    assert [one.body for one in dead] == [b"one", b"two"]
    assert dead[0].origin == Origin("jobs", first_id, first.enqueue_ms, 1, "rejected", "why")
    again = await client.expect(
        wire.HandlesDone, wire.DeadLetterMessages, "jobs", [first.receipt_handle], ["once more"]
    )
    assert [one.code for one in again.failures] == [ErrorCode.RECEIPT_HANDLE_INVALID]
    assert rig.server.part(ServerFigures).status_reply("admin")["counters"]["dead_lettered"] == 2


async def test_the_answer_and_the_message_leave_only_when_the_move_is_durable(rig: ServerRig) -> None:
    client, reader = await a_consumer(rig), await rig.client()
    await client.send("jobs", b"one")
    (message,) = await client.receive("jobs")
    rig.log.hold()

    asking = client.begin(wire.DeadLetterMessages(client.next_id(), "jobs", [message.receipt_handle], ["why"]))
    await client.settle()
    taking = reader.begin(wire.ReceiveMessages(reader.next_id(), "dead", 1, wait_ms=0))
    await reader.settle()
    assert rig.server.part(Counters).dead_lettered == 1, "the move is decided"
    assert asking not in client.replies
    assert taking not in reader.replies
    rig.log.let_go()
    await client.settle()
    await reader.settle()

    assert isinstance(client.replies[asking], wire.HandlesDone)
    received = reader.replies[taking]
    assert isinstance(received, wire.MessagesReceived)


async def test_without_a_dead_letter_queue_each_handle_says_so(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {})
    await client.send("jobs", b"one")
    (message,) = await client.receive("jobs")

    done = await client.expect(wire.HandlesDone, wire.DeadLetterMessages, "jobs", [message.receipt_handle], ["why"])

    assert [one.code for one in done.failures] == [ErrorCode.NO_DEAD_LETTER_QUEUE]
    assert "'jobs' has no dead-letter queue" in done.failures[0].text
    assert (await client.counts("jobs"))["in_flight"] == 1


async def test_a_request_that_cannot_be_is_refused_whole(rig: ServerRig) -> None:
    client = await a_consumer(rig)

    assert code_of(await client.ask(wire.DeadLetterMessages, "elsewhere", [1], ["a"])) == "queue_not_found"
    assert code_of(await client.ask(wire.DeadLetterMessages, "jobs", [1, 2, 3], ["a", "b"])) == "invalid_argument"


async def test_on_a_full_disk_it_is_refused_before_anything_changes(rig: ServerRig) -> None:
    client = await a_consumer(rig)
    await client.send("jobs", b"one")
    (message,) = await client.receive("jobs")
    rig.server.part(DiskState).reported(LogState(True, "disk nearly full", 0, 0, 0))

    refused = await client.ask(wire.DeadLetterMessages, "jobs", [message.receipt_handle], ["why"])

    assert code_of(refused) == "disk_nearly_full"
    assert (await client.counts("jobs"))["in_flight"] == 1
    rig.server.part(DiskState).reported(LogState(False, "", 0, 0, 0))
    done = await client.expect(wire.HandlesDone, wire.DeadLetterMessages, "jobs", [message.receipt_handle], ["why"])
    assert done.failures == []


@pytest.mark.parametrize("how", ["cancelled", "disconnected"])
async def test_a_request_that_has_begun_is_carried_out(rig: ServerRig, how: str) -> None:
    client, other = await a_consumer(rig), await rig.client()
    await client.send("jobs", b"one")
    (message,) = await client.receive("jobs")

    request_id = client.begin(wire.DeadLetterMessages(client.next_id(), "jobs", [message.receipt_handle], ["why"]))
    client.deliver()
    if how == "cancelled":
        client.cancel(request_id)
        await client.settle()
        reply = client.replies[request_id]
        assert isinstance(reply, wire.HandlesDone)
        assert reply.failures == []
    else:
        client.transport.lose()
        await other.settle()

    assert [one.body for one in await other.receive("dead")] == [b"one"]
