"""Disks without room, and brokers over them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from cmqd.storage.folder.data_folder import Disk
from cmqd.storage.loop_side.process_log import StorageProcessLog
from support.storage.log_rig import InProcess, LogRig, settings_for
from support.storage.loop_way import ChosenWay

GIBIBYTE = 1 << 30


class FakeDisk(Disk):
    """A disk with free space that a test decides."""

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int) -> None:
        super().__init__(folder, ballast_bytes, start_ballast_bytes)
        self.free = GIBIBYTE

    def free_bytes(self) -> int:
        return self.free


class Broker:
    """The storage service on the loop of the test, over a fake disk."""

    def __init__(self, folder: Path, disk: Callable[[Path, int, int], Disk] = FakeDisk, **settings: object) -> None:
        self.process = InProcess(disk)
        self.log = StorageProcessLog(
            settings_for(folder, state_interval_ms=5, **settings), self.process.start, way=ChosenWay(wanted=False)
        )
        self.rig = LogRig(self.log)

    @property
    def disk(self) -> FakeDisk:
        disk = self.process.service.log.disk
        assert isinstance(disk, FakeDisk)
        return disk

    async def limit_pages(self, more: int) -> None:
        """Let the active segment grow by this number of pages, as on a small disk; SQLite reports the full disk."""
        connection = self.process.service.log.writer.active.connection

        def limit() -> None:
            (pages,) = connection.raw.execute("PRAGMA page_count").fetchone()
            connection.raw.execute(f"PRAGMA max_page_count={pages + more}")

        await connection.run(limit)

    @property
    def refused(self) -> bool:
        return bool(self.rig.states) and self.rig.states[-1].sends_refused


StartBroker = Callable[..., Awaitable[Broker]]
