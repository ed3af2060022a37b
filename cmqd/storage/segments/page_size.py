"""The page size of a new segment, by the rows of the segment before.

A commit writes whole pages into the WAL: those with its rows, and two more that every commit changes. SQLite pays for
each page (two system calls, a place in the index of the WAL), and the seal pays again. So rows of 64 KiB cost a fifth
to a third less in pages of 16 KiB, while a lone message of a KiB would write 18 KiB instead of 7. Larger pages yet
bring little, and half a page is lost at the end of each row (decision 0188).

The page size belongs to a segment from its creation: a segment that is prepared while the rows are small takes large
rows in small pages, and the segment after the next has the larger pages.
"""

from typing import Final

from cmqd_segment.schema import LARGE_PAGE_BYTES, PAGE_BYTES

LARGE_ROW_BYTES: Final = 48 * 1024
"""Average of a segment's rows from which on the next new segment has large pages. Rows are this large with bodies of
about 64 KiB and more, and with batches under load: the rows of small requests are closed at 64 KiB."""


def page_bytes_after(rows: int, row_bytes: int) -> int:
    """Return the page size of a new segment.

    Args:
        rows: rows of the segment before, 0 if there is none.
        row_bytes: their size.
    """
    return LARGE_PAGE_BYTES if rows and row_bytes >= rows * LARGE_ROW_BYTES else PAGE_BYTES
