"""The states of a view's messages: which checkpoint to begin at, and the rows that the folds are given."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from sqlite3 import Connection

import msgspec
from pyroaring import BitMap64

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import Piece, View, describe, is_sealed
from cmqd_log.data_folder.rows import remaining, summaries
from cmqd_log.errors import FolderError, NewerFolderError, UnknownOutcomeError, masked
from cmqd_log.files import write_whole
from cmqd_log.options import LAST_LSN, Mode
from cmqd_reading.log_fold import LogFold, Told
from cmqd_reading.states import LIVE, QueueStates, Result, State
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads, verify_checkpoint
from cmqd_segment.manifest import CheckpointEntry, SegmentEntry
from cmqd_segment.newer import NewerFormatError, tag_of
from cmqd_segment.outcomes import Outcome
from cmqd_segment.records import AnyRecord

_log = logging.getLogger("cmqd_log")

_SLICES = frozenset({1, 2, 3, 4})
"""Tags of CheckpointHeader, QueueSlice, LeasesSlice, HistorySlice."""

Results = Mapping[int, Result]
"""States of all messages, by queue id."""


def states_at(
    folder: Folder,
    view: View,
    wanted: "frozenset[int] | None",
    mode: Mode,
    *,
    with_callers: bool = False,
    fail_on_loss: bool = False,
) -> Results:
    """Return the state of every message at ``view.hi``; segments of the view may hold later rows.

    Args:
        folder: the data folder.
        view: the log.
        wanted: ids of the queues; None = all.
        mode: of the read.
        with_callers: find the clients that received messages and took them out of their queues, too, as far as the rows
            are there.
        fail_on_loss: raise an error if a row that is read for the states is given up as lost.

    Raises:
        FolderError: the remaining rows and checkpoints do not suffice.
        DataLossError: see ``fail_on_loss``.
        SegmentReclaimedError: the outcomes of a segment were replaced or dropped meanwhile.
    """
    missing = view.gaps(1, view.hi)
    # The rows up to the checkpoint are read for what no checkpoint has: reasons and clients.
    needs_reasons = with_callers or mode in (Mode.ALL, Mode.CONSUMED)
    reading = _Reading(folder, view, wanted, with_callers, fail_on_loss)
    if not missing and needs_reasons:
        return reading.from_rows(reading.fold(), 0)
    if needs_reasons:
        reading.take_outcomes()
    # For the reasons of departures, the oldest checkpoint above the last gap: the rows above a checkpoint give exact
    # reasons, so an older checkpoint gives more of them. Without reasons the newest checkpoint is the least work.
    at_least = max((last for _, last in missing), default=0) if needs_reasons else LAST_LSN
    fold = reading.from_checkpoint(at_least)
    if fold is None:
        # Without a checkpoint, the states can be computed only from the first row on.
        if missing:
            raise FolderError(
                f"mode {mode} cannot be computed as of row {view.hi}: the log no longer has {describe(missing)}, "
                f"and no checkpoint of row {view.hi} or before is usable; includeActive=true reads up to a later row"
            )
        fold = reading.fold()
    return reading.from_rows(fold, 0 if needs_reasons else fold.checkpoint_lsn)


class _Reading:
    """A fold of the rows, and of the outcomes of rows that are gone."""

    def __init__(
        self, folder: Folder, view: View, wanted: "frozenset[int] | None", with_callers: bool, fail_on_loss: bool
    ) -> None:
        self._folder = folder
        self._view = view
        self._wanted = wanted
        self._with_callers = with_callers
        self._fail_on_loss = fail_on_loss
        self._told: dict[int, list[Told]] = {}
        self._outcomes: Iterator[Outcome] = iter(())
        """In the order of the log; read once."""

    def fold(self) -> LogFold:
        """Begin a fold."""
        return LogFold(self._wanted, with_callers=self._with_callers, told=self._told)

    def take_outcomes(self) -> None:
        """Read the outcomes of all segments of the view."""
        files: list[Iterator[Outcome]] = []
        for extent in self._view.extents:
            outcomes = extent.outcomes
            entries = None if outcomes is None else self._folder.outcomes(extent)
            if outcomes is None or entries is None:
                continue
            files.append(filter(self._is_wanted, entries))
            for number, first, stop in held_by(self._folder, extent, self._view.hi):
                told = Told(first, stop, outcomes.known_from, outcomes.upto)
                self._told.setdefault(number, []).append(told)
        self._outcomes = merge(*files, key=attrgetter("lsn", "record"))

    def _is_wanted(self, entry: Outcome) -> bool:
        return entry.lsn <= self._view.hi and (self._wanted is None or entry.queue_id in self._wanted)

    def from_rows(self, fold: LogFold, above: int) -> Results:
        """Apply the remaining rows above ``above`` up to the end of the view, and return the states."""
        fold.begin_above(above)
        outcomes = self._outcomes
        outcome = next(outcomes, None)
        for lsn, time_ms, records in chain(self._rows(above), [(self._view.hi + 1, 0, None)]):
            fold.skip(lsn)
            while outcome is not None and outcome.lsn < lsn:
                fold.apply_outcome(outcome)
                outcome = next(outcomes, None)
            if records is not None:
                fold.apply(lsn, records, time_ms)
        return fold.results()

    def from_checkpoint(self, at_least: int) -> "LogFold | None":
        """Return a fold that holds a checkpoint without rows above ``view.hi``: of the checkpoints at or above row
        ``at_least`` the oldest, else the newest.
        """
        view = self._view
        usable = [entry for entry in view.checkpoints if entry.lsn <= view.hi]
        best = [entry for entry in usable if entry.lsn >= at_least]
        for entry in [*best, *(entry for entry in reversed(usable) if entry.lsn < at_least)]:
            fold = self.fold()
            try:
                for part in slices_in(self._folder, entry):
                    fold.load(part)
            except (CheckpointError, msgspec.MsgspecError, OSError):
                continue  # replaced meanwhile, or damaged: an older checkpoint is there, or the log itself
            # Slices are taken while the broker works, each as of a row of its own.
            if all(queue.slice_lsn <= view.hi for queue in fold.queues.values()):
                return fold
        return None

    def _rows(self, above: int) -> Iterator[tuple[int, int, list[AnyRecord]]]:
        """Yield LSN, time and records of the remaining rows above ``above`` and up to ``view.hi``."""
        view = self._view
        for extent in view.extents:
            if extent.last_lsn > above and extent.first_lsn <= view.hi:
                with self._folder.opened(extent) as raw:
                    yield from remaining(self._folder, raw, extent, above, view.hi, fail_on_loss=self._fail_on_loss)


def slices_in(folder: Folder, entry: CheckpointEntry) -> Iterator[AnyPart]:
    """Yield the header of a checkpoint, and the slices of its queues.

    Raises:
        CheckpointError, MsgspecError, OSError: the file was replaced meanwhile, or is damaged.
        NewerFolderError: a newer version wrote the file.
    """
    try:
        path = folder.checkpoint_path(entry)
        verify_checkpoint(path)
        for payload in read_payloads(path):
            if tag_of(payload) in _SLICES:
                yield decode_part(payload)
    except NewerFormatError as error:
        raise NewerFolderError(f"{entry.file} cannot be read: {error}") from error


StatesBySegment = dict[int, dict[int, QueueStates]]
"""States by the number of the segment, then by queue id."""

_states_decoder = msgspec.msgpack.Decoder(StatesBySegment)


def write_states(file: Path, states: StatesBySegment) -> None:
    """Store the states of a row in a file, for later reads as of the same row: the slices of a replay.

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
            held = held_by(folder, piece.extent, piece.upto)
            found[piece.extent.number] = {
                number: results[number].cut(first, stop) for number, first, stop in held if number in results
            }
    return found


def check_untold(path: str, view: View, pieces: Sequence[Piece], states: StatesBySegment, *, fail: bool) -> None:
    """Check that the log tells of all messages of these pieces how they left their queues, or log a warning.

    Raises:
        UnknownOutcomeError: the log does not, and ``fail`` is set.
    """
    left = untold = 0
    first_lsn = view.hi
    for extent in {piece.extent.number: piece.extent for piece in pieces}.values():
        for queue in states.get(extent.number, {}).values():
            sizes = {state: len(BitMap64.deserialize(packed)) for state, packed in queue.sets.items()}
            left += sum(size for state, size in sizes.items() if state not in LIVE)
            if gone := sizes.get(State.GONE, 0):
                untold += gone
                first_lsn = min(first_lsn, extent.first_lsn)
    if not untold:
        return
    rows = describe(view.gaps(first_lsn, view.hi))
    text = (
        f"of {left:,} messages that left their queues, the log of {masked(path)} cannot tell of {untold:,} how they"
        f" left: it no longer has {rows}, and no outcomes of these rows"
    )
    if fail:
        raise UnknownOutcomeError(f"{text}; mode=all shows these messages, and failOnDataLoss=false leaves them out")
    _log.warning("%s; these messages are left out", text)


def held_by(folder: Folder, extent: SegmentEntry, upto: int) -> list[tuple[int, int, int]]:
    """Return the queues and topics of a segment as (id, first position, stop position); of an unsealed segment up to
    row ``upto``.
    """
    contents = folder.sides.contents(extent)
    if contents is not None:
        return [(number, each.first_position, each.stop_position) for number, each in contents.held.items()]
    with folder.opened(extent) as raw:
        if is_sealed(extent):
            return raw.execute("SELECT queue_id, first_position, stop_position FROM sparse").fetchall()
        return held_in_rows(raw, extent, upto)


def held_in_rows(raw: Connection, extent: SegmentEntry, upto: int) -> list[tuple[int, int, int]]:
    """Return the queues and topics of a segment up to a row, as :func:`held_by` does; every row is examined."""
    bounds: dict[int, tuple[int, int]] = {}
    for _, queues in summaries(raw, extent, 0, upto):
        for number, first, stop, _ in queues:
            # Positions ascend.
            bounds[number] = (bounds[number][0] if number in bounds else first, stop)
    return [(number, first, stop) for number, (first, stop) in bounds.items()]
