"""Calls of compiled patterns, counted: a pattern over a text of any length can take the square of the length."""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def pattern_calls() -> Generator[list[str]]:
    """Collect the methods of patterns that this thread calls, such as ``search`` and ``sub``."""
    calls: list[str] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and isinstance(getattr(argument, "__self__", None), re.Pattern):
            calls.append(argument.__name__)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)
