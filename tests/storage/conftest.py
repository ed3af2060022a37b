"""Fixtures of several tests of storage."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cmqd.log.log_errors import LogFailed
from cmqd.storage.folder.data_folder import Disk
from support.storage.damage import CrashedAfter, crash
from support.storage.full_disk import Broker, FakeDisk, StartBroker
from support.storage.log_rig import ForkedPlace, LogRig, OpenProcess, ProcessPlace
from support.storage.wals import fill_ahead


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def place() -> type[ProcessPlace]:
    """The kind of the storage process of ``open_process``."""
    return ForkedPlace


@pytest.fixture
async def open_process(folder: Path, place: type[ProcessPlace]) -> AsyncIterator[OpenProcess]:
    """Open the folder with a storage process of its own; settings by keyword."""
    rigs: list[LogRig] = []

    async def open_one(**settings: object) -> LogRig:
        rig = LogRig(place(folder, **settings).log())
        rigs.append(rig)
        await rig.open()
        return rig

    yield open_one
    for rig in rigs:
        try:
            await rig.log.close()
        except LogFailed:
            pass


@pytest.fixture(params=["wal as written", "wal filled ahead"])
def crashed_after(folder: Path, request: pytest.FixtureRequest) -> CrashedAfter:
    """Make commits and crash. A WAL that was filled ahead has zeros behind its frames; that of a prepared segment has
    zeros alone.
    """

    async def commit_and_crash(rig: LogRig, commits: int) -> None:
        for index in range(commits):
            await rig.store(1, 10 * index, 10, 1000)
        await crash(rig)
        if request.param == "wal filled ahead":
            for wal in (folder / "segments").glob("*-wal"):
                fill_ahead(wal)

    return commit_and_crash


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[StartBroker]:
    """Start a broker over a disk that a test decides; settings by keyword."""
    brokers: list[Broker] = []

    async def start_one(disk: Callable[[Path, int, int], Disk] = FakeDisk, **settings: object) -> Broker:
        broker = Broker(folder, disk, **settings)
        brokers.append(broker)
        await broker.rig.open()
        return broker

    yield start_one
    for broker in brokers:
        await broker.log.kill()
        if broker.process.task is not None:
            await broker.process.task
