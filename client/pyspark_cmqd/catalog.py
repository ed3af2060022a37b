"""Names of queues and topics by id: from the manifest, the checkpoints, sealed segments, and creation records.

The manifest names the ids of most sealed segments, and the table ``names`` of a segment names the rest. Segments that
format 1 sealed have neither; an id deleted before the oldest checkpoint is then known only while the row of its
creation is in the log. Rows are searched, backwards, only for ids with messages that have no name yet. Only segments
that are to be read, or searched for a name, are opened, because a segment may have to be fetched.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from cmqd_segment.checkpoint import QueueSlice, TopicSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.manifest import SegmentEntry, SourceName
from cmqd_segment.newer import tag_of
from cmqd_segment.records import AnyRecord, QueueCreated, TopicCreated
from cmqd_segment.schema import read_names
from pyspark_cmqd.folder import Folder
from pyspark_cmqd.options import LAST_LSN
from pyspark_cmqd.plan import Piece, View, is_sealed, sources_of
from pyspark_cmqd.rows import metas, summaries

_MAKERS = frozenset({2, 40, 43})
"""Tags of QueueCreated, TopicCreated, Subscribed."""
_SLICES = frozenset({2, 9, 10})
"""Tags of QueueSlice, TopicSlice, SubscriptionSlice."""

_raw_records = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record = msgspec.msgpack.Decoder(AnyRecord)


@dataclass
class Catalog:
    """Names by id; ids are never used twice."""

    sources: dict[int, SourceName] = field(default_factory=dict[int, SourceName])
    lsn: int = 0
    """Creations up to this row are known, except of ids deleted by then."""
    followed_from: int | None = None
    """All rows above this row were searched, up to ``lsn``: every id with messages there is known."""
    nameless: set[int] = field(default_factory=set[int])
    """Ids that no record names: the rows of their creation are gone."""
    looked: set[int] = field(default_factory=set[int])
    """Numbers of the sealed segments that were searched for ids."""

    def note_names(self, names: Iterable[SourceName]) -> None:
        """Take names of the manifest, or of the table ``names`` of a segment."""
        self.sources.update((source.id, source) for source in names)

    def note(self, fact: object) -> None:
        """Take a record, or a part of a checkpoint, that names something."""
        match fact:
            case QueueCreated() | QueueSlice():
                self.note_names([SourceName(fact.queue_id, fact.account, fact.name)])
            case TopicCreated() | TopicSlice():
                self.note_names([SourceName(fact.topic_id, fact.account, fact.name, True)])
            case _:
                pass

    def note_meta(self, meta: bytes) -> None:
        """Take what a row says about names. Other records are not decoded."""
        for raw in _raw_records.decode(meta):
            if tag_of(memoryview(raw)) in _MAKERS:
                self.note(_record.decode(raw))


def read_catalog(folder: Folder, view: View) -> Catalog:
    """All that the log can tell at ``view.hi``. Raises FolderError, DataLossError."""
    catalog = checkpointed(folder, view)
    complete(catalog, folder, view)
    return catalog


def checkpointed(folder: Folder, view: View) -> Catalog:
    """Return the names in the checkpoints; no segment is opened."""
    catalog = Catalog()
    catalog.note_names(view.names)
    catalog.lsn = _note_checkpoints(catalog, folder, view)
    return catalog


def complete(catalog: Catalog, folder: Folder, view: View) -> None:
    """Look through all that may name something. Raises FolderError, DataLossError."""
    follow(catalog, folder, view)
    name_ids(catalog, folder, view, [Piece(one, one.first_lsn - 1, one.last_lsn) for one in view.extents])


def follow(catalog: Catalog, folder: Folder, view: View) -> None:
    """Bring up to date what is known of an earlier view. Raises FolderError, DataLossError."""
    catalog.note_names(view.names)
    if view.gaps(catalog.lsn + 1, view.hi):
        # Creation records may be in the gap; the checkpoints are newer than reclaimed rows.
        _note_checkpoints(catalog, folder, view)
    if catalog.followed_from is None:
        catalog.followed_from = catalog.lsn
    _note_rows(catalog, folder, view.extents, catalog.lsn, view.hi)
    catalog.lsn = max(catalog.lsn, view.hi)


def name_ids(catalog: Catalog, folder: Folder, view: View, pieces: Iterable[Piece]) -> None:
    """Look for the names of all that has messages in these pieces: something was made before its first message, most
    likely not long before. Raises FolderError, DataLossError.
    """
    followed = LAST_LSN if catalog.followed_from is None else catalog.followed_from
    pieces = [one for one in pieces if one.above < followed and one.extent.number not in catalog.looked]
    ids = {number for piece in pieces for number in _ids_in(catalog, folder, piece)}
    last = max((piece.upto for piece in pieces), default=0)
    for extent in reversed(view.extents):
        if ids <= catalog.sources.keys() | catalog.nameless:
            break
        if extent.first_lsn <= last:
            _note_rows(catalog, folder, (extent,), 0, view.hi)
    catalog.nameless |= ids - catalog.sources.keys()
    catalog.looked |= {piece.extent.number for piece in pieces if is_sealed(piece.extent)}


def _note_checkpoints(catalog: Catalog, folder: Folder, view: View) -> int:
    """Note the names of all checkpoints; return the last row that they cover, within the view."""
    lsn = 0
    for entry in view.checkpoints:
        try:
            for payload in read_payloads(folder.checkpoint_path(entry)):
                if tag_of(payload) in _SLICES:
                    catalog.note(decode_part(payload))
        except (CheckpointError, msgspec.MsgspecError, OSError):
            continue  # replaced meanwhile, or damaged: rows tell the rest
        lsn = max(lsn, min(entry.lsn, view.hi))
    return lsn


def _note_rows(catalog: Catalog, folder: Folder, extents: Iterable[SegmentEntry], above: int, upto: int) -> None:
    for extent in extents:
        if extent.last_lsn > above and extent.first_lsn <= upto:
            with folder.opened(extent) as raw:
                for _, meta in metas(folder, raw, extent, above, upto):
                    catalog.note_meta(meta)


def _ids_in(catalog: Catalog, folder: Folder, piece: Piece) -> set[int]:
    """Return the ids with messages in a piece, or in the whole of a sealed segment.

    Names in the segment are noted. A segment is opened only if the manifest does not list its ids.
    """
    sources = sources_of(piece.extent)
    if sources is not None:
        return set(sources)
    with folder.opened(piece.extent) as raw:
        if is_sealed(piece.extent):
            catalog.note_names(SourceName(*row) for row in read_names(raw))
            return {number for (number,) in raw.execute("SELECT queue_id FROM sparse").fetchall()}
        contents = summaries(raw, piece.extent, piece.above, piece.upto)
        return {queue[0] for _, queues in contents for queue in queues}
