"""Stores: the rows that stored messages, found by the positions of the messages.

A pass over the log notes the stores that it meets. Receives mostly follow their stores by little, so a bounded number
of stores is kept, and an older store is read again, by the sparse index of its segment.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from sqlite3 import Connection
from typing import Final, NamedTuple

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import View, is_sealed
from cmqd_log.data_folder.rows import decoded, metas_page, summaries
from cmqd_log.errors import SegmentReclaimedError
from cmqd_log.message_states.states_at import held_by
from cmqd_reading.events import stored_in
from cmqd_segment.manifest import SegmentEntry
from cmqd_segment.records import AnyRecord
from cmqd_segment.sparse import SparseQueue, sparse_queue

KEPT: Final = 1 << 16
"""Stores that are kept: some 20 MB."""


class Store(NamedTuple):
    """Neighbours in a queue that a record stored."""

    first_position: int
    stop_position: int
    first_message_id: int
    lsn: int
    first_index: int
    """The ``row_index`` of the first message."""
    enqueue_ms: int


class Stores:
    """The stores of a view; see the module."""

    def __init__(self, folder: Folder, view: View, kept: int = KEPT) -> None:
        self._folder = folder
        self._view = view
        self._most = kept
        self._kept: dict[int, list[Store]] = {}
        """By queue id, ascending by position."""
        self._count = 0
        self._held: dict[int, list[tuple[int, int, SegmentEntry]]] | None = None
        """First and stop position of each queue in each segment; None = not read yet."""

    def note(self, lsn: int, records: Sequence[AnyRecord], wanted: frozenset[int] | None) -> None:
        """Keep the stores of a row; rows ascend."""
        for queue_id, store in _stores_in(lsn, records):
            if wanted is None or queue_id in wanted:
                self._kept.setdefault(queue_id, []).append(store)
                self._count += 1
        if self._count > self._most:
            for kept in self._kept.values():
                del kept[: (len(kept) + 1) // 2]
            self._kept = {queue_id: kept for queue_id, kept in self._kept.items() if kept}
            self._count = sum(map(len, self._kept.values()))

    def find(self, queue_id: int, positions: Iterable[int]) -> dict[int, Store]:
        """Return the stores of messages by position; a message whose row is not in the log is left out.

        Raises:
            FolderError: a segment cannot be read.
        """
        found: dict[int, Store] = {}
        lacking: list[int] = []
        kept = self._kept.get(queue_id, ())
        for position in positions:
            store = _at(kept, position)
            if store is None:
                lacking.append(position)
            else:
                found[position] = store
        if lacking:
            found.update(self._read(queue_id, sorted(lacking)))
        return found

    def _read(self, queue_id: int, positions: list[int]) -> Iterator[tuple[int, Store]]:
        for first, stop, extent in self._segments(queue_id):
            here = [position for position in positions if first <= position < stop]
            if here:
                try:
                    with self._folder.opened(extent) as raw:
                        yield from self._read_in(raw, extent, queue_id, here)
                except SegmentReclaimedError:
                    continue  # as if the view were of a moment later

    def _segments(self, queue_id: int) -> Sequence[tuple[int, int, SegmentEntry]]:
        if self._held is None:
            self._held = {}
            for extent in self._view.extents:
                try:
                    held = held_by(self._folder, extent, self._view.hi)
                except SegmentReclaimedError:
                    continue
                for number, first, stop in held:
                    self._held.setdefault(number, []).append((first, stop, extent))
        return self._held.get(queue_id, ())

    def _read_in(
        self, raw: Connection, extent: SegmentEntry, queue_id: int, positions: list[int]
    ) -> Iterator[tuple[int, Store]]:
        index = _index_of(raw, queue_id) if is_sealed(extent) else None
        first_lsn, last_lsn = extent.first_lsn, extent.last_lsn
        stores: list[Store] = []
        for position in positions:
            store = _at(stores, position)
            if store is None:
                if index is not None:
                    first_lsn, last_lsn = index.rows_of(position, position + 1, extent.last_lsn)
                lsn = next(
                    (
                        lsn
                        for lsn, queues in summaries(raw, extent, first_lsn - 1, last_lsn)
                        if any(number == queue_id and low <= position < high for number, low, high, _ in queues)
                    ),
                    None,
                )
                # A damaged row whose loss was accepted is not in the page.
                rows = [] if lsn is None else metas_page(self._folder, raw, extent, lsn - 1, lsn).rows
                for row_lsn, _, meta in rows:
                    records = decoded(extent, row_lsn, meta)
                    stores = [store for number, store in _stores_in(row_lsn, records) if number == queue_id]
                    # Positions ascend, and so do their rows.
                    first_lsn = row_lsn
                store = _at(stores, position)
            if store is not None:
                yield position, store


def _stores_in(lsn: int, records: Sequence[AnyRecord]) -> Iterator[tuple[int, Store]]:
    for stored in stored_in(records):
        run = stored.run
        yield (
            stored.source_id,
            Store(run.first_position, run.stop_position, run.first_message_id, lsn, stored.first_index, run.enqueue_ms),
        )


def _at(stores: Sequence[Store], position: int) -> Store | None:
    place = bisect_right(stores, position, key=_first_of) - 1
    return stores[place] if place >= 0 and position < stores[place].stop_position else None


_first_of = itemgetter(0)


def _index_of(raw: Connection, queue_id: int) -> SparseQueue | None:
    row = raw.execute(
        "SELECT first_position, stop_position, bytes, positions, lsns FROM sparse WHERE queue_id = ?", (queue_id,)
    ).fetchone()
    return None if row is None else sparse_queue(*row)
