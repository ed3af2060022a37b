"""``python -m cmqd ...`` and other programs of the product, forked from a process that has their modules loaded.

Tests of the start itself start a new interpreter: of imports, flags of the interpreter, limits and closed streams.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from support.processes.fork_requests import STATUS, request_text


class ForkServer:
    """The process that forks: one for this process of tests, and as long as this process lives."""

    def __init__(self) -> None:
        self.requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self.lock = threading.Lock()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("fork_server.py"), str(its.fileno())],
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                cwd="/",
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; its children go on."""
        self.requests.close()
        # A process that a shell left behind may hold the socket open.
        self._process.terminate()
        self._process.wait()
        self.errors.close()


@cache
def the_fork_server() -> ForkServer:
    """Return the fork server, started at the first call."""
    return ForkServer()


def write_command(name: str, module: str, folder: Path) -> int:
    """Write a forked command into a folder; return the descriptor that the shell of the test must inherit."""
    program = Path(__file__).with_name("forked_command.py")
    number = the_fork_server().requests.fileno()
    script = folder / name
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{program}" {number} {module} "$@"\n')
    script.chmod(0o755)
    return number


class ForkedProgram:
    """A running program, with the calls of ``subprocess.Popen``; standard input is empty."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        output: IO[bytes] | int,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start a module; ``output``: gets standard output and standard error."""
        server = the_fork_server()
        text = request_text(module, arguments, environment, [0, 1, 2, *pass_fds])
        number = output if isinstance(output, int) else output.fileno()
        self.returncode: int | None = None
        self._status, its = os.pipe()
        try:
            with open(os.devnull) as nothing, server.lock:
                socket.send_fds(server.requests, [text], [nothing.fileno(), number, number, *pass_fds, its])
        finally:
            os.close(its)
        pid = self._read()
        if pid is None:
            server.errors.seek(0)
            raise RuntimeError(f"the fork server has ended:\n{server.errors.read().decode()}")
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code, None while the program runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            code = self._read()
            # Without a fork server the end is unknown; the program lives on.
            self.returncode = -signal.SIGKILL if code is None else code
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            # The fork server may have taken the exit code, and not told it yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int | None:
        text = os.read(self._status, STATUS.size)
        return STATUS.unpack(text)[0] if text else None
