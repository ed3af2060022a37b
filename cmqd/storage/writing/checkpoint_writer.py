"""Checkpoint files, written while the parts arrive.

A checkpoint counts only once its last LSN is durable and the file was read back. Before that LSN is durable, the slices
may state facts that a crash takes back; and the older checkpoint is deleted only after the new file proved readable.
"""

import asyncio
import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.standard_error import complain
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, frame, verify_checkpoint
from cmqd_segment.manifest import CheckpointEntry, SourceName, checkpoint_file, sync_folder

TEMPORARY = "unfinished.tmp"
BUFFER_BYTES = 1 << 20


class Checkpoints:
    """The checkpoint that is being written, and the kept checkpoints."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        kept: int,
        durable: DurableLsn,
        on_done: Callable[[int], None],
        on_full: Callable[[], object],
        keep_elsewhere: Callable[[int, Path], Awaitable[None]] | None = None,
    ) -> None:
        """Take the parts. ``keep_elsewhere`` stores a finished file in the engine, and reads it back."""
        self._catalog = catalog
        self._kept = kept
        self._durable = durable
        self._on_done = on_done
        self._on_full = on_full
        self._keep_elsewhere = keep_elsewhere
        self._parts: asyncio.Queue[tuple[bool, int, bytes, Sequence[SourceName]]] = asyncio.Queue()
        self._lacking: Sequence[SourceName] = ()
        """Names that the next end of a checkpoint lacks."""
        self._begun = False
        self._buffer = bytearray()
        self._path = catalog.folder.checkpoints / TEMPORARY

    def write(self, first: bool, end_lsn: int, payload: bytes) -> None:
        """Take the next part; ``first`` begins a checkpoint, ``end_lsn`` (not 0) ends it."""
        lacking: Sequence[SourceName] = ()
        if end_lsn:
            lacking, self._lacking = self._lacking, ()
        self._parts.put_nowait((first, end_lsn, payload, lacking))

    def lacks(self, names: Sequence[SourceName]) -> None:
        """Keep names of deleted queues and topics with the checkpoint that ends next."""
        self._lacking = names

    async def drained(self) -> None:
        """Wait until every part is written or dropped."""
        await self._parts.join()

    async def run(self) -> None:
        """Write parts until cancelled. Raises OSError, except for lack of space.

        Lack of space abandons the checkpoint. Without it, segments stay longer and a start takes longer; no data is
        lost.
        """
        while True:
            first, end_lsn, payload, lacking = await self._parts.get()
            try:
                await self._write(first, end_lsn, payload, lacking)
            except (OSError, CheckpointError) as error:
                if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                complain(f"a checkpoint was abandoned: {error}")
                self._begun = False
                self._path.unlink(missing_ok=True)
                if isinstance(error, OSError):
                    self._on_full()
            self._parts.task_done()

    async def _write(self, first: bool, end_lsn: int, payload: bytes, lacking: Sequence[SourceName]) -> None:
        buffer = self._buffer
        if first:
            await asyncio.to_thread(self._path.write_bytes, MAGIC)
            buffer.clear()
            self._begun = True
        if not self._begun:
            return
        buffer += frame(payload)
        if end_lsn or len(buffer) >= BUFFER_BYTES:
            await asyncio.to_thread(append, self._path, bytes(buffer))
            buffer.clear()
        if end_lsn:
            self._begun = False
            await self._finish(end_lsn, lacking)

    async def _finish(self, end_lsn: int, lacking: Sequence[SourceName]) -> None:
        await self._durable.reached(end_lsn)
        catalog = self._catalog
        # Not before the rows of the segments that have messages of these queues are counted, and before the manifest
        # that lists the checkpoint.
        catalog.note_deleted(lacking)
        number = max((entry.number for entry in catalog.checkpoints), default=0) + 1
        entry = await asyncio.to_thread(publish, self._path, catalog.folder.path, number)
        if self._keep_elsewhere is not None:
            # Before the checkpoint counts: rows are reclaimed below it, also in the engine.
            await self._keep_elsewhere(entry.lsn, catalog.folder.path / entry.file)
        # Listed before the older file is deleted: a crash in between leaves an unlisted file, which the next start
        # puts aside, and not a manifest with a missing checkpoint.
        kept = [*catalog.checkpoints, entry]
        superseded = kept[: -self._kept]
        catalog.checkpoints = kept[-self._kept :]
        await catalog.save()
        for old in superseded:
            await asyncio.to_thread((catalog.folder.path / old.file).unlink, missing_ok=True)
        self._on_done(entry.lsn)


def append(path: Path, data: bytes) -> None:
    """Write at the end of a file. Raises OSError."""
    with path.open("ab") as file:
        file.write(data)


def publish(temporary: Path, folder: Path, number: int) -> CheckpointEntry:
    """Fsync the file, read it back, rename it. Raises CheckpointError, OSError."""
    digest = hashlib.sha256()
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        size = file.tell()
    header, end = verify_checkpoint(temporary)
    path = folder / checkpoint_file(number)
    temporary.replace(path)
    sync_folder(path.parent)
    return CheckpointEntry(number, header.lsn, end.lsn, header.time_ms, size, digest.hexdigest())
