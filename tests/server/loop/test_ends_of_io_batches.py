"""Ends of I/O batches of a server: a commit that leaves only replies to write has none, and nothing is left undone."""

from pathlib import Path

import pytest

from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of


async def with_queue(rig: ServerRig) -> RigClient:
    client = await rig.client()
    await a_queue(client)
    # The first change of a client has a record of the client too.
    await client.send("jobs", b"first")
    return client


def note_ends(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pending records at each end of an I/O batch, when the timer is planned."""
    ends: list[int] = []
    plan = rig.server.agenda_timer.plan

    def noted() -> None:
        ends.append(rig.log.pending.records)
        plan()

    monkeypatch.setattr(rig.server.agenda_timer, "plan", noted)
    return ends


async def test_a_lone_send_has_one_end(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await with_queue(rig)
    ends = note_ends(rig, monkeypatch)

    await client.send("jobs", b"x")

    assert ends == [1], "the end after the commit would find nothing to do"


async def test_rows_that_waited_for_a_commit_leave_after_it(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await with_queue(rig)
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"behind a commit"]))
    await rig.turn()
    ends = note_ends(rig, monkeypatch)

    # As a log does that had a commit under way. (A log in memory goes on by itself.)
    rig.log.on_durable(rig.log.durable_lsn)
    await rig.turn()

    assert ends == [1]


async def test_a_deadline_is_planned_although_the_request_was_taken_up_with_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parked receive is taken up when an earlier reply is written, in a batch that had only replies."""
    rig = await ServerRig.make(tmp_path, max_unread_receives=1)
    client = await with_queue(rig)
    rig.log.hold()
    for queue, wait_ms in (("jobs", 0), ("jobs", 20_000)):
        client.begin(wire.ReceiveMessages(client.next_id(), queue, 1, wait_ms))
        await rig.turn()
    assert len(rig.server.part(WaitingRequests)) == 0
    ends = note_ends(rig, monkeypatch)

    rig.log.let_go()
    await rig.turn()

    assert len(rig.server.part(WaitingRequests)) == 1
    assert ends
    rig.close()


async def test_a_number_of_waiting_records_refuses_bodies(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_records=1)
    client = await with_queue(rig)
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "jobs", [b"waits"]))
    await rig.turn()

    refused = await client.ask(wire.SendMessages, "jobs", [b"too much"])

    assert code_of(refused) == "busy"
    rig.close()


async def test_a_load_that_no_client_adds_stops_reading_too(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_records=1, pause_pending_records=1)
    client = await with_queue(rig)
    await client.expect(wire.MessagesReceived, wire.ReceiveMessages, "jobs", 1, 0, visibility_timeout_ms=1_000)
    rig.log.hold()

    rig.clock.advance(2_000)
    await rig.tick()
    assert rig.log.pending.records == 1
    client.begin(wire.ListQueues(client.next_id()))
    assert not client.transport.is_reading()
    rig.log.let_go()
    await client.settle()

    assert client.transport.is_reading(), "the end of the load is noticed although no record waits"
    rig.close()
