"""Names of queues and topics by id: from the manifest, the checkpoints, sealed segments, and creation records.

The manifest names the ids of most sealed segments, and the side file or the table ``names`` of a segment names the
rest. Segments that were sealed in format 1 have no names: the name of a queue that was deleted before the oldest
checkpoint is then known only while the row of its creation is in the log.

Order of the search: manifest, checkpoints, then rows, from the newest segment backwards, until every id with messages
has a name. The search opens as few segments as possible, because a segment of a URL must be fetched to be opened.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from cmqd_log.data_folder.actors import Clients
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import Piece, View, is_sealed, sources_of
from cmqd_log.data_folder.rows import metas, summaries
from cmqd_log.options import LAST_LSN
from cmqd_segment.checkpoint import QueueSlice, TopicSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.manifest import SegmentEntry, SourceName
from cmqd_segment.newer import tag_of
from cmqd_segment.records import AnyRecord, QueueCreated, TopicCreated
from cmqd_segment.schema import read_names

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
    searched: set[int] = field(default_factory=set[int])
    """Numbers of the sealed segments that were searched for ids."""
    clients: Clients = field(default_factory=Clients)

    def note_names(self, names: Iterable[SourceName]) -> None:
        """Add names from the manifest, or from the table ``names`` of a segment."""
        self.sources.update((source.id, source) for source in names)

    def note(self, fact: object) -> None:
        """Add the name in a record or in a part of a checkpoint, if it has one."""
        match fact:
            case QueueCreated() | QueueSlice():
                self.note_names([SourceName(fact.queue_id, fact.account, fact.name)])
            case TopicCreated() | TopicSlice():
                self.note_names([SourceName(fact.topic_id, fact.account, fact.name, True)])
            case _:
                pass

    def note_meta(self, meta: bytes) -> None:
        """Add the names in the records of a row; records of other kinds are not decoded."""
        for raw in _raw_records.decode(meta):
            if tag_of(memoryview(raw)) in _MAKERS:
                self.note(_record.decode(raw))


def read_catalog(folder: Folder, view: View) -> Catalog:
    """Return all names that the log has at ``view.hi``.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
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
    """Search the manifest, the checkpoints and all segments of the view.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
    follow(catalog, folder, view)
    name_ids(catalog, folder, view, [Piece(one, one.first_lsn - 1, one.last_lsn) for one in view.extents])


def follow(catalog: Catalog, folder: Folder, view: View) -> None:
    """Add the names that were created between an earlier view and this view.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
    catalog.note_names(view.names)
    if view.gaps(catalog.lsn + 1, view.hi):
        # Creation records may have been in the missing rows. A segment is reclaimed only below a checkpoint, so the
        # checkpoints have the queues and topics of the missing rows that still exist.
        _note_checkpoints(catalog, folder, view)
    if catalog.followed_from is None:
        catalog.followed_from = catalog.lsn
    _note_rows(catalog, folder, view.extents, catalog.lsn, view.hi)
    catalog.lsn = max(catalog.lsn, view.hi)


def name_ids(catalog: Catalog, folder: Folder, view: View, pieces: Iterable[Piece]) -> None:
    """Search for the names of all queues and topics with messages in these pieces.

    The search goes from the last segment of the pieces backwards, because the creation of a queue precedes its first
    message, usually by little.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
    followed = LAST_LSN if catalog.followed_from is None else catalog.followed_from
    pieces = [one for one in pieces if one.above < followed and one.extent.number not in catalog.searched]
    ids = {number for piece in pieces for number in _ids_in(catalog, folder, piece)}
    last = max((piece.upto for piece in pieces), default=0)
    for extent in reversed(view.extents):
        if ids <= catalog.sources.keys() | catalog.nameless:
            break
        if extent.first_lsn <= last:
            _note_rows(catalog, folder, (extent,), 0, view.hi)
    catalog.nameless |= ids - catalog.sources.keys()
    catalog.searched |= {piece.extent.number for piece in pieces if is_sealed(piece.extent)}


def _note_checkpoints(catalog: Catalog, folder: Folder, view: View) -> int:
    """Note the names of all checkpoints; return the last row that they cover, within the view."""
    lsn = 0
    for entry in view.checkpoints:
        try:
            for payload in read_payloads(folder.checkpoint_path(entry)):
                if tag_of(payload) in _SLICES:
                    catalog.note(decode_part(payload))
        except (CheckpointError, msgspec.MsgspecError, OSError):
            continue  # replaced meanwhile, or damaged: the rows have the remaining names
        lsn = max(lsn, min(entry.lsn, view.hi))
    return lsn


def _note_rows(catalog: Catalog, folder: Folder, extents: Iterable[SegmentEntry], above: int, upto: int) -> None:
    for extent in extents:
        if extent.last_lsn > above and extent.first_lsn <= upto:
            with folder.opened(extent) as raw:
                for _, _, meta in metas(folder, raw, extent, above, upto):
                    catalog.note_meta(meta)


def _ids_in(catalog: Catalog, folder: Folder, piece: Piece) -> set[int]:
    """Return the ids with messages in a piece, or in the whole of a sealed segment.

    Names in the segment are noted. A segment is opened only if neither the manifest nor its side file lists its ids.
    """
    sources = sources_of(piece.extent)
    if sources is not None:
        return set(sources)
    contents = folder.sides.contents(piece.extent)
    if contents is not None:
        catalog.note_names(contents.names)
        return set(contents.held)
    with folder.opened(piece.extent) as raw:
        if is_sealed(piece.extent):
            catalog.note_names(SourceName(*row) for row in read_names(raw))
            return {number for (number,) in raw.execute("SELECT queue_id FROM sparse").fetchall()}
        contents = summaries(raw, piece.extent, piece.above, piece.upto)
        return {queue[0] for _, queues in contents for queue in queues}
