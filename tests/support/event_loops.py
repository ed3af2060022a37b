"""Event loops of asynchronous tests: asyncio in debug mode, and uvloop.

Tests about connections run on both. Other tests run on the loop of their room: a second loop would execute the same
lines of the product again. The parts of ``make test-all`` run all on both (decision 0213).
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Literal

import uvloop

BOTH_LOOPS = "TEST_BOTH_LOOPS"
"""Environment variable: every asynchronous test runs on both loops."""


def loop_factories(
    own: Literal["asyncio", "uvloop"], *, is_about_connections: bool
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops of a test, by name; ``own`` is the loop of its room."""
    factories = {"asyncio": _debug_loop, "uvloop": uvloop.new_event_loop}
    return factories if is_about_connections or BOTH_LOOPS in os.environ else {own: factories[own]}


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop
