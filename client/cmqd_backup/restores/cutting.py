"""The cut of a segment: its rows up to an LSN, in a sealed file with right tables.

The cut works on a copy. Tables of names keep what they have for the rows that stay; the sparse index and the counts are
made anew from the rows.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from cmqd_backup.refusals import Refused
from cmqd_segment.manifest import SegmentEntry, SegmentState, SourceName
from cmqd_segment.rows import decode_queues
from cmqd_segment.schema import ACTORS_TABLE, NAMES_TABLE, SegmentFormatError, check_format
from cmqd_segment.sparse import SparseIndex
from cmqd_types.actors import Actor


def cut_segment(path: Path, entry: SegmentEntry, last_lsn: int) -> SegmentEntry:
    """Remove the rows above ``last_lsn`` from the copy of a sealed segment; return its new entry.

    Blocks for the time of a copy. On an error the file is not usable. Raises Refused, OSError.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
            check_format(raw, path)
            index, facts = _cut_rows(raw, last_lsn)
            # Behind the cut: the pages of the removed rows leave the file.
            raw.execute("VACUUM")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except (sqlite3.Error, SegmentFormatError) as error:
        raise Refused(f"{path} cannot be cut: {error}") from error
    size, sha256 = _finish(path)
    listed = {number for number, _, _ in entry.sources}
    sources = [(number, queue.messages, queue.bytes) for number, queue in sorted(index.queues.items())]
    return structs.replace(
        entry,
        **facts,
        bytes=size,
        sha256=sha256,
        sources=sources if listed >= index.queues.keys() else [],
    )


def seal_copy(
    path: Path, number: int, last_lsn: int, names: Mapping[int, SourceName], actors: Mapping[int, Actor]
) -> SegmentEntry:
    """Seal the copy of an unsealed segment, with its rows up to ``last_lsn``; return its entry.

    Blocks for the time of a copy. ``names`` and ``actors``: of the log, of which the segment gets those of its queues,
    and all actors. Raises Refused, OSError.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
            check_format(raw, path)
            index, facts = _cut_rows(raw, last_lsn)
            raw.execute("BEGIN")
            raw.execute(NAMES_TABLE)
            raw.executemany(
                "INSERT OR REPLACE INTO names VALUES (?,?,?,?,?,?)",
                [
                    (*structs.astuple(names[each]), queue.messages, queue.bytes)
                    for each, queue in index.queues.items()
                    if each in names
                ],
            )
            raw.execute(ACTORS_TABLE)
            raw.executemany(
                "INSERT OR REPLACE INTO actors VALUES (?,?,?,?,?,?)",
                [(each, *structs.astuple(actor)) for each, actor in actors.items()],
            )
            raw.execute("INSERT OR REPLACE INTO segment VALUES ('sealed_ms', ?)", (facts["last_ms"],))
            raw.execute("COMMIT")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except (sqlite3.Error, SegmentFormatError) as error:
        raise Refused(f"the unsealed rows of {path} cannot be copied: {error}") from error
    size, sha256 = _finish(path)
    return structs.replace(SegmentEntry(number, SegmentState.SEALED), **facts, bytes=size, sha256=sha256)


def _finish(path: Path) -> tuple[int, str]:
    """Make a segment durable; return its size and checksum."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return file.tell(), sha256


def _cut_rows(raw: sqlite3.Connection, last_lsn: int) -> tuple[SparseIndex, dict[str, int]]:
    """Remove rows and bring the tables up to date, in a transaction; return index and facts of the segment."""
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("DELETE FROM log WHERE lsn > ?", (last_lsn,))
    index = SparseIndex()
    rows = messages = first_lsn = first_ms = last_ms = 0
    for lsn, time_ms, count, queues, size in raw.execute(
        "SELECT lsn, time_ms, messages, queues, length(meta) + length(data) FROM log ORDER BY lsn"
    ):
        index.add_row(lsn, decode_queues(queues), size)
        first_lsn, first_ms, last_ms = first_lsn or lsn, first_ms or time_ms, time_ms
        rows += 1
        messages += count
    facts = {
        "first_lsn": first_lsn,
        "last_lsn": last_lsn,
        "first_ms": first_ms,
        "last_ms": last_ms,
        "rows": rows,
        "messages": messages,
    }
    raw.execute("DELETE FROM sparse")
    raw.executemany("INSERT INTO sparse VALUES (?,?,?,?,?,?,?)", index.to_rows())
    if raw.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'names'").fetchall():
        for (number,) in raw.execute("SELECT id FROM names").fetchall():
            queue = index.queues.get(number)
            if queue is None:
                raw.execute("DELETE FROM names WHERE id = ?", (number,))
            else:
                raw.execute(
                    "UPDATE names SET messages = ?, bytes = ? WHERE id = ?", (queue.messages, queue.bytes, number)
                )
    raw.executemany("INSERT OR REPLACE INTO segment VALUES (?,?)", facts.items())
    raw.execute("COMMIT")
    return index, facts
