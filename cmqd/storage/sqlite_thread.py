"""A SQLite connection with its own thread that runs whole functions.

aiosqlite makes each statement a hop between threads. Here a commit or a page is a function, and so a single hop.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar, cast

import aiosqlite

P = ParamSpec("P")
T = TypeVar("T")


class ThreadConnection(aiosqlite.Connection):
    """A connection that ``connect`` has made; see the module."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread of the connection and return its result or raise its exception."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(future, partial(function, *args, **kwargs))
        return await future

    def submit(self, future: "asyncio.Future[T]", function: Callable[[], T]) -> None:
        """Run a function as ``run`` does, for a caller that waits by callback: a task would cost a good part of a small
        commit.
        """
        if self._connection is None:
            raise ValueError("the connection is closed")
        # The same as aiosqlite's own ``_execute``, without a coroutine.
        queue = cast("SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]]", self._tx)  # pyright: ignore[reportUnknownMemberType]
        queue.put_nowait((future, function))

    def join(self) -> None:
        """Wait for the end of the thread, which aiosqlite has stopped."""
        self._thread.join()

    @property
    def raw(self) -> sqlite3.Connection:
        """The SQLite connection, for functions that are passed to ``run`` or ``submit``."""
        return self._conn


async def connect(connector: Callable[[], sqlite3.Connection]) -> ThreadConnection:
    """Start a thread and let it open the connection. Raises the exceptions of ``connector``.

    A cancelled call still waits for the thread and ends the thread, which would otherwise answer to a loop that may be
    closed by then.
    """
    connection = ThreadConnection(connector, iter_chunk_size=64)
    opening = asyncio.ensure_future(_open(connection))
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await opening
            await connection.close()
        raise
    return connection


async def _open(connection: ThreadConnection) -> None:
    try:
        await connection
    except BaseException:
        # aiosqlite has told the thread to end, and does not wait for the end.
        connection.join()
        raise
