"""Waiting for what happens on a loop without an event of its own."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], timeout: float = 10) -> None:
    """Return as soon as ``condition()`` is true; TimeoutError if it is not within ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - what is waited for belongs to others and sets no event
            await asyncio.sleep(0.002)
