"""A full disk loses no message, refuses sends while full, and recovers without help."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.log.values import Durability
from cmqd.storage.folder.data_folder import Disk
from cmqd.storage.folder.disk_space import SEAL_MARGIN_BYTES
from cmqd.storage.writing.sealer import Sealer
from cmqd_segment.manifest import SegmentState
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.storage.full_disk import GIBIBYTE, StartBroker
from support.storage.log_rig import NOW_MS, deleted


class SmallDisk(Disk):
    """A disk of a few MiB with the data folder alone. Notes its greatest use."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self.folder = folder
        self.size = GIBIBYTE
        self.least = GIBIBYTE

    def free_bytes(self) -> int:
        used = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                used += path.stat().st_blocks * 512
        free = self.size - used
        self.least = min(self.least, free)
        return free


@pytest.mark.parametrize("size", [40, 2050, 57_000], ids=["small", "above half a page", "large"])
async def test_a_seal_begins_only_with_room_for_all_its_pages(start: StartBroker, size: int) -> None:
    """A copy that ends half-way leaves the disk full: the main file keeps its length, and the WAL too."""
    broker = await start()
    for position in range(60):
        await broker.rig.store(1, position, 1, size)
    log = broker.process.service.log
    segment = log.writer.active
    with contextlib.closing(open_read_only(segment.path, sealed=False)) as raw:
        ((pages,),) = raw.execute("PRAGMA page_count").fetchall()
        ((page_bytes,),) = raw.execute("PRAGMA page_size").fetchall()
    growth = pages * page_bytes - segment.path.stat().st_size
    assert growth > 0

    broker.disk.free = growth + SEAL_MARGIN_BYTES - 1
    assert not log.space.can_seal(segment)
    broker.disk.free += 1
    assert log.space.can_seal(segment)


async def test_room_is_said_to_be_short_before_sends_are_refused(start: StartBroker) -> None:
    broker = await start()
    mark = broker.process.service.log.space.mark_bytes()

    broker.disk.free = mark + mark // 8
    await broker.rig.until(lambda: bool(broker.rig.states) and broker.rig.states[-1].is_short)
    assert not broker.refused

    broker.disk.free = mark // 2
    await broker.rig.until(lambda: broker.refused)
    assert broker.rig.states[-1].is_short

    broker.disk.free = GIBIBYTE
    await broker.rig.until(lambda: not broker.rig.states[-1].is_short)
    assert not broker.refused


async def test_a_batch_that_meets_a_full_disk_is_kept_and_becomes_durable_when_there_is_room(
    start: StartBroker, folder: Path
) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    assert (folder / "ballast").exists()
    await broker.limit_pages(0)
    broker.disk.free = 0

    await rig.until(lambda: broker.refused)
    assert "0 bytes free" in rig.states[-1].reason

    rig.send(1, 1, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: "disk is full" in rig.states[-1].reason)

    assert broker.refused
    assert not (folder / "ballast").exists(), "the ballast is given back, so that deletes have room"
    assert rig.log.durable_lsn == 1
    assert rig.fatal == []

    await broker.limit_pages(1000)
    await rig.until(lambda: rig.log.durable_lsn == 2)
    assert broker.refused, "there is room for the batch, not yet for more"

    broker.disk.free = GIBIBYTE
    await rig.until(lambda: not broker.refused)
    assert (folder / "ballast").exists()
    assert len((await rig.page(1, [0, 51]))[0]) == 51


async def test_on_a_full_disk_pages_can_still_be_read(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 10)
    await broker.limit_pages(0)
    broker.disk.free = 0
    rig.send(1, 10, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: broker.refused)

    assert len((await rig.page(1, [0, 10]))[0]) == 10

    await broker.limit_pages(1000)
    await rig.until(lambda: rig.log.durable_lsn == 2)


async def test_sends_are_refused_below_the_mark_and_taken_again_above_it(start: StartBroker) -> None:
    broker = await start(min_free_bytes=10_000_000)
    rig = broker.rig
    await rig.store(1, 0, 1)

    broker.disk.free = 5_000_000
    await rig.until(lambda: broker.refused)
    assert "5000000 bytes free" in rig.states[-1].reason
    await rig.store(1, 1, 1)

    broker.disk.free = GIBIBYTE
    await rig.until(lambda: not broker.refused)


async def test_a_fast_writer_is_stopped_at_the_mark_between_two_ticks(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    service = broker.process.service
    # The tick in progress is the last.
    service.log.settings = structs.replace(service.log.settings, state_interval_ms=3_600_000)
    ticked = asyncio.Event()
    monkeypatch.setattr(service.log.writer, "tick", ticked.set)
    await ticked.wait()
    disk = service.log.disk
    assert isinstance(disk, SmallDisk)
    disk.size = GIBIBYTE - disk.free_bytes() + (24 << 20)
    service.log.space.measure()

    position = 0
    while not broker.refused and position < 300:
        await rig.store(1, position, 1, 100_000)
        position += 1

    assert service.log.space.mark_bytes() - disk.free_bytes() < 4 << 20


async def test_the_mark_grows_with_what_sealing_and_deletes_will_need(start: StartBroker) -> None:
    broker = await start(min_free_bytes=0)
    space = broker.process.service.log.space
    empty = space.mark_bytes()

    await broker.rig.store(1, 0, 100, 1000)

    assert space.mark_bytes() >= empty + 100 * 1000


async def test_consumers_that_delete_one_by_one_empty_a_nearly_full_disk(start: StartBroker) -> None:
    """Every commit takes two pages of WAL, which would fill the disk long before the segment's usual end."""
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    service = broker.process.service
    disk = service.log.disk
    assert isinstance(disk, SmallDisk)
    await rig.store(1, 0, 2000, 1000)
    disk.size = GIBIBYTE - disk.free_bytes() + (8 << 20)
    await rig.until(lambda: broker.refused)
    disk.least = GIBIBYTE

    written = 0
    for position in range(2000):
        active, before = service.log.writer.active, service.log.writer.active.wal_bytes
        rig.log.append([deleted(1, position, 1)], (), NOW_MS)
        await rig.commit()
        if service.log.writer.active is active:
            written += active.wal_bytes - before
        else:
            # The next delete waits for the seal: how much WAL the deletes write meanwhile would depend on the machine.
            await service.log._rolled()  # pyright: ignore[reportPrivateUsage]
            service.log.sealer.seal_held()
            await service.log.sealer.drained()
        if position % 16 == 0:
            disk.free_bytes()

    assert written > 7 << 20
    assert disk.least > 2 << 20
    assert 3 <= service.log.catalog.next_number < 20, "neither one large segment nor one for every commit"
    await rig.log.seal_now()
    assert disk.free_bytes() > 4 << 20


async def test_segments_do_not_end_early_while_a_seal_is_held_up(start: StartBroker, folder: Path) -> None:
    """Every such segment would cost a file and a thread without a gain of room."""
    broker = await start(SmallDisk, min_free_bytes=4 << 20, durability=Durability.OS)
    rig = broker.rig
    await rig.store(1, 0, 1)
    reader = open_read_only(folder / "segments" / "00000001.db", sealed=False)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        disk = broker.process.service.log.disk
        assert isinstance(disk, SmallDisk)
        disk.size = GIBIBYTE - disk.free_bytes() + (5 << 20)
        await rig.until(lambda: broker.refused)
        for position in range(40):
            await rig.store(1, 1 + position, 100, 1000)

        def numbers() -> list[int]:
            return [entry.number for entry in broker.process.service.log.catalog.segments()]

        await rig.until(lambda: len(numbers()) >= 3)
        for position in range(40):
            await rig.store(1, 5_000 + position, 100, 1000)
        assert numbers() == [1, 2, 3]
    finally:
        reader.close()


async def test_a_full_disk_gets_the_wal_of_the_active_segment_back(start: StartBroker) -> None:
    broker = await start(min_free_bytes=0)
    rig = broker.rig
    for position in range(300):
        await rig.store(1, position, 1)
    await broker.limit_pages(0)
    broker.disk.free = 4 << 20  # the ballast
    first = broker.process.service.log.writer.active

    for position in range(300, 320):
        rig.send(1, position, 1, 10_000)
    rig.log.flush()
    await rig.commit()

    assert broker.process.service.log.writer.active is not first
    assert len((await rig.page(1, [0, 320]))[0]) == 320


async def test_a_segment_too_large_for_the_room_left_holds_up_no_other_seal_and_can_be_dropped(
    start: StartBroker, folder: Path
) -> None:
    broker = await start(min_free_bytes=0)
    rig = broker.rig
    service = broker.process.service
    for position in range(40):
        await rig.store(1, position, 1, 60_000)
    large = service.log.writer.active
    broker.disk.free = (1 << 20) + (512 << 10)  # less than the large segment, enough for a small segment
    service.log.space.found_no_room()

    service.log.writer.tick()
    await rig.until(lambda: rig.checkpoints_wanted)
    await service.log._rolled()  # pyright: ignore[reportPrivateUsage]
    assert service.log.writer.active is not large, "its successor is small, so that seals give back more than they take"
    rig.log.append([deleted(1, 0, 40)], (), NOW_MS)
    await rig.commit()
    await service.log.writer.roll()
    await eventually(lambda: large.number + 1 in service.log.catalog.sealed)
    assert service.log.catalog.open[large.number].state is SegmentState.RETIRED

    await rig.checkpoint()
    await rig.checkpoint()
    assert await rig.log.drop_segments([large.number], 0) == [large.number]
    assert not (folder / "segments" / "00000001.db-wal").exists()


@pytest.mark.parametrize("turns", range(4))
async def test_a_sealer_without_room_ends_although_a_segment_is_submitted_at_that_moment(
    start: StartBroker, turns: int
) -> None:
    broker = await start()
    log = broker.process.service.log
    active = log.writer.active
    sealer = Sealer(
        log.catalog,
        log.pager,
        log.sides,
        lambda _file: None,
        lambda _segment: False,
        lambda _wanted: None,
        lambda: False,
    )
    sealer.submit(active)
    sealing = asyncio.create_task(sealer.run())
    for _ in range(10):
        await asyncio.sleep(0)

    sealer.submit(active)
    for _ in range(turns):
        await asyncio.sleep(0)
    sealing.cancel()
    for _ in range(10):
        await asyncio.sleep(0)

    assert sealing.cancelled()
