"""Dedup ids of rows without an id of their own: named by the row of a log, or by the place in the write. Pure.

A row of a log (columns ``lsn`` and ``row_index``) has the id ``WRITE:LOG:lsn:row_index``, with 8 digits each of the id
of the write and of the log. The id does not depend on partitions and their order, so a repeat that gets the rows in
another order has the same ids. Another row has the id of its place: write, partition and number of the row.

The place is unique, a row of a log is not: after a join or a union, a frame can have it twice. The broker answers a
repeat like a first send, so the loss of the second row would be silent. A task therefore keeps the rows that it has
sent, and ends before a second one. The driver compares the sets of the tasks, of which Spark passes one for each
partition: attempts that failed, or came second, are not among them.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from pyroaring import BitMap64

from cmqd_log.errors import CmqdSourceError

DIGITS = 8
"""Digits of the write, and of the log, in an id: 48 of the 64 bytes are taken at most."""
NO_LOG = "0" * DIGITS
"""In place of the log where the columns of a frame do not tell it."""
MAX_NAMED = 10
"""Rows that an error names."""
_BLOCK_BITS = 8
"""A set has a bitmap for each block of 256 row indices. Few rows of a log have more messages, so neighbours in the log
are neighbours in a bitmap, and a message takes two bytes or less. A bitmap has a container for every 256 rows of the
log. Behind a shuffle into hundreds of partitions a message can have a container of its own, of some 70 bytes."""
_IN_BLOCK = (1 << _BLOCK_BITS) - 1
_MAX_LSN = 1 << (64 - _BLOCK_BITS)


class DoubledRowsError(CmqdSourceError, ValueError):
    """A write has a row of a log twice, and its rows have no other ids. Other rows stay stored."""


@dataclass
class LogRows:
    """A set of rows of a log."""

    _blocks: dict[int, BitMap64] = field(default_factory=dict[int, BitMap64])

    def add(self, rows: Iterable[tuple[int, int]]) -> list[str]:
        """Add rows, each as LSN and row index; return the names of some rows that the set has already."""
        blocks: dict[int, list[int]] = {}
        for lsn, index in rows:
            blocks.setdefault(index >> _BLOCK_BITS, []).append(lsn << _BLOCK_BITS | index & _IN_BLOCK)
        doubled: list[str] = []
        for block, values in blocks.items():
            known, added = self._blocks.setdefault(block, BitMap64()), BitMap64(values)
            # Tests of single values are slow, and doubles are rare.
            if len(added) < len(values) or known.intersect(added):
                doubled += _doubled(block, known, values)
            known |= added
        return doubled

    def merge(self, others: "LogRows") -> "LogRows":
        """Add all rows of a set; return the rows that both sets had."""
        both = LogRows()
        for block, values in others._blocks.items():
            known = self._blocks.get(block)
            if known is None:
                self._blocks[block] = values.copy()
                continue
            if common := known & values:
                both._blocks[block] = common
            known |= values
        return both

    def compact(self) -> "LogRows":
        """Make the set small, for its way to the driver, and return it."""
        for values in self._blocks.values():
            values.run_optimize()
        return self

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def names(self, most: int) -> list[str]:
        """Return the names of rows, ``lsn:row_index``."""
        every = (_name(block, value) for block, values in sorted(self._blocks.items()) for value in values)
        return list(islice(every, most))


def _doubled(block: int, known: BitMap64, values: list[int]) -> list[str]:
    seen: set[int] = set()
    doubled: list[str] = []
    for value in values:
        if (value in seen or value in known) and len(doubled) < MAX_NAMED:
            doubled.append(_name(block, value))
        seen.add(value)
    return doubled


def _name(block: int, value: int) -> str:
    return f"{value >> _BLOCK_BITS}:{block << _BLOCK_BITS | value & _IN_BLOCK}"


class DefaultIds:
    """The default ids of a task, and the rows of a log that have got one."""

    def __init__(self, by_place: str, write: str, log: str = NO_LOG) -> None:
        """Make the ids of a task that has sent no row yet.

        Args:
            by_place: beginning of the id of a row that is not of a log; the number of the row follows.
            write: name of the write, the same in every attempt.
            log: digits of the log.
        """
        self.by_place = by_place
        self.by_row = f"{hashlib.blake2b(write.encode(), digest_size=DIGITS // 2).hexdigest()}:{log}:"
        self.rows = LogRows()
        """The rows of a log with a default id."""

    def take(self, rows: Iterable[tuple[int, int | None, int | None]]) -> list[str]:
        """Return the ids of rows; each row is its number in the partition, its LSN and its row index.

        Raises:
            DoubledRowsError: a row of a log had an id before.
        """
        ids: list[str] = []
        of_the_log: list[tuple[int, int]] = []
        by_row = self.by_row
        for number, lsn, index in rows:
            if lsn is None or index is None or not 0 <= lsn < _MAX_LSN or index < 0:
                ids.append(f"{self.by_place}{number}")
            else:
                of_the_log.append((lsn, index))
                ids.append(f"{by_row}{lsn}:{index}")
        if of_the_log and (doubled := self.rows.add(of_the_log)):
            raise DoubledRowsError(
                f"a partition has rows of the log twice: {_listed(doubled[:MAX_NAMED], 0)}. The broker answers a "
                f"repeat like a first send and does not store it, so the task ended before the repeat. {_WAY_OUT}"
            )
        return ids


_WAY_OUT = (
    "Give the rows ids of their own with dedupIdColumn, or leave out the columns lsn and row_index: then a row is "
    "named by its place in the write. Rows of two logs can have the same lsn and row_index, too"
)


def check_disjoint(tasks: Iterable[LogRows]) -> None:
    """Compare the rows of the tasks of a write.

    Raises:
        DoubledRowsError: two tasks have sent the same row.
    """
    merged, doubled = LogRows(), LogRows()
    for rows in tasks:
        doubled.merge(merged.merge(rows))
    if count := len(doubled):
        named = doubled.names(MAX_NAMED)
        raise DoubledRowsError(
            f"two partitions have the same rows of the log: {_listed(named, count - len(named))}. The broker answers a "
            f"repeat like a first send, so of each of these rows the later was not stored. {_WAY_OUT}"
        )


def _listed(names: list[str], others: int) -> str:
    text = f"{', '.join(names)}{f' and {others} others' if others else ''}"
    return f"{text} (lsn:row_index)"
