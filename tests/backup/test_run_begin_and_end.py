"""Begin and end of a run: the time from which rows may be missing, and a Ctrl-C in the middle."""

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cmqd.storage.folder.data_folder import DataFolder
from cmqd.storage.storage_errors import FolderLocked
from cmqd_backup import making
from cmqd_backup.holds import Held, manifest_of
from cmqd_backup.making import Wanted, end_standing_pin, make_run
from cmqd_backup.refusals import Refused
from cmqd_backup.runs import Runs
from cmqd_backup.standing import Standing
from cmqd_backup.stores import FolderStore
from cmqd_client.pins import LogPin
from cmqd_segment.folder_lock import LockHolder, shared_lock, try_lock
from support.backup.growing_log import GrowingLog
from support.storage.log_rig import NOW_MS

PIN = LogPin(1, "a" * 32, 2, "", datetime.now(UTC), 0, 0, timedelta(minutes=5), 1)


@pytest.fixture
async def log(tmp_path: Path) -> GrowingLog:
    log = GrowingLog(tmp_path / "data")
    await log.grow(2)
    return log


class TellingStore(FolderStore):
    """A place that tells the begin of the first copy."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun = threading.Event()

    def writing(self, name: str):
        self.begun.set()
        return super().writing(name)


class Broker:
    """Stands for the broker of a folder: the pin takes a minute of the wall clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS + 1_000_000
        self.last_lsn = 2
        self.parts_at_release: list[Path] | None = None
        monkeypatch.setattr(making, "wall_ms", lambda: self.now_ms)
        monkeypatch.setattr(making, "connected", self.connected)
        monkeypatch.setattr(making, "pinned_folder", self.pinned_folder)

    def connected(self, _folder: Path) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    @contextlib.asynccontextmanager
    async def pinned_folder(self, _client: Any, folder: Path) -> AsyncGenerator[tuple[Held, LogPin]]:
        self.now_ms += 60_000
        try:
            yield Held(folder, manifest_of(folder), self.last_lsn), PIN
        finally:
            self.parts_at_release = list(folder.parent.glob("backup/*/.*.part"))


async def test_a_run_says_no_time_behind_its_pin(log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A message that was acknowledged while the pin was made may be missing: the time of the run is before that."""
    broker, store = Broker(monkeypatch), FolderStore(tmp_path / "backup")
    before_ms = broker.now_ms

    with try_lock(log.folder):
        await make_run(Wanted(log.folder, store), print)

    run = Runs(store).newest()
    assert run is not None
    assert run.until_ms == before_ms
    assert run.ended_ms == before_ms + 60_000


async def test_runs_at_an_interval_need_a_broker(log: GrowingLog, tmp_path: Path):
    store = FolderStore(tmp_path / "backup")
    with pytest.raises(Refused, match="start it, or make a single run, without --every"):
        await make_run(Wanted(log.folder, store, every_ms=60_000), print, Standing(store))


async def test_a_live_log_without_a_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The broker time of a restored log would begin in 1970."""
    empty, broker, store = GrowingLog(tmp_path / "data"), Broker(monkeypatch), FolderStore(tmp_path / "backup")
    await empty.grow(0)
    broker.last_lsn = 0

    with try_lock(empty.folder), pytest.raises(Refused, match="is empty: there is no row to copy"):
        await make_run(Wanted(empty.folder, store), print)

    assert Runs(store).names == []


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "stopped"])
async def test_a_run_that_is_interrupted_ends_before_it_lets_go_of_pin_and_locks(
    log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
):
    broker, backup = Broker(monkeypatch), tmp_path / "backup"
    store = TellingStore(backup)
    wanted = Wanted(log.folder, store, rate=1)

    with try_lock(log.folder) if is_live else contextlib.nullcontext():
        run = asyncio.create_task(make_run(wanted, print))
        assert await asyncio.to_thread(store.begun.wait, 30)
        run.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await run

    assert broker.parts_at_release == ([] if is_live else None)
    assert list(backup.glob("*/.*.part")) == []
    assert Runs(wanted.store).names == []
    with try_lock(backup) as is_free:
        assert is_free


async def test_a_reader_of_a_stopped_folder_is_no_broker(log: GrowingLog, tmp_path: Path):
    """Readers leave the text in the lock alone, which names the storage of the broker that has stopped."""
    with shared_lock(log.folder):
        with pytest.raises(Refused, match="no broker works on"):
            await make_run(Wanted(log.folder, FolderStore(tmp_path / "other")), print)
        with pytest.raises(FolderLocked, match="is in use by a program that reads its files"):
            await DataFolder(log.folder).lock(0, LockHolder(1, 1))


async def test_an_offline_run_is_named_to_a_start_and_to_a_second_run(log: GrowingLog, tmp_path: Path):
    """The address in the folder is of the broker that has stopped: an attempt to connect would wait for it."""
    store = TellingStore(tmp_path / "backup")
    run = asyncio.create_task(make_run(Wanted(log.folder, store, rate=1), print))
    assert await asyncio.to_thread(store.begun.wait, 30)
    holder = re.escape(f"is in use by process {os.getpid()} (cmqd backup)")

    with pytest.raises(FolderLocked, match=holder):
        await DataFolder(log.folder).lock(0, LockHolder(1, 1))
    for second in (
        make_run(Wanted(log.folder, FolderStore(tmp_path / "other")), print),
        make_run(Wanted(log.folder, FolderStore(tmp_path / "backup")), print),
        end_standing_pin(Wanted(log.folder, store)),
    ):
        with pytest.raises(Refused, match=holder):
            await second

    run.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await run
