"""Memory that all gateway processes write: amounts that limits bound, and the rates of keys.

    row of a process      connections | bytes of heads | bytes of bodies        written by that process alone
    rates                 sets of 16 buckets of keys                            written with the lock

A process adds to a bounded amount of its row with the lock, after a look at all rows, so the sum never passes the
limit. The lock is a record lock of the system, which ends with its process: a process that is killed while it holds the
lock stops no other process. The parent empties the row of a process that has ended.

The file of the lock and the memory have no name. Forked processes inherit both.
"""

import fcntl
import mmap
import tempfile
import time
from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b
from types import TracebackType
from typing import Final

from cmqd_gateway.callers.rates import taken
from cmqd_gateway.http.amounts import Amount

_CELL_BYTES: Final = 8
_SETS: Final = 4_096
"""Sets of buckets; a power of two."""
_WAYS: Final = 16
"""Buckets of a set. Of 10,000 keys one set in a billion has more, and a bucket that is idle for a second is full again,
so a key that takes its place loses nothing."""
_BUCKETS: Final = _SETS * _WAYS


class Column(IntEnum):
    """The amounts of a row."""

    CONNECTIONS = 0
    HEADS = 1
    BODIES = 2


class FileLock:
    """Excludes the other processes; to be held for microseconds. Processes are excluded, threads are not."""

    def __init__(self) -> None:
        """Make a file without a name."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)


class SharedMemory:
    """The rows of all processes; to be made before the processes are forked."""

    def __init__(self, processes: int) -> None:
        """Make rows of zeros."""
        self.lock = FileLock()
        self.cells: memoryview[int] = _cells(processes * len(Column)).cast("q")

    def sum(self, column: Column) -> int:
        """Return an amount of all processes together."""
        return sum(self.cells[column :: len(Column)])

    def empty_row(self, process: int) -> None:
        """Set the amounts of a process to 0: the process has ended."""
        for column in Column:
            self.cells[process * len(Column) + column] = 0


class SharedAmount(Amount):
    """An amount of which each process holds a part."""

    __slots__ = ("_cell", "_column", "_memory")

    def __init__(self, memory: SharedMemory, process: int, column: Column) -> None:
        """Take the cell of a process in a column."""
        super().__init__()
        self._memory = memory
        self._column = column
        self._cell = process * len(Column) + column

    @property
    def held(self) -> int:
        """The part of this process."""
        return self._memory.cells[self._cell]

    def add(self, amount: int) -> None:
        """Hold more, or less; see the base class. No lock is needed: no other process writes the cell."""
        self._memory.cells[self._cell] += amount

    def take(self, amount: int, limit: int) -> bool:
        """Hold more unless all processes together pass the limit; see the base class."""
        memory = self._memory
        with memory.lock:
            if memory.sum(self._column) + amount > limit:
                return False
            self.add(amount)
            return True


class SharedKeyRates:
    """Rates of requests per key over all processes; as :class:`cmqd_gateway.callers.rates.KeyRates`.

    The clock must be the same in all processes, as the monotonic clock of the system is.
    """

    def __init__(self, requests_per_second: int, lock: FileLock) -> None:
        """Make empty buckets; to be called before the processes are forked."""
        self._rate = float(requests_per_second)
        self._lock = lock
        self.now: Callable[[], float] = time.monotonic
        has_rate = requests_per_second > 0
        self._names: memoryview[int] = _cells(_BUCKETS * has_rate).cast("q")
        """Digests of the ids of keys; 0 = a bucket without a key."""
        self._tokens: memoryview[float] = _cells(_BUCKETS * has_rate).cast("d")
        self._counted_at: memoryview[float] = _cells(_BUCKETS * has_rate).cast("d")

    def take(self, secret_id: str) -> bool:
        """Count a request; False if the key is over its rate."""
        if not self._rate:
            return True
        digest = int.from_bytes(blake2b(secret_id.encode(), digest_size=_CELL_BYTES).digest(), signed=True) or 1
        first = digest % _SETS * _WAYS
        buckets = slice(first, first + _WAYS)
        with self._lock:
            now = self.now()
            names = self._names[buckets].tolist()
            if digest in names:
                bucket = first + names.index(digest)
                tokens = self._tokens[bucket]
            else:
                times = self._counted_at[buckets].tolist()
                bucket = first + times.index(min(times))
                tokens = self._rate
            refill = (now - self._counted_at[bucket]) * self._rate
            self._tokens[bucket], is_allowed = taken(tokens, refill, self._rate)
            self._counted_at[bucket] = now
            # Last: a process that is killed before this line leaves a bucket of the former key.
            self._names[bucket] = digest
        return is_allowed


def _cells(number: int) -> memoryview:
    """Return so many cells of 8 bytes in memory that forked processes share."""
    # Not empty: the system has no memory of 0 bytes.
    return memoryview(mmap.mmap(-1, max(number, 1) * _CELL_BYTES))
