"""A new log in sealed segments, row by row."""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from cmqd_segment.manifest import SegmentEntry, SegmentState, SourceName, segment_file
from cmqd_segment.records import AnyRecord, MessagesSent, QueueCreated
from cmqd_segment.rows import data_checksum, encode_queues, encode_records, meta_checksum
from cmqd_segment.schema import (
    ACTORS_TABLE,
    LARGE_PAGE_BYTES,
    NAMES_TABLE,
    Origin,
    create_tables,
    write_origin,
)
from cmqd_segment.sparse import SparseIndex

SEGMENT_BYTES: Final = 128 << 20
_ROW_BYTES: Final = 256 << 10
_ROW_MESSAGES: Final = 1024
_FACTS: Final = ("first_lsn", "last_lsn", "first_ms", "last_ms", "rows", "messages")
"""Facts of the table ``segment``, as in the entry."""


class NewLog:
    """Writes rows to segments of a folder; see the module. All rows have one time, that of the source's last row."""

    def __init__(self, folder: Path, log_id: str, time_ms: int, mode: int, *, segment_bytes: int = SEGMENT_BYTES):
        self._folder = folder
        self._origin = Origin(log_id)
        self._time_ms = time_ms
        self._mode = mode
        self._segment_bytes = segment_bytes
        self._records: list[AnyRecord] = []
        self._bodies: list[bytes] = []
        self._row_bytes = 0
        self._names: dict[int, SourceName] = {}
        self._segment: _Segment | None = None
        self.entries: list[SegmentEntry] = []
        self.last_lsn = 0

    def add(self, record: AnyRecord, bodies: Sequence[bytes] = (), extra_bytes: int = 0) -> None:
        """Add a record, with the bodies of its messages. Raises OSError, sqlite3.Error."""
        if isinstance(record, QueueCreated):
            self._names[record.queue_id] = SourceName(record.queue_id, record.account, record.name)
        self._records.append(record)
        self._bodies += bodies
        self._row_bytes += sum(map(len, bodies)) + extra_bytes
        if self._row_bytes >= _ROW_BYTES or len(self._records) + len(self._bodies) >= _ROW_MESSAGES:
            self._end_row()

    def _end_row(self) -> None:
        if not self._records:
            return
        if self._segment is None:
            path = self._folder / segment_file(len(self.entries) + 1)
            self._segment = _Segment(path, self._origin, self._mode)
        self.last_lsn += 1
        self._segment.write(self.last_lsn, self._time_ms, self._records, b"".join(self._bodies))
        self._records, self._bodies, self._row_bytes = [], [], 0
        if self._segment.bytes >= self._segment_bytes:
            self._end_segment()

    def _end_segment(self) -> None:
        if self._segment is not None:
            self.entries.append(self._segment.seal(len(self.entries) + 1, self._time_ms, self._names))
            self._segment = None

    def close(self) -> None:
        """Seal the last segment; all segments are durable then. Raises OSError, sqlite3.Error."""
        self._end_row()
        self._end_segment()

    def abandon(self) -> None:
        """Close the file of an unfinished segment."""
        if self._segment is not None:
            self._segment.raw.close()


class _Segment:
    """A segment that is being written."""

    def __init__(self, path: Path, origin: Origin, mode: int) -> None:
        self._path = path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode))
        self._mode = mode
        self.raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        create_tables(self.raw, LARGE_PAGE_BYTES)
        # The whole file is synced at its seal: no manifest names it before.
        self.raw.execute("PRAGMA synchronous=OFF")
        self.raw.execute("BEGIN")
        write_origin(self.raw, origin)
        self._index = SparseIndex()
        self._first_lsn = self._last_lsn = 0
        self._rows = self._messages = 0
        self.bytes = 0

    def write(self, lsn: int, time_ms: int, records: Sequence[AnyRecord], data: bytes) -> None:
        """Write a row."""
        queues: dict[int, list[int]] = {}
        for record in records:
            if isinstance(record, MessagesSent):
                first, stop, size = record.first_position, record.first_position + len(record.sizes), sum(record.sizes)
                known = queues.setdefault(record.queue_id, [first, first, 0])
                known[1], known[2] = stop, known[2] + size
        summary = [(number, first, stop, size) for number, (first, stop, size) in queues.items()]
        messages = sum(stop - first for _, first, stop, _ in summary)
        packed, meta = encode_queues(summary), encode_records(records)
        checksum = meta_checksum(lsn, time_ms, messages, packed, meta)
        self.raw.execute(
            "INSERT INTO log VALUES (?,?,?,?,?,?,?,?)",
            (lsn, time_ms, messages, packed, checksum, data_checksum(data), meta, data),
        )
        size = len(meta) + len(data)
        self._index.add_row(lsn, summary, size)
        self._first_lsn, self._last_lsn = self._first_lsn or lsn, lsn
        self._rows += 1
        self._messages += messages
        self.bytes += size

    def seal(self, number: int, time_ms: int, names: dict[int, SourceName]) -> SegmentEntry:
        """Write the tables, make the file durable and read-only, and return its entry."""
        raw, queues = self.raw, self._index.queues
        entry = SegmentEntry(
            number,
            SegmentState.SEALED,
            first_lsn=self._first_lsn,
            last_lsn=self._last_lsn,
            first_ms=time_ms,
            last_ms=time_ms,
            rows=self._rows,
            messages=self._messages,
        )
        facts = {name: getattr(entry, name) for name in _FACTS} | {"sealed_ms": time_ms}
        with contextlib.closing(raw):
            raw.executemany("INSERT INTO sparse VALUES (?,?,?,?,?,?,?)", self._index.to_rows())
            raw.execute(NAMES_TABLE)
            raw.executemany(
                "INSERT INTO names VALUES (?,?,?,?,?,?)",
                [(*structs.astuple(names[each]), queue.messages, queue.bytes) for each, queue in queues.items()],
            )
            raw.execute(ACTORS_TABLE)
            raw.executemany("INSERT OR REPLACE INTO segment VALUES (?,?)", facts.items())
            raw.execute("COMMIT")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self._path.open("rb", buffering=0) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            os.fchmod(file.fileno(), self._mode & 0o440)
            os.fsync(file.fileno())
            size = file.tell()
        return structs.replace(entry, bytes=size, sha256=sha256)
