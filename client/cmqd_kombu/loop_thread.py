"""The thread in which asyncio runs, for callers that are not asynchronous: a single thread per process, while used.

A fork copies the memory of the thread, and not the thread. The child therefore starts a new thread with its first
connection. Objects of the parent's thread refuse calls in the child with ``ConnectionResetError``, which kombu treats
as a lost connection, and connects again. The child keeps the copy of the parent's event loop: collecting the loop could
close its selector, and the kernel object of the selector is shared with the parent.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    __slots__ = ("_loop", "_pid", "_thread")

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cmqd-kombu", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """False in a process that was forked after the thread began."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result. Interrupting the wait cancels the coroutine.

        Raises:
            ConnectionResetError: this process is not the process that opened the connection.
        """
        if not self.usable:
            coroutine.close()
            raise ConnectionResetError("the connection to the broker was opened by another process: reconnect")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the thread, later, in the order of the calls. Has no effect after a fork or the end."""
        if self.usable:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                pass  # the loop was closed in this moment, after its connections: no call is needed any more

    def stop(self) -> None:
        """End the thread."""
        self.soon(self._loop.stop)
        if self.usable and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            remaining = asyncio.all_tasks(self._loop)
            for task in remaining:
                task.cancel()
            if remaining:
                self._loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


class _Shared:
    """The thread of this process, and the number of its users."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.users = 0
        self.inherited: list[LoopThread] = []

    def forked(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may have held it
        if self.thread is not None:
            self.inherited.append(self.thread)
        self.thread = None
        self.users = 0


_shared = _Shared()
os.register_at_fork(after_in_child=_shared.forked)


def acquire() -> LoopThread:
    """Return the thread of this process, started if necessary; pair each call with :func:`release`."""
    with _shared.lock:
        if _shared.thread is None:
            _shared.thread = LoopThread()
        _shared.users += 1
        return _shared.thread


def release(thread: LoopThread) -> None:
    """Give the thread back; the last user ends the thread. Has no effect in a forked process."""
    with _shared.lock:
        if thread is not _shared.thread:
            return
        _shared.users -= 1
        if _shared.users:
            return
        _shared.thread = None
    thread.stop()
