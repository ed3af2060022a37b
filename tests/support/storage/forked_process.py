"""A storage process that is forked from a process with the modules loaded, in place of a new interpreter.

A new interpreter takes a quarter of a second of processor time to import the service, and the tests of storage start
hundreds. ``tests/storage/writing/test_processes.py`` and the tests of real brokers start the product's own process.
"""

import multiprocessing
import os
import socket
import subprocess
from multiprocessing.context import ForkServerContext

_CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["cmqd.storage.__main__", "uvloop"])


class ForkedProcess:
    """A running storage process, with the calls that ``StorageProcessLog`` makes on it."""

    def __init__(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> None:
        self._process = _CONTEXT.Process(target=_serve, args=(control, pages, commits), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("the storage process", timeout or 0)
        return code

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def _serve(control: socket.socket, pages: socket.socket, commits: socket.socket) -> None:
    from cmqd.storage.__main__ import prepare_process
    from cmqd.storage.service import main

    prepare_process()
    # The parent of this process is the process that forks, and it lives as long as the tests.
    main([*(str(each.detach()) for each in (control, pages, commits)), str(os.getppid())])
