"""A storage that hangs: waiting requests are answered ``outcome_unknown``, new requests are refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmqd.log.values import LogState
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.log_upkeep.storage_watch import StorageWatch
from cmqd_protocol import messages as wire
from support.server.server_rig import RigClient, ServerRig, code_of

PATIENCE_MS = 5_000


class Beats:
    """Ten beats a second of a clock that only tests move."""

    def __init__(self, rig: ServerRig) -> None:
        self._rig = rig
        self.now_ms = 1_000_000

    async def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.now_ms += 100
            self._rig.server.part(StorageWatch).beat(self.now_ms)
        await self._rig.turn()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ServerRig]:
    made = await ServerRig.make(tmp_path, storage_patience_ms=PATIENCE_MS)
    yield made
    made.check()
    made.close()


@pytest.fixture
def beats(rig: ServerRig) -> Beats:
    return Beats(rig)


async def with_queue(rig: ServerRig, *bodies: bytes) -> RigClient:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {})
    if bodies:
        await client.send("orders", *bodies)
    return client


async def begin(client: RigClient, make: Any, *arguments: Any) -> int:
    request_id = client.begin(make(client.next_id(), *arguments))
    await client.settle()
    assert request_id not in client.replies
    return request_id


async def test_a_request_that_waits_too_long_for_the_disk_is_answered_outcome_unknown(
    rig: ServerRig, beats: Beats
) -> None:
    client = await with_queue(rig)
    await beats.pass_ms(100)
    rig.log.hold()
    first = await begin(client, wire.SendMessages, "orders", [b"first"])
    await beats.pass_ms(3_000)
    second = await begin(client, wire.SendMessages, "orders", [b"second"])

    await beats.pass_ms(PATIENCE_MS - 3_000 + 100)
    await client.settle()

    assert code_of(client.replies.pop(first)) == "outcome_unknown"
    assert second not in client.replies, "its own patience counts"
    await beats.pass_ms(3_000)
    await client.settle()
    assert code_of(client.replies.pop(second)) == "outcome_unknown"

    rig.log.let_go()
    await client.settle()
    await beats.pass_ms(100)
    assert client.replies == {}, "a late reply goes to nobody"
    assert [message.body for message in await client.receive("orders")] == [b"first", b"second"]


async def test_messages_of_a_receive_that_was_given_up_go_back_uncounted_when_it_is_durable(
    rig: ServerRig, beats: Beats
) -> None:
    client = await with_queue(rig, b"a", b"b")
    await beats.pass_ms(100)
    rig.log.hold()
    receive = await begin(client, wire.ReceiveMessages, "orders", 16, 0)

    await beats.pass_ms(PATIENCE_MS + 100)
    await client.settle()

    assert code_of(client.replies.pop(receive)) == "outcome_unknown"
    assert client.connection.unread_receives == 0
    rig.log.let_go()
    await client.settle()
    await beats.pass_ms(100)
    messages = await client.receive("orders")
    assert [(message.body, message.receive_count) for message in messages] == [(b"a", 1), (b"b", 1)]


async def test_a_delete_that_was_given_up_is_carried_out_all_the_same(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig, b"a")
    (message,) = await client.receive("orders")
    await beats.pass_ms(100)
    rig.log.hold()
    delete = await begin(client, wire.DeleteMessages, "orders", [message.receipt_handle])

    await beats.pass_ms(PATIENCE_MS + 100)
    await client.settle()

    assert code_of(client.replies.pop(delete)) == "outcome_unknown"
    rig.log.let_go()
    await client.settle()
    await beats.pass_ms(100)
    assert sum((await client.counts("orders")).values()) == 0


@pytest.mark.parametrize(
    ("state", "code"),
    [(None, "busy"), (LogState(True, "the disk is full (0 bytes free)", 0, 1, 1), "disk_nearly_full")],
    ids=["unknown", "full"],
)
async def test_what_begins_while_the_storage_hangs_is_refused_and_changes_nothing(
    rig: ServerRig, beats: Beats, state: LogState | None, code: str
) -> None:
    client = await with_queue(rig, b"a")
    (message,) = await client.receive("orders")
    if state is not None:
        rig.server.part(DiskState).reported(state)
    await beats.pass_ms(100)
    rig.log.hold()
    await begin(client, wire.ReleaseMessages, "orders", [message.receipt_handle])
    await beats.pass_ms(PATIENCE_MS + 100)
    last_lsn, pending = rig.log.last_lsn, rig.log.pending.records

    requests: list[tuple[Any, ...]] = [
        (wire.ReceiveMessages, "orders", 1, 0),
        (wire.DeleteMessages, "orders", [message.receipt_handle]),
        (wire.GetQueueAttributes, "orders"),
        (wire.SendMessages, "orders", [b"x"]),
    ]
    for make, *arguments in requests:
        reply = await client.expect(wire.Error, make, *arguments)
        assert reply.name == code
        assert reply.retry_after_ms is not None
        assert reply.details == {"stalled": True}, "no text tells it from ordinary back-pressure"
    await client.expect(wire.ServerStatus, wire.GetServerStatus)
    await client.expect(wire.OwnKey, wire.GetOwnKey)
    assert (rig.log.last_lsn, rig.log.pending.records) == (last_lsn, pending)

    client.replies.clear()
    rig.log.let_go()
    await client.settle()
    await beats.pass_ms(100)
    assert [each.body for each in await client.receive("orders")] == [b"a"]


async def test_many_are_given_up_in_pieces_and_none_twice(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig)
    await beats.pass_ms(100)
    rig.log.hold()
    begun = {client.begin(wire.SendMessages(client.next_id(), "orders", [b"x"])) for _ in range(2_000)}
    await client.settle()

    await beats.pass_ms(PATIENCE_MS + 100)
    await rig.turn(20)
    await client.settle()

    assert {code_of(client.replies.pop(request_id)) for request_id in begun} == {"outcome_unknown"}
    assert client.replies == {}
    rig.log.let_go()
    await client.settle()
    assert client.replies == {}


async def test_a_client_that_left_meanwhile_loses_nothing(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig, b"a")
    await beats.pass_ms(100)
    rig.log.hold()
    await begin(client, wire.ReceiveMessages, "orders", 1, 0)
    await beats.pass_ms(PATIENCE_MS + 100)
    client.transport.lose()

    rig.log.let_go()
    await rig.turn()
    await beats.pass_ms(100)

    other = await rig.client()
    assert [(message.body, message.receive_count) for message in await other.receive("orders")] == [(b"a", 1)]


async def test_a_request_that_waits_for_bodies_is_given_up_too(rig: ServerRig, beats: Beats) -> None:
    """The commit of a half message reads the body, which a hanging storage does not bring."""
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {"transactional": True})
    (half,) = await client.send_half("orders", b"half")
    await beats.pass_ms(100)
    rig.log.hold()
    await begin(client, wire.SendMessages, "orders", [b"x"])
    commit = await begin(client, wire.EndTransactions, "orders", [half], [1])

    await beats.pass_ms(2 * PATIENCE_MS)
    await client.settle()

    assert code_of(client.replies.pop(commit)) == "outcome_unknown"
    client.replies.clear()
    rig.log.let_go()
    await client.settle()
    await beats.pass_ms(100)
    await client.settle()
    assert client.replies == {}
    assert {message.body for message in await client.receive("orders")} == {b"half", b"x"}


async def test_reads_that_hang_are_noticed_without_a_commit(rig: ServerRig, beats: Beats) -> None:
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "orders", {"delay_ms": 10_000})
    await client.send("orders", b"a", b"b")
    await beats.pass_ms(100)
    rig.log.hold_pages()
    # Bodies of delayed messages are not kept in memory.
    rig.clock.advance(11_000)
    await rig.tick()
    peek = await begin(client, wire.PeekMessages, "orders")
    receive = await begin(client, wire.ReceiveMessages, "orders", 16, 0)

    with capture_logs() as logs:
        await beats.pass_ms(PATIENCE_MS + 1_100)
        await client.settle()

    assert logs[0]["event"] == "storage_hangs"
    assert code_of(client.replies.pop(peek)) == "outcome_unknown"
    assert code_of(client.replies.pop(receive)) == "busy"
    assert client.connection.unread_receives == 0
    rig.log.let_pages_go()
    await client.settle()
    await beats.pass_ms(100)
    assert [(message.body, message.receive_count) for message in await client.receive("orders")] == [
        (b"a", 1),
        (b"b", 1),
    ]


async def test_a_storage_that_hangs_is_logged_after_a_second_and_when_it_goes_on(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig)
    await beats.pass_ms(100)
    rig.log.hold()
    await begin(client, wire.SendMessages, "orders", [b"x"])

    with capture_logs() as logs:
        await beats.pass_ms(900)
        assert logs == []
        await beats.pass_ms(2_000)
        rig.log.let_go()
        await client.settle()
        await beats.pass_ms(100)

    assert [entry["event"] for entry in logs] == ["storage_hangs", "storage_goes_on"]
    # The send, and the record of its client.
    assert (logs[0]["for_ms"], logs[0]["records"], logs[0]["replies"]) == (1_000, 2, 1)


async def test_a_storage_that_has_nothing_to_do_does_not_hang(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig)

    with capture_logs() as logs:
        await beats.pass_ms(60_000)

    assert logs == []
    assert await client.send("orders", b"x")


async def test_a_slow_storage_that_goes_on_refuses_nothing(rig: ServerRig, beats: Beats) -> None:
    client = await with_queue(rig)
    for _ in range(5):
        rig.log.hold()
        request_id = await begin(client, wire.SendMessages, "orders", [b"x"])
        await beats.pass_ms(PATIENCE_MS - 200)
        rig.log.let_go()
        await client.settle()
        assert isinstance(client.replies.pop(request_id), wire.MessagesSent)
        await beats.pass_ms(100)
