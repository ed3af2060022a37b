"""A data folder: its names, its lock, its ballast, and files that do not belong in it.

    lock            held (flock) by each process that can write, as long as it can; names the storage process
    manifest        see cmqd_segment.manifest
    segments/       NNNNNNNN.db, with -wal and -shm beside unsealed segments, and NNNNNNNN.side beside sealed segments
    checkpoints/    NNNNNNNN.ckpt
    set-aside/      copies of damaged files, and unknown files; never read again
    ballast         space to release when the disk is full, so that deletes go on
    ballast-start   space that only a start releases, so that a broker that died on a full disk starts again
    inspection/     links that a start makes while it searches for damage, and removes

Other files at the top, such as the server's accounts, do not concern storage.
"""

import asyncio
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from cmqd.storage.storage_errors import FolderLocked
from cmqd_segment.folder_lock import LOCK, LockHolder, read_holder, write_holder
from cmqd_segment.manifest import CHECKPOINTS, MANIFEST_NAME, SEGMENTS, Manifest, sync_folder

LOCK_POLL_SECONDS = 0.05
SET_ASIDE = "set-aside"
BALLAST = "ballast"
START_BALLAST = "ballast-start"


def boot_id() -> str:
    """Return the id of this boot of the machine; empty on a system without such an id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_name(broker_pid: int, boot: str) -> str:
    """Return a short name of a broker's process, the same for no other process of the same time."""
    return f"{broker_pid}@{boot[:8]}"


class DataFolder:
    """The data folder of one broker."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.segments = self.path / SEGMENTS
        self.checkpoints = self.path / CHECKPOINTS
        self.set_aside = self.path / SET_ASIDE
        self._lock: int | None = None

    def create(self) -> None:
        """Make missing folders. Raises OSError."""
        for folder in (self.path, self.segments, self.checkpoints):
            if not folder.is_dir():
                # Bodies are private unless the operator opens the folder to a group (Spark's).
                folder.mkdir(mode=0o750, parents=True, exist_ok=True)
                sync_folder(folder.parent)

    def file_mode(self, *, group_readable: bool) -> tuple[int, str]:
        """Return the mode for new files of the log, and a text if the mode differs from that of a new folder.

        The mode of the manifest decides. A folder keeps its modes, because readers of the log may depend on them.
        """
        new_mode = 0o640 if group_readable else 0o600
        try:
            mode = stat.S_IMODE((self.path / MANIFEST_NAME).stat().st_mode) & 0o666 | 0o600
        except FileNotFoundError:
            return new_mode, ""
        if mode == new_mode:
            return mode, ""
        return mode, (
            f"the files of the log keep their mode {mode:04o}, which new files get too; a new folder would have"
            f" {new_mode:04o}. To change it, stop the broker and give that mode to manifest, segments/* and"
            " checkpoints/*"
        )

    async def lock(self, wait_ms: int, holder: LockHolder, on_wait: Callable[[str], None] = lambda text: None) -> None:
        """Take the lock.

        Args:
            wait_ms: time to wait for the holder to end, as a restart needs it.
            holder: written into the lock file, for the error text of other processes.
            on_wait: called once, at the beginning of the wait, with a text that names the holder.

        Raises:
            FolderLocked: the lock was not free in time; the text names the holder.
        """
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        deadline = monotonic() + wait_ms / 1000
        is_told = False
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    text = f"the data folder {self.path} is in use by {read_holder(descriptor)}"
                    if monotonic() >= deadline:
                        waited = f"; waited {wait_ms / 1000:g} s for it" if wait_ms else ""
                        raise FolderLocked(text + waited) from None
                    if not is_told:
                        is_told = True
                        on_wait(text)
                await asyncio.sleep(LOCK_POLL_SECONDS)
            write_holder(descriptor, holder)
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor

    @property
    def lock_descriptor(self) -> int:
        """The descriptor with the lock. A copy that is handed on to another process holds the lock too."""
        assert self._lock is not None
        return self._lock

    def unlock(self) -> None:
        """Release the lock of the folder, as far as this process holds it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put_aside(self, path: Path, *, keep: bool = False) -> Path:
        """Move a file (``keep``: copy it) to ``set-aside/`` under a new name."""
        if not self.set_aside.is_dir():
            self.set_aside.mkdir()
            # The mask of the process is made for files, and takes the right to enter a folder away.
            self.set_aside.chmod(0o750)
        count = 0
        while (target := self.set_aside / f"{path.name}.{count}").exists():
            count += 1
        if keep:
            shutil.copyfile(path, target)
        else:
            path.replace(target)
        sync_folder(self.set_aside)
        return target

    def strangers(self, manifest: Manifest) -> list[Path]:
        """Return the files in the folders of the log that the manifest does not list."""
        listed = {self.path / entry.file for entry in (*manifest.segments, *manifest.checkpoints)}
        listed |= {self.path / entry.side_file for entry in manifest.segments if entry.side is not None}
        listed |= {self.path / entry.outcomes_file for entry in manifest.segments if entry.outcomes_file}
        unlisted: list[Path] = []
        for folder in (self.segments, self.checkpoints):
            for path in sorted(folder.iterdir()):
                main = path.with_name(path.name.removesuffix("-wal").removesuffix("-shm"))
                if path not in listed and main not in listed:
                    unlisted.append(path)
        return unlisted


@contextmanager
def locked_folder(path: Path) -> Generator[None]:
    """Hold the lock of a folder for a command that needs its broker stopped. Raises FolderLocked, OSError."""
    folder = DataFolder(path)
    asyncio.run(folder.lock(0, LockHolder(os.getpid(), 0, "a cmqd command")))
    try:
        yield
    finally:
        folder.unlock()


class Reserve:
    """Space of the disk that is held back in a file of its own."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size

    @property
    def missing_bytes(self) -> int:
        """Part of the space that is not held back."""
        try:
            return max(0, self.size - self.path.stat().st_size)
        except FileNotFoundError:
            return self.size

    def take(self, size: int | None = None) -> bool:
        """Hold back ``size`` bytes (default: all); False if there is not enough room."""
        size = self.size if size is None else size
        if size <= 0:
            return True
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:
            return False  # not even the name has room
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            self.release()
            return False
        finally:
            os.close(descriptor)
        return True

    def release(self) -> bool:
        """Give the space back to the disk; False if none was held."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


class Disk:
    """Free space and reserves of the disk under a data folder. Tests replace the class to make a disk full.

    Two reserves, used in this order. The running broker releases ``ballast`` when a write meets a full disk. Only a
    start without room releases ``start_ballast``: a broker that died within its ballast can so start again, and
    consumers can make room.
    """

    def __init__(self, folder: Path, ballast_bytes: int, start_ballast_bytes: int = 0) -> None:
        self._folder = folder
        self.ballast = Reserve(folder / BALLAST, ballast_bytes)
        self.start_ballast = Reserve(folder / START_BALLAST, start_ballast_bytes)

    def free_bytes(self) -> int:
        """Free space for the user of the process."""
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize

    @property
    def missing_ballast_bytes(self) -> int:
        """Part of both reserves that is not held back."""
        return self.ballast.missing_bytes + self.start_ballast.missing_bytes

    def take_ballast(self) -> bool:
        """Hold both reserves back; False if there is not enough room for the two."""
        return self.start_ballast.take() and self.ballast.take()
