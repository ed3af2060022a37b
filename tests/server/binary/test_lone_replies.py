"""A reply that a client waits for alone is written as soon as it is durable; several replies share a write."""

from typing import Any

import pytest

from cmqd.server.replies.reply_gate import ReplyGate
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, a_queue


def begin_send(client: RigClient) -> int:
    return client.begin(wire.SendMessages(client.next_id(), "jobs", [b"x"]))


async def test_a_reply_that_a_client_waits_for_alone_is_written_as_it_is_released(rig: ServerRig) -> None:
    lone, busy = await rig.client(), await rig.client()
    await a_queue(lone)
    rig.log.hold()
    lone_id = begin_send(lone)
    busy_ids = [begin_send(busy), begin_send(busy)]
    await rig.turn()
    lone_before, busy_before = lone.transport.writes, busy.transport.writes
    written: list[tuple[int, int]] = []

    def note() -> None:
        written.append((lone.transport.writes - lone_before, busy.transport.writes - busy_before))

    def release(lsn: int) -> None:
        rig.server.part(ReplyGate).open_to(lsn)
        note()

    rig.server.io_batch.write_released(release, rig.log.last_lsn)
    note()

    assert written == [(1, 0), (1, 1)]
    rig.log.let_go()
    await lone.settle()
    await busy.settle()
    assert (list(lone.replies), list(busy.replies)) == ([lone_id], busy_ids)


async def test_requests_that_came_behind_a_lone_request_are_answered_in_one_write(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    rig.log.hold()
    first = begin_send(client)
    client.feed(*(wire.SendMessages(client.next_id(), "jobs", [b"x"]) for _ in range(2)))
    await rig.turn()
    before = client.transport.writes

    rig.log.let_go()
    await client.settle()

    assert list(client.replies) == [first, first + 1, first + 2]
    assert client.transport.writes == before + 1


async def test_a_cancelled_receive_that_a_client_waits_for_alone_gives_its_message_back(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client)
    await client.send("jobs", b"x")
    rig.log.hold()
    receive = client.begin(wire.ReceiveMessages(client.next_id(), "jobs"))
    await rig.turn()
    client.cancel(receive)

    rig.log.let_go()
    await client.settle()

    reply = client.replies[receive]
    assert isinstance(reply, wire.Error)
    assert reply.name == "cancelled"
    assert [message.body for message in await client.receive("jobs")] == [b"x"]


async def test_a_reply_that_cannot_be_written_holds_back_no_other_reply(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await rig.client(), await rig.client()
    await a_queue(other)
    rig.log.hold()
    begin_send(broken)
    answered = begin_send(other)
    await rig.turn()

    def write(data: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broken.transport, "write", write)
    rig.log.let_go()
    await other.settle()

    assert list(other.replies) == [answered]
    assert broken.transport.lost
    assert not rig.failures
