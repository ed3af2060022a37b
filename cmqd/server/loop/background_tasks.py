"""Tasks that wait for the disk or for the accounts file while the loop goes on."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from cmqd.log.log_errors import LogFailed
from cmqd.server.broker_logger import get_logger

_log = get_logger()


class BackgroundTasks:
    """The tasks of a server; kept here, because the loop holds only weak references to tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of its own."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def wait(self, timeout_s: float) -> None:
        """Wait for the tasks that run now."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, LogFailed):
            _log.error("task_failed", exc_info=failure)
