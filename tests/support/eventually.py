"""Waiting for a condition that sets no event."""

import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], object]) -> None:
    """Return as soon as ``condition()`` is true. Only the time limit of the suite ends the wait."""
    while not condition():  # noqa: ASYNC110 - the code under test sets no event
        await asyncio.sleep(0.002)


def eventually_elsewhere(condition: Callable[[], object]) -> None:
    """Return as soon as ``condition()`` is true of another process or thread; blocks the calling thread."""
    while not condition():
        time.sleep(0.005)
