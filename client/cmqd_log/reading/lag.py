"""Lag of a stream behind the newest readable row, for the progress of a query."""

from typing import NamedTuple

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import View, is_sealed
from cmqd_log.data_folder.rows import summaries
from cmqd_segment.manifest import SegmentEntry

SAMPLED_ROWS = 1000
"""Rows that are counted in a segment without totals; the rest is estimated by these rows."""


class Lag(NamedTuple):
    """Rows, and wanted messages with their bytes of bodies, above a position; and the time between the row of the
    position and the newest row. Messages and bytes of a segment that is read in part are estimated by its rows.
    """

    rows: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: int = 0


def lag_of(folder: Folder, view: View, wanted: "frozenset[int] | None", lsn: int) -> Lag:
    """Return the lag of a position.

    Raises:
        FolderError, DataLossError: a segment cannot be read.
    """
    ahead = [extent for extent in view.extents if extent.last_lsn > lsn]
    if not ahead:
        return Lag()
    rows = messages = size = 0
    for extent in ahead:
        above = max(lsn, extent.first_lsn - 1)
        rows += extent.last_lsn - above
        held, held_bytes = _held(folder, extent, wanted, above)
        messages += held
        size += held_bytes
    read_ms = _time_at(folder, view, lsn) or ahead[0].first_ms
    return Lag(rows, messages, size, max(view.extents[-1].last_ms - read_ms, 0) // 1000)


def _held(folder: Folder, extent: SegmentEntry, wanted: "frozenset[int] | None", above: int) -> tuple[int, int]:
    """Return the messages and bytes of the rows above ``above``."""
    rows = extent.last_lsn - above
    totals = _totals(folder, extent, wanted)
    if totals is not None:
        whole = extent.last_lsn - extent.first_lsn + 1
        return totals[0] * rows // whole, totals[1] * rows // whole
    counted = messages = size = 0
    with folder.opened(extent) as raw:
        for _, queues in summaries(raw, extent, above, min(extent.last_lsn, above + SAMPLED_ROWS)):
            counted += 1
            for number, start, stop, held_bytes in queues:
                if wanted is None or number in wanted:
                    messages += stop - start
                    size += held_bytes
    return messages * rows // max(counted, 1), size * rows // max(counted, 1)


def _totals(folder: Folder, extent: SegmentEntry, wanted: "frozenset[int] | None") -> tuple[int, int] | None:
    """Return the messages and bytes of a whole segment; None if only its rows tell."""
    if not is_sealed(extent):
        return None
    if extent.sources or not extent.messages:
        sources = [(number, messages, size) for number, messages, size in extent.sources]
    else:
        contents = folder.sides.contents(extent)
        if contents is None:
            # From a URL the whole segment would be fetched for a figure.
            return (extent.messages, extent.bytes) if folder.is_remote else None
        sources = [(number, one.stop_position - one.first_position, one.bytes) for number, one in contents.held.items()]
    chosen = [one for one in sources if wanted is None or one[0] in wanted]
    return sum(messages for _, messages, _ in chosen), sum(size for *_, size in chosen)


def _time_at(folder: Folder, view: View, lsn: int) -> int:
    """Return the time of a row; 0 if its segment is gone, and for row 0."""
    for extent in view.extents:
        if extent.first_lsn <= lsn <= extent.last_lsn:
            if lsn == extent.last_lsn:
                return extent.last_ms
            with folder.opened(extent) as raw:
                row = raw.execute("SELECT time_ms FROM log WHERE lsn = ?", (lsn,)).fetchone()
            return row[0] if row else 0
    return 0
