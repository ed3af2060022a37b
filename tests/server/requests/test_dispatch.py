"""Every operation through the server: bytes in, core, log, gate, bytes out."""

import typing
from collections import Counter
from pathlib import Path

import pytest

from cmqd.core import domain_errors as domain
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState
from cmqd.memory_log import MemoryLog
from cmqd.server.access import accounts
from cmqd.server.monitoring.server_figures import ServerFigures
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.refusals import ERROR_CODES, error_reply
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import RETRYABLE, ErrorCode
from support.server.server_rig import ServerRig, code_of


def refusals(module: object) -> set[type[domain.DomainError]]:
    """The concrete refusals that a module defines."""
    found = {each for each in vars(module).values() if isinstance(each, type) and issubclass(each, domain.DomainError)}
    return {each for each in found if each.__module__ == getattr(module, "__name__", "")} - {domain.DomainError}


def test_every_refusal_of_core_and_accounts_has_a_code() -> None:
    assert set(ERROR_CODES) == refusals(domain) | refusals(accounts)
    shared = [code for code, count in Counter(ERROR_CODES.values()).items() if count > 1]
    # A message that cannot be read is named by its id in a decision, and by its receipt handle in a rejection.
    assert set(shared) == {ErrorCode.TOO_MANY_REQUESTS, ErrorCode.MESSAGES_DAMAGED}


def test_every_retryable_error_says_when() -> None:
    for refusal, code in ERROR_CODES.items():
        assert (refusal.retry_after_ms is not None) == (code in RETRYABLE), refusal


def test_a_refusal_keeps_its_text_and_details() -> None:
    reply = error_reply(5, domain.QueueNotFound("jobs"))

    assert (reply.request_id, reply.code, reply.name) == (5, ErrorCode.QUEUE_NOT_FOUND, "queue_not_found")
    assert reply.details == {"queue": "jobs"}
    assert "'jobs'" in reply.text


async def test_the_life_of_a_message(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})

    sent = await client.send("jobs", b"one", b"two")
    received = await client.receive("jobs")

    assert [message.message_id for message in received] == sent
    assert [message.body for message in received] == [b"one", b"two"]
    assert [message.receive_count for message in received] == [1, 1]
    handles = [message.receipt_handle for message in received]
    done = await client.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [handles[0]])
    assert done.failures == []
    hidden = await client.expect(wire.HandlesDone, wire.ChangeVisibility, "jobs", [handles[1]], 60_000)
    assert hidden.next_visible_ms == rig.clock.now_ms() + 60_000
    back = await client.expect(wire.HandlesDone, wire.ReleaseMessages, "jobs", [handles[1], handles[0]])
    assert [(failure.receipt_handle, failure.code) for failure in back.failures] == [
        (handles[0], ErrorCode.RECEIPT_HANDLE_INVALID)
    ]
    peeked = await client.expect(wire.MessagesPeeked, wire.PeekMessages, "jobs")
    assert [(message.body, message.receive_count) for message in peeked.messages] == [(b"two", 1)]
    await client.expect(wire.Done, wire.ClearQueue, "jobs")
    assert (await client.counts("jobs"))["active"] == 0


async def test_queues_are_made_listed_changed_and_deleted(rig: ServerRig) -> None:
    client = await rig.client()

    made = await client.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {"delay_ms": 500})
    assert made.created
    assert made.attributes["delay_ms"] == 500
    assert not (await client.expect(wire.QueueInfo, wire.EnsureQueue, "jobs", {"delay_ms": 500})).created
    differs = await client.expect(wire.Error, wire.EnsureQueue, "jobs", {"delay_ms": 0})
    assert differs.details is not None
    assert differs.details["difference"] == {"delay_ms": {"is": 500, "wanted": 0}}
    changed = await client.expect(wire.QueueInfo, wire.SetQueueAttributes, "jobs", {"delay_ms": 0})
    assert changed.attributes["delay_ms"] == 0
    listed = await client.expect(wire.QueueList, wire.ListQueues)
    assert (listed.total, [name for _, name in listed.queues]) == (1, ["jobs"])
    await client.expect(wire.Done, wire.DeleteQueue, "jobs")
    assert code_of(await client.ask(wire.GetQueueAttributes, "jobs")) == "queue_not_found"


async def test_accounts_do_not_see_each_other(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))
    await admin.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})

    assert code_of(await other.ask(wire.SendMessages, "jobs", [b"x"])) == "queue_not_found"
    await other.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await other.send("jobs", b"theirs")

    assert await admin.receive("jobs") == []


async def test_no_reply_leaves_before_its_records_are_durable(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    rig.log.hold()

    ids = [
        client.begin(wire.SendMessages(client.next_id(), "jobs", [b"x"])),
        client.begin(wire.ReceiveMessages(client.next_id(), "jobs")),
        client.begin(wire.GetQueueAttributes(client.next_id(), "jobs")),
        client.begin(wire.CreateQueue(client.next_id(), "jobs", {})),
    ]
    await client.settle()
    assert client.replies == {}
    rig.log.let_go()
    await client.settle()

    assert list(client.replies) == ids


async def test_replies_of_one_wake_up_leave_in_one_write(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    before = client.transport.writes

    for _ in range(50):
        client.machine.send(wire.SendMessages(client.next_id(), "jobs", [b"x"]))
    await client.settle()

    assert len(client.replies) == 50
    assert client.transport.writes == before + 1


async def test_a_send_and_its_receive_by_a_waiting_client_share_one_commit(rig: ServerRig) -> None:
    sender, receiver = await rig.client(), await rig.client()
    await sender.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    waiting = receiver.begin(wire.ReceiveMessages(receiver.next_id(), "jobs", 10, 10_000))
    await receiver.settle()
    assert receiver.replies == {}
    lsn = rig.log.last_lsn

    await sender.send("jobs", b"x", b"y")
    await receiver.settle()

    reply = receiver.replies[waiting]
    assert isinstance(reply, wire.MessagesReceived)
    assert [message.body for message in reply.messages] == [b"x", b"y"]
    assert rig.log.last_lsn == lsn + 1


async def test_a_wait_ends_empty_when_its_time_is_over(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    waiting = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 500))
    await client.settle()

    rig.clock.advance(600)
    await rig.tick()
    await client.settle()

    assert client.replies[waiting] == wire.MessagesReceived(waiting, [])
    assert len(rig.server.part(WaitingRequests)) == 0


async def test_receives_waiting_at_a_deleted_queue_end(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    waiting = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 5_000))

    await client.expect(wire.Done, wire.DeleteQueue, "jobs")

    assert code_of(client.replies[waiting]) == "queue_deleted"


async def test_above_the_mark_of_pending_bytes_sends_are_busy_and_deletes_are_not(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {"max_message_bytes": 1_048_576})
    await client.send("jobs", b"first")
    (message,) = await client.receive("jobs")
    rig.log.hold()
    # One commit is on its way already and still ends; what is held back begins with the next.
    for _ in range(64):
        client.begin(wire.SendMessages(client.next_id(), "jobs", [bytes(1_048_576)]))
    await client.settle()
    await rig.wait_for_disk()
    await client.settle()
    assert rig.log.pending.bytes >= 64 * 1_048_576

    refused = await client.expect(wire.Error, wire.SendMessages, "jobs", [b"one more"])
    deleting = client.begin(wire.DeleteMessages(client.next_id(), "jobs", [message.receipt_handle]))
    rig.log.let_go()
    await client.settle()

    assert (refused.name, refused.retryable, refused.retry_after_ms) == ("busy", True, 100)
    assert client.replies[deleting] == wire.HandlesDone(deleting, [], 0)
    await client.send("jobs", b"again")


async def test_a_nearly_full_disk_refuses_sends_and_nothing_else(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    await client.send("jobs", b"x")
    rig.log.report_state(LogState(True, "12 bytes are free", 12, 1, 1))
    await rig.turn()
    assert rig.broker.gates.moves_held_up, "they write bodies as well"

    refused = await client.expect(wire.Error, wire.SendMessages, "jobs", [b"y"])
    (message,) = await client.receive("jobs")
    await client.expect(wire.HandlesDone, wire.DeleteMessages, "jobs", [message.receipt_handle])

    assert (refused.name, refused.retryable, refused.text) == ("disk_nearly_full", True, "12 bytes are free")
    rig.log.report_state(LogState(False, "", 1 << 30, 1, 1))
    await rig.turn()
    assert not rig.broker.gates.moves_held_up
    await client.send("jobs", b"y")


async def test_after_a_failure_of_the_storage_every_request_gets_outcome_unknown(rig: ServerRig) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    waiting = client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 5_000))
    rig.log.hold()
    sending = client.begin(wire.CreateQueue(client.next_id(), "other", {}))
    await client.settle()

    rig.log.fail(LogFailed("fsync: I/O error"))
    await client.settle()
    late = await client.expect(wire.Error, wire.SendMessages, "jobs", [b"late"])

    for reply in (client.replies[waiting], client.replies[sending], late):
        assert code_of(reply) == "outcome_unknown"
        assert "I/O error" in getattr(reply, "text", "")
    assert [str(failure) for failure in rig.failures] == ["fsync: I/O error"]
    client.transport.lose()
    await rig.turn()


async def test_a_bug_in_the_core_stops_everything_rather_than_part_from_the_log(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await rig.client()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.broker, "create_queue", broken)
    client.begin(wire.CreateQueue(client.next_id(), "jobs", {}))
    await client.settle()

    assert [type(failure) for failure in rig.failures] == [ZeroDivisionError]
    assert code_of(await client.ask(wire.ListQueues)) == "outcome_unknown"


async def test_limits_of_an_account(tmp_path: typing.Any) -> None:
    rig = await ServerRig.make(tmp_path, max_waiting_receives_per_account=2, max_requests_per_second_per_account=10)
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "jobs", {})
    for _ in range(2):
        client.begin(wire.ReceiveMessages(client.next_id(), "jobs", 1, 5_000))
    third = await client.expect(wire.Error, wire.ReceiveMessages, "jobs", 1, 5_000)
    assert (third.name, third.retryable) == ("too_many_requests", True)
    for _ in range(6):
        await client.expect(wire.QueueList, wire.ListQueues)

    over = await client.expect(wire.Error, wire.ListQueues)
    assert (over.name, over.retry_after_ms) == ("too_many_requests", 1_000)
    rig.clock.advance(1_000)
    await client.expect(wire.QueueList, wire.ListQueues)
    await rig.tick()
    rig.close()


async def test_the_status_shows_the_admin_everything_and_others_what_concerns_them(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))

    whole = (await admin.expect(wire.ServerStatus, wire.GetServerStatus)).status
    part = (await other.expect(wire.ServerStatus, wire.GetServerStatus)).status

    times = {"uptime_ms", "time_ms", "broker_time_ms", "clock_offset_ms", "stalled_ms"}
    assert set(part) == {"version", "region", "durability", "address", "tls"} | times
    assert (part["address"], part["tls"]) == (rig.server.part(ServerFigures).status().public.address, False)
    assert whole["connections"] == 2
    assert {"waiting_receives", "pending_bytes", "free_bytes", "segments", "rss_bytes", "counters"} <= set(whole)


async def test_only_the_admin_has_segments_sealed(rig: ServerRig) -> None:
    admin = await rig.client()
    other = await rig.client(await rig.accounts.create_account("admin", "other", 1))
    await admin.expect(wire.QueueInfo, wire.CreateQueue, "q", {})
    await admin.send("q", b"x")

    refused = await other.expect(wire.Error, wire.SealSegments)
    assert refused.name == "permission_denied"
    assert rig.log.closed_segments() == []

    last_lsn = rig.log.last_lsn
    assert (await admin.expect(wire.SegmentsSealed, wire.SealSegments)).last_lsn == last_lsn
    assert [segment.last_lsn for segment in rig.log.closed_segments()] == [last_lsn]


class LogWithoutSegmentFiles(MemoryLog):
    seal_now = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


async def test_a_log_without_segment_files_seals_none(rig: ServerRig) -> None:
    admin = await rig.client()
    rig.log.__class__ = LogWithoutSegmentFiles

    refused = await admin.expect(wire.Error, wire.SealSegments)

    assert (refused.name, refused.text) == ("unknown_operation", "the log of this broker has no segment files")


async def test_sealing_that_fails_has_an_unknown_outcome(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await rig.client()
    rig.log.fail(LogFailed("fsync: I/O error"))

    assert code_of(await client.ask(wire.SealSegments)) == "outcome_unknown"
    rig.close()
