"""WALs filled with zeros ahead of their frames: conditions, sizes, and crashes at every step."""

import asyncio
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from cmqd.log.values import Durability
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.segments import row_inserts, segment
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.segments.wal_gauge import used_bytes
from cmqd.storage.writing import sealer, side_files, wal_filling
from cmqd.storage.writing.wal_filling import (
    CHUNK_BYTES,
    LEAST_BYTES,
    LEAST_COMMITS,
    SMALL_COMMIT_BYTES,
    STEP_BYTES,
    fill,
)
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.scan import verify_side
from cmqd_segment.schema import create_tables, open_read_only
from support.eventually import eventually
from support.storage.damage import in_another_boot
from support.storage.full_disk import GIBIBYTE, Broker, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import InProcess, LogRig, settings_for
from support.storage.wals import FRAME_BYTES, HEADER_BYTES, end_of_frames

SEGMENT_BYTES = 2 * CHUNK_BYTES


def active(broker: Broker) -> WritableSegment:
    return broker.process.service.log.writer.active


def prepared(broker: Broker) -> WritableSegment | None:
    return broker.process.service.log.writer.prepared


async def commits(broker: Broker, count: int, size: int = 40) -> None:
    for _ in range(count):
        await broker.rig.store(1, broker.rig.log.last_lsn, 1, size)


async def until_filled(broker: Broker) -> int:
    """Commit until the active segment has zeros ahead; return the number of messages."""
    while not active(broker).filled_bytes:
        await commits(broker, 1)
    return broker.rig.log.last_lsn


async def until_prepared_is_filled(broker: Broker) -> None:
    """Wait for the fill of the prepared segment."""
    await eventually(lambda: (segment := prepared(broker)) is not None and segment.filled_bytes)


async def ticks(broker: Broker) -> None:
    """Wait until the upkeep has looked three times."""
    log = broker.process.service.log
    measure = log.space.measure
    seen = 0

    def counted() -> None:
        nonlocal seen
        seen += 1
        measure()

    log.space.measure = counted
    await eventually(lambda: seen >= 3)


# When and how much


async def test_small_commits_go_into_a_segment_that_was_filled_ahead(start: StartBroker, folder: Path) -> None:
    broker = await start(segment_bytes=SEGMENT_BYTES)

    count = await until_filled(broker)
    await commits(broker, 5)

    segment = active(broker)
    wal = Path(f"{segment.path}-wal")
    assert count >= LEAST_COMMITS
    assert segment.filled_bytes == SEGMENT_BYTES == wal.stat().st_size
    assert segment.wal_bytes == end_of_frames(wal) < SEGMENT_BYTES // 2
    messages, missing = await broker.rig.page(1, [0, count + 5], GIBIBYTE)
    assert (len(messages), missing) == (count + 5, [])


async def test_a_fill_is_as_large_as_the_segment_before_lets_expect(start: StartBroker) -> None:
    broker = await start()

    await until_filled(broker)

    assert LEAST_BYTES <= active(broker).filled_bytes < 4 * LEAST_BYTES


async def test_a_segment_that_was_filled_rolls_by_its_frames(start: StartBroker, folder: Path) -> None:
    broker = await start(segment_bytes=CHUNK_BYTES)
    await until_filled(broker)
    segment = active(broker)

    await commits(broker, 10)
    assert active(broker) is segment, "its file has the size of a full segment, and its frames have not"
    while active(broker) is segment:
        await commits(broker, 1, 10_000)

    assert segment.wal_bytes >= CHUNK_BYTES


async def offer_with_zeros(broker: Broker, size: int) -> WritableSegment:
    """Fill the prepared segment and offer it again, without a tick."""
    await eventually(lambda: prepared(broker) is not None)
    writer = broker.process.service.log.writer
    segment = writer.withdraw()
    assert segment is not None
    segment.filled_bytes = fill(f"{segment.path}-wal", size)
    writer.offer(segment)
    return segment


async def test_a_segment_ends_where_its_zeros_end_if_the_next_segment_has_more(start: StartBroker) -> None:
    """At the end of the commit: a tick would come after many slow commits."""
    broker = await start(segment_bytes=SEGMENT_BYTES)
    await commits(broker, 3)
    first = active(broker)
    filled = await offer_with_zeros(broker, CHUNK_BYTES)
    assert active(broker) is first

    # The first commit measures and switches after its answer, so the second goes to the next segment.
    await commits(broker, 2)
    assert active(broker) is filled
    assert first.commits == 4

    successor = await offer_with_zeros(broker, SEGMENT_BYTES)
    while active(broker) is filled:
        await commits(broker, 1, 50_000)
    assert active(broker) is successor
    assert CHUNK_BYTES <= filled.wal_bytes < CHUNK_BYTES + 2 * 50_000


async def test_a_segment_grows_beyond_its_zeros_if_the_next_segment_has_no_more(start: StartBroker) -> None:
    broker = await start(segment_bytes=SEGMENT_BYTES)
    await commits(broker, 1)
    await offer_with_zeros(broker, CHUNK_BYTES)
    await commits(broker, 2)
    segment = active(broker)
    await offer_with_zeros(broker, CHUNK_BYTES)

    while active(broker) is segment:
        await commits(broker, 1, 50_000)

    assert segment.filled_bytes == CHUNK_BYTES
    assert SEGMENT_BYTES <= segment.wal_bytes < SEGMENT_BYTES + 2 * 50_000


@pytest.mark.parametrize(
    ("durability", "commit_bytes", "count"),
    [("os", 40, 2 * LEAST_COMMITS), ("fsync", 2 * SMALL_COMMIT_BYTES, 2 * LEAST_COMMITS), ("fsync", 40, 5)],
    ids=["no fsync", "large commits", "few commits"],
)
async def test_nothing_is_filled_where_that_would_not_pay(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch, durability: str, commit_bytes: int, count: int
) -> None:
    broker = await start(durability=durability, segment_bytes=16 * CHUNK_BYTES)
    filling = broker.process.service.log.filling
    is_due = filling.is_due
    decided: list[bool] = []

    def noted() -> bool:
        due = is_due()
        # Without a prepared segment, while its pages are changed, there is none to fill.
        if (segment := prepared(broker)) is not None:
            decided.append(due or segment.filled_bytes > 0)
        return due

    monkeypatch.setattr(filling, "is_due", noted)
    await commits(broker, count, commit_bytes)

    looked = len(decided)
    await eventually(lambda: len(decided) >= looked + 3)

    assert not any(decided)
    assert active(broker).filled_bytes == 0


async def test_a_disk_with_little_room_is_not_filled(start: StartBroker, folder: Path) -> None:
    """The room is counted before it is taken: twice, because the seal copies the frames."""
    broker = await start()
    mark = broker.process.service.log.space.mark_bytes()
    broker.disk.free = mark + mark // 4 + CHUNK_BYTES
    await commits(broker, 2 * LEAST_COMMITS)
    assert not broker.refused

    await ticks(broker)

    assert active(broker).filled_bytes == 0
    assert sum(path.stat().st_size for path in (folder / "segments").glob("*-wal")) < 2 * CHUNK_BYTES


async def test_room_that_goes_while_a_fill_begins_is_not_taken(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is written between the decision and the fill."""
    broker = await start(segment_bytes=SEGMENT_BYTES)
    looks: list[int] = []

    def room() -> int:
        looks.append(GIBIBYTE if not looks else -GIBIBYTE)
        return looks[-1]

    monkeypatch.setattr(broker.process.service.log.space, "room_to_fill", room)

    await commits(broker, LEAST_COMMITS)
    await eventually(lambda: broker.rig.fatal or (len(looks) > 1 and prepared(broker) is not None))
    await commits(broker, 3)

    assert active(broker).filled_bytes == 0
    assert broker.rig.fatal == []


async def test_a_fill_that_met_a_full_disk_is_not_repeated_in_the_same_segment(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota refuses room that the file system shows as free."""
    calls: list[int] = []

    def refused(_wal: str, size: int, *_conditions: object) -> int:
        calls.append(size)
        return 0

    monkeypatch.setattr(wal_filling, "fill", refused)
    broker = await start(segment_bytes=SEGMENT_BYTES)
    await commits(broker, 2 * LEAST_COMMITS)
    await eventually(lambda: calls and prepared(broker) is not None)
    await ticks(broker)

    assert calls == [SEGMENT_BYTES]


async def test_zeros_of_the_prepared_segment_are_given_back_to_a_disk_that_is_short(
    start: StartBroker, folder: Path
) -> None:
    broker = await start(segment_bytes=16 * CHUNK_BYTES)
    await until_filled(broker)
    while (segment := prepared(broker)) is None or not segment.filled_bytes:
        await commits(broker, 1)
    wal = Path(f"{segment.path}-wal")
    assert wal.stat().st_size > 0

    broker.disk.free = 0
    await broker.rig.until(lambda: broker.refused)
    while segment.filled_bytes:
        await commits(broker, 1)

    assert wal.stat().st_size == 0
    broker.disk.free = GIBIBYTE
    await broker.rig.until(lambda: not broker.refused)


async def test_zeros_of_the_active_segment_are_given_back_by_its_seal(start: StartBroker, folder: Path) -> None:
    """The frames alone are too few for an early end of the segment."""
    broker = await start(segment_bytes=16 * CHUNK_BYTES)
    await until_filled(broker)
    log = broker.process.service.log
    # The seal of the first segment lowers the mark, by more than the room that is taken below if the fill was slow.
    await log._rolled()  # pyright: ignore[reportPrivateUsage]
    log.sealer.seal_held()
    await log.sealer.drained()
    await commits(broker, 3)
    segment = active(broker)
    assert segment.wal_bytes < CHUNK_BYTES < 8 * CHUNK_BYTES <= segment.filled_bytes

    broker.disk.free = log.space.mark_bytes() - CHUNK_BYTES
    await eventually(lambda: segment.number in log.catalog.sealed)

    assert not Path(f"{segment.path}-wal").exists()
    assert active(broker).filled_bytes == 0


async def a_filled_segment_without_rows(broker: Broker) -> WritableSegment:
    """Wait for a filled segment and switch to it, without a commit into it."""
    await commits(broker, LEAST_COMMITS)
    await until_prepared_is_filled(broker)
    await commits(broker, 1)
    await eventually(lambda: active(broker).filled_bytes and prepared(broker) is not None)
    segment = active(broker)
    assert not segment.rows
    return segment


async def test_zeros_of_an_active_segment_without_rows_are_given_back_to_a_disk_that_is_short(
    start: StartBroker,
) -> None:
    broker = await start(segment_bytes=SEGMENT_BYTES)
    segment = await a_filled_segment_without_rows(broker)
    wal = Path(f"{segment.path}-wal")

    broker.disk.free = 0
    await eventually(lambda: not segment.filled_bytes)
    assert wal.stat().st_size == 0
    await commits(broker, 3)

    assert active(broker) is segment
    assert segment.wal_bytes == end_of_frames(wal) == wal.stat().st_size
    messages, missing = await broker.rig.page(1, [0, LEAST_COMMITS + 4], GIBIBYTE)
    assert (len(messages), missing) == (LEAST_COMMITS + 4, [])


async def test_zeros_stay_while_a_commit_is_under_way(start: StartBroker) -> None:
    """The first rows of the segment are in the file before they are counted."""
    broker = await start(segment_bytes=SEGMENT_BYTES)
    segment = await a_filled_segment_without_rows(broker)
    insert = segment.insert
    in_file, may_go_on = Event(), Event()

    def hold(rows: Sequence[LogRow]) -> int:
        fsync_us = insert(rows)
        in_file.set()
        may_go_on.wait()
        return fsync_us

    segment.insert = hold  # pyright: ignore[reportAttributeAccessIssue]
    committing = asyncio.create_task(commits(broker, 1))
    await asyncio.to_thread(in_file.wait)
    try:
        assert not segment.rows
        broker.process.service.log.writer.drop_zeros()
    finally:
        may_go_on.set()
        await committing

    assert segment.rows
    broker.process.service.log.writer.drop_zeros()
    assert Path(f"{segment.path}-wal").stat().st_size == segment.filled_bytes == SEGMENT_BYTES


# The zeros


async def test_zeros_spare_the_tables_that_a_reader_from_outside_keeps_in_the_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite empties no WAL that a reader needs, and reports that by a row and not by an error."""
    path = tmp_path / "1.db"
    readers: list[sqlite3.Connection] = []

    def read_meanwhile(connection: sqlite3.Connection, page_bytes: int) -> None:
        create_tables(connection, page_bytes)
        readers.append(open_read_only(path, sealed=False))
        readers[0].execute("BEGIN")
        readers[0].execute("SELECT * FROM segment").fetchall()

    monkeypatch.setattr(row_inserts, "create_tables", read_meanwhile)
    fresh = await segment.create_segment(1, path, Durability.FSYNC, 0)
    wal = f"{path}-wal"
    frames = used_bytes(wal)
    assert frames

    assert fill(wal, 2 * CHUNK_BYTES) == 2 * CHUNK_BYTES
    fresh.insert([LogRow(1, 0, 0, b"", b"", b"first")])
    assert used_bytes(wal) > frames
    assert fresh.connection.raw.execute("SELECT data FROM log").fetchall() == [(b"first",)]
    frames = used_bytes(wal)
    assert fill(wal, 0) == 0
    assert Path(wal).stat().st_size == frames

    readers[0].close()
    with closing(open_read_only(path, sealed=False)) as raw:
        assert raw.execute("SELECT data FROM log").fetchall() == [(b"first",)]
    await fresh.close()


def test_a_fill_ends_at_its_size_and_continues_a_fill(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    wal.touch()

    assert fill(str(wal), CHUNK_BYTES) == CHUNK_BYTES
    assert fill(str(wal), 3 * CHUNK_BYTES) == 3 * CHUNK_BYTES
    assert wal.read_bytes() == bytes(3 * CHUNK_BYTES)
    assert wal.stat().st_blocks * 512 >= 3 * CHUNK_BYTES
    assert fill(str(wal), 0) == 0
    assert wal.stat().st_size == 0


def test_a_fill_that_is_stopped_has_the_size_it_has(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    wal.touch()
    looks = iter([False, False, True])

    assert fill(str(wal), 5 * CHUNK_BYTES, lambda: next(looks)) == 2 * CHUNK_BYTES == wal.stat().st_size


def test_a_fill_goes_in_small_steps_unless_it_is_hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = tmp_path / "wal"
    wal.touch()
    sizes: list[int] = []
    sync = os.fdatasync

    def noting(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noting)
    monkeypatch.setattr(wal_filling, "PAUSE_SECONDS", 0)
    hurries = iter([False, False, True, False])

    size = CHUNK_BYTES + 3 * STEP_BYTES
    assert fill(str(wal), size, is_hurried=lambda: next(hurries)) == size
    assert sizes == [STEP_BYTES, 2 * STEP_BYTES, 2 * STEP_BYTES + CHUNK_BYTES, size]
    assert wal.read_bytes() == bytes(size)


@pytest.mark.parametrize(
    ("zeros", "used", "is_hurried"),
    [
        (0, 40, True),
        (CHUNK_BYTES, 40, False),
        (CHUNK_BYTES, CHUNK_BYTES // 3, False),
        (CHUNK_BYTES, 3 * CHUNK_BYTES // 4, True),
    ],
    ids=["no zeros", "many zeros", "half of the zeros", "few zeros"],
)
async def test_a_fill_is_hurried_where_the_active_segment_has_few_zeros_left(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch, zeros: int, used: int, *, is_hurried: bool
) -> None:
    """Otherwise commits would go behind the zeros before the successor is ready."""
    hurries: list[bool] = []

    def asked(_wal: str, _size: int, _is_stopped: object, is_hurried: Callable[[], bool]) -> int:
        hurries.append(is_hurried())
        return 0

    broker = await start(segment_bytes=SEGMENT_BYTES)
    await commits(broker, 1)
    if zeros:
        segment = await offer_with_zeros(broker, zeros)
        await commits(broker, 2)
        assert active(broker) is segment
        await eventually(lambda: prepared(broker) is not None)
    await commits(broker, 1, used)
    monkeypatch.setattr(wal_filling, "fill", asked)

    await broker.process.service.log.filling.run()

    assert hurries == [is_hurried]


def test_a_fill_takes_little_memory(tmp_path: Path) -> None:
    """The heap of the storage process keeps a block of the size of a chunk."""
    wal = tmp_path / "wal"
    wal.touch()
    tracemalloc.start()
    try:
        fill(str(wal), 2 * CHUNK_BYTES)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most_bytes < CHUNK_BYTES // 4


def test_a_fill_that_meets_a_full_disk_gives_all_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = tmp_path / "wal"
    wal.touch()
    write = os.pwritev

    def full(descriptor: int, data: Sequence[bytes], offset: int) -> int:
        if offset >= 2 * CHUNK_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwritev", full)

    assert fill(str(wal), 4 * CHUNK_BYTES) == 0
    assert wal.stat().st_size == 0


# Readers from outside

READER = """
import sys
from pathlib import Path
from cmqd_segment.manifest import read_manifest
from cmqd_segment.scan import readable_segments
from cmqd_segment.schema import open_read_only
folder = Path(sys.argv[1])
for entry in readable_segments(read_manifest(folder)):
    raw = open_read_only(folder / entry.file, sealed=entry.state.value == "sealed")
    print(entry.state.value, raw.execute("SELECT count(*) FROM log").fetchone()[0])
"""


async def test_other_processes_read_active_and_retired_segments_that_were_filled(
    start: StartBroker, folder: Path
) -> None:
    broker = await start(segment_bytes=SEGMENT_BYTES)
    await until_filled(broker)
    filled = active(broker)
    while active(broker) is filled:
        await commits(broker, 1, 10_000)
    await commits(broker, 3)
    await broker.process.service.log.catalog.save()

    answer = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, check=True)

    found = [line.split() for line in answer.stdout.splitlines()]
    assert sum(int(rows) for _, rows in found) == broker.rig.log.last_lsn
    assert {"active", "retired"} <= {state for state, _ in found}


# Crashes


class Snapshots:
    """Copies of the folder before every durable step: the disk after a kill -9 at that moment.

    The steps of a fill, a switch and a seal follow one another without commits in between, so each copy is a state
    that the folder had.
    """

    def __init__(self, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._target = target
        self._patch = monkeypatch
        self.rig: LogRig | None = None
        self.taken: list[tuple[Path, int]] = []
        """Copies with the number of rows that were durable before."""
        self._numbers = count()

    def before(self, owner: object, name: str) -> None:
        """Copy the folder before each call of a function."""
        original: Callable[..., object] = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            self.take(name)
            return original(*arguments, **named)

        self._patch.setattr(owner, name, call)

    def take(self, label: str) -> None:
        if self.rig is not None:
            durable = self.rig.log.durable_lsn
            copy = self._target / f"{next(self._numbers)}-{label}"
            self.taken.append((copy_as_killed(self._folder, copy), durable))


def side_files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("segments/*.side*")}


async def test_a_kill_at_any_step_of_filling_switching_and_sealing_loses_nothing(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(folder, tmp_path / "copies", monkeypatch)
    for name in ("fsync", "fdatasync", "ftruncate", "replace", "unlink", "fchmod"):
        snapshots.before(os, name)
    for name in ("copy_wal", "write_tables", "cut_wal", "truncate_wal", "finish_file"):
        snapshots.before(sealer, name)
    snapshots.before(side_files.RowsRead, "read")
    snapshots.before(side_files, "write_side")
    broker = await start(segment_bytes=SEGMENT_BYTES)
    await commits(broker, LEAST_COMMITS - 1)
    snapshots.rig = broker.rig
    # No commit beside a copy: the fill has ended, and then the switch.
    await commits(broker, 1)
    await until_prepared_is_filled(broker)
    await commits(broker, 1)
    await eventually(lambda: active(broker).filled_bytes and prepared(broker) is not None)
    await commits(broker, 1)
    snapshots.take("committed")
    await broker.rig.log.seal_now()
    snapshots.take("sealed")
    snapshots.rig = None
    states = {entry.state for copy, _ in snapshots.taken for entry in read_manifest(copy).segments}
    assert states >= {SegmentState.PREPARING, SegmentState.PREPARED, SegmentState.RETIRED, SegmentState.SEALED}
    beside = [{path.suffix for path in copy.glob("segments/*")} for copy, _ in snapshots.taken]
    for suffix in (".tmp", ".side"):
        assert any(suffix in suffixes for suffixes in beside), "copies before the manifest lists the side file"
    sizes = {path.stat().st_size for copy, _ in snapshots.taken for path in copy.glob("segments/*-wal")}
    assert sizes >= {0, CHUNK_BYTES, 2 * CHUNK_BYTES}, "copies before, in the middle of and after a fill"

    for copy, durable in snapshots.taken:
        process = InProcess()
        log = StorageProcessLog(settings_for(copy), process.start)
        again = LogRig(log)
        report = await again.open()
        assert {finding.kind for finding in report.findings} <= {"unclean_stop"}, copy.name
        assert [lsn for lsn, _, _ in again.rows] == list(range(1, len(again.rows) + 1)), copy.name
        assert len(again.rows) >= durable >= LEAST_COMMITS - 1, copy.name
        listed = [entry for entry in read_manifest(copy).segments if entry.side is not None]
        assert {entry.side_file for entry in listed} == side_files_in(copy), copy.name
        assert not any(verify_side(copy, entry) for entry in listed), copy.name
        await log.kill()
        assert process.task is not None
        await process.task
        shutil.rmtree(copy)


@pytest.mark.parametrize("written", [0, 1, 2])
async def test_a_loss_of_power_in_the_tables_of_a_seal_loses_nothing(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The disk has the new header of the WAL and some frames of the tables, and behind them the frames before."""
    snapshots = Snapshots(folder, tmp_path / "copies", monkeypatch)
    for name in ("write_tables", "cut_wal"):
        snapshots.before(sealer, name)
    broker = await start()
    await commits(broker, 10)
    name = active(broker).path.name + "-wal"
    snapshots.rig = broker.rig
    await broker.rig.log.seal_now()
    (before, _), (copy, _) = snapshots.taken
    wal = copy / "segments" / name
    old, new = (before / "segments" / name).read_bytes(), wal.read_bytes()
    end = HEADER_BYTES + written * FRAME_BYTES
    assert new[:HEADER_BYTES] != old[:HEADER_BYTES]
    assert new[end : end + FRAME_BYTES] != old[end : end + FRAME_BYTES], "not all frames of the tables"
    wal.write_bytes(new[:end] + old[end:])
    in_another_boot(copy)

    process = InProcess()
    log = StorageProcessLog(settings_for(copy), process.start)
    again = LogRig(log)
    report = await again.open()

    # The frames before are no part of a torn commit.
    torn = {"torn_tail"} if written else set[str]()
    assert {finding.kind for finding in report.findings} - {"unclean_stop"} == torn
    assert [lsn for lsn, _, _ in again.rows] == list(range(1, 11))
    await log.kill()
    assert process.task is not None
    await process.task
