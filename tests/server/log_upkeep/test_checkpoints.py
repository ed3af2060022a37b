"""Checkpoints written in slices, restarts from checkpoints, and segments dropped behind a checkpoint."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmqd.core.broker import Broker
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState, SegmentReport, pack_ranges
from cmqd.memory_log import MemoryLog
from cmqd.server.log_upkeep.checkpoints import PAUSE_S, SLICE_S, Checkpoints
from cmqd.server.log_upkeep.segment_changes import SegmentChanges
from cmqd_protocol import messages as wire
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader, SessionsSlice
from cmqd_segment.records import StoredMessage
from support.core.builders import KEY
from support.core.invariants import check_broker
from support.eventually import eventually
from support.server.server_rig import ServerRig


def segment_report(
    number: int,
    first_lsn: int,
    last_lsn: int,
    queues: list[tuple[int, int, int]],
    messages: int = 0,
    size: int = 0,
    last_ms: int = 0,
) -> SegmentReport:
    return SegmentReport(number, first_lsn, last_lsn, 0, last_ms, messages, size, True, pack_ranges(queues))


async def recovered(rig: ServerRig) -> Broker:
    """The state after a restart, read like the daemon."""
    broker = Broker(rig.accounts.handle_key)
    log = MemoryLog(rig.log.disk)
    await log.open()
    async for batch in log.recover():
        for item in batch:
            if isinstance(item, tuple):
                lsn, _, records = item
                for record in records:
                    broker.replay(record, lsn)
            else:
                broker.load(item)
    broker.recovered()
    check_broker(broker)
    return broker


async def some_queues(rig: ServerRig, count: int = 5) -> None:
    client = await rig.client()
    for number in range(count):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
        await client.send(f"q{number}", *[b"x"] * 10)
        await client.receive(f"q{number}", 4)


async def test_a_checkpoint_that_is_asked_for_is_written_and_restores_the_index(rig: ServerRig) -> None:
    await some_queues(rig)

    rig.server.checkpoints.want()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    broker = await recovered(rig)
    for number in range(5):
        assert broker.queue_info("admin", f"q{number}").counts == rig.broker.queue_info("admin", f"q{number}").counts


async def test_what_happens_between_two_parts_of_a_checkpoint_is_neither_lost_nor_done_twice(rig: ServerRig) -> None:
    client = await rig.client()
    for number in range(3):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
    # No commit ends while the parts are made, so that parts and records could share rows.
    rig.log.hold()
    parts = rig.broker.checkpoint(rig.log.close_row, rig.clock.now_ms())
    for part in parts:
        rig.log.write_checkpoint(part)
        for number in range(3):
            client.begin(wire.SendMessages(client.next_id(), f"q{number}", [b"a", b"b"]))
            client.begin(wire.ReceiveMessages(client.next_id(), f"q{number}", 1))
    rig.log.let_go()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    broker = await recovered(rig)
    for number in range(3):
        assert broker.queue_info("admin", f"q{number}").counts == rig.broker.queue_info("admin", f"q{number}").counts


async def test_a_queue_deleted_while_a_checkpoint_is_written_stays_deleted(rig: ServerRig) -> None:
    client = await rig.client()
    for number in range(2):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
    parts = rig.broker.checkpoint(rig.log.close_row, rig.clock.now_ms())
    rig.log.write_checkpoint(next(parts))
    rig.log.write_checkpoint(next(parts))

    await client.send("q1", b"x")
    await client.expect(wire.Done, wire.DeleteQueue, "q1")
    for part in parts:
        rig.log.write_checkpoint(part)
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    broker = await recovered(rig)
    assert broker.list_queues("admin", "", 0, 10)[0] == 1


async def test_one_asked_for_while_another_is_written_follows_it(rig: ServerRig) -> None:
    await some_queues(rig, 2)

    rig.server.checkpoints.want()
    rig.server.checkpoints.want()
    await rig.turn(60)

    assert len(rig.log.disk.checkpoints) == 2


async def test_a_checkpoint_goes_on_slowly_while_the_storage_is_behind(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path, busy_pending_bytes=65_536)
    await some_queues(rig, 3)
    client = await rig.client()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "q0", [bytes(60_000)]))

    rig.server.checkpoints.want()
    await eventually(lambda: "writing=False" in repr(rig.server.checkpoints))
    rig.log.let_go()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    rig.close()


def is_kept(_segment: SegmentReport) -> bool:
    return False


class Clock:
    """A clock that every look moves on by a quarter of a slice."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += SLICE_S / 4
        return self.seconds


async def test_slices_are_followed_by_pauses_but_not_in_the_last_checkpoint() -> None:
    log = MemoryLog()
    await log.open()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    def begin() -> Iterator[AnyPart]:
        yield CheckpointHeader(0, 0, 1, 1, 1)
        yield from [SessionsSlice(0, [])] * 10
        yield CheckpointEnd(0, 11)

    broker = Broker(KEY)
    changes = SegmentChanges(
        log=log,
        live_in=broker.live_in,
        there_in=broker.there_in,
        moves_of=broker.moves_of,
        is_kept=is_kept,
        timer=lambda: 0.0,
        sleep=sleep,
    )
    checkpoints = Checkpoints(
        loop=asyncio.get_running_loop(),
        log=log,
        begin=begin,
        is_behind=lambda: False,
        timer=Clock(),
        sleep=sleep,
        changes=changes,
    )
    checkpoints.want()
    await eventually(lambda: log.disk.checkpoints)
    in_turns = pauses[:]
    pauses.clear()

    await checkpoints.write_final()

    assert in_turns == [PAUSE_S, PAUSE_S, PAUSE_S]
    assert pauses == [0, 0, 0]


async def test_a_failed_storage_ends_the_final_checkpoint_with_its_error(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    await some_queues(rig, 2)
    rig.log.fail(LogFailed("fsync: I/O error"))
    await rig.turn()

    with pytest.raises(LogFailed, match="I/O error"):
        await rig.server.checkpoints.write_final()


async def test_the_final_checkpoint_is_the_last(rig: ServerRig) -> None:
    await some_queues(rig, 2)
    rig.server.checkpoints.want()

    await rig.server.checkpoints.write_final()
    rig.server.checkpoints.want()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 2


async def test_a_segment_stays_while_the_delete_that_emptied_it_waits_for_its_commit(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "q", {})
    await client.send("q", b"x")
    (message,) = await client.receive("q")
    rig.log.disk.segments = [segment_report(1, 1, 1, [(rig.broker.facts.queues.find("admin", "q").queue_id, 0, 1)])]
    for _ in range(2):
        rig.server.checkpoints.want()
        await rig.turn(60)
    rig.log.hold()

    client.begin(wire.DeleteMessages(client.next_id(), "q", [message.receipt_handle]))
    rig.server.io_batch.end()
    rig.server.reclaim.scan()
    for _ in range(30):  # rig.turn would wait for the drop
        await asyncio.sleep(0)
    assert rig.log.durable_lsn < rig.log.last_lsn
    assert [segment.number for segment in rig.log.disk.segments] == [1]

    rig.log.let_go()
    await rig.turn(30)
    assert rig.log.disk.segments == []
    rig.close()


async def test_a_drain_does_not_wait_for_a_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage gives the blocks of a large segment back in steps, and ends the drop itself at its close."""
    rig = await ServerRig.make(tmp_path)
    await some_queues(rig, 1)
    for _ in range(2):
        rig.server.checkpoints.want()
        await rig.turn(60)
    rig.log.disk.segments = [segment_report(1, 1, 1, [])]
    asked = asyncio.Event()

    async def drop_for_ever(_numbers: object, _min_lsn: int) -> list[int]:
        asked.set()
        return await asyncio.Future()

    monkeypatch.setattr(rig.log, "drop_segments", drop_for_ever)
    rig.server.reclaim.scan()
    await asked.wait()
    assert len(rig.server.tasks)

    rig.server.reclaim.stop()

    await eventually(lambda: not len(rig.server.tasks))
    rig.close()


async def test_a_segment_goes_when_nothing_in_it_lives_and_a_checkpoint_covers_it(tmp_path: Path) -> None:
    rig = await ServerRig.make(tmp_path)
    client = await rig.client()
    for name in ("dead", "alive"):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        await client.send(name, b"x")
    for message in await client.receive("dead"):
        await client.expect(wire.HandlesDone, wire.DeleteMessages, "dead", [message.receipt_handle])
    queue_ids = {name: rig.broker.facts.queues.find("admin", name).queue_id for name in ("dead", "alive")}
    rig.log.disk.segments = [
        segment_report(1, 1, 1, [(queue_ids["dead"], 0, 1)]),
        segment_report(2, 2, 2, [(queue_ids["dead"], 0, 1), (queue_ids["alive"], 0, 1)]),
        segment_report(3, 3, 3, [(999, 0, 50)]),
        segment_report(4, 1_000, 1_000, [(queue_ids["dead"], 0, 1)]),
    ]
    rig.server.reclaim.scan()
    await rig.turn(20)
    assert [segment.number for segment in rig.log.closed_segments()] == [1, 2, 3, 4], "no checkpoint covers them"

    rig.server.checkpoints.want()
    await rig.turn(60)

    assert [segment.number for segment in rig.log.closed_segments()] == [2, 4]
    rig.close()


KEPT_MS = 60_000


async def kept_rig(tmp_path: Path) -> tuple[ServerRig, dict[str, int]]:
    """A broker that keeps history, with complete checkpoints, and queues, the first of them consumed."""
    rig = await ServerRig.make(tmp_path, keep_history_ms=KEPT_MS)
    client = await rig.client()
    for name in ("dead", "alive"):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        await client.send(name, b"x")
    for message in await client.receive("dead"):
        await client.expect(wire.HandlesDone, wire.DeleteMessages, "dead", [message.receipt_handle])
    for _ in range(2):
        rig.server.checkpoints.want()
        await rig.turn(60)
    return rig, {name: rig.broker.facts.queues.find("admin", name).queue_id for name in ("dead", "alive")}


async def look(rig: ServerRig) -> list[int]:
    """Have the segments examined; the numbers of the segments that stay."""
    rig.server.reclaim.scan()
    await rig.turn(20)
    return [segment.number for segment in rig.log.closed_segments()]


async def test_history_is_kept_until_so_long_after_the_last_row_of_its_segment(tmp_path: Path) -> None:
    rig, queue_ids = await kept_rig(tmp_path)
    now_ms = rig.clock.now_ms()
    rig.log.disk.segments = [
        segment_report(1, 1, 1, [(999, 0, 1)], 1, 100, last_ms=now_ms - KEPT_MS),
        segment_report(2, 2, 2, [(999, 1, 2)], 1, 200, last_ms=now_ms - KEPT_MS + 1),
        segment_report(3, 3, 3, [(queue_ids["alive"], 0, 1)], 1, 400, last_ms=now_ms),
        segment_report(4, 4, 4, [], 0, 800, last_ms=now_ms),
        segment_report(5, 1_000, 1_000, [(999, 2, 3)], 1, 1_600, last_ms=now_ms),
    ]
    rig.log.disk.messages[999] = dict.fromkeys(range(3), StoredMessage(0, 0, 0, b""))

    assert await look(rig) == [2, 3, 4, 5]
    assert (await status(rig))["history_bytes"] == 200 + 800, "neither what is live nor what no checkpoint covers"

    rig.clock.advance(1)
    assert await look(rig) == [3, 4, 5]
    rig.clock.advance(KEPT_MS - 2)
    assert await look(rig) == [3, 4, 5]
    rig.clock.advance(1)
    assert await look(rig) == [3, 5]
    assert (await status(rig))["history_bytes"] == 0
    rig.close()


async def status(rig: ServerRig) -> dict[str, Any]:
    client = await rig.client()
    return (await client.expect(wire.ServerStatus, wire.GetServerStatus)).status


async def test_segments_whose_time_is_not_over_are_looked_through_once(tmp_path: Path) -> None:
    rig, queue_ids = await kept_rig(tmp_path)
    asked: list[int] = []
    reclaim = rig.server.reclaim
    live_in = reclaim.live_in

    def counting(queue_id: int, first: int, stop: int) -> int:
        asked.append(queue_id)
        return live_in(queue_id, first, stop)

    reclaim.live_in = counting
    rig.log.disk.segments = [segment_report(1, 1, 1, [(queue_ids["dead"], 0, 1)], last_ms=rig.clock.now_ms())]

    for _ in range(3):
        assert await look(rig) == [1]
    assert asked == [queue_ids["dead"]]

    rig.clock.advance(KEPT_MS)
    assert await look(rig) == []
    assert asked == [queue_ids["dead"]] * 2, "before it goes it is looked through again"
    rig.close()


async def test_without_keeping_history_a_dead_segment_goes_at_once(tmp_path: Path) -> None:
    rig, queue_ids = await kept_rig(tmp_path)
    reclaim = rig.server.reclaim
    reclaim.keep_history_ms = 0
    rig.log.disk.segments = [segment_report(1, 1, 1, [(queue_ids["dead"], 0, 1)], last_ms=rig.clock.now_ms())]

    assert await look(rig) == []
    rig.close()


async def test_history_gives_way_to_new_messages_the_oldest_first(tmp_path: Path) -> None:
    rig, queue_ids = await kept_rig(tmp_path)
    now_ms = rig.clock.now_ms()
    rig.log.disk.segments = [
        segment_report(1, 1, 1, [(queue_ids["alive"], 0, 1)], last_ms=now_ms),
        *(segment_report(number, 2, 2, [(queue_ids["dead"], 0, 1)], last_ms=now_ms) for number in (2, 3, 4)),
    ]

    def left(free_bytes: int, is_short: bool) -> None:
        rig.log.report_state(LogState(False, "", free_bytes, 4, 1, is_short=is_short))

    left(12, True)
    await rig.turn(20)
    assert [segment.number for segment in rig.log.closed_segments()] == [1, 3, 4]
    assert await look(rig) == [1, 4]

    left(1 << 30, False)
    await rig.turn(20)
    assert await look(rig) == [1, 4], "there is room again"

    left(12, True)
    await rig.turn(20)
    left(13, True)
    await rig.turn(20)
    assert await look(rig) == [1], "what is live stays"
    rig.close()
