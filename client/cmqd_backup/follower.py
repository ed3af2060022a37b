"""The folder of a standby: its own files, as a copy of the leader's log up to a row.

The leader holds the rows by a pin: it reclaims none, so the engine keeps them all, and no standby drops one. The
standby takes no requests, and seals a segment only when it is full. So the copy waits until the standby has the row of
the pin, and its unsealed rows are written into sealed segments of the backup's own.

The files of the copy are gathered in a folder of links: the backup reads it as it reads the folder of a leader. A drop
that the leader decided before the pin can come late to the standby, and removes a file of the copy. The files are
gathered anew then (``renewed``), with the same pin: the files that were copied already are not copied again.
"""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from cmqd_backup.copying import in_thread
from cmqd_backup.holds import Held, manifest_of
from cmqd_backup.refusals import Refused
from cmqd_backup.restores.cutting import seal_copy
from cmqd_client.pins import LogPin
from cmqd_segment.checkpoint import ActorsSlice, QueueSlice, TopicSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.manifest import (
    CHECKPOINTS,
    MANIFEST_NAME,
    SEGMENTS,
    CheckpointEntry,
    Manifest,
    SegmentEntry,
    SegmentState,
    SourceName,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import ActorSeen, QueueCreated, TopicCreated
from cmqd_segment.rows import decode_records
from cmqd_segment.schema import SegmentFormatError, open_read_only, read_actors, read_names
from cmqd_types.actors import Actor

WAIT_SECONDS: Final = 60.0
"""Longest wait for the row of the pin: a standby is behind by a tenth of a second."""
LOOK_SECONDS: Final = 0.2
SEGMENTS_SEARCHED: Final = 64
"""Number of sealed segments, newest first, that are searched for names and actors, as by a seal of the broker."""
_CHANGED: Final = ("SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_READONLY")
"""Errors of a segment that was dropped, or is being sealed, since the manifest was read."""
_UNSEALED: Final = (SegmentState.PREPARED, SegmentState.ACTIVE, SegmentState.RETIRED)


class _NotNow(Exception):
    """The folder has not all rows yet, or changed while it was read."""

    def __init__(self, last_lsn: int) -> None:
        self.last_lsn = last_lsn


@contextlib.asynccontextmanager
async def followed_folder(folder: Path, pin: LogPin, *, wait_s: float = WAIT_SECONDS) -> AsyncGenerator[Held]:
    """Gather the files of a standby with all rows up to the row of a pin. Raises Refused, OSError."""
    with tempfile.TemporaryDirectory(prefix="cmqd-backup-") as work, _named(Path(work), folder):
        gather = partial(_gather, folder, Path(work), pin.lsn)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                held = await in_thread(gather)
            except _NotNow as reason:
                if time.monotonic() >= deadline:
                    raise Refused(
                        f"the standby of {folder} has rows up to {reason.last_lsn}, and the leader has row {pin.lsn}:"
                        f" it did not copy them within {wait_s:.0f} s; does it follow? Repeat the command, or make the"
                        " backup from the folder of the leader"
                    ) from None
                await asyncio.sleep(LOOK_SECONDS)
            else:
                yield held
                return


@contextlib.contextmanager
def stopped_cache(folder: Path, work: Path) -> Generator[Held]:
    """Gather the files of a cache whose broker has stopped, with all its rows; the caller keeps its writers away.

    ``work``: an empty folder for links and copies.

    Raises Refused, OSError.
    """
    links, copies = work / "links", work / "copies"
    for path in (links, copies, copies / SEGMENTS, copies / CHECKPOINTS):
        path.mkdir()
    with _named(links, folder), _named(copies, folder):
        manifest = manifest_of(folder)
        for entry in (*manifest.segments, *manifest.checkpoints):
            if isinstance(entry, SegmentEntry) and entry.state in _UNSEALED:
                # A database with a WAL is changed by every program that opens it: the folder stays as it is.
                for name in (entry.file, f"{entry.file}-wal"):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copyfile(folder / name, copies / name)
            else:
                (copies / entry.file).symlink_to((folder / entry.file).resolve())
        (copies / MANIFEST_NAME).symlink_to((folder / MANIFEST_NAME).resolve())
        try:
            held = _gather(copies, links, 0, takes_all=True)
        except _NotNow as reason:
            raise Refused(
                f"{folder} is a cache that is not whole: it has readable rows up to {reason.last_lsn}, and names more."
                " Start its broker, which copies them from the engine"
            ) from None
        yield held


def renewed(folder: Path, pin: LogPin, held: Held) -> Held | None:
    """Gather the files anew if the standby dropped one of them; None if it has them all. Raises Refused, OSError."""
    listed = {entry.number for entry in manifest_of(folder).segments if entry.state is not SegmentState.DROPPING}
    if all(entry.number in listed for entry in held.manifest.segments if entry.state is SegmentState.SEALED):
        return None
    try:
        return _gather(folder, held.folder, pin.lsn)
    except _NotNow:
        return None


@contextlib.contextmanager
def _named(work: Path, folder: Path) -> Generator[None]:
    """Name the folder of the standby in refusals, in the place of the links."""
    try:
        yield
    except Refused as refusal:
        raise Refused(str(refusal).replace(str(work), str(folder))) from refusal


def _gather(folder: Path, work: Path, lsn: int, *, takes_all: bool = False) -> Held:
    """Make the links and the sealed copies, up to a row. Blocks. Raises _NotNow, Refused, OSError.

    ``takes_all``: also the rows behind it, of a folder without a writer.
    """
    manifest = manifest_of(folder)
    checkpoints = manifest.checkpoints[-1:]
    # A checkpoint of the leader may be there before its rows are.
    needed = max([lsn, *(entry.end_lsn for entry in checkpoints)])
    sealed = [entry for entry in manifest.segments if entry.state is SegmentState.SEALED]
    unsealed = [entry for entry in manifest.segments if entry.state in _UNSEALED]
    dropped = [last for _, last in manifest.dropped]
    has_upto = max([0, *dropped, *(entry.last_lsn for entry in sealed)])
    try:
        has_upto = max([has_upto, *(_last_row(folder / entry.file) for entry in unsealed)])
        if has_upto < needed:
            raise _NotNow(has_upto)
        # A sealed segment is copied whole. The rows behind the pin are of the log, too: a standby copies no others.
        last_lsn = max([needed, *(entry.last_lsn for entry in sealed if entry.first_lsn <= needed)])
        last_lsn = has_upto if takes_all else last_lsn
        _clear(work)
        for entry in (*(entry for entry in sealed if entry.first_lsn <= last_lsn), *checkpoints):
            (work / entry.file).symlink_to((folder / entry.file).resolve())
        (work / MANIFEST_NAME).symlink_to((folder / MANIFEST_NAME).resolve())
        names = _Names(folder, sealed, checkpoints)
        own = [own for entry in unsealed if (own := _sealed_copy(folder, work, entry, last_lsn, names)) is not None]
    except FileNotFoundError:
        # Dropped since the manifest was read.
        raise _NotNow(has_upto) from None
    except (sqlite3.Error, SegmentFormatError, msgspec.MsgspecError, NewerFormatError, CheckpointError) as error:
        if getattr(error, "sqlite_errorname", "").startswith(_CHANGED):
            raise _NotNow(has_upto) from None
        raise Refused(f"the unsealed rows of {folder} cannot be copied to {work}: {error}") from error
    kept = [entry for entry in manifest.segments if entry.state in (SegmentState.SEALED, SegmentState.DROPPING)]
    segments = sorted((*kept, *own), key=lambda entry: entry.number)
    return Held(work, _with(manifest, segments, checkpoints), last_lsn)


def _with(manifest: Manifest, segments: Sequence[SegmentEntry], checkpoints: Sequence[CheckpointEntry]) -> Manifest:
    return structs.replace(manifest, segments=list(segments), checkpoints=list(checkpoints))


def _clear(work: Path) -> None:
    """Remove the links and copies of an attempt before."""
    for name in (SEGMENTS, CHECKPOINTS):
        (work / name).mkdir(exist_ok=True)
        for path in (work / name).iterdir():
            path.unlink()
    (work / MANIFEST_NAME).unlink(missing_ok=True)


def _last_row(path: Path) -> int:
    """Return the last row of an unsealed segment; 0 without rows."""
    with contextlib.closing(open_read_only(path, sealed=False)) as raw:
        (last,) = raw.execute("SELECT max(lsn) FROM log").fetchone()
    return last or 0


def _sealed_copy(folder: Path, work: Path, entry: SegmentEntry, last_lsn: int, names: "_Names") -> SegmentEntry | None:
    """Write the rows of an unsealed segment up to an LSN into a sealed segment; None without such rows."""
    path = work / entry.file
    with (
        contextlib.closing(open_read_only(folder / entry.file, sealed=False)) as raw,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy,
    ):
        # In one step, which is one state of the segment: the standby writes meanwhile.
        raw.backup(copy)
        (first,) = copy.execute("SELECT min(lsn) FROM log").fetchone()
        if first is None or first > last_lsn:
            return None
        (last,) = copy.execute("SELECT max(lsn) FROM log WHERE lsn <= ?", (last_lsn,)).fetchone()
        for (meta,) in copy.execute("SELECT meta FROM log WHERE lsn <= ? ORDER BY lsn", (last,)):
            names.note(decode_records(meta))
    return seal_copy(path, entry.number, last, names.names, names.actors)


class _Names:
    """Names and actors of the log, for the tables of a segment. A name that no source has stays out of the tables."""

    def __init__(self, folder: Path, sealed: Sequence[SegmentEntry], checkpoints: Sequence[CheckpointEntry]) -> None:
        self.names: dict[int, SourceName] = {}
        self.actors: dict[int, Actor] = {}
        for checkpoint in checkpoints:
            for payload in read_payloads(folder / checkpoint.file):
                self.note([decode_part(payload)])
        for entry in sealed[-SEGMENTS_SEARCHED:]:
            with contextlib.closing(open_read_only(folder / entry.file, sealed=True)) as raw:
                self.names |= {row[0]: SourceName(*row) for row in read_names(raw)}
                self.actors |= read_actors(raw)

    def note(self, facts: Iterable[object]) -> None:
        """Take the names and actors of records, or of a part of a checkpoint."""
        for fact in facts:
            match fact:
                case QueueCreated() | QueueSlice():
                    self.names[fact.queue_id] = SourceName(fact.queue_id, fact.account, fact.name)
                case TopicCreated() | TopicSlice():
                    self.names[fact.topic_id] = SourceName(fact.topic_id, fact.account, fact.name, True)
                case ActorSeen():
                    self.actors[fact.number] = fact.actor
                case ActorsSlice():
                    self.actors |= dict(fact.actors)
                case _:
                    pass
