"""Long look-ups in slices: one slice in a turn of the loop, over all requests, and a pause behind each slice.

Clients pipeline requests by the thousand. With a task for each request, a turn of the loop would carry out a slice of
every request, and all other clients would wait for all slices. Here accounts take turns, a slice each, and the requests
of an account are carried out in the order of their arrival: a flood of one account delays that account alone.

No slice runs inside an I/O batch (``io_batch``), which takes several turns: the commit of the batch, and the replies of
its clients, would wait for a slice in each of these turns. The number of turns that are left out in a row is limited,
because on a busy server the batches follow each other without a pause.

The pause leaves most of the loop to the other clients while figures are read. Without it the loop is busy from the
first slice to the last, and each request of these 50 ms waits for a slice and competes with the loop for a core: the
native p99 beside a reading of 10,000 queues was 6 to 8 ms without the pause and is 3 to 4 ms with it (two cores, 1 ms
alone). The reading takes 150 ms in place of 50 ms.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

MAX_TURNS_LEFT_OUT: Final = 8
"""Turns without a slice in a row. A batch has two or three turns, under load up to 17."""

PAUSE_SECONDS: Final = 0.001
"""Pause behind a slice; a slice takes up to a millisecond."""


class SlicedWork:
    """Carries out generators; each ``yield`` ends a slice."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        broke: Callable[[Exception, str], None],
        is_urgent: Callable[[], bool] = lambda: False,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """Make a worker without work.

        Args:
            spawn: runs a coroutine as a task; called for work that arrives at an idle worker.
            broke: takes an exception of a slice, which is a bug, and the place of the bug.
            is_urgent: returns True while other work of the loop comes first.
            pause_seconds: pause behind a slice.
        """
        self._spawn = spawn
        self._broke = broke
        self._is_urgent = is_urgent
        self._pause_seconds = pause_seconds
        self._lines: OrderedDict[str, deque[Generator[None]]] = OrderedDict()
        """Work by account; the account at the front has the next turn."""
        self._is_running = False

    def __len__(self) -> int:
        """Return the number of pieces of work that are not finished."""
        return sum(map(len, self._lines.values()))

    def add(self, account: str, work: Generator[None]) -> None:
        """Carry out work behind the earlier work of the account. No part of the work runs in this call."""
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = deque()
        line.append(work)
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        lines = self._lines
        try:
            while lines:
                for _ in range(MAX_TURNS_LEFT_OUT):
                    if not self._is_urgent():
                        break
                    await asyncio.sleep(0)
                account, line = next(iter(lines.items()))
                try:
                    next(line[0])
                except StopIteration:
                    line.popleft()
                except Exception as bug:
                    line.popleft()
                    self._broke(bug, "a slice")
                if line:
                    lines.move_to_end(account)
                else:
                    del lines[account]
                await asyncio.sleep(self._pause_seconds)
        finally:
            self._is_running = False
