"""Commits in the loop process: a thread with a connection of its own to the active segment.

The thread is in every call that the disk can hold up: commits, and the open and the close of the connection. The loop
waits for a commit ``WAIT_SECONDS`` at most, and goes on with the answer in the same call. The wait gives the
interpreter to the thread. A commit that takes longer is reported to the loop as an event, as every commit that is too
large for a wait. A disk that hangs holds up the callers of this commit alone.

The connection is closed while a second connection is open: the last close would copy the WAL and remove the file, and
the next start would miss the WAL (``storage.writing.lending``). The storage process has a connection, but may have
died. So a *bystander*, a connection that only reads, is opened before the connection and closed behind it. A close that
had to open files could fail for want of a descriptor, and the connection would stay.

A thread that the disk holds up outlives the loop, with its connection and with the lock of the folder, a descriptor of
this process (``commit_switch``).
"""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, TypeAlias

from cmqd.log.values import Durability
from cmqd.storage.loop_side.row_builder import ClosedRow
from cmqd.storage.segments.row_inserts import LogRow, RowInserts, connect_for_writing
from cmqd_segment.schema import open_read_only

WAIT_SECONDS: Final = 0.001
"""Longest wait of the loop for a commit."""
WAITED_BYTES: Final = 128 * 1024
"""Largest commit for which the loop waits: larger commits are written while the loop works."""
SWITCH_SECONDS: Final = 0.0001
"""A loop that works lets the thread have the interpreter after this time. A commit needs the interpreter several times
(decision 0181)."""

Result: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call of the thread, or its exception."""


class LoopCommits:
    """The commit thread of the loop process; see the module. The thread of the loop makes the calls, one at a time."""

    def __init__(self, on_late: Callable[[Result], None]) -> None:
        """Start the thread. ``on_late`` takes the results of ``change``, and of commits without a returned result."""
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._begin = Lock()
        self._done = Lock()
        """Both are semaphores: acquired by the side that waits, released by the other side."""
        self._begin.acquire()
        self._done.acquire()
        self._call: Callable[[], Any] | None = None
        self._result: Result = (None, None)
        self._is_ending = False
        self._is_late = False
        """The loop does not wait for the call under way."""
        self._connection: sqlite3.Connection | None = None
        self._bystander: sqlite3.Connection | None = None
        """Open as long as the connection."""
        self._inserts = RowInserts()
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        # A daemon: the exit of the process waits for no disk.
        self._thread = Thread(target=self._work, name="commits", daemon=True)
        self._thread.start()

    def commit(self, first_lsn: int, closed_rows: Sequence[ClosedRow], size: int) -> Result | None:
        """Begin to make rows durable, and return the time of the transaction in us, or its exception; None if
        ``on_late`` will tell.
        """
        connection = self._connection
        assert connection is not None
        rows = [
            LogRow(lsn, row.time_ms, row.messages, row.queues, row.meta, row.data)
            for lsn, row in enumerate(closed_rows, first_lsn)
        ]
        is_waited = size <= WAITED_BYTES
        self._give(partial(self._inserts.insert, connection, rows), is_late=not is_waited)
        if not is_waited:
            return None
        if not self._done.acquire(timeout=WAIT_SECONDS):
            self._is_late = True
            # The thread reads the attribute behind its release, so either this side or the thread sees the other.
            if not self._done.acquire(blocking=False):
                return None
        return self._result

    def change(self, path: Path | None, durability: Durability) -> None:
        """Begin to close the connection, and to open ``path`` unless None; ``on_late`` gets the result."""
        self._give(partial(self._change, path, durability), is_late=True)

    def end(self) -> None:
        """Let the thread end, after the call under way; the connection is closed then. A second call does nothing."""
        if not self._is_ending:
            self._is_ending = True
            sys.setswitchinterval(self._switch_seconds)
            # A call that was given may not have begun: the thread is awake then, and makes the call before it ends.
            with contextlib.suppress(RuntimeError):
                self._begin.release()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, in any other thread."""
        self._thread.join(seconds)

    @property
    def has_ended(self) -> bool:
        """True once the thread has ended and the connection is closed."""
        return not self._thread.is_alive() and self._connection is None

    def _give(self, call: Callable[[], Any], *, is_late: bool) -> None:
        self._call = call
        self._is_late = is_late
        self._begin.release()

    def _collect(self) -> None:
        """Take a late result, unless the loop has seen it in the same moment."""
        if self._done.acquire(blocking=False):
            self._on_late(self._result)

    # The thread

    def _work(self) -> None:
        while not self._is_ending or self._call is not None:
            self._begin.acquire()
            call, self._call = self._call, None
            if call is None:
                break
            try:
                result = call(), None
            except BaseException as error:
                result = None, error
            self._result = result
            # The rows of a batch are not kept until the next.
            del call, result
            self._done.release()
            if self._is_late:
                # The loop may be closed, after a call that the disk has held up.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._collect)
        with contextlib.suppress(sqlite3.Error, OSError):
            self._close()

    def _change(self, path: Path | None, durability: Durability) -> None:
        self._close()
        if path is not None:
            bystander = open_read_only(path, sealed=False)
            try:
                # The first read opens the WAL. Read to the end: an open read would hold up the seal.
                bystander.execute("SELECT 1 FROM log LIMIT 1").fetchall()
                self._connection = connect_for_writing(path, durability)
            except BaseException:
                bystander.close()
                raise
            self._bystander = bystander

    def _close(self) -> None:
        connection, bystander = self._connection, self._bystander
        if connection is None or bystander is None:
            return
        # Before anything can fail: a read transaction would hold up the seal.
        self._inserts.end()
        connection.close()
        bystander.close()
        self._connection = self._bystander = None
