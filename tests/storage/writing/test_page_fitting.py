"""The prepared segment gets the pages that the rows of the active segment want, while rows come in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cmqd.log.values import Durability
from cmqd.storage import open_log
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.segments.page_size import LEAST_COMMITS, SAMPLE_BYTES
from cmqd.storage.segments.segment import LogRow, WritableSegment
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.rows import NO_QUEUES
from cmqd_segment.schema import LARGE_PAGE_BYTES, LARGEST_PAGE_BYTES, PAGE_BYTES
from support.eventually import eventually
from support.storage.damage import kinds
from support.storage.full_disk import Broker, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import NOW_MS, InProcess, LogRig, body, settings_for

BODY = 64 * 1024
MIB = 1024 * 1024


def active(broker: Broker) -> WritableSegment:
    return broker.process.service.log.writer.active


def prepared_pages(broker: Broker) -> int:
    prepared = broker.process.service.log.writer.prepared
    return 0 if prepared is None else prepared.page_bytes


async def fill(broker: Broker, size: int, total: int) -> None:
    """Commit messages of a size, up to a total."""
    for _ in range(total // size):
        await broker.rig.store(1, broker.rig.log.last_lsn, 1, size)


@pytest.mark.parametrize(("size", "pages"), [(BODY, LARGE_PAGE_BYTES), (MIB, LARGEST_PAGE_BYTES)])
async def test_large_bodies_soon_go_into_large_pages(start: StartBroker, folder: Path, size: int, pages: int) -> None:
    broker = await start(durability=Durability.OS)
    await fill(broker, size, SAMPLE_BYTES)

    await eventually(lambda: active(broker).page_bytes == pages == prepared_pages(broker))
    await fill(broker, size, 2 * size)

    count = broker.rig.log.last_lsn
    messages, missing = await broker.rig.page(1, [0, count], 1 << 30)
    assert missing == []
    assert [message.body for message in messages] == [body(1, position, size) for position in range(count)]
    # The segment that was replaced has left neither a file nor an entry.
    files = {int(path.stem) for path in (folder / "segments").glob("*.db")}
    assert files == {segment.number for segment in broker.process.service.log.catalog.segments()}


async def test_small_commits_get_small_pages_again(start: StartBroker) -> None:
    """The active segment stays: its end would cost a file and a seal, and small commits fill its pages soon."""
    broker = await start(durability=Durability.OS)
    await fill(broker, MIB, SAMPLE_BYTES)
    await eventually(lambda: active(broker).page_bytes == LARGEST_PAGE_BYTES == prepared_pages(broker))
    number = active(broker).number

    await fill(broker, 100, 100 * LEAST_COMMITS)

    await eventually(lambda: prepared_pages(broker) == PAGE_BYTES)
    assert active(broker).number == number


async def test_a_disk_that_is_nearly_full_gets_no_large_pages(start: StartBroker) -> None:
    broker = await start(durability=Durability.OS)
    space = broker.process.service.log.space
    await fill(broker, MIB, SAMPLE_BYTES // 2)
    broker.disk.free = int(1.1 * space.mark_bytes()) + 4 * SAMPLE_BYTES
    while not space.is_short:
        broker.disk.free -= MIB
        space.measure()

    await fill(broker, MIB, SAMPLE_BYTES // 2)

    assert not broker.process.service.log.page_fitting.is_due()
    await broker.rig.log.seal_now()
    await eventually(lambda: prepared_pages(broker) == PAGE_BYTES)


async def test_a_crash_while_a_segment_is_replaced_is_no_damage(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of the folder before the replaced segment is closed, before its files are removed, and behind that."""
    copies: list[Path] = []
    broker = await start(durability=Durability.OS)
    log = broker.process.service.log

    def take(name: str) -> None:
        copy = copy_as_killed(folder, tmp_path / name)
        entries = {entry.number: entry.state for entry in read_manifest(copy).segments}
        assert entries[2] is SegmentState.PREPARING
        copies.append(copy)

    async def forget(number: int) -> None:
        if number == 2 and not copies:
            take("closing")
        await original_forget(number)

    def remove(path: Path) -> None:
        is_replaced = path == log.catalog.segment_path(2)
        if is_replaced:
            take("removing")
        remove_segment(path)
        if is_replaced:
            take("removed")

    original_forget = log.pager.forget
    remove_segment = open_log.remove_segment
    monkeypatch.setattr(log.pager, "forget", forget)
    monkeypatch.setattr(open_log, "remove_segment", remove)

    await fill(broker, MIB, SAMPLE_BYTES)
    await eventually(lambda: active(broker).page_bytes == LARGEST_PAGE_BYTES)

    assert [copy.name for copy in copies] == ["closing", "removing", "removed"]
    for copy in copies:
        process = InProcess()
        copied = StorageProcessLog(settings_for(copy), process.start)
        again = LogRig(copied)
        await again.open()
        assert kinds(again) == ["unclean_stop"]
        assert [lsn for lsn, _, _ in again.rows] == [1, 2, 3, 4]
        await copied.kill()
        assert process.task is not None
        await process.task


@pytest.mark.parametrize("page_bytes", [PAGE_BYTES, LARGE_PAGE_BYTES, LARGEST_PAGE_BYTES])
async def test_the_estimate_of_small_commits_is_not_below_their_growth(start: StartBroker, page_bytes: int) -> None:
    broker = await start(durability=Durability.OS)
    log = broker.process.service.log
    log.writer.prepared = await log._prepare(page_bytes)  # pyright: ignore[reportPrivateUsage]
    await fill(broker, 40, 40)
    await log.writer.roll()
    segment, growth = active(broker), log.writer._growth  # pyright: ignore[reportPrivateUsage]
    assert segment.page_bytes == page_bytes
    grown = segment.wal_bytes

    for lsn in range(2, 200):
        growth.estimated = 0
        log.writer.make_durable([LogRow(lsn, NOW_MS, 0, NO_QUEUES, b"twelve bytes", b"1234" * lsn)])
        before, grown = grown, segment.wal_bytes
        assert growth.estimated >= grown - before > 0


async def test_a_segment_that_is_not_listed_yet_is_closed_if_its_preparation_ends(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of the catalog are closed at the end of the process; this segment is not among them."""
    broker = await start(durability=Durability.OS)
    log = broker.process.service.log
    created: list[WritableSegment] = []
    create_segment = open_log.create_segment

    async def create(*arguments: Any) -> WritableSegment:
        created.append(await create_segment(*arguments))
        preparation.cancel()
        return created[0]

    monkeypatch.setattr(open_log, "create_segment", create)
    preparation = asyncio.ensure_future(log._prepare(PAGE_BYTES))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(asyncio.CancelledError):
        await preparation

    assert created[0].number not in log.catalog.open
    with pytest.raises(ValueError, match="the connection is closed"):
        await created[0].connection.run(int)
