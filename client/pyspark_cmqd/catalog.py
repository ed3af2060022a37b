"""Which queue or topic an id is: from the checkpoints, and from the records that made it.

What was deleted before the oldest checkpoint is known only as long as the row that made it is in the log. Rows are
looked through from the start only if there are messages of an id that nothing else names.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from cmqd_segment.checkpoint import QueueSlice, TopicSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.records import AnyRecord, QueueCreated, TopicCreated
from cmqd_segment.rows import meta_checksum
from pyspark_cmqd.errors import FolderError
from pyspark_cmqd.folder import Folder
from pyspark_cmqd.plan import Extent, Source, View

_MAKERS = frozenset({2, 40, 43})
"""Tags of QueueCreated, TopicCreated, Subscribed."""
_SLICES = frozenset({2, 9, 10})
"""Tags of QueueSlice, TopicSlice, SubscriptionSlice."""
_METAS_A_STATEMENT = 256
_LONG_ARRAY = 0xDC

_raw_records = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record = msgspec.msgpack.Decoder(AnyRecord)


@dataclass
class Catalog:
    """Names by id; ids are never used twice."""

    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    lsn: int = 0
    """Rows up to this one were looked through, or need not be."""

    def note(self, fact: object) -> None:
        """Take a record, or a part of a checkpoint, that names something."""
        match fact:
            case QueueCreated() | QueueSlice():
                self.sources[fact.queue_id] = Source(fact.name, fact.account)
            case TopicCreated() | TopicSlice():
                self.sources[fact.topic_id] = Source(fact.name, fact.account, True)
            case _:
                pass

    def note_meta(self, meta: bytes) -> None:
        """Take what a row says about names. Other records are not decoded."""
        for raw in _raw_records.decode(meta):
            if tag_of(memoryview(raw)) in _MAKERS:
                self.note(_record.decode(raw))


def read_catalog(folder: Folder, view: View, known: "Catalog | None" = None) -> Catalog:
    """What is known at ``view.hi`` or was before; ``known``, of an earlier view, is brought up to date and returned.

    Raises FolderError, DataLossError.
    """
    if known is not None:
        _note_rows(known, folder, view.extents, known.lsn, view.hi)
        known.lsn = max(known.lsn, view.hi)
        return known
    catalog = Catalog(lsn=view.hi)
    above = 0
    for entry in view.checkpoints:
        try:
            for payload in read_payloads(folder.checkpoint_path(entry)):
                if tag_of(payload) in _SLICES:
                    catalog.note(decode_part(payload))
            above = max(above, entry.lsn)
        except (CheckpointError, msgspec.MsgspecError, OSError):
            continue  # replaced meanwhile, or damaged: rows tell the rest
    _note_rows(catalog, folder, view.extents, above, view.hi)
    # A queue that was made and deleted between two checkpoints stands in none of them.
    live = [extent for extent in view.extents if not extent.sealed]
    _note_rows(catalog, folder, live, 0, min(above, view.hi))
    if above and not _ids_in(folder, view.extents) <= catalog.sources.keys():
        _note_rows(catalog, folder, view.extents, 0, above)
    return catalog


def _note_rows(catalog: Catalog, folder: Folder, extents: Iterable[Extent], above: int, upto: int) -> None:
    for extent in extents:
        if extent.last_lsn > above and extent.first_lsn <= upto:
            with folder.opened(extent) as raw:
                for _, meta in metas(raw, extent, max(above, extent.first_lsn - 1), min(upto, extent.last_lsn)):
                    catalog.note_meta(meta)


def tag_of(packed: "bytes | memoryview") -> int:
    """The tag of a record, or of a part of a checkpoint, undecoded: a small number behind the head of an array. The
    head is one byte long, or three if there are more than 15 fields.
    """
    return packed[3] if packed[0] == _LONG_ARRAY else packed[1]


def metas(raw: sqlite3.Connection, extent: Extent, above: int, upto: int) -> Iterator[tuple[int, bytes]]:
    """LSN and records, undecoded, of rows ``above < lsn <= upto``. Raises FolderError for a wrong checksum."""
    while rows := raw.execute(
        "SELECT lsn, time_ms, messages, queues, meta_crc, meta FROM log"
        " WHERE lsn > ? AND lsn <= ? ORDER BY lsn LIMIT ?",
        (above, upto, _METAS_A_STATEMENT),
    ).fetchall():
        for lsn, time_ms, messages, queues, meta_crc, meta in rows:
            if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc:
                raise FolderError(f"row {lsn} of {extent.file} has a wrong checksum")
            yield lsn, meta
        above = rows[-1][0]


def _ids_in(folder: Folder, extents: Iterable[Extent]) -> set[int]:
    """Queues and topics with messages in sealed segments; what is not sealed is above every checkpoint, or nearly."""
    ids: set[int] = set()
    for extent in extents:
        if extent.sealed:
            with folder.opened(extent) as raw:
                ids.update(number for (number,) in raw.execute("SELECT queue_id FROM sparse").fetchall())
    return ids
