"""A real ``cmqd serve`` in a process of its own, on a free port, with its data in a folder of the test.

    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client: ...

Only processes started here are ever signalled. The server's log is ``<folder>/server.log``; its last lines are in the
text of every failure.
"""

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from support.processes.environment import broker_environment
from support.processes.forked_program import ForkedProgram

_POLL_SECONDS = 0.01
NEW_INTERPRETER = (sys.executable, "-m", "cmqd")
"""The command as a shell starts it, for tests of the start itself."""
AnyProcess: TypeAlias = "subprocess.Popen[bytes] | ForkedProgram"


class ServerFailedError(Exception):
    """The server ended instead of starting; the text has the end of its log."""


class RunningServer:
    """``cmqd serve``, started on entering and ended on leaving: by SIGTERM after a success, else by SIGKILL."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        """``wrapper``: a command that runs the server, such as ``prlimit --nofile=64``; ``program``: a command in place
        of the forked server, as ``NEW_INTERPRETER``, or a script that first breaks a part of cmqd.
        """
        self.data = folder / "data"
        self.log_file = folder / "server.log"
        self.ready_file = folder / "ready.json"
        self.flags = flags
        self._environment = {**broker_environment(), **(environment or {})}
        self._wrapper = wrapper
        # The interpreter and the dynamic linker read variables at their start alone.
        at_start = any(name.startswith(("PYTHON", "LD_")) for name in environment or {})
        self._program = NEW_INTERPRETER if at_start and not program else program
        self._process: AnyProcess | None = None
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            try:
                if kind is None:
                    self.stop()
            finally:  # after a failure at once: the time limit of the suite ends the first wait, not a second wait
                self._process.kill()
                self._process.wait()

    @property
    def process(self) -> "AnyProcess":
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def host(self) -> str:
        return str(self.ready["host"])

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        """The URL of the server, with the admin's key."""
        context = tomllib.loads(Path(self.ready["context_file"]).read_text())
        return str(context["contexts"][context["current"]]["url"])

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def start(self, *more_flags: str) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ServerFailedError: the server ended.
        """
        self.launch(*more_flags)
        try:
            while not self.ready_file.exists():
                if self.process.poll() is not None:
                    raise ServerFailedError(f"it ended with code {self.process.returncode}:\n{self._tail()}")
                time.sleep(_POLL_SECONDS)
        except BaseException:  # also the time limit of the suite: outside ``with`` no other code ends the process
            self.process.kill()
            self.process.wait()
            raise
        self.ready = json.loads(self.ready_file.read_text())
        return self

    def launch(self, *more_flags: str) -> None:
        """Start the server without waiting."""
        self.ready_file.unlink(missing_ok=True)
        arguments = ["serve", "--data", str(self.data), "--listen", "127.0.0.1:0"]
        arguments += ["--ready-file", str(self.ready_file), *self.flags, *more_flags]
        with self.log_file.open("ab") as log:
            if not self._wrapper and not self._program:
                self._process = ForkedProgram("cmqd", arguments, output=log, environment=self._environment)
            else:
                command = [*self._wrapper, *(self._program or NEW_INTERPRETER), *arguments]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
                )

    def send_signal(self, number: int) -> None:
        """Send a signal to the loop process."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the loop process and wait for its end."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the server to end and wait; returns the exit code."""
        self.send_signal(number)
        return self.wait()

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-30:])
