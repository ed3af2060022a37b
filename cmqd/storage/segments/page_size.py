"""The page size of a segment, by the rows of the active segment.

A commit writes whole pages into the WAL: those with its rows, and two more that every commit changes. SQLite pays for
each page (two system calls, a place in the index of the WAL), the file system pays for each write (memory, its place in
the file, a record for the disk), and the seal pays again. So rows of 64 KiB cost a fifth to a third less in pages of 16
KiB, and rows of a MiB half in pages of 64 KiB, while a lone message of a KiB would write 130 KiB instead of 7 (decision
0242).

The page size belongs to a segment from its creation. Therefore the prepared segment is made anew when the rows of the
active segment want other pages, and an active segment with too small pages is retired early: a broker that begins with
large bodies would otherwise write 256 MiB in small pages first. An active segment with too large pages needs no rule,
because small commits of 128 KiB each fill the segment soon.
"""

from typing import Final

from cmqd_segment.schema import LARGE_PAGE_BYTES, LARGEST_PAGE_BYTES, PAGE_BYTES

LARGE_ROW_BYTES: Final = 48 * 1024
"""Average of a segment's rows from which on a new segment has large pages. Rows are this large with bodies of about 64
KiB and more, and with batches under load: the rows of small requests are closed at 64 KiB."""
LARGEST_ROW_BYTES: Final = 256 * 1024
"""Average from which on a new segment has the largest pages. Rows of 64 KiB would take a third more CPU time in these
pages than in large ones, and rows of 256 KiB take as much."""
SAMPLE_BYTES: Final = 4 * 1024 * 1024
LEAST_COMMITS: Final = 64
"""Rows, or commits, of the active segment from which on the average counts for the prepared segment. Only the bytes
count for the active segment itself: an early end costs a file, and a seal of its own."""


def page_bytes_after(rows: int, row_bytes: int) -> int:
    """Return the page size of a new segment.

    Args:
        rows: rows of the segment before, 0 if there is none.
        row_bytes: their size.
    """
    if not rows or row_bytes < rows * LARGE_ROW_BYTES:
        return PAGE_BYTES
    return LARGE_PAGE_BYTES if row_bytes < rows * LARGEST_ROW_BYTES else LARGEST_PAGE_BYTES
