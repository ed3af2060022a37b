"""The commit thread: a commit that takes long holds up nothing else, and ends, rolls and full disks wait for nothing
but the commit."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, current_thread

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import Durability
from cmqd.storage import ipc
from cmqd.storage.folder import disk_space
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.segments.segment import WritableSegment, create_segment
from cmqd.storage.segments.wal_gauge import WalGauge
from cmqd.storage.writing import writer
from cmqd.storage.writing.sealer import truncate_wal
from cmqd.storage.writing.wal_growth import GROWTH_OF_COMMIT
from cmqd_segment.manifest import SourceName, read_manifest
from cmqd_segment.rows import encode_queues
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.storage.full_disk import Broker, StartBroker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import NOW_MS, LogRig, checkpoint_parts, settings_for
from support.storage.wals import end_of_frames


class HeldCommit:
    """The next commit of a broker, which stays under way, its rows in the file, until it may go on."""

    def __init__(self, broker: Broker) -> None:
        self._segment = broker.process.service.log.writer.active
        self._insert = self._segment.insert
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._may_go_on = Event()
        self._segment.insert = self._hold  # pyright: ignore[reportAttributeAccessIssue]

    def _hold(self, rows: Sequence[LogRow]) -> int:
        fsync_us = self._insert(rows)
        self._loop.call_soon_threadsafe(self._begun.set)
        self._may_go_on.wait()
        return fsync_us

    async def begun(self) -> None:
        """Wait until the commit is under way."""
        await self._begun.wait()

    def go_on(self) -> None:
        """Let the commit return, and later commits too."""
        self._segment.insert = self._insert
        self._may_go_on.set()


def lsns_in(folder: Path) -> list[int]:
    """The rows of the first segment, after the end of the service."""
    return lsns_in_file(folder / "segments" / "00000001.db")


def lsns_in_file(path: Path) -> list[int]:
    """The rows of a segment."""
    with closing(open_read_only(path, sealed=False)) as raw:
        return [lsn for (lsn,) in raw.execute("SELECT lsn FROM log")]


Hold = Callable[[Broker, int], Awaitable[HeldCommit]]


@pytest.fixture
def held(start: StartBroker) -> Iterator[Hold]:
    """Send a message to queue 1, at this position; the commit stays under way."""
    commits: list[HeldCommit] = []

    async def hold(broker: Broker, position: int) -> HeldCommit:
        commit = HeldCommit(broker)
        commits.append(commit)
        broker.rig.send(1, position, 1)
        broker.rig.log.flush()
        await commit.begun()
        return commit

    yield hold
    # Before the brokers end, which wait for their commits: a test may have failed.
    for commit in commits:
        commit.go_on()


async def test_a_commit_that_hangs_holds_up_neither_pages_nor_seals_nor_control(start: StartBroker, held: Hold) -> None:
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    await rig.store(1, 0, 5)
    await log.writer.roll()
    await log._rolled()  # pyright: ignore[reportPrivateUsage]
    await rig.store(1, 5, 5)
    commit = await held(broker, 10)

    assert len((await rig.page(1, [0, 10]))[0]) == 10
    log.sealer.seal_held()
    await eventually(lambda: 1 in log.catalog.sealed)
    for part in checkpoint_parts(2, 2):
        rig.log.write_checkpoint(part)
    await rig.until(lambda: rig.checkpoints_done == [2])
    active = await broker.log.active_segment()
    assert active is not None
    assert (active.first_lsn, active.last_lsn) == (2, 2)
    broker.disk.free = 1
    await rig.until(lambda: broker.refused)
    assert rig.durable == [1, 2]

    commit.go_on()
    await rig.until(lambda: rig.durable == [1, 2, 3])


async def test_a_page_of_a_commit_under_way_waits_for_that_commit_alone(start: StartBroker, held: Hold) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    commit = await held(broker, 1)
    waiting = rig.ask(1, [0, 2], min_lsn=2)

    assert len((await rig.page(1, [0, 1], min_lsn=1))[0]) == 1
    assert waiting not in rig.pages
    commit.go_on()

    await rig.until(lambda: waiting in rig.pages)
    assert len(rig.pages[waiting][0]) == 2


async def test_a_page_asked_right_after_a_commit_has_its_rows(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    asked: list[int] = []
    # Asked inside the callback of the answer: no earlier moment exists.
    rig.log.on_durable = lambda lsn: asked.append(rig.ask(1, [lsn - 1, 1], min_lsn=lsn))

    for position in range(100):
        rig.send(1, position, 1)
        rig.log.flush()
        await rig.until(lambda position=position: len(rig.pages) == position + 1)

    assert [len(rig.pages[read_id][0]) for read_id in asked] == [1] * 100


async def test_the_end_of_the_loop_process_is_noticed_while_a_commit_hangs(
    start: StartBroker, held: Hold, folder: Path
) -> None:
    broker = await start()
    commit = await held(broker, 0)
    service = broker.process.service

    await broker.log.kill()
    await eventually(service._ended.done)  # pyright: ignore[reportPrivateUsage]
    assert broker.process.task is not None
    assert not broker.process.task.done(), "the commit under way is finished before the end"
    commit.go_on()

    assert await broker.process.task == 0
    assert lsns_in(folder) == [1]


@pytest.mark.parametrize("which", ["control", "pages", "commits"])
async def test_the_end_of_any_socket_is_the_end_of_the_loop_process(start: StartBroker, which: str) -> None:
    broker = await start()
    await broker.rig.store(1, 0, 1)
    log = broker.log
    channel = {
        "control": log._control,  # pyright: ignore[reportPrivateUsage]
        "pages": log._pages,  # pyright: ignore[reportPrivateUsage]
        "commits": log._commit_channel,  # pyright: ignore[reportPrivateUsage]
    }[which]
    assert channel is not None

    channel.close()

    assert broker.process.task is not None
    assert await broker.process.task == 0
    assert [str(error).split(" (")[0] for error in broker.rig.fatal] == ["the storage process ended unexpectedly"]


async def test_a_segment_is_retired_at_the_end_of_the_commit_under_way(start: StartBroker, held: Hold) -> None:
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    await rig.store(1, 0, 1)
    first = log.writer.active
    commit = await held(broker, 1)
    rolling = asyncio.create_task(log.writer.roll())
    await rig.page(1, [0, 1])
    assert not rolling.done()
    assert log.writer.active is first

    commit.go_on()
    await rolling

    await rig.store(1, 2, 1)
    assert (first.first_lsn, first.last_lsn) == (1, 2)
    assert (log.writer.active.first_lsn, log.writer.active.number) == (3, first.number + 1)


async def test_a_seal_asked_for_while_a_commit_is_under_way_has_its_rows(start: StartBroker, held: Hold) -> None:
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    commit = await held(broker, 0)
    sealing = asyncio.create_task(log.seal_now(1_000))
    await rig.page(1, [])
    assert not sealing.done()
    rig.log._requests[1_000] = asyncio.get_running_loop().create_future()  # type: ignore[attr-defined]

    commit.go_on()
    await sealing

    assert [file.entry.last_lsn for file in log.catalog.sealed.values()] == [1]


async def test_a_seal_has_the_rows_behind_a_switch_that_the_loop_has_not_seen(start: StartBroker) -> None:
    """The loop of the storage process may be busy from before a switch until after the next commit."""
    broker = await start(segment_bytes=1)
    rig, log = broker.rig, broker.process.service.log
    first = log.writer.active
    rig.send(1, 0, 1)
    rig.log.flush()
    # Without a turn of the loop, as if the loop were busy: the commit thread works beside it.
    while log.writer.active is first:
        time.sleep(0)
    second = log.writer.active
    log.writer._segment_bytes = 1 << 30  # pyright: ignore[reportPrivateUsage]
    committed = log.writer.make_durable([LogRow(2, 1, 0, b"", b"", b"")])
    assert committed is not None
    log.writer._report(2, committed)  # pyright: ignore[reportPrivateUsage]
    assert (first.last_lsn, second.last_lsn) == (1, 2)
    rig.log._requests[1_000] = asyncio.get_running_loop().create_future()  # type: ignore[attr-defined]

    await log.seal_now(1_000)

    assert [file.last_lsn for file in log.catalog.sealed.values()] == [1, 2]


class UntoldSwitch:
    """A switch of segments by the commit thread, of which the loop learns only at the end of the block.

    The news always needs a moment, in which frames and commits arrive.
    """

    def __init__(self, broker: Broker) -> None:
        self._rig = broker.rig
        self._writer = broker.process.service.log.writer
        self._patched = pytest.MonkeyPatch()

    async def __aenter__(self) -> None:
        """Store a row in the first segment and retire the segment."""
        writer = self._writer
        # Its own look would be news, too.
        writer.tick = lambda: None  # type: ignore[method-assign]
        self._patched.setattr(writer, "note_switch", lambda: None)
        with pytest.MonkeyPatch.context() as small:
            small.setattr(writer, "_segment_bytes", 1)
            await self._rig.store(1, 0, 1)
            await eventually(lambda: writer.active.number == 2)

    async def __aexit__(self, *_exception: object) -> None:
        self._patched.undo()


async def test_a_segment_that_was_just_retired_is_among_the_closed_segments(start: StartBroker) -> None:
    broker = await start()
    async with UntoldSwitch(broker):
        pass

    active = await broker.log.active_segment()

    assert active is None, "the new segment has no rows"
    assert [segment.number for segment in broker.log.closed_segments()] == [1]


async def test_a_switch_that_had_no_successor_is_made_with_the_successor(start: StartBroker, held: Hold) -> None:
    """No later commit may come, and the caller of ``roll`` waits."""
    broker = await start()
    rig, writer = broker.rig, broker.process.service.log.writer
    await rig.store(1, 0, 1)
    commit = await held(broker, 1)
    prepared = writer.withdraw()
    assert prepared is not None
    rolling = asyncio.create_task(writer.roll())
    await rig.page(1, [0, 1])
    commit.go_on()
    await rig.until(lambda: rig.durable == [1, 2])

    await eventually(lambda: not writer._committing)  # pyright: ignore[reportPrivateUsage]
    writer.offer(prepared)
    await rolling

    assert writer.active is prepared


async def test_an_orderly_end_has_the_rows_of_the_commit_under_way(
    start: StartBroker, held: Hold, folder: Path
) -> None:
    broker = await start()
    log = broker.process.service.log
    commit = await held(broker, 0)
    closing = asyncio.create_task(log.close(1))
    await broker.rig.page(1, [])
    assert not closing.done()

    commit.go_on()
    await closing

    manifest = read_manifest(folder)
    assert manifest.clean
    assert [entry.last_lsn for entry in manifest.segments] == [1]


async def test_names_of_deleted_queues_stay_while_the_commit_with_their_messages_is_under_way(
    start: StartBroker,
    held: Hold,
) -> None:
    """The names come through another socket, and the rows are counted after their commit."""
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    commit = await held(broker, 0)
    log.checkpoints.lacks([SourceName(1, "default", "orders"), SourceName(2, "default", "unknown")])
    for part in checkpoint_parts(1, 1):
        rig.log.write_checkpoint(part)
    await rig.page(1, [])

    commit.go_on()
    await rig.until(lambda: rig.checkpoints_done)

    assert list(log.catalog.names) == [1]


async def test_a_full_disk_does_not_hold_up_a_stop(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", (3600.0, 3600.0))
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)
    await broker.limit_pages(0)
    rig.send(1, 1, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: rig.states and "disk is full" in rig.states[-1].reason)

    await broker.log.kill()

    assert broker.process.task is not None
    assert await broker.process.task == 0
    assert lsns_in(folder) == [1], "the batch was never promised"


async def test_a_switch_of_segments_ends_the_wait_for_room(start: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", (3600.0, 3600.0))
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    await rig.store(1, 0, 1)
    first = log.writer.active
    await broker.limit_pages(0)
    rig.send(1, 1, 50, 1000)
    rig.log.flush()
    await rig.until(lambda: rig.states and "disk is full" in rig.states[-1].reason)

    await log.writer.roll()

    await rig.until(lambda: rig.log.durable_lsn == 2)
    assert (first.last_lsn, log.writer.active.first_lsn) == (1, 2)


async def test_a_commit_without_room_for_its_index_is_repeated_in_its_own_segment(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frames are in the WAL: in the next segment, a start after a crash would find the rows twice."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.001, 0.001))
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    await rig.store(1, 0, 1)
    first = log.writer.active
    insert = first.insert
    attempts = 0

    def without_room(_rows: Sequence[LogRow]) -> int:
        nonlocal attempts
        attempts += 1
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr(first, "insert", without_room)
    rig.send(1, 1, 1)
    rig.log.flush()
    await rig.until(lambda: rig.states and "disk is full" in rig.states[-1].reason)
    rolling = asyncio.create_task(log.writer.roll())
    seen = attempts
    await eventually(lambda: attempts > seen + 3)
    monkeypatch.setattr(first, "insert", insert)
    await rolling

    assert (first.first_lsn, first.last_lsn) == (1, 2)
    assert log.writer.active is not first


async def test_a_row_that_two_segments_have_is_recovered_once(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of earlier versions may have such rows: see the test before."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", (3600.0, 3600.0))
    broker = await start()
    rig, log = broker.rig, broker.process.service.log
    await rig.store(1, 0, 1)
    first = log.writer.active
    insert = first.insert

    def never(_segment: WritableSegment) -> None:
        pass

    def stored_all_the_same(rows: Sequence[LogRow]) -> int:
        insert(rows)
        error = sqlite3.OperationalError("full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(first, "insert", stored_all_the_same)
    # Its seal would overwrite the frames.
    monkeypatch.setattr(log.sealer, "submit", never)
    rig.send(1, 1, 1)
    rig.log.flush()
    await rig.until(lambda: rig.states and "disk is full" in rig.states[-1].reason)
    await log.writer.roll()
    await rig.until(lambda: rig.durable == [1, 2])
    await rig.store(1, 2, 1)
    crashed = copy_as_killed(folder, tmp_path / "crashed")

    again = LogRig(StorageProcessLog(settings_for(crashed)))
    await again.open()
    await again.log.close()

    assert [lsn for lsn, _, _ in again.rows] == [1, 2, 3]


async def test_after_an_error_no_batch_is_taken(start: StartBroker) -> None:
    broker = await start()
    rig = broker.rig
    await rig.store(1, 0, 1)

    broker.process.service.end(LogFailed("the test ends it"))
    await rig.until(lambda: rig.fatal)
    channel = broker.log._commit_channel  # pyright: ignore[reportPrivateUsage]
    assert channel is not None
    channel.send(ipc.Commit(2, [(0, 0, b"", 0, 0)]), [b"", b""])

    await broker.log.kill()
    assert broker.process.task is not None
    assert await broker.process.task == 1
    assert broker.process.service.log.durable.value == 1


async def test_an_answer_after_a_failure_is_not_reported(start: StartBroker, held: Hold) -> None:
    """The callers of these rows were told that the outcome is unknown."""
    broker = await start()
    rig = broker.rig
    commit = await held(broker, 0)

    broker.process.service.end(LogFailed("the test ends it"))
    await rig.until(lambda: rig.fatal)
    commit.go_on()
    assert isinstance(rig.log, StorageProcessLog)
    await broker.log.kill()
    assert broker.process.task is not None
    assert await broker.process.task == 1

    assert rig.durable == []
    assert broker.process.service.log.durable.value == 1


async def test_commits_share_a_read_transaction_that_ends_before_the_wal_is_emptied(tmp_path: Path) -> None:
    segment = await create_segment(1, tmp_path / "00000001.db", Durability.OS, 0)
    rows = [LogRow(lsn, 0, 0, b"", b"", b"row") for lsn in range(1, 203)]

    segment.insert(rows[:1])
    segment.insert(rows[1:201])

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        segment.connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with closing(open_read_only(segment.path, sealed=False)) as reader:
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (201,)
        segment.insert(rows[201:])
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (202,)
    assert await segment.connection.run(truncate_wal, segment)
    assert segment.wal_bytes == 0
    segment.insert([LogRow(203, 0, 0, b"", b"", b"row")])
    assert segment.wal_bytes == end_of_frames(Path(f"{segment.path}-wal")) > 0
    await segment.close()
    assert lsns_in_file(segment.path) == list(range(1, 204))


async def test_the_wal_is_measured_seldom_and_a_full_segment_ends_with_the_commit_that_fills_it(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment_bytes = 1 << 20
    broker = await start(segment_bytes=segment_bytes, durability=Durability.OS)
    rig, log = broker.rig, broker.process.service.log
    used_bytes = WalGauge.used_bytes
    measurements = 0

    def counted(gauge: WalGauge) -> int:
        nonlocal measurements
        measurements += current_thread().name == "commits"
        return used_bytes(gauge)

    monkeypatch.setattr(WalGauge, "used_bytes", counted)
    first = log.writer.active
    position = 0
    while log.writer.active is first:
        await rig.store(1, position, 1, 300)
        position += 1

    commits = first.last_lsn
    assert 1 < measurements < commits // 2
    assert segment_bytes <= first.wal_bytes < segment_bytes + 64 * 1024


async def test_free_space_is_measured_sooner_as_soon_as_the_disk_has_little_of_it(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(durability=Durability.OS)
    rig, log = broker.rig, broker.process.service.log
    least_bytes, greatest_bytes = disk_space.MEASURE_AFTER_BYTES
    # The timer stands still: the growth of the WAL alone brings measurements.
    monkeypatch.setattr(log.space, "measure", lambda: None)
    log.space.measure_after_bytes = greatest_bytes
    await rig.store(1, 0, 1, 300)
    log.space.measure_after_bytes = least_bytes
    measurements = 0

    def measured() -> None:
        nonlocal measurements
        measurements += 1

    monkeypatch.setattr(log.writer, "_on_grown", measured)
    before = log.writer.active.wal_bytes
    position = 1
    while log.writer.active.wal_bytes < before + 2 * least_bytes:
        await rig.store(1, position, 1, 50_000)
        position += 1

    assert measurements


@pytest.mark.parametrize(("rows", "queues"), [(1, 20_000), (5000, 0)])
async def test_the_estimate_of_a_commit_is_not_below_its_growth(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch, rows: int, queues: int
) -> None:
    broker = await start(durability=Durability.OS)
    log_writer = broker.process.service.log.writer
    active = log_writer.active
    summary = encode_queues([(queue_id, 1 << 40, (1 << 40) + 1, 1) for queue_id in range(1 << 20, (1 << 20) + queues)])
    before = active.wal_bytes

    log_writer.make_durable([LogRow(lsn, NOW_MS, 0, summary, b"twelve bytes", b"") for lsn in range(1, rows + 1)])

    grown = active.wal_bytes - before
    assert log_writer._growth.estimated >= grown > GROWTH_OF_COMMIT  # pyright: ignore[reportPrivateUsage]
