"""The LSN up to which all rows are durable: raised by the commit thread, read and waited for by the loop.

While the loop process commits, the LSN is raised by the loop of the storage process, which counts the rows in the file
(``lending``).

A commit does not wake the loop of the storage process, which would cost the commit thread a system call and the
interpreter. Pages, checkpoints, drops and the orderly end ask for an LSN; only a commit that reaches an LSN that the
loop waits for wakes the loop.
"""

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock
from typing import Final

NEVER: Final = 1 << 64
"""Above every LSN."""


class DurableLsn:
    """See the module. All methods but ``raise_to`` and ``tell`` are for the thread of the loop."""

    def __init__(self, lsn: int) -> None:
        self.value = lsn
        """Every row up to this LSN is durable. Read without the lock: it only rises."""
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        """Held for the comparison of ``value`` with ``_awaited``: no commit in between may pass the LSN unseen."""
        self._awaited = NEVER
        """Lowest LSN with a call in ``_calls``; at or above it, the loop is woken."""
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        """Heap of (LSN, number of the call, call)."""
        self._numbers = count()
        self.on_wait: Callable[[int], None] = lambda _lsn: None
        """Called with the LSN of a call that has to wait: the loop process may commit the row, or have committed it."""

    def raise_to(self, lsn: int) -> None:
        """Note that the rows up to ``lsn`` are durable, before any process is told of it: a reader that is told asks
        for these rows at once.
        """
        self.value = lsn

    def tell(self) -> None:
        """Wake the loop if it waits for the last LSN or an LSN below."""
        with self._lock:
            if self.value < self._awaited:
                return
            self._awaited = NEVER
        self._loop.call_soon_threadsafe(self._call)

    def call_at(self, lsn: int, call: Callable[[], None]) -> None:
        """Call once the rows up to ``lsn`` are durable; at once, if they are. After a failed commit the call never
        comes, and the process ends.
        """
        with self._lock:
            if lsn > self.value:
                heapq.heappush(self._calls, (lsn, next(self._numbers), call))
                self._awaited = min(self._awaited, lsn)
                call = partial(self.on_wait, lsn)
        call()

    async def reached(self, lsn: int) -> None:
        """Wait until the rows up to ``lsn`` are durable, as ``call_at`` does."""
        reached: asyncio.Future[None] = self._loop.create_future()
        # The waiting task may be cancelled before.
        self.call_at(lsn, lambda: None if reached.done() else reached.set_result(None))
        await reached

    @property
    def awaited(self) -> list[int]:
        """LSNs that are waited for, in any order."""
        with self._lock:
            return [lsn for lsn, _, _ in self._calls]

    def _call(self) -> None:
        """Make the calls that are due, in the order of their LSNs, and have the loop woken for the next."""
        due: list[Callable[[], None]] = []
        with self._lock:
            while self._calls and self._calls[0][0] <= self.value:
                due.append(heapq.heappop(self._calls)[2])
            self._awaited = self._calls[0][0] if self._calls else NEVER
        for call in due:
            call()
