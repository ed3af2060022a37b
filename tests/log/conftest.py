"""The logs that the conformance suite runs over."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from support.engine.replicas import Replica, Replicas
from support.storage.killed_folder import copy_as_killed
from support.storage.log_rig import AnyLog, ForkedPlace, LogRig, LoopPlace, MemoryPlace, OpenRig, Place


class EnginePlace:
    """A log in an engine, with its storage service on the loop of the test."""

    def __init__(self, folder: Path) -> None:
        self._name = folder.name
        self._replicas = Replicas(folder.parent)
        self._brokers: dict[Log, Replica] = {}

    def log(self) -> AnyLog:
        broker = self._replicas.broker(self._name)
        self._brokers[broker.log] = broker
        return broker.log

    async def end(self) -> None:
        """End the storage services."""
        await self._replicas.end()

    async def crash(self, log: Log) -> None:
        # The end of a service on the loop of the test closes its files, so the folder is kept as a kill leaves it.
        broker = self._brokers[log]
        kept = copy_as_killed(broker.folder, broker.folder.with_name("kept"))
        await broker.end()
        shutil.rmtree(broker.folder)
        kept.rename(broker.folder)


def in_memory(_folder: Path) -> Place:
    return MemoryPlace()


def over_engine(folder: Path) -> Place:
    return EnginePlace(folder)


LOGS = [
    pytest.param(in_memory, id="memory"),
    pytest.param(ForkedPlace, id="process", marks=pytest.mark.system),
    pytest.param(LoopPlace, id="loop commits", marks=pytest.mark.system),
    pytest.param(over_engine, id="engine"),
]
"""A line per implementation of the interface: its place, given a folder that does not exist yet."""


@pytest.fixture(params=LOGS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Where a log is kept."""
    made: Place = request.param(tmp_path / "data")
    yield made
    if isinstance(made, EnginePlace):
        await made.end()


@pytest.fixture
async def open_rig(place: Place) -> AsyncIterator[OpenRig]:
    """Open the log of the place."""
    rigs: list[LogRig] = []

    async def open_one() -> LogRig:
        rig = LogRig(place.log())
        rigs.append(rig)
        await rig.open()
        return rig

    yield open_one
    for rig in rigs:
        try:
            await rig.log.close()
        except LogFailed:
            pass  # a test crashed or closed the log itself
