"""Clients that send all the time, with a single call outstanding per client, and note the begin and the end of every
call."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import NamedTuple, Self

from cmqd_bench.redundancy.pair import eventually
from cmqd_client import Queue, connect
from cmqd_client.errors import CmqError

QUEUE = "orders"
_PAUSE_SECONDS = 0.02
_BODY = b"x" * 256


class Call(NamedTuple):
    """A call; times in seconds of the monotonic clock."""

    began: float
    ended: float
    error: str
    """Name of the error that the caller got; empty after an answer."""


class Callers:
    """Four callers of a kind, with a client of their own. Open as an async context."""

    COUNT = 4

    def __init__(self, url: str, patience: float | None = None) -> None:
        self._client = connect(url) if patience is None else connect(url, patience=patience)
        self._exit = AsyncExitStack()
        self.calls: list[Call] = []

    async def __aenter__(self) -> Self:
        client = await self._exit.enter_async_context(self._client)
        group = await self._exit.enter_async_context(asyncio.TaskGroup())
        queue = await client.ensure_queue(QUEUE)
        tasks = [group.create_task(self._call(queue)) for _ in range(self.COUNT)]
        for task in tasks:
            self._exit.callback(task.cancel)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exit.aclose()

    async def _call(self, queue: Queue) -> None:
        while True:
            began = time.monotonic()
            error = ""
            try:
                await queue.send(_BODY)
            except CmqError as raised:
                error = type(raised).__name__
            self.calls.append(Call(began, time.monotonic(), error))
            await asyncio.sleep(_PAUSE_SECONDS)

    async def wait_for_calls_after(self, moment: float) -> None:
        """Wait until each caller had time for an answer to a call that began after a moment."""
        await eventually(lambda: sum(call.began > moment and not call.error for call in self.calls) >= 5 * self.COUNT)

    def longest_since(self, moment: float) -> float:
        """Return the seconds of the longest call that ended after a moment."""
        return max(call.ended - call.began for call in self.calls if call.ended > moment)

    def first_answer_since(self, moment: float) -> float:
        """Return the seconds from a moment to the next answer."""
        return min(call.ended for call in self.calls if call.ended > moment and not call.error) - moment

    def errors_since(self, moment: float) -> int:
        """Return the number of calls with an error that ended after a moment."""
        return sum(bool(call.error) for call in self.calls if call.ended > moment)
