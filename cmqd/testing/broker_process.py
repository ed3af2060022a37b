"""A real broker for tests: ``cmqd serve`` in separate processes, with a data folder, which a test can kill.

The module signals only the processes that it started.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol, Self

POLL_S = 0.005
"""Interval between two checks for the ready file: far below the time of a start."""

TAIL_LINES = 30
"""Lines of the broker's log in the text of an error."""


class Process(Protocol):
    """The calls that a ``BrokerProcess`` makes on its process; ``subprocess.Popen`` has them."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit code, None while the process is not known to have ended."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class BrokerNotReadyError(Exception):
    """The broker ended instead of listening; the text has the end of its log."""


class BrokerProcess:
    """``cmqd serve`` as a context manager; :meth:`kill` and :meth:`start` together are a crash::

        with BrokerProcess(tmp_path) as broker:
            ...
            broker.kill()       # SIGKILL, as a crash or the out-of-memory killer
            broker.start()      # on the same port, over the same data, with a recovery

    The broker listens on a free port of 127.0.0.1, with the default durability. At the end of the context SIGTERM ends
    the broker; after an exception SIGKILL does.
    """

    def __init__(self, folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        """Prepare a broker with its data (``data``) and its log (``log``) in an existing folder.

        Args:
            folder: an empty folder, or the folder of an earlier broker.
            *flags: flags of ``cmqd serve``, such as ``"--durability", "os"``.
            environment: variables for the broker; None = the variables of this process, without settings of cmqd.
        """
        self.folder: Path = folder
        self.flags: tuple[str, ...] = flags
        self.port: int = 0
        """Port of the broker; 0 until the first start, and the same after each later one."""
        self._environment = plain_environment() if environment is None else dict(environment)
        self._process: Process | None = None
        self._storage_pid = 0
        self._reservation: weakref.finalize[..., Self] | None = None
        """Gives up the port when called, or at the end of this object."""

    @property
    def context_file(self) -> Path:
        """The context file with the first key of ``admin``, for ``cmq`` (``CMQ_CONTEXT_FILE``)."""
        return self.folder / "data" / "admin.context.toml"

    @property
    def url(self) -> str:
        """URL of the broker with the first key of ``admin``, for ``connect``."""
        contexts: dict[str, Any] = tomllib.loads(self.context_file.read_text())
        key, _, addresses = str(contexts["contexts"]["admin"]["url"]).rpartition("@")
        # The port of the first start stays; a later start writes no new context file. Of a pair, this broker alone.
        return f"{key}@{addresses.partition(':')[0]}:{self.port}"

    @property
    def log(self) -> str:
        """The log of the broker so far, over all starts."""
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._process is None:
                return
            if kind is None:
                self.stop()
            else:
                self.kill()  # a time limit of the test ends one wait, not a second one
        finally:
            self._give_up_port()

    def start(self) -> None:
        """Start the broker, again on the same port, and wait until it listens.

        Raises:
            BrokerNotReadyError: the broker ended instead.
            RuntimeError: the broker is already running.
        """
        if self._process is not None:
            raise RuntimeError("the broker is already running")
        if self._reservation is None and sys.platform == "linux":
            self._reserve_port()
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--data", str(self.folder / "data")]
        arguments += ["--listen", f"127.0.0.1:{self.port}", "--ready-file", str(ready), *self.flags]
        with (self.folder / "log").open("ab") as log:
            process = self._launch(arguments, log, self._environment)
        try:
            while not (ready.exists() and (text := ready.read_text())):
                if process.poll() is not None:
                    raise BrokerNotReadyError(f"it ended with code {process.returncode}:\n{self._tail()}")
                time.sleep(POLL_S)
        except BaseException:  # also a time limit of the test: outside ``with`` no other code ends the process
            process.kill()
            process.wait()
            raise
        self._process = process
        facts = json.loads(text)
        self.port, self._storage_pid = facts["port"], facts["storage_pid"]

    def kill(self) -> None:
        """End both processes of the broker with SIGKILL."""
        process = self._take_process()
        process.kill()
        if self._storage_pid:
            with contextlib.suppress(ProcessLookupError):  # it has noticed already
                os.kill(self._storage_pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> int:
        """Ask the broker to drain and end; return its exit code."""
        process = self._take_process()
        process.terminate()
        try:
            return process.wait()
        finally:
            process.kill()

    def _launch(self, arguments: list[str], log: IO[bytes], environment: Mapping[str, str]) -> Process:
        """Start ``cmqd``, with an empty standard input."""
        command = [sys.executable, "-m", "cmqd", *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _reserve_port(self) -> None:
        """Bind the port beside the broker, without listening: no other program gets the port while the broker is down.

        Two sockets with SO_REUSEADDR can have one port on Linux, as long as only one of them listens.
        """
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", self.port))
            self.port = reserved.getsockname()[1]
            self._reservation = weakref.finalize(self, os.close, reserved.detach())

    def _give_up_port(self) -> None:
        if self._reservation is not None:
            self._reservation()
            self._reservation = None

    def _take_process(self) -> Process:
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("the broker is not running")
        return process

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-TAIL_LINES:])

    def __repr__(self) -> str:
        return f"<BrokerProcess on port {self.port}, {'ended' if self._process is None else 'running'}>"


def plain_environment() -> dict[str, str]:
    """Return the environment of this process without settings: a test's broker is the same on every machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CMQD_")}
