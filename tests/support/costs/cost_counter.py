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
PAGES = {id(event.__code__) for event in (BrokerEvents.page_arrived, BrokerEvents.published_arrived)}
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
        # By identity, because the hash of code reads its constants, and is asked for at each call.
        self._looks = {id(code) for code in (type(timer).__call__.__code__, HANDLE_RUN, SLICES)}
        self._calls = 0
        self._is_page = False
        self._in_storage = False
        self._lines: list[CodeType] = []
        """The function of each line of the piece."""
        self._line = self._line_counter()
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
        count = self._calls + len(self._lines)
        if self._is_page:
            self.largest_page = max(self.largest_page, count)
        elif count > self.largest:
            self.largest, self.largest_lines = count, Counter(code.co_qualname for code in self._lines)
        self._calls = 0
        self._is_page = False
        self._lines.clear()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        is_page = id(code) in PAGES
        if is_page or id(code) in self._looks:
            self._end_piece()
            self._is_page = is_page
        is_storage = STORAGE in code.co_filename
        if self._in_storage != is_storage and (is_storage or SERVER in code.co_filename):
            self._in_storage = is_storage
            return self._switched
        if self._in_storage or is_uncounted(code.co_filename):
            return None
        self._calls += 1
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

    def _line_counter(self) -> Callable[[FrameType, str, Any], Any]:
        """Return the trace function of counted code, which runs at each line: few steps, and no attributes."""
        add = self._lines.append

        def count_line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                add(frame.f_code)
            return count_line

        return count_line

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and not (self._in_storage or is_uncounted(frame.f_code.co_filename)):
            self._calls += 1


@cache
def is_uncounted(file: str) -> bool:
    """Return True for a file whose code is not counted."""
    return any(part in file for part in UNCOUNTED)
