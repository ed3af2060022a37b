"""Sizes of the containers that single calls of C functions work through: ``sorted(names)``, ``list(queues)``.

No line of Python runs in such a call, so ``cost_counter`` does not see its work. The interpreter tells the first
argument of a call from Python 3.12 on.
"""

import sys
from collections.abc import Generator, Sized
from contextlib import contextmanager
from types import CodeType
from typing import Any

from support.costs.cost_counter import STORAGE, is_uncounted

BUILTINS = frozenset({"sorted", "list", "tuple", "set", "frozenset", "dict", "sum", "min", "max", "any", "all"})
LINEAR = BUILTINS | {"list.sort", "list.copy", "dict.copy", "set.copy"}
"""Names of functions that work through their first argument."""


class CArguments:
    """The largest first argument of the functions ``LINEAR``, where the interpreter tells it."""

    def __init__(self) -> None:
        self.largest = 0
        self.place = ""
        """Function with that call."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Look at the calls of a block; without effect before Python 3.12."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            yield
            return
        tool = monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "sizes of arguments")
        monitoring.register_callback(tool, monitoring.events.CALL, self._called)
        monitoring.set_events(tool, monitoring.events.CALL)
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    def _called(self, code: CodeType, offset: int, function: Any, argument: Any) -> None:
        if getattr(function, "__qualname__", "") not in LINEAR or not isinstance(argument, Sized):
            return
        if len(argument) > self.largest and not is_uncounted(code.co_filename) and STORAGE not in code.co_filename:
            self.largest, self.place = len(argument), code.co_qualname
