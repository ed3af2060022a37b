"""Checkpoints written in slices, restarts from them, and segments dropped behind them."""

import asyncio
from pathlib import Path

import pytest

from cmqd.core.broker import Broker
from cmqd.storage.errors import StorageFailed
from cmqd.storage.log import ClosedSegment
from cmqd.storage.memory import MemoryLog
from cmqd_protocol import messages as wire
from support.edge_rig import EdgeRig
from support.eventually import eventually


async def recovered(rig: EdgeRig) -> Broker:
    """What a restart would find, as the daemon finds it."""
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
    broker.check_invariants()
    return broker


async def some_queues(rig: EdgeRig, count: int = 5) -> None:
    client = await rig.client()
    for number in range(count):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
        await client.send(f"q{number}", *[b"x"] * 10)
        await client.receive(f"q{number}", 4)


async def test_a_checkpoint_that_is_asked_for_is_written_and_restores_the_index(rig: EdgeRig) -> None:
    await some_queues(rig)

    rig.edge.checkpoints.want()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    broker = await recovered(rig)
    for number in range(5):
        assert broker.queue_info("admin", f"q{number}").counts == rig.broker.queue_info("admin", f"q{number}").counts


async def test_what_happens_between_two_parts_of_a_checkpoint_is_neither_lost_nor_done_twice(rig: EdgeRig) -> None:
    client = await rig.client()
    for number in range(3):
        await client.expect(wire.QueueInfo, wire.CreateQueue, f"q{number}", {})
    # No commit ends while the parts are made, so that parts and records would share rows if they could.
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


async def test_a_queue_deleted_while_a_checkpoint_is_written_stays_deleted(rig: EdgeRig) -> None:
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


async def test_one_asked_for_while_another_is_written_follows_it(rig: EdgeRig) -> None:
    await some_queues(rig, 2)

    rig.edge.checkpoints.want()
    rig.edge.checkpoints.want()
    await rig.turn(60)

    assert len(rig.log.disk.checkpoints) == 2


async def test_a_checkpoint_goes_on_slowly_while_the_storage_is_behind(tmp_path: Path) -> None:
    rig = await EdgeRig.make(tmp_path, busy_pending_bytes=65_536)
    await some_queues(rig, 3)
    client = await rig.client()
    rig.log.hold()
    client.begin(wire.SendMessages(client.next_id(), "q0", [bytes(60_000)]))

    rig.edge.checkpoints.want()
    await eventually(lambda: "writing=False" in repr(rig.edge.checkpoints))
    rig.log.let_go()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 1
    rig.close()


async def test_a_failed_storage_ends_the_final_checkpoint_with_its_error(tmp_path: Path) -> None:
    rig = await EdgeRig.make(tmp_path)
    await some_queues(rig, 2)
    rig.log.fail(StorageFailed("fsync: I/O error"))
    await rig.turn()

    with pytest.raises(StorageFailed, match="I/O error"):
        await asyncio.wait_for(rig.edge.checkpoints.write_final(), 5)


async def test_the_final_checkpoint_is_the_last(rig: EdgeRig) -> None:
    await some_queues(rig, 2)
    rig.edge.checkpoints.want()

    await asyncio.wait_for(rig.edge.checkpoints.write_final(), 5)
    rig.edge.checkpoints.want()
    await rig.turn(30)

    assert len(rig.log.disk.checkpoints) == 2


async def test_a_segment_stays_while_the_delete_that_emptied_it_waits_for_its_commit(tmp_path: Path) -> None:
    rig = await EdgeRig.make(tmp_path)
    client = await rig.client()
    await client.expect(wire.QueueInfo, wire.CreateQueue, "q", {})
    await client.send("q", b"x")
    (message,) = await client.receive("q")
    rig.log.disk.segments = [ClosedSegment(1, 1, 1, [(rig.broker.queue("admin", "q").queue_id, 0, 1)])]
    for _ in range(2):
        rig.edge.checkpoints.want()
        await rig.turn(60)
    rig.log.hold()

    client.begin(wire.DeleteMessages(client.next_id(), "q", [message.receipt_handle]))
    rig.edge.wakeup.end()
    rig.edge.checkpoints.reclaim()
    for _ in range(30):  # rig.turn would wait for the drop
        await asyncio.sleep(0)
    assert rig.log.durable_lsn < rig.log.last_lsn
    assert [segment.number for segment in rig.log.disk.segments] == [1]

    rig.log.let_go()
    await rig.turn(30)
    assert rig.log.disk.segments == []
    rig.close()


async def test_a_segment_goes_when_nothing_in_it_lives_and_a_checkpoint_covers_it(tmp_path: Path) -> None:
    rig = await EdgeRig.make(tmp_path)
    client = await rig.client()
    for name in ("dead", "alive"):
        await client.expect(wire.QueueInfo, wire.CreateQueue, name, {})
        await client.send(name, b"x")
    for message in await client.receive("dead"):
        await client.expect(wire.HandlesDone, wire.DeleteMessages, "dead", [message.receipt_handle])
    queue_ids = {name: rig.broker.queue("admin", name).queue_id for name in ("dead", "alive")}
    rig.log.disk.segments = [
        ClosedSegment(1, 1, 1, [(queue_ids["dead"], 0, 1)]),
        ClosedSegment(2, 2, 2, [(queue_ids["dead"], 0, 1), (queue_ids["alive"], 0, 1)]),
        ClosedSegment(3, 3, 3, [(999, 0, 50)]),
        ClosedSegment(4, 1_000, 1_000, [(queue_ids["dead"], 0, 1)]),
    ]
    rig.edge.checkpoints.reclaim()
    await rig.turn(20)
    assert [segment.number for segment in rig.log.closed_segments()] == [1, 2, 3, 4], "no checkpoint covers them"

    rig.edge.checkpoints.want()
    await rig.turn(60)

    assert [segment.number for segment in rig.log.closed_segments()] == [2, 4]
    rig.close()
