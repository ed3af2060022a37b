"""Sealing: turn a retired segment into an immutable, checksummed file, in the background.

Steps, on the segment's only connection: copy the WAL into the main file (``wal_checkpoint(RESTART)``); read the rows
once, for the table ``actors`` and the side file; write the tables ``sparse``, ``names``, ``actors`` and ``segment``,
which begins the WAL again; cut the frames behind the tables off, in steps; run ``wal_checkpoint(TRUNCATE)`` until it
returns (0, 0, 0); close; SHA-256; read-only; fsync; write the side file (``side_files``); write *sealed* into the
manifest. The manifest comes last: until then the next start treats the segment as retired and repeats the seal, and no
step harms when it is repeated.

A reader with an old snapshot delays the truncation; the segment stays retired and the sealer tries again. On a full
disk the first segment with room for its copy is sealed first, because a seal gives the room of a WAL back.

A retired segment is held for a while before its seal. Where consumers keep up, the segment will be empty soon, and
dropping it unsealed saves the copy of its WAL: a seventh of the broker's cost (decision 0004).
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import closing
from pathlib import Path
from time import time

import msgspec
from msgspec import structs

from cmqd.storage import ipc
from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.folder.freed_blocks import shorten
from cmqd.storage.reading.pager import Pager
from cmqd.storage.segments.row_inserts import is_disk_full
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.segments.wal_gauge import bytes_of
from cmqd.storage.source_names import SourceNames
from cmqd.storage.writing.side_files import SideFiles
from cmqd_segment.manifest import SegmentEntry, SegmentState, SideEntry, SourceName, sync_folder
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.rows import decode_records
from cmqd_segment.schema import ACTORS_TABLE, NAMES_TABLE, SegmentFormatError, open_read_only, read_names
from cmqd_types.actors import Actor

RETRY_SECONDS = (0.05, 5.0)
FULL_DISK_PAUSE_SECONDS = 0.5
"""Pause between two measurements while the disk has room for none of the waiting segments."""
HELD_SEGMENTS = 2
"""Number of retired segments that are held until their messages are consumed. A segment can be dropped once the
checkpoint written at the retirement of its successor is on disk, so 1 would be too few. Each adds a WAL that a start
after a crash must walk."""
HELD_SECONDS = 60.0
"""Longest time of a hold: an idle broker gets its disk space back."""

ACTORS_TOGETHER = 2000
"""Actors of a request to the loop process: about a millisecond there."""
SEGMENTS_SEARCHED = 64
"""Number of sealed segments, newest first, that are searched for a name that is not in the log's memory."""


class Sealer:
    """Seals one segment at a time, in the order of submission."""

    def __init__(
        self,
        catalog: Catalog,
        pager: Pager,
        sides: SideFiles,
        on_sealed: Callable[[SealedFile], None],
        has_room: Callable[[WritableSegment], bool],
        ask: Callable[[ipc.NamesWanted | ipc.ActorsWanted], None],
        is_hurried: Callable[[], bool],
    ) -> None:
        """Connect the sealer to the other rooms.

        Args:
            catalog: of the folder.
            pager: closes its connections to a segment before the file becomes immutable.
            sides: writes the side file of each segment.
            on_sealed: called with each sealed file.
            has_room: whether the disk has room for the copy of the WAL that a seal makes.
            ask: sends the loop process a request for names or actors, answered by ``names_told`` or ``actors_told``.
            is_hurried: whether a WAL gives its blocks back at once, and not in steps; called in any thread.
        """
        self._catalog = catalog
        self._pager = pager
        self._sides = sides
        self._on_sealed = on_sealed
        self._has_room = has_room
        self._ask = ask
        self._is_hurried = is_hurried
        self._names: dict[int, asyncio.Future[list[SourceName]]] = {}
        """Names that the loop process was asked for, by number of the segment."""
        self._actors: dict[int, asyncio.Future[ipc.SegmentActors]] = {}
        """Actors that the loop process was asked for, by number of the segment."""
        self._sealing: WritableSegment | None = None
        """The segment that is being sealed; in ``_waiting`` until the seal is complete."""
        self._held: deque[WritableSegment] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the hold of the oldest held segment."""
        self._waiting: deque[WritableSegment] = deque()
        self._wake = asyncio.Event()
        """Set when a segment is submitted."""
        self._idle: asyncio.Future[None] | None = None

    def hold(self, segment: WritableSegment) -> None:
        """Seal a segment (retired in the manifest) after the hold, unless it is withdrawn before."""
        self._held.append(segment)
        if len(self._held) > HELD_SEGMENTS:
            self._seal_oldest()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._seal_oldest)

    def seal_held(self) -> None:
        """End the hold of every segment, and seal it in its turn."""
        while self._held:
            self._seal_oldest()

    def withdraw(self, number: int) -> WritableSegment | None:
        """Take a segment out of the line before its seal begins; the caller closes it. Returns None if there is none.

        A segment that waits for room can be withdrawn too: on a full disk it can never be sealed, only dropped.
        """
        for line in (self._held, self._waiting):
            for segment in line:
                if segment.number == number and segment is not self._sealing:
                    line.remove(segment)
                    return segment
        return None

    def _seal_oldest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self.submit(self._held.popleft())
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._seal_oldest)

    def submit(self, segment: WritableSegment) -> None:
        """Seal a segment (retired in the manifest) in its turn, as soon as there is room."""
        self._waiting.append(segment)
        self._wake.set()

    async def drained(self) -> None:
        """Wait until every submitted segment is sealed."""
        if self._waiting:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def run(self) -> None:
        """Seal submitted segments until cancelled. Raises sqlite3.Error, OSError if a retry cannot help."""
        while True:
            # Cleared before the line is read: a segment that is submitted after the reading sets the event again.
            self._wake.clear()
            if not self._waiting:
                if self._idle is not None:
                    self._idle.set_result(None)
                    self._idle = None
                await self._wake.wait()
                continue
            # The first that fits, not the first in line: a large segment without room would keep small segments from
            # giving the room of their WALs back.
            segment = next(filter(self._has_room, self._waiting), None)
            if segment is None or not await self._try_to_seal(segment):
                # Not ``asyncio.wait_for``: in Python 3.11 it drops a cancellation that comes with the wake, and the
                # release of the service would wait for this task forever.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FULL_DISK_PAUSE_SECONDS):
                        await self._wake.wait()

    async def _try_to_seal(self, segment: WritableSegment) -> bool:
        """Seal a segment and take it out of the line; False if the disk is too full for the segment."""
        self._sealing = segment
        try:
            await self._seal(segment)
        except sqlite3.OperationalError as error:
            if not is_disk_full(error):
                raise
            return False
        finally:
            self._sealing = None
        self._waiting.remove(segment)
        return True

    def names_told(self, number: int, names: list[SourceName]) -> None:
        """Take the answer to ``NamesWanted``."""
        self._names.pop(number).set_result(names)

    async def _names_of(self, segment: WritableSegment) -> list[SourceName]:
        """Collect the names of the queues and topics with messages in a segment.

        The loop process does not know names that were deleted before the checkpoint it recovered from. The segment
        itself, the manifest, or older sealed segments may have the name; a name that no source has stays out of the
        table.
        """
        # In the order of cost: the memory of the loop process, the manifest, the rows of the segment, older files.
        answer = self._names[segment.number] = asyncio.get_running_loop().create_future()
        self._ask(ipc.NamesWanted(segment.number, list(segment.index.queues)))
        names = {name.id: name for name in await answer}
        missing = segment.index.queues.keys() - names.keys()
        if missing:
            names |= {number: self._catalog.names[number] for number in missing & self._catalog.names.keys()}
            names |= await segment.connection.run(names_within, segment, missing - names.keys())
        sealed = sorted(self._catalog.sealed.values(), key=lambda file: -file.number)
        for file in sealed[:SEGMENTS_SEARCHED]:
            missing = segment.index.queues.keys() - names.keys()
            if not missing:
                break
            names |= await asyncio.to_thread(names_in_file, file.path, missing)
        return list(names.values())

    def actors_told(self, answer: ipc.SegmentActors) -> None:
        """Take the answer to ``ActorsWanted``."""
        self._actors.pop(answer.number).set_result(answer)

    async def _actors_of(self, segment: WritableSegment, numbers: Set[int]) -> list[tuple[int, Actor]]:
        """Collect the actors that the rows of a segment name. The loop process knows all of them, unless the row that
        gave an actor its number was lost.
        """
        actors: list[tuple[int, Actor]] = []
        ordered = sorted(numbers)
        for start in range(0, len(ordered), ACTORS_TOGETHER):
            answer = self._actors[segment.number] = asyncio.get_running_loop().create_future()
            some = ordered[start : start + ACTORS_TOGETHER]
            self._ask(ipc.ActorsWanted(segment.number, some, segment.last_lsn))
            actors += (await answer).actors
        return actors

    async def _seal(self, segment: WritableSegment) -> None:
        def has_time() -> bool:
            return not self._is_hurried() and len(self._waiting) == 1

        names = await self._names_of(segment)
        # The tables are written through the WAL, which they begin again: only then is the rest of the file of no use,
        # and can be cut in steps. A prefix of the rows' own frames would be an older state of the segment.
        await self._with_patience(segment, lambda: copy_wal(segment))
        read = await segment.connection.run(self._sides.read_at_seal, segment, has_time)
        actors = await self._actors_of(segment, read.named.actors)
        numbers = None if read.failure else read.named.actors
        await self._with_patience(segment, lambda: write_tables(segment, names, actors, numbers))
        await segment.connection.run(cut_wal, segment, has_time)
        await self._with_patience(segment, lambda: truncate_wal(segment))

        async def close() -> None:
            # Without other connections this removes -wal and -shm; with a reader from outside an empty -wal stays.
            await segment.close()
            segment.immutable = True

        # With no page in between: a page that opened the file with its locks would see the WAL removed under it.
        await self._pager.closing(segment.number, close)
        # Only now do the bytes of the file not change any more.
        entry = await asyncio.to_thread(
            finish_file,
            segment.path,
            structs.replace(segment.entry(), state=SegmentState.SEALED),
            lambda entry: self._sides.write_at_seal(segment.path, entry, read, names),
        )
        file = SealedFile(
            structs.replace(entry, sources=self._catalog.digest(names, segment.index)),
            segment.path,
            [(row[0], row[1], row[2]) for row in segment.index.to_rows()],
        )
        # Both in one turn of the loop: a manifest or a page in between must find the segment exactly once.
        self._catalog.sealed[segment.number] = file
        del self._catalog.open[segment.number]
        await self._catalog.save()
        if entry.side is None:
            self._sides.sealed_without(entry.number)
        self._on_sealed(file)

    async def _with_patience(self, segment: WritableSegment, step: Callable[[], bool]) -> None:
        """Run a step in the segment's thread until it succeeds, and pause while a reader is in the way."""
        pause, longest = RETRY_SECONDS
        while True:
            try:
                if await segment.connection.run(step):
                    return
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def names_within(segment: WritableSegment, ids: Set[int]) -> dict[int, SourceName]:
    """Find names in the segment itself: in its rows, and in the table of an earlier seal."""
    raw = segment.connection.raw
    names = {row[0]: SourceName(*row) for row in read_names(raw) if row[0] in ids}
    names_in_rows = SourceNames()
    for lsn, meta in raw.execute("SELECT lsn, meta FROM log"):
        with contextlib.suppress(msgspec.MsgspecError, NewerFormatError):
            # A row with an accepted loss may still be in the file.
            names_in_rows.note(decode_records(meta), lsn)
    return names | {name.id: name for name in names_in_rows.of(ids)}


def names_in_file(path: Path, ids: Set[int]) -> dict[int, SourceName]:
    """Read names from the table of a sealed segment; empty if the file cannot be read."""
    try:
        with closing(open_read_only(path, sealed=True)) as raw:
            return {row[0]: SourceName(*row) for row in read_names(raw) if row[0] in ids}
    except (sqlite3.Error, SegmentFormatError):
        # A seal must not fail for a name: without names the segment is complete, and without a seal its WAL stays.
        return {}


def write_tables(
    segment: WritableSegment,
    names: Sequence[SourceName] = (),
    actors: Iterable[tuple[int, Actor]] = (),
    numbers: Set[int] | None = None,
) -> bool:
    """Write the sparse index, the names, the actors and the facts about the segment; a repetition replaces them.

    ``numbers`` are those of all actors that the rows name: the table keeps these of an earlier seal, whose actors the
    loop process may have forgotten. None = a row cannot be read, and the table keeps all.

    In a transaction, because the seal may be repeated after a crash or an error: the repetition finds no tables or
    whole tables. A failed attempt is rolled back, so that the retry can begin.
    """
    raw = segment.connection.raw
    queues = segment.index.queues
    raw.execute("BEGIN IMMEDIATE")
    try:
        raw.execute("DELETE FROM sparse")
        raw.executemany("INSERT INTO sparse VALUES (?,?,?,?,?,?,?)", segment.index.to_rows())
        raw.execute(NAMES_TABLE)
        raw.executemany(
            "INSERT OR REPLACE INTO names VALUES (?,?,?,?,?,?)",
            [(*structs.astuple(name), queues[name.id].messages, queues[name.id].bytes) for name in names],
        )
        raw.execute(ACTORS_TABLE)
        if numbers is not None:
            earlier = raw.execute("SELECT number FROM actors").fetchall()
            raw.executemany("DELETE FROM actors WHERE number = ?", [row for row in earlier if row[0] not in numbers])
        raw.executemany(
            "INSERT OR REPLACE INTO actors VALUES (?,?,?,?,?,?)",
            [(number, *structs.astuple(actor)) for number, actor in actors],
        )
        raw.executemany(
            "INSERT OR REPLACE INTO segment VALUES (?,?)",
            [
                ("first_lsn", segment.first_lsn),
                ("last_lsn", segment.last_lsn),
                ("first_ms", segment.first_ms),
                ("last_ms", segment.last_ms),
                ("rows", segment.rows),
                ("messages", segment.messages),
                ("sealed_ms", int(time() * 1000)),
            ],
        )
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return True


def copy_wal(segment: WritableSegment) -> bool:
    """Copy the WAL into the main file, so that the next commit begins the WAL again; False while a reader is in the
    way.
    """
    # An unfinished query of the connection itself would be such a reader.
    segment.end_commits()
    raw = segment.connection.raw
    # A sealed segment is on disk, also with durability ``os``: the manifest says *sealed* only of files that survive a
    # power loss.
    raw.execute("PRAGMA synchronous=FULL")
    busy, frames, copied = raw.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    return busy == 0 and frames == copied


def cut_wal(segment: WritableSegment, goes_on: Callable[[], bool]) -> None:
    """Give the blocks behind the frames of the WAL back, in steps for as long as ``goes_on`` returns True.

    SQLite cuts a WAL in one go, and commits to other segments wait for the disk meanwhile (decision 0163). A plain
    handle on the WAL drops no lock.
    """
    raw = segment.connection.raw
    # The number of frames since the WAL was begun again: all of them if a reader prevented that. -1 while another
    # program copies the WAL.
    _, frames, _ = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    (page_bytes,) = raw.execute("PRAGMA page_size").fetchone()
    if frames > 0:
        # ``truncate_wal`` cuts what is left here.
        with contextlib.suppress(OSError), Path(f"{segment.path}-wal").open("r+b", buffering=0) as wal:
            shorten(wal.fileno(), bytes_of(frames, page_bytes), goes_on)


def truncate_wal(segment: WritableSegment) -> bool:
    """Copy the WAL into the main file; False while a reader is in the way.

    Only (0, 0, 0) proves that no frame is left. A sealed segment is read without its WAL, so a frame that stayed there
    would be missing.
    """
    # An unfinished query of the connection itself would be such a reader.
    segment.end_commits()
    is_empty: bool = segment.connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    if is_empty:
        segment.wal_emptied()
    return is_empty


def finish_file(
    path: Path, entry: SegmentEntry, write_side: Callable[[SegmentEntry], SideEntry | None]
) -> SegmentEntry:
    """Make the file of a segment read-only and durable, write its side file, and return the entry with both checksums.

    No connection of this process is on the file any more, so a plain handle drops no SQLite lock. The fsync covers the
    mode too. The side file has the checksum of the segment, and one fsync of the folder covers both names. All come
    before the manifest says *sealed*.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o444)
        os.fsync(file.fileno())
        size = file.tell()
    entry = structs.replace(entry, sha256=digest.hexdigest(), bytes=size)
    entry = structs.replace(entry, side=write_side(entry))
    sync_folder(path.parent)
    return entry


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether a reader is in the way."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
