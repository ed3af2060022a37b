"""Searches in a log whose oldest rows were reclaimed: side files leave segments out, and no event is lost by that."""

from collections.abc import Sequence
from typing import Any

from cmqd_reading.births import births_in
from cmqd_reading.history_search import (
    Extent,
    FoundHistory,
    HolderWanted,
    IdWanted,
    Rows,
    RowsWanted,
    Told,
    search_by_id,
)
from cmqd_reading.named_segments import NamedSegments
from cmqd_reading.naming import NamedMessages
from cmqd_segment.manifest import SegmentEntry, SegmentState, SideEntry
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import encode_records
from cmqd_segment.side import SideHistory, SideIds
from support.core.busy_rig import busy_rig

SEGMENTS = 12
GONE = 5
"""Segments that were reclaimed."""


class Log:
    """The rows of a broker in segments with side files."""

    def __init__(self, rows: Sequence[list[AnyRecord]]) -> None:
        size = len(rows) // SEGMENTS + 1
        self.rows = {lsn: encode_records(records) for lsn, records in enumerate(rows, 1)}
        self.gone = GONE * size
        self.entries: list[SegmentEntry] = []
        self.sides: dict[str, tuple[SideIds, SideHistory]] = {}
        self.read: set[int] = set()
        """Numbers of the segments of which rows were read."""
        for number, first in enumerate(range(0, len(rows), size)):
            if number >= GONE:
                self._seal(number, first + 1, rows[first : first + size])
        self.extent = Extent(len(rows), 0, [(1, self.gone)])

    def _seal(self, number: int, first_lsn: int, rows: Sequence[list[AnyRecord]]) -> None:
        positions: dict[int, list[int]] = {}
        for records in rows:
            for birth in births_in(records):
                positions.setdefault(birth.source_id, []).append(birth.position)
        named = NamedMessages((each, min(stored), max(stored) + 1) for each, stored in sorted(positions.items()))
        counts = [sum(1 for _ in births_in(records)) for records in rows]
        named.add_rows([(first_lsn + n, counts[n], encode_records(records)) for n, records in enumerate(rows)])
        key = f"{number:064x}"
        last_lsn = first_lsn + len(rows) - 1
        side = SideEntry(1, key)
        self.entries.append(SegmentEntry(number, SegmentState.SEALED, first_lsn, last_lsn, sha256=key, side=side))
        self.sides[key] = SideIds(number, key, named.lowest_message_id, named.highest_message_id), named.history()

    def search(self, message_id: int, *, has_sides: bool) -> FoundHistory | None:
        named = NamedSegments(lambda entry: self.sides[entry.sha256] if has_sides else None)
        search = search_by_id(message_id, self.extent, Told())
        answer: Any = None
        while True:
            try:
                wanted = search.send(answer)
            except StopIteration as end:
                return end.value
            match wanted:
                case HolderWanted():
                    answer = named.without_holder(self.entries, wanted)
                case RowsWanted():
                    answer = self._rows(wanted, named)
                case IdWanted():
                    raise AssertionError(wanted)

    def _rows(self, wanted: RowsWanted, named: NamedSegments) -> Rows:
        index = next(n for n, entry in enumerate(self.entries) if entry.last_lsn >= wanted.first_lsn)
        entry = self.entries[index]
        if wanted.life is not None:
            left_out = named.left_out(self.entries[index:], wanted)
            if left_out is not None:
                return left_out
            self.read.add(entry.number)
        lsns = range(max(entry.first_lsn, wanted.first_lsn), min(entry.last_lsn, wanted.last_lsn) + 1)
        return Rows([(lsn, lsn, self.rows[lsn]) for lsn in lsns], lsns.stop - 1)


def test_side_files_leave_no_event_of_a_reclaimed_message_out() -> None:
    found = read = read_without = 0
    for seed in range(12):
        rig, _ = busy_rig(seed, 200)
        log = Log(rig.log.rows)
        reclaimed = [birth.message_id for records in rig.log.rows[: log.gone] for birth in births_in(records)]
        for message_id in reclaimed:
            log.read.clear()
            expected = log.search(message_id, has_sides=False)
            read_without += len(log.read)
            log.read.clear()

            assert log.search(message_id, has_sides=True) == expected, f"seed {seed}, message {message_id}"

            read += len(log.read)
            found += expected is not None
    assert found > 20
    assert 0 < read < read_without
