"""The prepared segment gets the WAL of a dropped segment: conditions, and crashes at every step."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cmqd.log.values import Durability
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.segments import segment, used_wal
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.segments.used_wal import MARK
from cmqd.storage.writing import page_fitting
from cmqd.storage.writing.wal_filling import LEAST_BYTES
from cmqd_segment.schema import LARGEST_PAGE_BYTES
from support.eventually import eventually
from support.storage.damage import in_another_boot, kinds
from support.storage.full_disk import Broker, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import InProcess, LogRig, body, settings_for

MIB = 1024 * 1024
LARGE_MESSAGES = LEAST_BYTES // MIB + 1


def active(broker: Broker) -> WritableSegment:
    return broker.process.service.log.writer.active


def prepared(broker: Broker) -> WritableSegment:
    found = broker.process.service.log.writer.prepared
    assert found is not None
    return found


async def roll(broker: Broker) -> None:
    await broker.process.service.log.begin_segment()


async def store(broker: Broker, count: int) -> None:
    for _ in range(count):
        await broker.rig.store(1, broker.rig.log.last_lsn, 1, MIB)


async def retire_a_large_segment(start: StartBroker, **settings: object) -> tuple[Broker, int]:
    """Retire a segment with a WAL of more than the least size, which checkpoints cover; return its number."""
    broker = await start(**settings)
    await store(broker, 5)
    await eventually(lambda: active(broker).page_bytes == LARGEST_PAGE_BYTES)
    number = active(broker).number
    await store(broker, LARGE_MESSAGES)
    await roll(broker)
    assert active(broker).number != number
    await broker.rig.checkpoint()
    await broker.rig.checkpoint()
    return broker, number


async def reopened(copy: Path) -> list[int]:
    """Open a copy of the folder; return the LSNs above the checkpoint, all of whose messages can be read."""
    process = InProcess()
    log = StorageProcessLog(settings_for(copy), process.start)
    again = LogRig(log)
    await again.open()
    assert kinds(again) == ["unclean_stop"]
    lsns = [lsn for lsn, _, _ in again.rows]
    for lsn in lsns:
        ((message,), missing) = await again.page(1, [lsn - 1, 1], 2 * MIB)
        assert (message.body, missing) == (body(1, lsn - 1, len(message.body)), [])
    await log.kill()
    assert process.task is not None
    await process.task
    return lsns


async def test_the_next_segment_begins_in_the_wal_of_a_dropped_one(start: StartBroker, folder: Path) -> None:
    broker, number = await retire_a_large_segment(start)
    wal = folder / "segments" / f"{number:08}.db-wal"
    size = wal.stat().st_size

    assert await broker.rig.log.drop_segments([number], 0) == [number]

    successor = prepared(broker)
    assert successor.filled_bytes == size == successor.wal_path.stat().st_size
    assert successor.wal_path.read_bytes()[: len(MARK)] == MARK
    assert successor.wal_bytes == 0
    assert successor.page_bytes == LARGEST_PAGE_BYTES
    files = {int(path.name[:8]) for path in (folder / "segments").glob("*")}
    assert files == {segment.number for segment in broker.process.service.log.catalog.segments()}

    await store(broker, 1)
    await roll(broker)
    assert active(broker) is successor
    first = broker.rig.log.last_lsn
    await store(broker, LARGE_MESSAGES + 3)
    assert successor.wal_bytes > size, "more rows than the segment before had"
    last = broker.rig.log.last_lsn
    messages, missing = await broker.rig.page(1, [first, last - first], 1 << 30)
    assert ([message.body for message in messages], missing) == (
        [body(1, position, MIB) for position in range(first, last)],
        [],
    )
    await broker.rig.log.seal_now()
    messages, missing = await broker.rig.page(1, [first, last - first], 1 << 30)
    assert (len(messages), missing) == (last - first, [])


@pytest.mark.parametrize("power_lost", [False, True])
async def test_a_crash_at_any_step_loses_no_row(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, power_lost: bool
) -> None:
    """Copies of the folder around the move of the WAL and its mark, in the manifest, and with rows over the old."""
    broker, number = await retire_a_large_segment(start)
    await store(broker, 1)
    copies: dict[str, Path] = {}

    def take(name: str) -> None:
        copies[name] = copy_as_killed(folder, tmp_path / name)
        if power_lost:
            in_another_boot(copies[name])

    def around(owner: object, name: str) -> None:
        original: Callable[..., object] = getattr(owner, name)

        def call(*arguments: object) -> object:
            take(f"before {name}")
            result = original(*arguments)
            take(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, call)

    around(segment, "take_over")
    around(used_wal, "is_only_descriptor")

    assert await broker.rig.log.drop_segments([number], 0) == [number]

    monkeypatch.undo()
    assert len(copies) == 4
    assert prepared(broker).filled_bytes
    take("prepared")
    last = broker.rig.log.last_lsn
    rows = {name: [last] for name in copies}
    await roll(broker)
    for count in range(1, 4):
        await store(broker, 1)
        name = f"with {count}"
        take(name)
        rows[name] = list(range(last, last + count + 1))
    for name, copy in copies.items():
        assert await reopened(copy) == rows[name], name


async def test_an_old_wal_is_removed_as_before(start: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of an old WAL may have left the memory of the file system."""
    broker, number = await retire_a_large_segment(start)
    monkeypatch.setattr(page_fitting, "CACHED_SECONDS", -1.0)

    assert await broker.rig.log.drop_segments([number], 0) == [number]

    assert prepared(broker).filled_bytes == 0


async def test_a_log_that_is_not_synced_uses_no_wal_again(start: StartBroker) -> None:
    broker, number = await retire_a_large_segment(start, durability=Durability.OS)

    assert await broker.rig.log.drop_segments([number], 0) == [number]

    assert prepared(broker).filled_bytes == 0


async def test_where_room_is_short_the_wal_is_removed(start: StartBroker) -> None:
    broker, number = await retire_a_large_segment(start)
    space = broker.process.service.log.space
    broker.disk.free = int(space.mark_bytes() * 1.1)
    space.measure()
    assert space.is_short

    assert await broker.rig.log.drop_segments([number], 0) == [number]

    assert active(broker).filled_bytes == 0
    found = broker.process.service.log.writer.prepared
    assert found is None or found.filled_bytes == 0
