"""The list of segments: reasons, pages, the wait for the disk, limits."""

import asyncio
from pathlib import Path

import pytest

from cmqd.core.operations.monitoring.segment_holders import COUNTED_A_STEP
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState
from cmqd.server.handlers import segments as handler
from cmqd.server.handlers.segments import MAX_AHEAD
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd_protocol import messages as wire
from cmqd_types.segments import SegmentHolder, SegmentInfo
from support.server.server_rig import RigClient, ServerRig, a_queue, code_of


async def listed(client: RigClient, *fields: int) -> wire.SegmentList:
    return await client.expect(wire.SegmentList, wire.ListSegments, *fields)


async def segments_of(client: RigClient) -> list[SegmentInfo]:
    return (await listed(client)).segments


async def consume(client: RigClient, queue: str) -> None:
    handles = [message.receipt_handle for message in await client.receive(queue)]
    await client.expect(wire.HandlesDone, wire.DeleteMessages, queue, handles)


def write_no_checkpoints(rig: ServerRig) -> None:
    """Write checkpoints only when the test says so."""
    rig.log.on_checkpoint_wanted = lambda: None


async def checkpoint(rig: ServerRig) -> None:
    """Write two checkpoints: the oldest kept checkpoint then covers all rows of now."""
    for _ in range(2):
        rig.server.checkpoints.want()
        await rig.turn(30)


async def test_each_segment_tells_its_rows_and_the_reasons_that_keep_it(rig: ServerRig) -> None:
    write_no_checkpoints(rig)
    client = await rig.client()
    await a_queue(client, "orders", rewind_ms=60_000)
    await a_queue(client, "pay")
    await client.expect(wire.TopicInfo, wire.CreateTopic, "news", {})
    await client.expect(
        wire.SubscriptionInfo, wire.Subscribe, "news", "web", {"endpoint": "https://a.example/", "protocol": "https"}
    )
    await rig.log.seal_now()
    await client.send("orders", b"1", b"2")
    await consume(client, "orders")
    await client.send("pay", b"3")
    await client.expect(wire.MessagesPublished, wire.PublishMessages, "news", [b"4"])
    await rig.log.seal_now()
    await client.send("pay", b"5", b"6")

    first, second, third = await segments_of(client)

    assert (first.state, first.messages, first.kept_for) == ("sealed", 0, ["checkpoint"])
    assert second.kept_for == ["messages", "rewind", "deliveries", "checkpoint"]
    assert (second.messages, second.live, second.rewindable, second.undelivered) == (4, 1, 2, 1)
    assert second.holders == [
        SegmentHolder("admin", "orders", False, 0, 2),
        SegmentHolder("admin", "pay", False, 1, 0),
        SegmentHolder("admin", "news", True, 1, 0),
    ]
    assert second.holder_count == 3
    assert (third.state, third.kept_for, third.live) == ("active", ["rows", "messages"], 2)
    assert first.last_lsn + 1 == second.first_lsn
    assert second.last_lsn + 1 == third.first_lsn
    assert third.last_lsn == rig.log.durable_lsn
    assert second.first_ms == second.last_ms == rig.broker_clock.now_ms()
    assert second.bytes > 0

    await checkpoint(rig)
    # The first segment was needed by the checkpoint alone, and is gone.
    second, _ = await segments_of(client)
    assert second.kept_for == ["messages", "rewind", "deliveries"]


async def test_a_segment_without_needed_messages_is_kept_for_history(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, keep_history_ms=60_000)
    write_no_checkpoints(rig)
    client = await rig.client()
    await a_queue(client, "orders")
    await client.send("orders", b"1")
    await rig.log.seal_now()
    assert (await segments_of(client))[0].kept_for == ["messages", "checkpoint"]
    await consume(client, "orders")
    assert (await segments_of(client))[0].kept_for == ["checkpoint", "history"]

    await checkpoint(rig)
    page = await listed(client)
    assert [segment.kept_for for segment in page.segments][:1] == [["history"]]
    assert page.keep_history_ms == 60_000

    rig.clock.advance(61_000)
    assert (await segments_of(client))[0].kept_for == []
    rig.close()


async def test_a_segment_is_reclaimed_when_no_reason_is_left(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders", rewind_ms=60_000)
    await client.send("orders", b"1")
    await rig.log.seal_now()
    await consume(client, "orders")
    await checkpoint(rig)
    assert (await segments_of(client))[0].kept_for == ["rewind"]

    await client.expect(wire.QueueInfo, wire.SetQueueAttributes, "orders", {"rewind_ms": 0})
    assert (await segments_of(client))[0].kept_for == []
    rig.server.reclaim.scan()
    await rig.turn()

    assert 1 not in [segment.number for segment in await segments_of(client)]


async def test_pages_follow_each_other_by_number(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    for _ in range(4):
        await client.send("orders", b"1")
        await rig.log.seal_now()
    await client.send("orders", b"1")

    first = await listed(client, 0, 2)
    second = await listed(client, first.next or 0, 2)
    third = await listed(client, second.next or 0, 2)

    numbers = [segment.number for page in (first, second, third) for segment in page.segments]
    assert numbers == [1, 2, 3, 4, 5]
    assert (first.next, second.next, third.next) == (2, 4, None)
    assert {page.total for page in (first, second, third)} == {5}
    assert (await listed(client, 5)).segments == []


async def test_a_reply_ends_behind_the_segment_with_which_its_count_is_full(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "EXAMINED_A_REPLY", 3)
    client = await rig.client()
    for name in ("a", "b"):
        await a_queue(client, name)
    for _ in range(3):
        await client.send("a", b"1")
        await client.send("b", b"1")
        await rig.log.seal_now()

    first = await listed(client)

    assert ([segment.number for segment in first.segments], first.next) == ([1, 2], 2)
    assert [segment.number for segment in (await listed(client, 2)).segments] == [3]


async def test_a_segment_that_closes_while_the_list_is_made_is_listed_once(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    await client.send("orders", b"1")
    describe = rig.log.active_segment

    async def closed_meanwhile() -> object:
        active = await describe()
        await rig.log.seal_now()
        return active

    monkeypatch.setattr(rig.log, "active_segment", closed_meanwhile)
    [only] = await segments_of(client)

    assert (only.state, only.kept_for) == ("sealed", ["messages", "checkpoint"])


async def test_the_list_shows_the_room_of_the_log(rig: ServerRig) -> None:
    client = await rig.client()
    rig.server.part(DiskState).reported(LogState(True, "the disk is full", 5_000, 3, 70_000))

    page = await listed(client)

    assert (page.log_bytes, page.free_bytes, page.sends_refused_reason) == (70_000, 5_000, "the disk is full")
    rig.server.part(DiskState).reported(LogState(False, "", 6_000, 3, 70_000))
    assert (await listed(client)).sends_refused_reason is None


async def test_only_admin_may_list_segments_with_a_key_for_every_name(rig: ServerRig) -> None:
    admin = await rig.client()
    await admin.expect(wire.KeyList, wire.CreateAccount, "shop")
    shop = await rig.client(rig.accounts.first_key("shop"))
    limited = await rig.client(await rig.accounts.create_role_key("admin", None, ["read"], ["orders"], 1))

    assert code_of(await shop.ask(wire.ListSegments)) == "permission_denied"
    assert code_of(await limited.ask(wire.ListSegments)) == "permission_denied"
    assert code_of(await admin.ask(wire.ListSegments, 0, 0)) == "invalid_argument"
    assert code_of(await admin.ask(wire.ListSegments, 0, 1_001)) == "invalid_argument"


async def test_no_count_leaves_before_its_records_are_durable(rig: ServerRig) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    await client.send("orders", b"1")
    rig.log.hold()
    consumed = client.begin(wire.DeleteMessages(client.next_id(), "orders", [1]))
    client.begin(wire.SendMessages(client.next_id(), "orders", [b"2"]))
    asked = client.begin(wire.ListSegments(client.next_id()))
    await client.settle()
    assert asked not in client.replies

    rig.log.let_go()
    await client.settle()

    assert consumed in client.replies
    assert isinstance(client.replies[asked], wire.SegmentList)


async def test_lists_that_wait_for_the_disk_are_limited(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MAX_AHEAD", 4)
    client = await rig.client()
    await a_queue(client, "orders")
    for _ in range(2):
        await client.send("orders", b"1")
        await rig.log.seal_now()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "orders", [b"1"]))
    taken: list[int] = []
    for _ in range(2):
        taken.append(client.begin(wire.ListSegments(client.next_id())))
        await client.settle()

    assert code_of(await client.ask(wire.ListSegments)) == "busy"
    assert not any(number in client.replies for number in taken)

    rig.log.let_go()
    await client.settle()

    assert all(isinstance(client.replies[number], wire.SegmentList) for number in taken)
    assert len(await segments_of(client)) == 3
    assert MAX_AHEAD >= 2 * handler.MAX_LIMIT


async def test_requests_under_way_count_too_and_end_with_their_client(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "MAX_AHEAD", 2)
    described: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def when_described() -> None:
        await described

    monkeypatch.setattr(rig.log, "active_segment", when_described)
    gone, client = await rig.client(), await rig.client()
    for _ in range(2):
        gone.begin(wire.ListSegments(gone.next_id()))
    gone.deliver()
    await asyncio.sleep(0)
    refused = client.begin(wire.ListSegments(client.next_id()))
    client.deliver()
    for _ in range(6):
        await asyncio.sleep(0)
        client.read()
    assert code_of(client.replies[refused]) == "busy"

    gone.transport.lose()
    described.set_result(None)
    await rig.turn()

    assert (await listed(client)).total == 0


async def test_a_failed_log_is_told(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise LogFailed("the storage process ended")

    client = await rig.client()
    monkeypatch.setattr(rig.log, "active_segment", fail)

    assert code_of(await client.ask(wire.ListSegments)) == "outcome_unknown"


async def test_a_long_list_leaves_the_loop_to_others(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await rig.client()
    await a_queue(client, "orders")
    for _ in range(60):
        await client.send("orders", b"1")
        await rig.log.seal_now()
    steps = 0
    holders_of = rig.broker.holders_of

    def counted(ranges: object, since_step: int) -> object:
        nonlocal steps
        walk = holders_of(ranges, since_step)  # type: ignore[arg-type]
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return end.value
            steps += 1
            yield

    monkeypatch.setattr(rig.broker, "holders_of", counted)

    assert len(await segments_of(client)) == 60
    assert steps == 60 * 11 // COUNTED_A_STEP
