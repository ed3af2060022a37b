"""Checkpoint files, written while the parts arrive.

A checkpoint counts only once its last LSN is durable and the file was read back. Before that LSN is durable, the slices
may state facts that a crash takes back; and the older checkpoint is deleted only after the new file proved readable.

The fsync of a commit waits for all work that the disk has in hand (decision 0163). The file is therefore written and
synced in small steps, each followed by a pause, and a superseded file gives its blocks back in steps. The file counts
only by its entry in the manifest, so a step that a crash loses harms nothing.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.folder.freed_blocks import remove
from cmqd.storage.outcomes.rounds import Changes, Rounds
from cmqd.storage.segments.sqlite_thread import to_the_end
from cmqd.storage.standard_error import complain
from cmqd_segment.checkpoint_file import MAGIC, CheckpointError, read_ends
from cmqd_segment.manifest import CheckpointEntry, SourceName, checkpoint_file, sync_folder

TEMPORARY = "unfinished.tmp"
STEP_BYTES: Final = 128 * 1024
"""Bytes between two syncs: as many as commits do not notice, as in ``wal_filling``."""
PAUSE_SECONDS: Final = 0.001
"""Pause after a step."""
HURRIED_BYTES: Final = 2 * 1024 * 1024
"""Waiting bytes from which on steps are large and without pauses. The loop process makes a checkpoint with pauses, so
so much waits only if the broker stops, or if the disk is too slow for small steps."""
HURRIED_STEP_BYTES: Final = 1024 * 1024


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
        is_hurried: Callable[[], bool],
        rounds: Rounds,
        start: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        keep_elsewhere: Callable[[int, Path], Awaitable[None]] | None = None,
    ) -> None:
        """Take the parts.

        ``rounds`` runs before the oldest checkpoint goes, in a task that ``start`` begins.
        ``is_hurried`` returns whether a superseded file gives its blocks back at once; called in any thread.
        ``keep_elsewhere`` stores a finished file in the engine, and reads it back.
        """
        self._catalog = catalog
        self._kept = kept
        self._durable = durable
        self._on_done = on_done
        self._on_full = on_full
        self._is_hurried = is_hurried
        self._keep_elsewhere = keep_elsewhere
        self._rounds = rounds
        self._start = start
        self._round: asyncio.Task[None] | None = None
        self._changes: Changes | None = None
        """Told with the checkpoint that ends next."""
        self._parts: asyncio.Queue[tuple[bool, int, bytes, Sequence[SourceName], Changes | None]] = asyncio.Queue()
        self._lacking: Sequence[SourceName] = ()
        """Names that the next end of a checkpoint lacks."""
        self._file: io.BufferedWriter | None = None
        """The checkpoint that was begun."""
        self._buffer = bytearray()
        self._waiting_bytes = 0
        """Of the parts that were taken and are not in the buffer yet."""
        self._path = catalog.folder.checkpoints / TEMPORARY
        self._held: Counter[int] = Counter()
        """Holds of kept checkpoints, by number."""

    def write(self, first: bool, end_lsn: int, frames: bytes) -> None:
        """Take the next parts, as frames; ``first`` begins a checkpoint, ``end_lsn`` (not 0) ends it."""
        lacking: Sequence[SourceName] = ()
        changes: Changes | None = None
        if end_lsn:
            lacking, self._lacking = self._lacking, ()
            changes, self._changes = self._changes, None
        self._waiting_bytes += len(frames)
        self._parts.put_nowait((first, end_lsn, frames, lacking, changes))

    def lacks(self, names: Sequence[SourceName]) -> None:
        """Keep names of deleted queues and topics with the checkpoint that ends next."""
        self._lacking = names

    def changed(self, changes: Changes) -> None:
        """Keep what the loop process tells of segments with the checkpoint that ends next."""
        self._changes = changes

    @property
    def droppable_lsn(self) -> int:
        """``Catalog.droppable_lsn`` after the release of every hold."""
        kept = self._catalog.checkpoints[-self._kept :]
        upto = self._catalog.outcomes_upto
        if not kept or upto is None:
            return 0
        return kept[0].lsn if self._round is None else min(kept[0].lsn, upto.lsn)

    def hold(self) -> CheckpointEntry | None:
        """Keep the newest checkpoint until its release, or until the end of this process."""
        newest = self._catalog.checkpoints[-1] if self._catalog.checkpoints else None
        if newest is not None:
            self._held[newest.number] += 1
        return newest

    def release(self, number: int) -> list[CheckpointEntry]:
        """End a hold; return the checkpoints that nothing keeps any more, for ``remove_superseded``.

        They are out of the catalog at once: a drop of segments that is asked for next is decided without them.
        """
        self._held[number] -= 1
        if not self._held[number]:
            del self._held[number]
        return self._take_superseded()

    def _take_superseded(self) -> list[CheckpointEntry]:
        catalog, rounds = self._catalog, self._rounds
        superseded = [entry for entry in catalog.checkpoints[: -self._kept] if entry.number not in self._held]
        left = [entry for entry in catalog.checkpoints if entry not in superseded]
        # By number: two checkpoints can have one header's row, and slices of different rows.
        older = catalog.outcomes_upto
        if (
            left
            and self._round is None
            and (older is None or older.number < left[0].number)
            and not rounds.moves(older, left[0])
        ):
            # Both files are read.
            held = [entry.number for entry in (older, left[0]) if entry is not None]
            self._held.update(held)
            superseded = [entry for entry in superseded if entry.number not in self._held]
            self._round = self._start(self._run_round(older, left[0], held))
        catalog.checkpoints = [entry for entry in catalog.checkpoints if entry not in superseded]
        return superseded

    async def _run_round(self, older: CheckpointEntry | None, newer: CheckpointEntry, held: Sequence[int]) -> None:
        if not await self._rounds.run(older, newer):
            # The holds stay: the last checkpoint must not remove the older, from which the next start goes on.
            return
        for number in held:
            self._held[number] -= 1
            if not self._held[number]:
                del self._held[number]
        self._round = None
        await self.remove_superseded(self._take_superseded())
        self._on_done(self._catalog.checkpoints[-1].lsn)

    def begin_rounds(self) -> None:
        """Begin the round that the life before owed."""
        if superseded := self._take_superseded():
            self._start(self.remove_superseded(superseded))

    async def rounds_ended(self) -> None:
        """Wait for the end of the round under way, which ends when the broker stops."""
        if self._round is not None:
            await asyncio.wait([self._round])

    async def remove_superseded(self, superseded: Sequence[CheckpointEntry]) -> None:
        """Write the manifest, then remove the files: a crash in between leaves unlisted files, which the next start
        puts aside, and not a manifest with a missing checkpoint.
        """
        # Before the manifest: a round that ends later replaces files that this manifest lists.
        replaced = self._rounds.take_replaced()
        await self._catalog.save()
        for old in superseded:
            await asyncio.to_thread(remove, self._catalog.folder.path / old.file, self._is_hurried)
        await self._rounds.remove(replaced)

    async def drained(self) -> None:
        """Wait until every part is written or dropped."""
        await self._parts.join()

    async def run(self) -> None:
        """Write parts until cancelled. Raises OSError, except for lack of space.

        Lack of space abandons the checkpoint. Without it, segments stay longer and a start takes longer; no data is
        lost.
        """
        try:
            while True:
                first, end_lsn, frames, lacking, changes = await self._parts.get()
                self._waiting_bytes -= len(frames)
                if changes is not None:
                    # Also if this checkpoint is abandoned: the next then tells of the time since the one before.
                    self._rounds.tell(changes)
                try:
                    await self._write(first, end_lsn, frames, lacking)
                except (OSError, CheckpointError) as error:
                    if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    complain(f"a checkpoint was abandoned: {error}")
                    self._abandon()
                    self._path.unlink(missing_ok=True)
                    if isinstance(error, OSError):
                        self._on_full()
                self._parts.task_done()
        finally:
            self._abandon()

    def _open(self) -> None:
        self._file = self._path.open("wb")

    def _abandon(self) -> None:
        file, self._file = self._file, None
        self._buffer.clear()
        if file is not None:
            # A close flushes what a failed write left behind, and may fail as the write did.
            with contextlib.suppress(OSError):
                file.close()

    async def _write(self, first: bool, end_lsn: int, frames: bytes, lacking: Sequence[SourceName]) -> None:
        buffer = self._buffer
        if first:
            self._abandon()
            # A call that is cancelled here knows the file, and ``run`` closes it.
            await to_the_end(asyncio.to_thread(self._open))
            buffer += MAGIC
        if self._file is None:
            return
        buffer += frames
        hurried = self._waiting_bytes >= HURRIED_BYTES
        if end_lsn or len(buffer) >= (HURRIED_STEP_BYTES if hurried else STEP_BYTES):
            await asyncio.to_thread(write_in_steps, self._file, bytes(buffer), hurried=hurried)
            buffer.clear()
        if end_lsn:
            self._abandon()
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
        catalog.checkpoints = [*catalog.checkpoints, entry]
        self._rounds.note(entry.number)
        await self.remove_superseded(self._take_superseded())
        self._on_done(entry.lsn)


def write_in_steps(file: io.BufferedWriter, data: bytes, *, hurried: bool) -> None:
    """Write at the end of a file, in steps that are on the disk on return. Raises OSError."""
    step = HURRIED_STEP_BYTES if hurried else STEP_BYTES
    for start in range(0, len(data), step):
        file.write(data[start : start + step])
        file.flush()
        os.fdatasync(file.fileno())
        if not hurried:
            time.sleep(PAUSE_SECONDS)


def publish(temporary: Path, folder: Path, number: int) -> CheckpointEntry:
    """Fsync the file, read it back, rename it. Raises CheckpointError, OSError.

    Its parts are not decoded: this process has framed none, and their checksums are those of the loop process.
    """
    digest = hashlib.sha256()
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        size = file.tell()
    header, end = read_ends(temporary)
    path = folder / checkpoint_file(number)
    temporary.replace(path)
    sync_folder(path.parent)
    return CheckpointEntry(number, header.lsn, end.lsn, header.time_ms, size, digest.hexdigest())
