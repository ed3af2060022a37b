"""Actors: the clients in the records of a log, and the text that the columns show for a client.

A sealed segment has a table of its actors. For unsealed segments the actors are in the newest checkpoint, and in the
rows and tables behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import View, is_sealed
from cmqd_log.data_folder.rows import metas
from cmqd_segment.checkpoint import ActorsSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.newer import tag_of
from cmqd_segment.records import ActorSeen, AnyRecord
from cmqd_segment.schema import read_actors
from cmqd_types.actors import Actor

CLIENT_COLUMNS = frozenset({"sent_by", "received_by", "left_by", "ended_by"})
"""Columns that show clients."""

_SLICES = frozenset({1, 15})
"""Tags of CheckpointHeader, ActorsSlice: the first parts of a checkpoint."""
_SEEN = 13
"""Tag of ActorSeen."""

_raw_records = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record = msgspec.msgpack.Decoder(AnyRecord)


def shown(actor: Actor) -> str:
    """Return the text of a client: its own word and the key, which is proved; never a host.

    A reader of the files needs no role, and hosts are for keys with *manage* on every name.
    """
    return f"{actor.name} ({actor.secret_id})" if actor.name else actor.secret_id


@dataclass
class Clients:
    """Texts of clients by number; a stream keeps them between its batches."""

    texts: dict[int, str] = field(default_factory=dict[int, str])
    _lsn: int = 0
    """The clients of unsealed rows up to this row are known."""

    def follow(self, folder: Folder, view: View, *, all_rows: bool) -> None:
        """Learn the clients that unsealed rows of a view may name; with ``all_rows`` those of sealed rows too.

        Raises:
            FolderError, DataLossError: a segment cannot be read.
        """
        if not all_rows and all(is_sealed(extent) for extent in view.extents):
            return
        if not self._lsn:
            self._lsn = self._note_checkpoints(folder, view)
        above = 0 if all_rows else self._lsn
        for extent in view.extents:
            if extent.last_lsn > above:
                with folder.opened(extent) as raw:
                    if is_sealed(extent):
                        self._note(read_actors(raw).items())
                    else:
                        for _, _, meta in metas(folder, raw, extent, above, view.hi):
                            self._note_meta(meta)
        self._lsn = max(self._lsn, view.hi)

    def _note(self, actors: Iterable[tuple[int, Actor]]) -> None:
        self.texts.update((number, shown(actor)) for number, actor in actors)

    def _note_meta(self, meta: bytes) -> None:
        """Note the clients in the records of a row; records of other kinds are not decoded."""
        for raw in _raw_records.decode(meta):
            if tag_of(memoryview(raw)) == _SEEN:
                record = _record.decode(raw)
                assert isinstance(record, ActorSeen)
                self._note([(record.number, record.actor)])

    def _note_checkpoints(self, folder: Folder, view: View) -> int:
        """Note the clients of the checkpoints; return the last row that the newest readable checkpoint covers."""
        covered = 0
        for entry in view.checkpoints:
            try:
                for payload in read_payloads(folder.checkpoint_path(entry)):
                    if tag_of(payload) not in _SLICES:
                        covered = max(covered, min(entry.lsn, view.hi))
                        break
                    part = decode_part(payload)
                    if isinstance(part, ActorsSlice):
                        self._note(part.actors)
            except (CheckpointError, msgspec.MsgspecError, OSError):
                # Replaced meanwhile, or damaged: the rows have the remaining clients, or an older checkpoint has.
                continue
        return covered
