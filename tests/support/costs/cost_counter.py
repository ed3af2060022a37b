"""Counts the lines and calls of Python between two looks at a timer: the cost of work, without a clock.

A line of Python takes some 50 ns, so the counts of a run are the same on every machine, and a bound of them bounds the
time. The work inside a call of a C function is not seen here; see ``c_arguments``.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.loop.broker_events import BrokerEvents

HANDLE_RUN: CodeType = asyncio.Handle._run.__code__  # pyright: ignore[reportPrivateUsage]
"""The loop runs a callback: the clients of other sockets had their turn before."""
SLICES: CodeType = SlicedWork._run.__code__  # pyright: ignore[reportPrivateUsage]
PAGES = {BrokerEvents.page_arrived.__code__, BrokerEvents.published_arrived.__code__}
"""A page of the storage process arrives, in a frame of its own."""
UNCOUNTED = ("/tests/", "/asyncio/", "/logging/", "/selectors.py", "/recovery/checkpoint")
"""Parts of the paths of code that is no work of a request: of tests and the loop, and checkpoints, whose bound
ARCHITECTURE names."""
STORAGE = "/memory_log.py"
"""The stand-in of the storage process."""
SERVER = "/cmqd/server/"
"""The stand-in calls the server."""


class CostCounter:
    """Counts between looks at a timer, and from callback to callback of the loop."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._looks = {type(timer).__call__.__code__, HANDLE_RUN, SLICES}
        self._count = 0
        self._is_page = False
        self._in_storage = False
        self._lines: Counter[str] = Counter()
        self.largest = 0
        """Lines and calls of the most expensive piece of work."""
        self.largest_lines: Counter[str] = Counter()
        """Lines of that piece, by function."""
        self.largest_page = 0
        """Lines and calls of the most expensive arrival of a page, which can serve many requests."""

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count while the block runs."""
        self._end_piece()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            sys.setprofile(None)
            self._end_piece()

    def restart(self) -> None:
        """Forget the most expensive pieces."""
        self.largest = self.largest_page = 0
        self.largest_lines = Counter()

    def _end_piece(self) -> None:
        if self._is_page:
            self.largest_page = max(self.largest_page, self._count)
        elif self._count > self.largest:
            self.largest, self.largest_lines = self._count, self._lines
        self._count = 0
        self._is_page = False
        self._lines = Counter()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code in self._looks or code in PAGES:
            self._end_piece()
            self._is_page = code in PAGES
        is_storage = STORAGE in code.co_filename
        if self._in_storage != is_storage and (is_storage or SERVER in code.co_filename):
            self._in_storage = is_storage
            return self._switched
        if self._in_storage or is_uncounted(code):
            return None
        self._count += 1
        return self._line

    def _switched(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace a call from the server to the stand-in of the storage process, or back."""
        if event == "return":
            self._in_storage = not self._in_storage
            return None
        return self._switched if self._in_storage else self._line_of_switched(frame, event)

    def _line_of_switched(self, frame: FrameType, event: str) -> Any:
        self._line(frame, event, None)
        return self._switched

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._count += 1
            self._lines[frame.f_code.co_qualname] += 1
        return self._line

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and not (self._in_storage or is_uncounted(frame.f_code)):
            self._count += 1


@cache
def is_uncounted(code: CodeType) -> bool:
    """Return True for code that is not counted."""
    return any(part in code.co_filename for part in UNCOUNTED)
