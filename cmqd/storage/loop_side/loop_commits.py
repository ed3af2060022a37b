"""Commits in the loop process: a thread with a connection of its own to the active segment.

The thread is in every call that the disk can hold up: commits, and the open and the close of the connection. The loop
waits for a commit ``WAIT_SECONDS`` at most, and goes on with the answer in the same call. The wait gives the
interpreter to the thread. A commit that takes longer is reported to the loop as an event, as every commit that is too
large for a wait. A disk that hangs holds up the callers of this commit alone. The thread also loads SQLite, with its
connection (``loop_connection``).

A thread that the disk holds up outlives the loop, with its connection and with the lock of the folder, a descriptor of
this process (``commit_switch``).
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cmqd.log.values import Durability
from cmqd.storage.loop_side.row_builder import ClosedRow

if TYPE_CHECKING:
    from cmqd.storage.loop_side.loop_connection import LoopConnection

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
        self._connection: LoopConnection | None = None
        """Made by the thread."""
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        # A daemon: the exit of the process waits for no disk.
        self._thread = Thread(target=self._work, name="commits", daemon=True)
        self._thread.start()

    def commit(self, first_lsn: int, closed_rows: Sequence[ClosedRow], size: int) -> Result | None:
        """Begin to make rows durable, and return the time of the transaction in us, or its exception; None if
        ``on_late`` will tell.
        """
        assert self._connection is not None
        is_waited = size <= WAITED_BYTES
        self._give(partial(self._connection.insert, first_lsn, closed_rows), is_late=not is_waited)
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
        return not self._thread.is_alive() and (self._connection is None or not self._connection.is_open)

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
        if self._connection is not None:
            # A connection that cannot be closed keeps the lock of the folder (``has_ended``).
            with contextlib.suppress(Exception):
                self._connection.close()

    def _change(self, path: Path | None, durability: Durability) -> None:
        if self._connection is None:
            from cmqd.storage.loop_side.loop_connection import LoopConnection

            self._connection = LoopConnection()
        self._connection.close()
        if path is not None:
            self._connection.open(path, durability)
