"""Side files of sealed segments: written by each seal, and made anew where one is missing or damaged.

Order: the segment is durable and its SHA-256 known; side file by temporary file, fsync, rename; fsync of the folder;
manifest. A crash before the manifest leaves a side file that the manifest does not list: the next start removes it, and
the seal, or the pass below, writes it again. The manifest never lists a side file that is not durable.

A seal reads the rows once, before it writes its tables: for the table ``actors`` and for the side file.

A side file is never worth a seal: without room on the disk the segment is sealed without one. ``SideFiles`` makes it
later, as the side files of segments that older versions sealed. Each start reads all side files once, so that a damaged
file does not stay for the life of its segment.

The work shares the interpreter with the commit thread. It therefore rests after each step, unless a seal is hurried.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.segments.sqlite_thread import to_the_end
from cmqd.storage.standard_error import complain
from cmqd_reading.naming import NamedMessages
from cmqd_segment.manifest import SIDE_SUFFIX, SegmentEntry, SideEntry, SourceName, sync_folder
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.rows import meta_checksum
from cmqd_segment.schema import SegmentFormatError, open_read_only, read_names
from cmqd_segment.side import SideError, encode_side, side_plan
from cmqd_segment.sparse import SparseQueue, sparse_queue

STEP_ROWS: Final = 64
"""Rows between two pauses: at most 4 MiB of records."""
TOGETHER_BYTES: Final = 32 * 1024
"""Records that are decoded together, in bytes: more would keep more objects, and be no faster."""
SAVED_FILES: Final = 64
"""Side files that are made between two manifests: with 10,000 segments a manifest has 3 MB."""
SHORT_DISK_SECONDS: Final = 5.0
"""Pause before a disk without room is looked at again."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
RESTS: Final = 4
"""Rest of the pass over older segments, for each second of work."""
FAILURES: Final = (SideError, sqlite3.Error, SegmentFormatError, msgspec.MsgspecError, NewerFormatError, OSError)
"""Failures to write a side file. None harms the segment, so none ends the broker."""


class Stopped(Exception):
    """The work was given up, because the broker stops."""


class RowsRead:
    """The facts of a segment that its seal and its side file need: the sparse index, and what the rows name."""

    def __init__(self, queues: Mapping[int, SparseQueue]) -> None:
        """``queues``: the sparse index."""
        self.queues = sorted(queues.items())
        self.named = NamedMessages((number, queue.first_position, queue.stop_position) for number, queue in self.queues)
        self.failure: Exception | None = None
        """Reason why a row could not be read, so that its messages are unknown."""

    def read(
        self, raw: sqlite3.Connection, file: str, is_lost: Callable[[int], bool], rest: Callable[[float], None]
    ) -> None:
        """Read the rows of a segment, and note the first failure. Blocks.

        Args:
            raw: connection to the segment.
            file: name of the segment.
            is_lost: whether the loss of a row was accepted; a damaged row may still be in the file.
            rest: called between two steps with the seconds that the last step took; may raise Stopped.
        """
        try:
            rows = raw.execute("SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log ORDER BY lsn")
            while True:
                began = time.monotonic()
                step = rows.fetchmany(STEP_ROWS)
                if not step:
                    break
                self._take(step, file, is_lost)
                rest(time.monotonic() - began)
        except sqlite3.Error as error:
            self._fail(error)

    def _take(self, step: Iterable[tuple[int, int, int, bytes, int, bytes]], file: str, is_lost: Any) -> None:
        together: list[tuple[int, int, bytes]] = []
        size = 0
        for lsn, time_ms, messages, queues, checksum, meta in step:
            if meta_checksum(lsn, time_ms, messages, queues, meta) == checksum:
                together.append((lsn, messages, meta))
                size += len(meta)
                if size >= TOGETHER_BYTES:
                    self._add(together)
                    together, size = [], 0
            elif not is_lost(lsn):
                self._fail(SideError(f"row {lsn} of {file} does not match its checksum"))
        if together:
            self._add(together)

    def _add(self, rows: list[tuple[int, int, bytes]]) -> None:
        try:
            self.named.add_rows(rows)
        except (msgspec.MsgspecError, NewerFormatError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error


def write_side(path: Path, entry: SegmentEntry, content: Callable[[SegmentEntry], bytes]) -> SideEntry:
    """Write the side file of a sealed segment, durable but for its name in the folder. Blocks.

    Args:
        path: of the segment.
        entry: of the segment, with its checksum.
        content: makes the content of the file.

    Raises OSError if the file cannot be written, and the errors of ``content``.
    """
    data = content(entry)
    temporary = path.with_suffix(f"{SIDE_SUFFIX}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o444)
            os.fsync(file.fileno())
        temporary.replace(path.with_suffix(SIDE_SUFFIX))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return SideEntry(len(data), hashlib.sha256(data).hexdigest())


def content_of(read: RowsRead, names: Iterable[SourceName], entry: SegmentEntry) -> bytes:
    """Return the content of a side file. Raises the failure of the read."""
    if read.failure is not None:
        raise read.failure
    named, by_id = read.named, {name.id: name for name in names}
    message_ids = named.lowest_message_id, named.highest_message_id
    plan = side_plan(entry.number, entry.sha256, message_ids, read.queues, by_id)
    return encode_side(plan, named.history())


def content_of_file(
    path: Path, is_lost: Callable[[int], bool], rest: Callable[[float], None], entry: SegmentEntry
) -> bytes:
    """Read a sealed segment, and return the content of its side file. Blocks.

    Raises:
        SideError: a row is damaged, so that the messages that it names are unknown.
        sqlite3.Error, SegmentFormatError, msgspec.MsgspecError, NewerFormatError: the segment cannot be read.
    """
    with closing(open_read_only(path, sealed=True)) as raw:
        names = [SourceName(*row) for row in read_names(raw)]
        read = RowsRead(
            {
                number: sparse_queue(first, stop, size, positions, lsns)
                for number, first, stop, size, positions, lsns in raw.execute(
                    "SELECT queue_id, first_position, stop_position, bytes, positions, lsns FROM sparse"
                )
            }
        )
        read.read(raw, path.name, is_lost, rest)
    return content_of(read, names, entry)


class SideFiles:
    """Writes the side files of sealed segments; see the module."""

    def __init__(self, catalog: Catalog, is_short: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        """Take the parts.

        Args:
            catalog: of the folder.
            is_short: whether the disk is nearly full; called in any thread.
            is_stopping: whether the broker stops; called in any thread.
        """
        self._catalog = catalog
        self._is_short = is_short
        self._is_stopping = is_stopping
        self._lacking: list[int] = []
        """Numbers of sealed segments without a side file."""
        self._unsaved = 0
        """Side files that the manifest does not list yet."""
        self._wake = asyncio.Event()
        """Set when a segment was sealed without a side file, and when the broker stops."""
        self._task: asyncio.Task[None] | None = None

    def read_at_seal(self, segment: WritableSegment, has_time: Callable[[], bool]) -> RowsRead:
        """Read the rows of a segment that is about to be sealed, in the thread of its connection."""

        def rest(seconds: float) -> None:
            if has_time():
                time.sleep(seconds)

        read = RowsRead(segment.index.queues)
        read.read(segment.connection.raw, segment.path.name, self._is_lost, rest)
        return read

    def write_at_seal(
        self, path: Path, entry: SegmentEntry, read: RowsRead, names: Iterable[SourceName]
    ) -> SideEntry | None:
        """Write the side file of a segment that is about to be sealed; None without room, or if it fails. Blocks."""
        if self._is_short():
            return None
        try:
            return write_side(path, entry, partial(content_of, read, names))
        except FAILURES as error:
            complain(f"segment {entry.file} is sealed without its side file: {error}")
            return None

    def sealed_without(self, number: int) -> None:
        """Make the side file of a sealed segment later."""
        self._lacking.append(number)
        self._wake.set()

    def begin(self, start: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]) -> None:
        """Begin to make missing and damaged side files, the newest first."""
        self._task = start(self._run())

    async def _run(self) -> None:
        for file in list(self._catalog.sealed.values()):
            if not self._is_stopping() and not await asyncio.to_thread(is_sound, file.path, file.entry):
                self._lacking.append(file.number)
        while not self._is_stopping():
            # Cleared before the list is read: a later segment sets the event again.
            self._wake.clear()
            if not self._lacking:
                await self._save()
                await self._wake.wait()
            elif self._is_short() or not await self._make(self._lacking[-1]):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SHORT_DISK_SECONDS):
                        await self._wake.wait()
            elif self._unsaved >= SAVED_FILES:
                await self._save()

    async def ended(self) -> None:
        """Wait for the end: no side file is made afterwards, but at a seal. ``is_stopping`` must return True."""
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _make(self, number: int) -> bool:
        """Make the side file of a segment, unless the segment is gone; False without room on the disk."""
        catalog = self._catalog
        file = catalog.sealed.get(number)
        if file is not None:
            try:
                content = partial(content_of_file, file.path, self._is_lost, self._rest_long)
                side = await to_the_end(asyncio.to_thread(write_side, file.path, file.entry, content))
                await asyncio.to_thread(sync_folder, file.path.parent)
            except Stopped:
                return True
            except FAILURES as error:
                if isinstance(error, OSError) and error.errno in NO_ROOM:
                    return False
                complain(f"the side file of segment {file.entry.file} cannot be made: {error}")
            else:
                if number in catalog.sealed:
                    file.entry = structs.replace(file.entry, side=side)
                    self._unsaved += 1
                else:
                    # The segment was dropped meanwhile, possibly before the file got its name.
                    file.path.with_suffix(SIDE_SUFFIX).unlink(missing_ok=True)
        self._lacking.remove(number)
        return True

    async def _save(self) -> None:
        if self._unsaved:
            self._unsaved = 0
            await self._catalog.save()

    def _rest_long(self, seconds: float) -> None:
        if self._is_stopping() or (self._task is not None and self._task.cancelling()):
            raise Stopped
        time.sleep(RESTS * seconds)

    def _is_lost(self, lsn: int) -> bool:
        return any(loss.first_lsn <= lsn <= loss.last_lsn for loss in self._catalog.losses)


def is_sound(path: Path, entry: SegmentEntry) -> bool:
    """Return whether the side file of a sealed segment is there, as the manifest lists it. Blocks."""
    side = entry.side
    if side is None:
        return False
    try:
        data = path.with_suffix(SIDE_SUFFIX).read_bytes()
    except OSError:
        return False
    return len(data) == side.bytes and hashlib.sha256(data).hexdigest() == side.sha256
