"""Commits in the loop process: the hand-over of a segment, its rows, and its way back."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import Durability, LogState
from cmqd.storage import ipc
from cmqd.storage.loop_side import group_commit
from cmqd.storage.loop_side.loop_commits import LoopCommits
from cmqd.storage.loop_side.loop_connection import LoopConnection
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.loop_side.row_builder import ClosedRow
from cmqd.storage.storage_errors import FolderLocked
from cmqd_segment.folder_lock import holder_of
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.storage.forked_process import ForkedProcess
from support.storage.full_disk import Broker
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import LogRig, body, settings_for
from support.storage.loop_way import ChosenWay, is_by_loop
from support.storage.verified import verify_folder


async def after_a_crash(folder: Path) -> list[int]:
    """The rows that a start finds after a crash of both processes now."""
    crashed = copy_as_killed(folder, folder.with_name("crashed"))
    rig = LogRig(StorageProcessLog(settings_for(crashed), ForkedProcess))
    await rig.open()
    await rig.log.close()
    assert rig.report is not None
    assert not rig.report.numbers_jump
    return [lsn for lsn, _, _ in rig.rows]


class LoopBroker(Broker):
    """A broker in which the loop process commits from the second commit on."""

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder)
        self.way = ChosenWay()
        changed: dict[str, object] = {"state_interval_ms": 5, **settings}
        self.log = StorageProcessLog(settings_for(folder, **changed), self.process.start, way=self.way)
        self.rig = LogRig(self.log)
        self.stored = 0

    async def store(self, count: int = 1) -> None:
        """Commit rows, one message each."""
        for _ in range(count):
            await self.rig.store(1, self.stored, 1)
            self.stored += 1

    async def by_loop(self) -> None:
        """Commit until the loop process commits."""
        while not is_by_loop(self.log):
            await self.store()
            await asyncio.sleep(0)
        # The storage process learns of the switch later than the loop process.
        await eventually(lambda: self.process.service.log.writer.lent is not None)

    async def by_storage(self) -> None:
        """Commit until the storage process commits again."""
        self.way.wanted = False
        while is_by_loop(self.log):
            await self.store()
            await asyncio.sleep(0)
        await eventually(lambda: self.process.service.log.writer.lent is None)


def rows_of(folder: Path) -> list[int]:
    """The rows of all segments, in the order of the segments."""
    lsns: list[int] = []
    for path in sorted((folder / "segments").glob("*.db")):
        with closing(open_read_only(path, sealed=False)) as raw:
            lsns += [lsn for (lsn,) in raw.execute("SELECT lsn FROM log ORDER BY lsn")]
    return lsns


Start = Callable[..., Awaitable[LoopBroker]]


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    brokers: list[LoopBroker] = []

    async def start_one(**settings: object) -> LoopBroker:
        broker = LoopBroker(folder, **settings)
        brokers.append(broker)
        await broker.rig.open()
        return broker

    yield start_one
    for broker in brokers:
        await broker.log.kill()
        assert broker.process.task is not None
        await broker.process.task


async def test_a_segment_is_lent_and_all_its_rows_are_read_and_sealed(start: Start, folder: Path) -> None:
    broker = await start()
    await broker.by_loop()
    await broker.store(10)

    assert broker.log.figures.in_loop >= 10
    messages, missing = await broker.rig.page(1, [0, broker.stored], min_lsn=broker.log.last_lsn)
    assert [message.body for message in messages] == [body(1, position) for position in range(broker.stored)]
    assert not missing
    active = await broker.log.active_segment()
    assert active is not None
    (before,) = broker.log.closed_segments()
    assert (active.first_lsn, active.last_lsn) == (before.last_lsn + 1, broker.stored)
    assert active.messages == broker.stored - before.messages >= 10

    await broker.log.close()

    manifest = read_manifest(folder)
    assert manifest.clean
    assert {entry.state for entry in manifest.segments} == {SegmentState.SEALED}
    assert not list((folder / "segments").glob("*-wal"))
    assert rows_of(folder) == list(range(1, broker.stored + 1))
    assert holder_of(folder) is None


async def test_a_full_segment_is_followed_by_the_next_one_that_is_lent(start: Start, folder: Path) -> None:
    broker = await start(segment_bytes=100_000, hold_retired=False)
    await broker.by_loop()

    while len(broker.log.closed_segments()) < 4:
        await broker.store()
        await asyncio.sleep(0)
    assert is_by_loop(broker.log)
    segments = broker.log.closed_segments()
    await broker.log.close()

    assert [earlier.last_lsn + 1 for earlier in segments[:-1]] == [later.first_lsn for later in segments[1:]]
    assert rows_of(folder) == list(range(1, broker.stored + 1))
    assert verify_folder(folder) == []


async def test_the_way_changes_in_mid_load_and_no_row_is_lost(start: Start, folder: Path) -> None:
    broker = await start()
    for _ in range(4):
        broker.way.wanted = True
        await broker.by_loop()
        await broker.store(3)
        await broker.by_storage()
        await broker.store(3)
    in_loop = broker.log.figures.in_loop
    messages, missing = await broker.rig.page(1, [0, broker.stored], min_lsn=broker.log.last_lsn)
    assert len(messages) == broker.stored
    assert not missing
    assert 12 <= in_loop < broker.stored

    assert await after_a_crash(folder) == list(range(1, broker.stored + 1))
    assert rows_of(folder) == list(range(1, broker.stored + 1))


def connection_of(broker: LoopBroker) -> LoopConnection:
    """The connection of the commit thread, once there was a switch to it."""
    thread = broker.log._way.thread  # pyright: ignore[reportPrivateUsage]
    assert thread is not None
    connection = thread._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    return connection


class HeldDisk:
    """Stands for a disk that hangs: the next commit of the loop process waits in its thread."""

    def __init__(self, broker: LoopBroker) -> None:
        connection = connection_of(broker)
        insert = connection.insert
        self.begun = Event()
        self.goes_on = Event()

        def held(first_lsn: int, closed_rows: Sequence[ClosedRow]) -> int:
            self.begun.set()
            self.goes_on.wait()
            return insert(first_lsn, closed_rows)

        connection.insert = held


Hold = Callable[[LoopBroker], HeldDisk]


@pytest.fixture
def hang(start: Start) -> Iterator[Hold]:
    """Let the disk hang; it goes on at the end, before the brokers end."""
    disks: list[HeldDisk] = []

    def hang_one(broker: LoopBroker) -> HeldDisk:
        disks.append(HeldDisk(broker))
        return disks[-1]

    yield hang_one
    for disk in disks:
        disk.goes_on.set()


async def test_a_disk_that_hangs_holds_up_the_loop_for_no_commit(start: Start, folder: Path, hang: Hold) -> None:
    broker = await start()
    await broker.by_loop()
    durable = broker.log.durable_lsn
    disk = hang(broker)

    broker.rig.send(1, broker.stored, 1)
    broker.log.flush()

    # The call has returned, and the loop serves all else.
    await eventually(disk.begun.is_set)
    assert broker.log.durable_lsn == durable
    messages, _ = await broker.rig.page(1, [0, broker.stored], min_lsn=durable)
    assert len(messages) == broker.stored
    broker.rig.send(1, broker.stored + 1, 1)
    broker.log.flush()
    assert broker.log.durable_lsn == durable, "one batch is outstanding"

    disk.goes_on.set()
    await broker.rig.commit()

    assert broker.rig.durable[-2:] == [durable + 1, durable + 2]
    await broker.log.close()
    assert rows_of(folder) == list(range(1, broker.stored + 3))


async def test_a_switch_waits_for_the_commit_that_the_disk_holds_up(start: Start, hang: Hold) -> None:
    broker = await start()
    await broker.by_loop()
    await broker.store()
    first = broker.process.service.log.writer.active.number
    disk = hang(broker)
    broker.rig.send(1, broker.stored, 1)
    broker.log.flush()
    sealing = broker.log._request(ipc.SealNow)  # pyright: ignore[reportPrivateUsage]
    await broker.rig.page(1, [0, 1])
    assert not sealing.done()
    assert [segment.number for segment in broker.log.closed_segments() if segment.number == first] == []

    disk.goes_on.set()
    await sealing

    sealed = {segment.number: segment for segment in broker.log.closed_segments()}
    assert sealed[first].is_sealed
    assert sealed[first].last_lsn == broker.log.last_lsn


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE])
async def test_a_batch_that_a_full_disk_refuses_goes_into_the_next_segment(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Without room for the WAL-index, the rows may be in the file all the same."""
    broker = await start()
    await broker.by_loop()
    await broker.store()
    first = broker.process.service.log.writer.active
    connection = connection_of(broker)
    insert = connection.insert
    attempts = 0

    def refused(first_lsn: int, closed_rows: Sequence[ClosedRow]) -> int:
        nonlocal attempts
        attempts += 1
        if code == sqlite3.SQLITE_IOERR_SHMSIZE:
            insert(first_lsn, closed_rows)
        error = sqlite3.OperationalError("no room")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(connection, "insert", refused)
    broker.rig.send(1, broker.stored, 1)
    await broker.rig.commit()

    assert attempts == 1
    assert not is_by_loop(broker.log)
    active = broker.process.service.log.writer.active
    assert active.number > first.number
    assert active.first_lsn == broker.stored + 1
    assert broker.process.service.log.disk.ballast.missing_bytes == 0 or broker.refused
    assert await after_a_crash(folder) == list(range(1, broker.stored + 2)), "each row once"


async def test_a_segment_that_was_lent_for_no_row_is_removed(start: Start, folder: Path) -> None:
    broker = await start()
    log = broker.process.service.log
    await broker.store(2)
    await eventually(lambda: log.writer.lent is not None and is_by_loop(broker.log))
    lent = log.writer.lent
    assert lent is not None
    assert not lent.rows

    broker.way.wanted = broker.way.by_loop = False
    broker.log._way.want()  # pyright: ignore[reportPrivateUsage]
    await eventually(lambda: not is_by_loop(broker.log) and not lent.path.exists())
    await broker.store()

    assert log.writer.active.number > lent.number
    assert lent.number not in [entry.number for entry in read_manifest(folder).segments]
    await broker.log.close()
    assert rows_of(folder) == [1, 2, 3]


async def test_after_another_error_of_the_disk_no_row_is_acknowledged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await broker.by_loop()
    durable = broker.log.durable_lsn

    def broken(_first_lsn: int, _closed_rows: Sequence[ClosedRow]) -> int:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    monkeypatch.setattr(connection_of(broker), "insert", broken)
    broker.rig.send(1, broker.stored, 1)
    broker.log.flush()
    await broker.rig.until(lambda: broker.rig.fatal)

    assert str(broker.rig.fatal[0]) == "the disk failed: OperationalError: disk I/O error"
    assert broker.log.durable_lsn == durable
    with pytest.raises(LogFailed):
        broker.log.flush()


async def test_a_segment_that_cannot_be_opened_is_left_to_the_storage_process(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()

    def no_descriptor(*_arguments: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as patched:
        patched.setattr("cmqd.storage.loop_side.loop_connection.connect_for_writing", no_descriptor)
        while broker.way.wanted:
            await broker.store()
            await asyncio.sleep(0)
    await broker.store(3)

    assert not is_by_loop(broker.log)
    assert broker.log.figures.in_loop == 0
    await broker.log.close()
    assert rows_of(folder) == list(range(1, broker.stored + 1))


async def test_a_switch_without_a_free_descriptor_leaves_no_connection_to_the_segment_before(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await broker.by_loop()
    await broker.store(3)

    def no_descriptor(*_arguments: object, **_options: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as patched:
        patched.setattr("cmqd.storage.loop_side.loop_connection.open_read_only", no_descriptor)
        patched.setattr("cmqd.storage.loop_side.loop_connection.connect_for_writing", no_descriptor)
        await broker.log.seal_now()
        await eventually(lambda: not is_by_loop(broker.log))
    assert not connection_of(broker).is_open
    await eventually(lambda: broker.process.service.log.writer.lent is None)
    await broker.store(3)

    broker.way.wanted = True
    await broker.by_loop()
    await broker.store(3)
    await broker.log.close()
    assert rows_of(folder) == list(range(1, broker.stored + 1))


async def test_without_its_storage_process_the_loop_process_keeps_the_folder(folder: Path) -> None:
    """The loop process may be in the middle of a commit; and its connection is the last one, then."""
    log = StorageProcessLog(settings_for(folder), ForkedProcess, way=ChosenWay())
    rig = LogRig(log)
    await rig.open()
    stored = 0
    while not is_by_loop(log):
        await rig.store(1, stored, 1)
        stored += 1
        await asyncio.sleep(0)
    await rig.store(1, stored, 5)
    assert log.process_id is not None

    os.kill(log.process_id, 9)
    await rig.until(lambda: rig.fatal)

    assert holder_of(folder) is not None
    with pytest.raises(FolderLocked, match="in use by process"):
        await LogRig(StorageProcessLog(settings_for(folder, lock_wait_ms=0), ForkedProcess)).open()
    await log.kill()
    assert holder_of(folder) is None
    again = LogRig(StorageProcessLog(settings_for(folder), ForkedProcess))
    await again.open()
    await again.log.close()
    assert again.report is not None
    assert not again.report.numbers_jump
    assert [lsn for lsn, _, _ in again.rows] == list(range(1, stored + 2))


async def test_commits_wait_for_a_storage_process_that_stands_still(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment would grow without an end, and the disk would be measured by no one."""
    monkeypatch.setattr(group_commit, "TOLD_BYTES", group_commit.COMMIT_BYTES)
    monkeypatch.setattr(group_commit, "UNMEASURED_BYTES", 10 * group_commit.COMMIT_BYTES)
    broker = await start()
    await broker.by_loop()
    space = broker.process.service.log.space
    states: list[LogState] = []
    with monkeypatch.context() as patched:
        patched.setattr(space, "_on_state", states.append)
        # States of before may still be on their way.
        await broker.log.active_segment()
        while broker.log.durable_lsn == broker.log.last_lsn:
            broker.rig.send(1, broker.stored, 1)
            broker.stored += 1
            broker.log.flush()
            await eventually(lambda: not broker.log._commits._batches)  # pyright: ignore[reportPrivateUsage]
        waiting = broker.log.last_lsn
        broker.log.flush()
        await broker.log.active_segment()
        assert broker.log.durable_lsn < waiting

    space.damaged_rows += 1
    space.measure()
    await broker.rig.commit()

    assert broker.log.durable_lsn == waiting
    assert is_by_loop(broker.log)
    await broker.log.close()
    assert rows_of(folder) == list(range(1, broker.stored + 1))


async def test_an_end_while_a_switch_is_asked_for_loses_nothing(start: Start, folder: Path, hang: Hold) -> None:
    broker = await start()
    await broker.by_loop()
    await broker.store()
    disk = hang(broker)
    broker.rig.send(1, broker.stored, 1)
    broker.log.flush()
    broker.process.service.log.writer.take_back()
    closing = asyncio.create_task(broker.log.close())
    await eventually(lambda: broker.log._commits._held is not None)  # pyright: ignore[reportPrivateUsage]

    disk.goes_on.set()
    await closing

    assert read_manifest(folder).clean
    assert rows_of(folder) == list(range(1, broker.stored + 2))


async def test_a_page_is_read_before_the_word_of_the_switch_has_come(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word of the switch and the page have a socket each: without the next tick, the page would wait for it."""
    broker = await start(state_interval_ms=600_000)
    storage = broker.process.service.log
    told = storage.lending.switched
    switches: list[bool] = []

    async def late(*, by_loop: bool) -> None:
        switches.append(by_loop)
        await eventually(lambda: storage.durable._calls)  # pyright: ignore[reportPrivateUsage]
        await told(by_loop=by_loop)

    monkeypatch.setattr(storage.lending, "switched", late)
    await broker.store(2)
    await eventually(lambda: is_by_loop(broker.log) and switches)
    await broker.store()

    async with asyncio.timeout(10):
        messages, missing = await broker.rig.page(1, [0, broker.stored], min_lsn=broker.log.durable_lsn)

    assert len(messages) == broker.stored
    assert not missing


async def test_a_page_of_a_backlog_neither_waits_for_new_rows_nor_has_them_counted(start: Start) -> None:
    """Each receive appends a row, so the pages of a backlog would have the rows of its receives counted."""
    broker = await start(state_interval_ms=600_000)
    await broker.by_loop()
    await broker.rig.page(1, [0, broker.stored], min_lsn=broker.log.durable_lsn)
    durable = broker.process.service.log.durable
    counted = durable.value
    await broker.rig.store(2, 0, 1)
    undurable = broker.rig.send(2, 1, 1)

    async with asyncio.timeout(10):
        messages, missing = await broker.rig.page(1, [0, broker.stored], min_lsn=undurable)

    assert (len(messages), missing) == (broker.stored, [])
    assert durable.value == counted < undurable - 1


async def test_a_page_behind_the_counted_rows_is_answered_once_its_row_is_durable(start: Start) -> None:
    """The storage process asks the loop process to be told, without a tick."""
    broker = await start(state_interval_ms=600_000)
    await broker.by_loop()
    lsn = broker.rig.send(2, 0, 1)
    waiting = broker.rig.ask(2, [0, 1], min_lsn=lsn)
    await broker.rig.page(1, [0, 1])
    assert waiting not in broker.rig.pages

    async with asyncio.timeout(10):
        await broker.rig.commit()
        await broker.rig.until(lambda: waiting in broker.rig.pages)

    assert len(broker.rig.pages[waiting][0]) == 1


async def test_an_end_waits_for_no_switch_that_the_loop_process_makes_no_more(start: Start, folder: Path) -> None:
    broker = await start()
    await broker.by_loop()
    await broker.store()
    storage = broker.process.service.log
    await eventually(lambda: storage.writer.active.rows and storage.writer.prepared is not None)
    # The question of the storage process comes after the beginning of the end.
    broker.log._way._is_ending = True  # pyright: ignore[reportPrivateUsage]
    storage._rolling = storage._start(storage.writer.roll())  # pyright: ignore[reportPrivateUsage]
    await eventually(lambda: storage.writer.prepared is None)

    await broker.log.close(10.0)

    assert read_manifest(folder).clean
    assert rows_of(folder) == list(range(1, broker.stored + 1))


async def test_a_call_that_was_given_right_before_the_end_is_made() -> None:
    results: list[object] = []
    thread = LoopCommits(results.append)
    interval = sys.getswitchinterval()
    # The thread gets the interpreter only when this one waits.
    sys.setswitchinterval(100.0)
    thread.change(None, Durability.FSYNC)
    thread.end()
    sys.setswitchinterval(interval)
    await asyncio.to_thread(thread.join, 10.0)

    assert thread.has_ended
    # The thread has asked for the event before its end.
    await asyncio.sleep(0)
    assert results == [(None, None)]


def test_the_thread_alone_loads_sqlite() -> None:
    """The loop would stand still for the time of the import, at the first switch."""
    program = "import sys; import cmqd.storage.loop_side.loop_commits; sys.exit('sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
