"""A SQLite connection with its own thread that runs whole functions.

A commit or a page is a single function: a hop to the thread and a hop back. A hop per statement would cost more than
the statements.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadConnection:
    """See the module; made by ``connect``."""

    raw: sqlite3.Connection
    """For use inside functions that are given to ``run`` or ``submit``."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = False
        # A daemon, because the process exits without waiting for threads (see ``service.main``).
        self._thread = Thread(target=self._work, name="sqlite", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread of the connection and return its result or raise its exception."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(future, partial(function, *args, **kwargs))
        return await future

    def submit(self, future: "asyncio.Future[T]", function: Callable[[], T]) -> None:
        """As ``run``, for a caller that waits by callback: a task would cost a good part of a small commit."""
        if self._closed:
            raise ValueError("the connection is closed")
        self._jobs.put((future, function))

    async def close(self) -> None:
        """Close the connection after the functions that were submitted before, and end the thread."""
        if self._closed:
            return
        closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(closing, self._close)
        self._closed = True
        self._jobs.put(None)
        await asyncio.shield(closing)
        self._thread.join()

    def _close(self) -> None:
        if hasattr(self, "raw"):
            self.raw.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            try:
                result, error = function(), None
            except BaseException as raised:
                result, error = None, raised
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            # The next job may be far off; its wait must not keep a page of bodies in memory.
            del job, future, function, result, error


def _settle(future: "asyncio.Future[T]", result: T, error: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


async def connect(connector: Callable[[], sqlite3.Connection]) -> ThreadConnection:
    """Start a thread and open the connection in the thread. Raises the exceptions of ``connector``.

    A cancelled call still waits for the thread and ends it: the thread would otherwise answer to a loop that may be
    closed by then.
    """
    connection = ThreadConnection()

    def open_raw() -> None:
        connection.raw = connector()

    opening = asyncio.ensure_future(connection.run(open_raw))
    try:
        await asyncio.shield(opening)
    except BaseException:
        with contextlib.suppress(Exception):
            await opening
        await connection.close()
        raise
    return connection
