"""A writing SQLite connection with its own thread that runs whole functions.

A step of a seal or the preparation of a segment is a function, and so a single hop to the thread and back. aiosqlite,
which reads the pages (``reading_connection``), has no public call that runs a function: each statement is a hop.

While a segment is active, the commit thread uses its connection instead (``writer``), and this thread stands idle.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadConnection:
    """A connection that ``connect`` has made; see the module."""

    raw: sqlite3.Connection
    """The SQLite connection, for functions that are passed to ``run``, and for the commit thread."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._closed = False
        # A daemon, because the process exits without waiting for threads (see ``service.main``).
        self._thread = Thread(target=self._work, name="sqlite", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread of the connection and return its result or raise its exception. The function of
        a cancelled call still runs.

        Raises ValueError if the connection is closed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(future, partial(function, *args, **kwargs))
        return await future

    def _submit(self, future: "asyncio.Future[T]", function: Callable[[], T]) -> None:
        if self._closed:
            raise ValueError("the connection is closed")
        self._jobs.put((future, function))

    async def close(self) -> None:
        """Close the connection after the functions that were submitted before, and end the thread. A second call does
        nothing. A cancelled call still waits for the close. Raises sqlite3.Error.
        """
        if self._closed:
            return
        closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit(closing, self._close)
        self._closed = True
        self._jobs.put(None)
        await to_the_end(closing)
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
            future.get_loop().call_soon_threadsafe(_resolve, future, result, error)
            # The next function may be far off, and its wait must not keep the arguments of this function in memory.
            del job, future, function, result, error


def _resolve(future: "asyncio.Future[T]", result: T, error: BaseException | None) -> None:
    if future.done():
        return  # The caller was cancelled.
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


async def to_the_end(work: "asyncio.Future[T] | Coroutine[Any, Any, T]") -> T:
    """Wait for work of a thread and return its result. A cancelled call waits too, and is cancelled at the end of the
    work: the thread would otherwise answer to a loop that may be closed by then, and leave its connection open.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            # Unlike an await of the work, this wait does not pass a second cancellation on to the work.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        raise


async def connect(connector: Callable[[], sqlite3.Connection]) -> ThreadConnection:
    """Start a thread and let it open the connection. Raises the exceptions of ``connector``.

    A cancelled call waits for the thread and ends the thread.
    """
    connection = ThreadConnection()

    def open_raw() -> None:
        connection.raw = connector()

    try:
        await to_the_end(connection.run(open_raw))
    except BaseException:
        await connection.close()
        raise
    return connection
