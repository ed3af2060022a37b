"""Data folders with rows of a test's own making, written by the real storage."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeAlias

from msgspec import structs
from pyroaring import BitMap64

from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader, QueueSlice
from cmqd_segment.checkpoint_file import MAGIC, encode_part, frame
from cmqd_segment.manifest import (
    CheckpointEntry,
    SegmentEntry,
    SegmentState,
    merge_ranges,
    read_manifest,
    write_manifest,
)
from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent, QueueCreated
from cmqd_types.attributes import QueueAttributes
from support.core.builders import NaiveLog
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, body

Row: TypeAlias = tuple[Sequence[AnyRecord], Sequence[bytes], int]
"""Records, bodies, time in ms: an append with a commit of its own."""


def queue_created(queue_id: int, name: str) -> QueueCreated:
    return QueueCreated(queue_id, "owner", name, QueueAttributes(), NOW_MS)


def sends(queue_id: int, first: int, count: int, time_ms: int = NOW_MS, size: int = 40) -> Row:
    """A row of messages; an id is the position plus a million times the queue's id."""
    bodies = [body(queue_id, position, size) for position in range(first, first + count)]
    sizes = [len(each) for each in bodies]
    return [MessagesSent(queue_id, first, queue_id * 1_000_000 + first, time_ms, sizes)], bodies, time_ms


def write_folder(
    folder: Path,
    segments: Iterable[Iterable[Row]],
    *,
    before_close: "Callable[[LogRig], None] | None" = None,
    **settings: object,
) -> None:
    """Write the rows, with a commit per row and a sealed segment per group; then stop in order."""
    asyncio.run(_write(folder, segments, before_close, settings))


async def _write(
    folder: Path,
    segments: Iterable[Iterable[Row]],
    before_close: "Callable[[LogRig], None] | None",
    settings: dict[str, object],
) -> None:
    for rows in segments:
        # Every life of the storage seals its rows at its end.
        rig = LogRig(ForkedPlace(folder, **settings).log())
        await rig.open()
        for records, bodies, time_ms in rows:
            rig.log.append(records, bodies, time_ms)
            await rig.commit()
        if before_close is not None:
            before_close(rig)
        await rig.log.close()


async def write_with_checkpoints(
    folder: Path, rows: Sequence[Row], checkpoints: Mapping[int, Sequence[AnyPart]]
) -> None:
    """Write the rows with a segment up to each of the LSNs, and a checkpoint there if given parts."""
    above = 0
    for upto, parts in checkpoints.items():
        rig = LogRig(ForkedPlace(folder, durability="os").log())
        await rig.open()
        for records, bodies, time_ms in rows[above:upto]:
            rig.log.append(records, bodies, time_ms)
            await rig.commit()
        for part in parts:
            rig.log.write_checkpoint(part)
        if parts:
            await rig.until(lambda rig=rig: rig.checkpoints_done)
        await rig.log.close()
        above = upto


def add_checkpoint(folder: Path, lsn: int, queues: Mapping[int, str], active: int = 0) -> None:
    """A checkpoint of queues with so many messages each, all of them active."""
    held, empty = (BitMap64(range(count)).serialize() if active else b"" for count in (active, 0))
    slices = [
        QueueSlice(
            lsn,
            number,
            "owner",
            name,
            QueueAttributes(),
            NOW_MS,
            NOW_MS,
            active,
            0,
            NOW_MS if active else 0,
            held,
            held,
            empty,
            empty,
            [],
            b"",
            b"",
            b"",
        )
        for number, name in queues.items()
    ]
    parts = [CheckpointHeader(lsn, NOW_MS, 1, 1, 1), *slices, CheckpointEnd(lsn, 1 + len(slices))]
    content = MAGIC + b"".join(frame(encode_part(part)) for part in parts)
    manifest = read_manifest(folder)
    number = 1 + max((one.number for one in manifest.checkpoints), default=0)
    entry = CheckpointEntry(number, lsn, lsn, NOW_MS, len(content), sha256(content).hexdigest())
    (folder / entry.file).parent.mkdir(exist_ok=True)
    (folder / entry.file).write_bytes(content)
    write_manifest(folder, structs.replace(manifest, checkpoints=[*manifest.checkpoints, entry]))


def drop_segment(folder: Path, first_lsn: int) -> None:
    """Reclaim the segment that begins with a row."""
    manifest = read_manifest(folder)
    (gone,) = (entry for entry in manifest.segments if entry.first_lsn == first_lsn)
    (folder / gone.file).unlink()
    left = [entry for entry in manifest.segments if entry is not gone]
    dropped = merge_ranges([*manifest.dropped, (gone.first_lsn, gone.last_lsn)])
    write_manifest(folder, structs.replace(manifest, segments=left, dropped=dropped))


def forget_names(folder: Path) -> None:
    """Leave the sealed segments as format 1 did: without side files, and without names in file and manifest."""
    manifest = read_manifest(folder)
    segments: list[SegmentEntry] = []
    for entry in manifest.segments:
        path = folder / entry.file
        digest = entry.sha256
        (folder / entry.side_file).unlink(missing_ok=True)
        if entry.state is SegmentState.SEALED:
            path.chmod(0o644)
            with closing(sqlite3.connect(path, isolation_level=None)) as raw:
                raw.execute("DROP TABLE IF EXISTS names")
            digest = sha256(path.read_bytes()).hexdigest()
        segments.append(structs.replace(entry, sources=[], sha256=digest, side=None))
    write_manifest(folder, structs.replace(manifest, segments=segments, names=[]))


class HasLog(Protocol):
    """A broker of the core with its log."""

    log: NaiveLog


def rows_of(rig: HasLog) -> list[Row]:
    """The rows of a broker of the core, to be written to disk with the same numbers."""
    rows: list[Row] = []
    for records in rig.log.rows:
        bodies: list[bytes] = []
        for record in records:
            if isinstance(record, MessagesSent | MessagesPublished):
                number = record.queue_id if isinstance(record, MessagesSent) else record.topic_id
                first = record.first_position
                bodies += [rig.log.stored[number, first + place].body for place in range(len(record.sizes))]
        rows.append((records, bodies, NOW_MS))
    return rows
