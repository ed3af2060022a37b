"""Work in turns: long work of a request in pieces of about a millisecond, and hashes in a bounded number of threads.

The decoding of a form or of JSON is compiled code that holds the interpreter, so a thread would not help other
requests: the work is cut into pieces, with a turn of the event loop between the pieces. Hashes let other threads run.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Final, TypeVar

T = TypeVar("T")

HASHED_AT_ONCE: Final = 1 << 20
"""Most bytes that are hashed on the event loop at once: 0.6 ms, or 2 ms on a processor without instructions for SHA."""
THREAD_BYTES: Final = 131_072
"""Size from which a form is hashed in a thread."""
MAX_HASHES: Final = 2
"""Threads that hash at the same time. A stranger with a known SecretId can have large forms hashed."""


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its value; other requests have a turn at each of its yields."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


def at_once(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end without a pause, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class HashThreads:
    """Runs functions in threads, at most ``limit`` at once; further callers wait in the order of their arrival."""

    def __init__(self, limit: int = MAX_HASHES) -> None:
        self._slots = asyncio.Semaphore(limit)
        self.at_work: int = 0
        """Functions that run now, those of cancelled callers included."""

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function.

        A caller that is cancelled while it waits holds no memory any more. A function that has begun runs to its end
        and keeps its slot until then: otherwise the requests that clients give up would pile up in the threads.
        """
        await self._slots.acquire()
        try:
            work = asyncio.get_running_loop().run_in_executor(None, function)
        except RuntimeError:
            # The threads are shut down already.
            self._slots.release()
            raise
        self.at_work += 1
        work.add_done_callback(self._ended)
        return await asyncio.shield(work)

    def _ended(self, work: "asyncio.Future[T]") -> None:
        self.at_work -= 1
        self._slots.release()
        if not work.cancelled():
            # Marks an error as seen: a cancelled caller reads none.
            work.exception()
