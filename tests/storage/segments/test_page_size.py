"""The page size of new segments, and segments with large pages: reading, sealing, crashes and damage."""

from pathlib import Path

import pytest

from cmqd.storage.recovery.torn_tail import walk
from cmqd.storage.segments.page_size import LARGE_ROW_BYTES, LARGEST_ROW_BYTES, page_bytes_after
from cmqd.storage.segments.wal_gauge import used_bytes
from cmqd.storage.storage_errors import DamagedError
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.schema import LARGE_PAGE_BYTES, LARGEST_PAGE_BYTES, PAGE_BYTES, open_read_only
from support.storage.damage import crash, flip, in_another_boot, kinds
from support.storage.log_rig import LogRig, OpenProcess, body
from support.storage.wals import HEADER_BYTES

BODY = 64 * 1024
MIB = 1024 * 1024
FRAME = 24 + LARGE_PAGE_BYTES


def file_of(folder: Path, number: int) -> Path:
    return folder / "segments" / f"{number:08}.db"


def page_bytes(folder: Path, number: int) -> int:
    return int.from_bytes(file_of(folder, number).read_bytes()[16:18], "big")


async def with_large_pages(rig: LogRig, folder: Path) -> int:
    """Bring the log to an active segment with large pages; return its number. Positions 0 and 1 are used."""
    for position in range(2):
        await rig.store(1, position, 1, BODY)
        await rig.log.seal_now()
    (active,) = (entry for entry in read_manifest(folder).segments if entry.state is SegmentState.ACTIVE)
    assert page_bytes(folder, active.number) == LARGE_PAGE_BYTES
    return active.number


@pytest.mark.parametrize(
    ("rows", "row_bytes", "pages"),
    [
        (0, 0, PAGE_BYTES),
        (1, LARGE_ROW_BYTES - 1, PAGE_BYTES),
        (1, LARGE_ROW_BYTES, LARGE_PAGE_BYTES),
        (1000, 1000 * LARGE_ROW_BYTES - 1, PAGE_BYTES),
        (1000, 1000 * LARGE_ROW_BYTES, LARGE_PAGE_BYTES),
        (3, 3 * LARGEST_ROW_BYTES - 1, LARGE_PAGE_BYTES),
        (3, 3 * LARGEST_ROW_BYTES, LARGEST_PAGE_BYTES),
        (1_000_000, 300_000_000, PAGE_BYTES),
    ],
)
def test_large_rows_make_large_pages(rows: int, row_bytes: int, pages: int) -> None:
    assert page_bytes_after(rows, row_bytes) == pages


async def test_the_successor_of_a_segment_has_the_pages_for_its_rows(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1, BODY)
    await rig.log.seal_now()
    await rig.store(1, 1, 20, 1000)
    await rig.log.seal_now()
    await rig.store(1, 21, 1, BODY)
    await rig.log.seal_now()

    assert [page_bytes(folder, number) for number in range(1, 6)] == [4096, 4096, 16384, 4096, 16384]
    messages, missing = await rig.page(1, [0, 22])
    assert missing == []
    assert [message.body for message in messages] == [
        body(1, position, 1000 if 0 < position < 21 else BODY) for position in range(22)
    ]


@pytest.mark.parametrize("size", [1000, BODY])
async def test_the_first_segments_of_a_start_have_the_pages_for_the_rows_before(
    open_process: OpenProcess, folder: Path, size: int
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1, size)
    await rig.log.close()

    rig = await open_process()

    first = max(entry.number for entry in read_manifest(folder).segments) - 1
    expected = LARGE_PAGE_BYTES if size == BODY else PAGE_BYTES
    assert [page_bytes(folder, number) for number in (first, first + 1)] == [expected, expected]


async def test_rows_of_large_pages_survive_a_crash_and_a_reader_from_outside_sees_them(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    number = await with_large_pages(rig, folder)
    sizes = [1, 300, 16_000, BODY, 1 << 20]
    for position, size in enumerate(sizes, 2):
        await rig.store(1, position, 1, size)
    reader = open_read_only(file_of(folder, number), sealed=False)
    read = [len(data) for (data,) in reader.execute("SELECT data FROM log ORDER BY lsn")]
    reader.close()
    assert read == sizes
    assert used_bytes(f"{file_of(folder, number)}-wal") % FRAME == HEADER_BYTES
    await crash(rig)

    rig = await open_process()

    assert kinds(rig) == ["unclean_stop"]
    await rig.log.close()
    rig = await open_process()
    assert kinds(rig) == []
    messages, missing = await rig.page(1, [0, 7], 1 << 30)
    assert missing == []
    assert [message.body for message in messages] == [
        body(1, position, size) for position, size in enumerate([BODY, BODY, *sizes])
    ]


async def crashed(open_process: OpenProcess, folder: Path, commits: int) -> Path:
    """Make commits into a segment with large pages and crash; return the WAL."""
    rig = await open_process()
    number = await with_large_pages(rig, folder)
    for position in range(2, 2 + commits):
        await rig.store(1, position, 1, 100)
    await crash(rig)
    return Path(f"{file_of(folder, number)}-wal")


async def test_a_flipped_bit_in_a_wal_of_large_pages_stops_every_start(open_process: OpenProcess, folder: Path) -> None:
    wal = await crashed(open_process, folder, 10)
    flip(wal, HEADER_BYTES + (walk(wal).commits[3] - 1) * FRAME + 1000)

    for _ in range(2):
        with pytest.raises(DamagedError):
            await open_process()


async def test_a_broken_header_of_a_wal_of_large_pages_stops_every_start(
    open_process: OpenProcess, folder: Path
) -> None:
    """The step from frame to frame comes from the database then: by the smaller page size one commit at most would be
    found, and its loss would be taken for a torn commit.
    """
    wal = await crashed(open_process, folder, 10)
    in_another_boot(folder)
    commits = len(walk(wal).commits)
    flip(wal, 20)
    assert len(walk(wal).commits) == commits >= 10

    for _ in range(2):
        with pytest.raises(DamagedError, match=f"{commits} commits beyond it cannot be read"):
            await open_process()


async def test_a_flipped_bit_in_the_last_commit_of_large_pages_is_a_torn_commit(
    open_process: OpenProcess, folder: Path
) -> None:
    wal = await crashed(open_process, folder, 10)
    in_another_boot(folder)
    flip(wal, used_bytes(str(wal)) - 5000)

    rig = await open_process()

    assert kinds(rig) == ["unclean_stop", "torn_tail"]
    assert (await rig.page(1, [0, 11]))[1] == []
