"""The sealed segments that a search for a message may leave out, by their side files.

Side files never change, so their content is kept: the ids of every segment, which are two numbers, and the named
messages of as many segments as memory allows.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from pyroaring import BitMap64

from cmqd_reading.history_search import HolderWanted, Rows, RowsWanted
from cmqd_reading.life import Life
from cmqd_reading.message_search import Stretch
from cmqd_reading.naming import names_lease, names_message
from cmqd_segment.manifest import SegmentEntry, SegmentState
from cmqd_segment.side import SideHistory, SideIds

KEPT_BYTES: Final = 8 * 1024 * 1024
"""Memory for named messages, about."""
_NAMED_BYTES: Final = 300
"""Memory of a ``SideNamed``, beside its bitmap."""
_STORED_BYTES: Final = 96
"""Memory of the numbers of a queue or topic with messages in a segment."""

ReadSide: TypeAlias = Callable[[SegmentEntry], tuple[SideIds, SideHistory] | None]
"""Reads the side file of a segment; None = only the segment tells."""


class NamedSegments:
    """The side files of a log; see the module. The methods block, and run one at a time. A search asks for a holder
    before it asks for the rows of a life."""

    def __init__(self, read: ReadSide, kept_bytes: int = KEPT_BYTES) -> None:
        self._read = read
        self._room = kept_bytes
        # By checksum of the segment.
        self._ids: dict[str, SideIds] = {}
        self._histories: OrderedDict[str, SideHistory] = OrderedDict()
        self._segments: Sequence[SegmentEntry] = ()
        """All segments, as of the last question for a holder."""
        self._stored: dict[int, list[tuple[int, int]]] | None = None
        """Positions that they store; None = to be collected."""

    def without_holder(self, segments: Iterable[SegmentEntry], wanted: HolderWanted) -> list[tuple[int, int]]:
        """Return the ranges of rows that surely do not give out an id or lease: whole sealed segments.

        Args:
            segments: all segments of the log, ascending; what is known of others is forgotten.
            wanted: the question of a search.
        """
        self._segments = list(segments)
        self._stored = None
        self._forget_others({entry.sha256 for entry in self._segments})
        return [(entry.first_lsn, entry.last_lsn) for entry in self._segments if not self._may_hold(entry, wanted)]

    def left_out(self, segments: Iterable[SegmentEntry], wanted: RowsWanted) -> Rows | None:
        """Return the first wanted rows as left out, if they are of sealed segments that do not name the message.

        Args:
            segments: ascending, the first with the first wanted row. A segment that was begun is read to its end.
            wanted: the question of a search; with a life.
        """
        assert wanted.life is not None
        searched = _Searched(wanted.life)
        upto_lsn = 0
        expected_lsn = wanted.first_lsn
        for entry in segments:
            # Rows between two segments are missing, which is to be told.
            if entry.first_lsn != expected_lsn or not entry.side or entry.last_lsn > wanted.last_lsn:
                break
            if self._may_name(entry, searched) or (wanted.is_store_gone and self._moves_from_elsewhere(entry)):
                break
            upto_lsn = entry.last_lsn
            expected_lsn = upto_lsn + 1
        return Rows([], upto_lsn, are_left_out=True) if upto_lsn else None

    def ids_of(self, entry: SegmentEntry) -> SideIds | None:
        """Return the ids of the messages that a segment stores; None = only the segment tells."""
        if entry.sha256 not in self._ids:
            self._take(entry)
        return self._ids.get(entry.sha256)

    def _may_hold(self, entry: SegmentEntry, wanted: HolderWanted) -> bool:
        if wanted.is_lease:
            history = self._history(entry)
            return history is None or names_lease(history, wanted.number)
        ids = self.ids_of(entry)
        return ids is None or ids.may_store(wanted.number)

    def _may_name(self, entry: SegmentEntry, searched: "_Searched") -> bool:
        if searched.awaited:
            ids = self.ids_of(entry)
            if ids is None or any(ids.may_store(each) for each in searched.awaited):
                return True
        history = self._history(entry)
        return history is None or any(names_message(history, *place, searched.leases) for place in searched.places)

    def _moves_from_elsewhere(self, entry: SegmentEntry) -> bool:
        """Return whether a segment names positions that no segment stores, as far as side files tell.

        The row of a moved or committed message, or of a late copy, names the position of the original.
        """
        history = self._history(entry)
        if history is None:
            return True
        stored = self._stored_positions()
        for each in history.named:
            if each.positions:
                positions = BitMap64.deserialize(each.positions)
                for first, stop in stored.get(each.id, ()):
                    positions.remove_range(first, stop)
                if positions:
                    return True
        return False

    def _stored_positions(self) -> dict[int, list[tuple[int, int]]]:
        """Return the positions that the segments of this search store, as ranges (first, stop), by queue or topic."""
        if self._stored is None:
            self._stored = {}
            for entry in self._segments:
                history = self._history(entry)
                for number, first, stop in () if history is None else history.stored():
                    ranges = self._stored.setdefault(number, [])
                    # Positions are dense, so most segments go on where the segment before ends.
                    ranges.append((ranges.pop()[0] if ranges and ranges[-1][1] == first else first, stop))
        return self._stored

    def _history(self, entry: SegmentEntry) -> SideHistory | None:
        key = entry.sha256
        if key not in self._histories:
            return self._take(entry)
        self._histories.move_to_end(key)
        return self._histories[key]

    def _take(self, entry: SegmentEntry) -> SideHistory | None:
        # A side file that cannot be read is read again by the next search: it may have been made anew.
        if entry.state is not SegmentState.SEALED or entry.side is None or (parts := self._read(entry)) is None:
            return None
        key = entry.sha256
        self._ids[key], history = parts
        self._histories[key] = history
        self._room -= _cost(history)
        while self._room < 0 and len(self._histories) > 1:
            _, oldest = self._histories.popitem(last=False)
            self._room += _cost(oldest)
        return history

    def _forget_others(self, keys: set[str]) -> None:
        for key in self._ids.keys() - keys:
            del self._ids[key]
            if (history := self._histories.pop(key, None)) is not None:
                self._room += _cost(history)


def stretches_of(segments: Iterable[SegmentEntry]) -> list[Stretch]:
    """Return the rows of segments for a search of messages, without segments that have none."""
    return [
        Stretch(each.first_lsn, each.last_lsn, each.first_ms, each.last_ms)
        for each in segments
        if 0 < each.first_lsn <= each.last_lsn
    ]


class _Searched:
    """The places, leases and ids of a life, as of a row."""

    def __init__(self, life: Life) -> None:
        self.awaited = life.awaited
        self.places: Sequence[tuple[int, int]] = life.open_positions
        self.leases = life.leases


def _cost(history: SideHistory) -> int:
    named = sum(_NAMED_BYTES + len(each.positions) for each in history.named)
    return len(history.leases) + _STORED_BYTES * len(history.ids) + named
