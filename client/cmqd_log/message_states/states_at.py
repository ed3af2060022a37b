"""The states of a view's messages: which checkpoint to begin at, and the rows that the folds are given."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import Piece, View, describe, is_sealed
from cmqd_log.data_folder.rows import decoded, metas, summaries
from cmqd_log.errors import FolderError, NewerFolderError
from cmqd_log.files import write_whole
from cmqd_log.options import LAST_LSN, Mode
from cmqd_reading.log_fold import LogFold
from cmqd_reading.states import QueueStates, Result
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads, verify_checkpoint
from cmqd_segment.newer import NewerFormatError, tag_of
from cmqd_segment.records import AnyRecord

_SLICES = frozenset({1, 2, 3, 4})
"""Tags of CheckpointHeader, QueueSlice, LeasesSlice, HistorySlice."""

Results = Mapping[int, Result]
"""States of all messages, by queue id."""


def states_at(
    folder: Folder, view: View, wanted: "frozenset[int] | None", mode: Mode, *, with_callers: bool = False
) -> Results:
    """Return the state of every message at ``view.hi``; segments of the view may hold later rows.

    ``with_callers``: find the clients that received messages and took them out of their queues, too, as far as the rows
    are there.

    Raises:
        FolderError: the remaining rows and checkpoints do not suffice.
    """
    missing = view.gaps(1, view.hi)
    # The rows up to the checkpoint are read for what no checkpoint has: reasons and clients.
    needs_reasons = with_callers or mode in (Mode.ALL, Mode.CONSUMED)
    if not missing and needs_reasons:
        return _from_rows(LogFold(wanted, with_callers=with_callers), 0, folder, view)
    # For the reasons of departures, the oldest checkpoint above the last gap: the rows above a checkpoint give exact
    # reasons, so an older checkpoint gives more of them. Without reasons the newest checkpoint is the least work.
    at_least = max((last for _, last in missing), default=0) if needs_reasons else LAST_LSN
    fold = _from_checkpoint(folder, view, wanted, at_least, with_callers=with_callers)
    if fold is None:
        # Without a checkpoint, the states can be computed only from the first row on.
        if missing:
            raise FolderError(
                f"mode {mode} cannot be computed as of row {view.hi}: the log no longer has {describe(missing)}, "
                f"and no checkpoint of row {view.hi} or before is usable; includeActive=true reads up to a later row"
            )
        fold = LogFold(wanted, with_callers=with_callers)
    return _from_rows(fold, 0 if needs_reasons else fold.checkpoint_lsn, folder, view)


def _from_rows(fold: LogFold, above: int, folder: Folder, view: View) -> Results:
    fold.begin_above(above)
    for lsn, records in _rows(folder, view, above):
        fold.apply(lsn, records)
    return fold.results()


def _from_checkpoint(
    folder: Folder, view: View, wanted: "frozenset[int] | None", at_least: int, *, with_callers: bool
) -> "LogFold | None":
    """Return a fold that holds a checkpoint without rows above ``view.hi``: of the checkpoints at or above row
    ``at_least`` the oldest, else the newest.
    """
    usable = [entry for entry in view.checkpoints if entry.lsn <= view.hi]
    best = [entry for entry in usable if entry.lsn >= at_least]
    for entry in [*best, *(entry for entry in reversed(usable) if entry.lsn < at_least)]:
        fold = LogFold(wanted, with_callers=with_callers)
        try:
            path = folder.checkpoint_path(entry)
            verify_checkpoint(path)
            for payload in read_payloads(path):
                if tag_of(payload) in _SLICES:
                    fold.load(decode_part(payload))
        except NewerFormatError as error:
            raise NewerFolderError(f"{entry.file} cannot be read: {error}") from error
        except (CheckpointError, msgspec.MsgspecError, OSError):
            continue  # replaced meanwhile, or damaged: an older checkpoint is there, or the log itself
        # Slices are taken while the broker works, each as of a row of its own.
        if all(queue.slice_lsn <= view.hi for queue in fold.queues.values()):
            return fold
    return None


def _rows(folder: Folder, view: View, above: int) -> Iterator[tuple[int, list[AnyRecord]]]:
    """Yield LSN and records of the remaining rows above ``above`` and up to ``view.hi``."""
    for extent in view.extents:
        if extent.last_lsn > above and extent.first_lsn <= view.hi:
            with folder.opened(extent) as raw:
                for lsn, _, meta in metas(folder, raw, extent, above, view.hi):
                    yield lsn, decoded(extent, lsn, meta)


StatesBySegment = dict[int, dict[int, QueueStates]]
"""States by the number of the segment, then by queue id."""

_states_decoder = msgspec.msgpack.Decoder(StatesBySegment)


def write_states(file: Path, states: StatesBySegment) -> None:
    """Store the states of a row in a file, for later reads as of the same row (option ``statesFile``).

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(file, msgspec.msgpack.encode(states))


def read_states(file: "Path | str") -> StatesBySegment:
    """Read the states from a file of :func:`write_states`.

    Raises:
        FolderError: the file is missing or malformed.
    """
    try:
        return _states_decoder.decode(Path(file).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise FolderError(f"the states in {file} cannot be read: {error}") from error


def states_of(folder: Folder, pieces: Sequence[Piece], results: Results) -> StatesBySegment:
    """Return the states that the readers of each segment need."""
    found: StatesBySegment = {}
    for piece in pieces:
        if piece.extent.number not in found:
            contents = folder.sides.contents(piece.extent)
            if contents is not None:
                held = [(number, each.first_position, each.stop_position) for number, each in contents.held.items()]
            else:
                with folder.opened(piece.extent) as raw:
                    held = _held(raw, piece)
            found[piece.extent.number] = {
                number: results[number].cut(first, stop) for number, first, stop in held if number in results
            }
    return found


def _held(raw: sqlite3.Connection, piece: Piece) -> list[tuple[int, int, int]]:
    """Return the queues and topics of a segment as (id, first position, stop position)."""
    if is_sealed(piece.extent):
        return raw.execute("SELECT queue_id, first_position, stop_position FROM sparse").fetchall()
    bounds: dict[int, tuple[int, int]] = {}
    for _, queues in summaries(raw, piece.extent, piece.above, piece.upto):
        for number, first, stop, _ in queues:
            # Positions ascend.
            bounds[number] = (bounds[number][0] if number in bounds else first, stop)
    return [(number, first, stop) for number, (first, stop) in bounds.items()]
