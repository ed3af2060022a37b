"""Brokers' logs over one engine in memory: a leader, standbys, and their folders."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow
from cmqd.server.loop.clock import wall_ms
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_settings import StorageSettings
from support.engine.memory_engine import MemoryDatabase
from support.storage.full_disk import FakeDisk
from support.storage.log_rig import InProcess, LogRig, settings_for


class Replica:
    """A log over the engine, with its storage service on the loop of the test."""

    def __init__(self, replicas: "Replicas", folder: Path, **settings: object) -> None:
        self.folder = folder
        self.process = InProcess(FakeDisk, replicas.open_engine)
        self.log = StorageProcessLog(settings_for(folder, state_interval_ms=5, **settings), self.process.start)
        self.rig = LogRig(self.log)

    async def end(self) -> None:
        """End as by a crash of the process, which ends its sessions too."""
        await self.log.kill()
        if self.process.task is not None:
            await self.process.task


class Replicas:
    """An engine in memory, and the brokers over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = MemoryDatabase(pause=lambda: time.sleep(0.001))
        self._logs = 0
        self.replicas: list[Replica] = []

    def open_engine(self, _settings: StorageSettings, is_stopping: Callable[[], bool]) -> FencedEngine:
        """Make an engine over the database."""
        return self.engine(is_stopping)

    def engine(self, is_stopping: Callable[[], bool] = lambda: False) -> FencedEngine:
        """Make an engine over the database, beside those of the brokers."""

        def new_log_id() -> str:
            self._logs += 1
            return f"{self._logs:032x}"

        return FencedEngine(
            self.database,
            monotonic=time.monotonic,
            sleep=lambda seconds: time.sleep(min(seconds, 0.01)),
            stopping=is_stopping,
            new_log_id=new_log_id,
            wall_ms=wall_ms,
        )

    def broker(self, name: str, **settings: object) -> Replica:
        """Make a log of this broker; ``open`` of its rig starts it."""
        replica = Replica(self, self.folder / name, **settings)
        self.replicas.append(replica)
        return replica

    async def leader(self, name: str, **settings: object) -> Replica:
        """Start a broker that leads."""
        replica = self.broker(name, **settings)
        await replica.rig.open()
        return replica

    @property
    def rows(self) -> Sequence[EngineRow]:
        """The rows of the primary."""
        tables = self.database.newest_primary().tables
        return [tables.rows[lsn] for lsn in sorted(tables.rows)]

    async def end(self) -> None:
        """End all brokers."""
        for replica in self.replicas:
            await replica.end()


class LogToTheEnd(StorageProcessLog):
    """A log over an engine whose storage service has ended when the log has: for a command with a loop of its own."""

    def __init__(self, replicas: Replicas, folder: Path) -> None:
        self._service = InProcess(FakeDisk, replicas.open_engine)
        super().__init__(settings_for(folder, state_interval_ms=5), self._service.start)

    async def close(self, within_s: float | None = None) -> None:
        await super().close(within_s)
        await self._end()

    async def kill(self) -> None:
        await super().kill()
        await self._end()

    async def _end(self) -> None:
        if self._service.task is not None:
            await self._service.task
