"""Copies of files into a backup and out of a backup: at a pace, with checksums compared, read back; in threads that end
before their caller goes on.
"""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeVar

from cmqd_backup.refusals import Refused
from cmqd_backup.runs import StoredFile
from cmqd_backup.stores import Store, open_without_read_ahead

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 16
"""Written through to the disk at a time: a commit on the same disk waits for one of them."""


class Pace:
    """A bound on bytes a second, read and written. A pause is not made up for."""

    def __init__(
        self,
        rate: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``rate``: bytes a second; 0 = no bound."""
        self._rate = rate
        self._clock = clock
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._due_s = 0.0

    def stop(self) -> None:
        """Let the copy end at its next step; called in another thread."""
        self._stopped.set()

    def moved(self, size: int) -> None:
        """Wait until ``size`` bytes more are within the rate. Raises Refused: the copy is to end."""
        if self._rate:
            now_s = self._clock()
            self._due_s = max(self._due_s, now_s) + size / self._rate
            self._sleep(max(0.0, self._due_s - now_s))
        if self._stopped.is_set():
            raise Refused("the copy was interrupted")


def copy_in(source: Path, store: Store, file: StoredFile, pace: Pace) -> None:
    """Copy a file into a backup, and read the copy back.

    Raises:
        Refused: the source, or the copy, does not have the checksum.
        OSError: the file cannot be read or written.
    """
    digest = hashlib.sha256()
    # Unbuffered, and no plain handle stays on a database: a sealed segment has no writer, so no lock is dropped.
    with open_without_read_ahead(source) as reading, store.writing(file.name) as writing:
        for chunk in _chunks(reading, pace):
            digest.update(chunk)
            _write_all(writing, chunk)
        if digest.hexdigest() != file.sha256:
            raise Refused(f"{source} does not match its checksum in the manifest: it is damaged")
    check(store, file, pace)


def check(store: Store, file: StoredFile, pace: Pace) -> None:
    """Read a file of a backup, and compare its checksum. Raises Refused, OSError."""
    digest = hashlib.sha256()
    with store.reading(file.name) as reading:
        for chunk in _chunks(reading, pace):
            digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        raise Refused(f"{file.name} of {store.place} does not match its checksum: it was cut, or changed")


def copy_out(store: Store, file: StoredFile, target: IO[bytes]) -> None:
    """Copy a file of a backup into an open file. Raises Refused, OSError."""
    digest = hashlib.sha256()
    try:
        with store.reading(file.name) as reading:
            for chunk in _chunks(reading, Pace()):
                digest.update(chunk)
                _write_all(target, chunk)
    except FileNotFoundError:
        raise Refused(f"{file.name} is missing in {store.place}") from None
    if digest.hexdigest() != file.sha256:
        raise Refused(
            f"{file.name} of {store.place} does not match its checksum: it was cut, or changed. Without that file, the"
            " next run copies it again as long as the data folder has it"
        )


def _chunks(reading: IO[bytes], pace: Pace):
    while chunk := reading.read(CHUNK_BYTES):
        yield chunk
        pace.moved(len(chunk))


def _write_all(writing: IO[bytes], chunk: bytes) -> None:
    """Write a chunk; an unbuffered file may take a part of it at a time."""
    view = memoryview(chunk)
    while view:
        view = view[writing.write(view) :]


def _no_stop() -> None:
    """Let the work end by itself."""


async def in_thread(work: Callable[[], T], *, stop: Callable[[], object] = _no_stop) -> T:
    """Do work in a thread, and return its result. Raises the errors of the work.

    ``stop``: called at a cancellation, to let the work end at its next step.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop()
        # Without the wait, the thread would write on after its files, pins and locks are gone.
        await asyncio.gather(working, return_exceptions=True)
        raise
