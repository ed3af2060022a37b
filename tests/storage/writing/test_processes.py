"""The storage process: single per folder, and ended with the loop process without a loss."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_errors import FolderLocked
from cmqd_segment.manifest import read_manifest
from cmqd_segment.schema import open_read_only
from support.eventually import eventually
from support.processes.stopped_process import stop
from support.storage.log_rig import NOW_MS, LogRig, OpenProcess, ProcessPlace, settings_for

pytestmark = pytest.mark.system


@pytest.fixture
def place() -> type[ProcessPlace]:
    """The product's own process, with an interpreter of its own."""
    return ProcessPlace


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if the process ends between open and read
        return False
    return state != "Z"


async def until_ended(pid: int) -> None:
    await eventually(lambda: not is_running(pid))


def is_locked(folder: Path) -> bool:
    descriptor = os.open(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


async def test_a_second_broker_waits_and_then_names_the_holder(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    assert isinstance(rig.log, StorageProcessLog)
    began = time.monotonic()

    with pytest.raises(FolderLocked, match=f"process {rig.log.process_id} .storage of broker process {os.getpid()}"):
        await open_process(lock_wait_ms=300)

    assert time.monotonic() - began >= 0.3
    await rig.store(1, 0, 1)


async def test_a_second_broker_gets_the_folder_when_the_first_lets_go(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    log = StorageProcessLog(settings_for(folder, lock_wait_ms=3_600_000))
    waits = asyncio.Event()
    log.on_folder_in_use = lambda text, waiting_ms: waits.set()
    second = LogRig(log)
    opening = asyncio.create_task(second.open())
    await waits.wait()
    assert not opening.done()

    await rig.log.close()

    await opening
    assert [lsn for lsn, _, _ in second.rows] == [1]
    await log.close()


async def test_storage_that_is_killed_is_fatal_to_the_loop(open_process: OpenProcess) -> None:
    rig = await open_process()
    assert isinstance(rig.log, StorageProcessLog)
    assert rig.log.process_id is not None
    await rig.store(1, 0, 1)

    os.kill(rig.log.process_id, signal.SIGKILL)
    await rig.until(lambda: rig.fatal)

    assert len(rig.fatal) == 1
    assert "ended unexpectedly" in str(rig.fatal[0])
    with pytest.raises(LogFailed):
        rig.log.flush()
    with pytest.raises(LogFailed):
        await rig.log.close()


LOOP_PROCESS = """
    import asyncio, sys
    from cmqd.storage.loop_side.process_log import StorageProcessLog
    from support.storage.log_rig import LogRig, settings_for
    from pathlib import Path

    async def main():
        log = StorageProcessLog(settings_for(Path(sys.argv[1])))
        rig = LogRig(log)
        await rig.open()
        await rig.store(1, 0, 1)
        print(log.process_id, flush=True)
        position = 1
        told = False
        while True:
            if log.last_lsn - log.durable_lsn < 100:  # a disk that stands still would otherwise fill the memory
                rig.send(1, position, 16, 4096)
                position += 16
                log.flush()
            if log.durable_lsn >= 20 and not told:
                told = True
                print("commits are under way", flush=True)
            await asyncio.sleep(0)

    asyncio.run(main())
"""


async def test_an_orphaned_storage_process_ends_and_frees_the_folder(folder: Path) -> None:
    """Its loop process is killed while commits are under way."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    loop_process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOOP_PROCESS), str(folder)], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert loop_process.stdout is not None
        storage_pid = int(await asyncio.to_thread(loop_process.stdout.readline))
        await asyncio.to_thread(loop_process.stdout.readline)
        assert is_locked(folder)
    finally:
        loop_process.kill()
        loop_process.communicate()

    await until_ended(storage_pid)

    assert not is_locked(folder)
    rig = LogRig(ProcessPlace(folder).log())
    report = await rig.open()
    assert not report.numbers_jump
    assert [lsn for lsn, _, _ in rig.rows] == list(range(1, len(rig.rows) + 1))
    await rig.log.close()


async def test_signals_to_the_whole_group_leave_storage_to_the_loop_process(open_process: OpenProcess) -> None:
    rig = await open_process()
    assert isinstance(rig.log, StorageProcessLog)
    assert rig.log.process_id is not None

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(rig.log.process_id, number)

    await rig.store(1, 0, 1)
    await rig.log.close()
    assert rig.fatal == []


async def test_a_close_lets_go_of_the_folder_and_the_process(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    assert isinstance(rig.log, StorageProcessLog)
    await rig.store(1, 0, 1)

    await rig.log.close()

    assert not is_locked(folder)
    assert rig.log.process_id is not None
    assert not is_running(rig.log.process_id)


@pytest.mark.parametrize("within_s", [0.2, None], ids=["limited by itself", "cancelled"])
async def test_a_close_ends_with_its_callers_time(open_process: OpenProcess, within_s: float | None) -> None:
    rig = await open_process()
    assert isinstance(rig.log, StorageProcessLog)
    assert rig.log.process_id is not None
    await rig.store(1, 0, 1)
    stop(rig.log.process_id)

    # The storage process stands still, so without a limit the close would last until the suite's own.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None if within_s else 0.2):
            await rig.log.close(within_s)

    await until_ended(rig.log.process_id)
    assert rig.fatal == []
    assert len((await open_process()).rows) == 1


async def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = StorageProcessLog(settings_for(tmp_path / "file" / "data"))

    with pytest.raises(LogFailed, match="file"):
        await log.open()


async def test_a_segment_rolls_by_size_while_commits_go_on(open_process: OpenProcess) -> None:
    rig = await open_process(segment_bytes=200_000, state_interval_ms=20)
    for index in range(330):
        rig.send(1, index, 1, 2000)
        rig.log.flush()
        if index % 10 == 9:
            await rig.commit()
        if index % 110 == 109:
            # More than a segment was written since the last roll. A roll waits for the file of the next segment, and
            # commits do not: without this wait a slow disk makes fewer and larger segments.
            rolls = (index + 1) // 110
            await rig.until(lambda rolls=rolls: rig.checkpoints_wanted >= rolls)
    await rig.log.seal_now()

    sealed = rig.log.closed_segments()
    assert len(sealed) >= 3
    assert [segment.first_lsn for segment in sealed[1:]] == [segment.last_lsn + 1 for segment in sealed[:-1]]
    assert rig.checkpoints_wanted >= len(sealed)
    assert len((await rig.page(1, [0, 330], 1 << 30))[0]) == 330


async def test_a_quiet_segment_rolls_by_age(open_process: OpenProcess) -> None:
    rig = await open_process(segment_age_ms=50, state_interval_ms=20)
    await rig.store(1, 0, 1)

    await rig.until(lambda: rig.checkpoints_wanted)
    await eventually(rig.log.closed_segments)


async def test_a_reader_from_outside_delays_sealing_and_not_the_close(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process()
    await rig.store(1, 0, 10)
    reader = open_read_only(folder / "segments" / "00000001.db", sealed=False)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
    await rig.store(1, 10, 10)
    try:
        await rig.log.close()
        assert not read_manifest(folder).clean
    finally:
        reader.close()

    again = await open_process()
    assert again.report is not None
    assert not again.report.numbers_jump
    assert len((await again.page(1, [0, 20]))[0]) == 20
    await eventually(again.log.closed_segments)


async def test_a_segment_that_is_read_from_outside_is_sealed_once_the_reader_goes(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 10)
    reader = open_read_only(folder / "segments" / "00000001.db", sealed=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchone()
    await rig.store(1, 10, 10)
    sealing = asyncio.create_task(rig.log.seal_now())
    await rig.until(lambda: rig.checkpoints_wanted)
    await rig.store(1, 20, 10)
    assert not sealing.done()

    reader.close()

    await sealing
    assert len((await rig.page(1, [0, 30]))[0]) == 30


async def retire_some(rig: LogRig, count: int) -> None:
    """Have ``count`` segments retired by their size; each holds the messages of some positions of queue 1."""
    position = 0
    while len(rig.log.closed_segments()) < count:
        await rig.store(1, position, 10, 2000)
        position += 10


async def test_a_segment_that_empties_soon_is_dropped_without_being_sealed(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process(segment_bytes=200_000)
    await retire_some(rig, 2)
    first, second = rig.log.closed_segments()
    await rig.checkpoint()
    await rig.checkpoint()
    path = folder / "segments" / f"{first.number:08}.db"
    main_file_bytes = path.stat().st_size
    assert path.with_name(path.name + "-wal").stat().st_size >= 200_000, "its WAL was not copied"
    # A page read keeps a connection open on it, which must be closed as well.
    assert len((await rig.page(1, [0, 5]))[0]) == 5
    gone = path.open("rb")

    assert await rig.log.drop_segments([first.number], 0) == [first.number]

    with gone:
        assert os.fstat(gone.fileno()).st_nlink == 0
        assert os.fstat(gone.fileno()).st_size == main_file_bytes, "nothing was copied to be thrown away"
    assert not list(folder.glob(f"segments/{first.number:08}*"))
    manifest = read_manifest(folder)
    assert next(entry.number for entry in manifest.segments if entry.rows) == second.number
    assert manifest.dropped == [(first.first_lsn, first.last_lsn)]
    assert isinstance(rig.log, StorageProcessLog)
    assert rig.log.process_id is not None
    os.kill(rig.log.process_id, signal.SIGKILL)
    again = await open_process()
    assert again.report is not None
    assert not again.report.numbers_jump, "a dropped segment is no loss"
    assert (await again.page(1, [0, 5])) == ([], [0, 5])


async def test_of_three_retired_segments_the_first_is_sealed(open_process: OpenProcess, folder: Path) -> None:
    rig = await open_process(segment_bytes=200_000)
    await retire_some(rig, 3)

    first, *held = rig.log.closed_segments()
    await eventually(lambda: not (folder / "segments" / f"{first.number:08}.db-wal").exists())
    for segment in held:
        assert (folder / "segments" / f"{segment.number:08}.db-wal").stat().st_size >= 200_000


async def test_where_history_is_kept_a_retired_segment_is_sealed_at_once(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process(segment_bytes=200_000, hold_retired=False)
    await retire_some(rig, 1)

    (first,) = rig.log.closed_segments()
    await eventually(lambda: not (folder / "segments" / f"{first.number:08}.db-wal").exists())


async def test_the_time_of_the_last_row_of_a_segment_is_known_after_a_restart(
    open_process: OpenProcess, folder: Path
) -> None:
    rig = await open_process()
    await rig.store(1, 0, 1)
    await rig.log.seal_now()
    assert [segment.last_ms for segment in rig.log.closed_segments()] == [NOW_MS]
    await rig.store(1, 1, 1)
    assert isinstance(rig.log, StorageProcessLog)
    assert rig.log.process_id is not None
    os.kill(rig.log.process_id, signal.SIGKILL)

    again = await open_process()

    # The second segment was left unsealed, and is reported once sealed.
    await eventually(lambda: len(again.log.closed_segments()) == 2)
    assert [segment.last_ms for segment in again.log.closed_segments()] == [NOW_MS, NOW_MS]
