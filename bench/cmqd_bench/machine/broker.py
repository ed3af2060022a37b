"""A real server for one measurement: ``cmqd serve`` as child processes over a new folder.

The harness signals only processes that it started: the server and, according to the kernel, the server's descendants.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmqd_bench.machine.processes import cpu_seconds, read_stat, rss_kib
from cmqd_bench.machine.servers import Server, ServerFailed, signal_all

START_SECONDS = 300.0
"""A server that is not ready after this time has failed; recovery of a large backlog takes seconds."""
STOP_SECONDS = 60.0
"""Draining takes at most 5 s; a slow disk may add its fsyncs."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The content of a server's ready file."""

    host: str
    port: int
    pid: int
    storage_pid: int | None
    """Process id of the storage process; None without storage on disk."""
    url: str


def parse_ready(text: str) -> Ready | None:
    """Read a ready file and the context file named in the ready file; None while the ready file is incomplete."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    with open(fields["context_file"], "rb") as file:
        contexts: dict[str, Any] = tomllib.load(file)["contexts"]
    url: str = contexts["admin"]["url"]
    # The context was written at the first start; the port may have changed since.
    url = f"{url.rpartition('@')[0]}@{fields['host']}:{fields['port']}"
    return Ready(fields["host"], fields["port"], fields["pid"], fields["storage_pid"], url)


class Broker:
    """One data folder and its server, which can be killed and restarted."""

    def __init__(self, folder: Path, *, durability: str = "fsync", port: int = 0) -> None:
        self.folder = folder
        self.durability = durability
        self.python: str | None = None
        """Interpreter of the measured installation; None = the current installation."""
        self.environment: Mapping[str, str] | None = None
        """Environment of the server, for an installation that ``PYTHONPATH`` names; None = the harness's own."""
        self.flags: list[str] = []
        """Further flags of the server's command line."""
        self._port = port
        self._server: Server | None = None
        self._ready: Ready | None = None
        self._members: list[int] = []

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        """Standard output and error of the server."""
        return self.folder / "server.log"

    @property
    def ready(self) -> Ready:
        """Return the ready file of the running server."""
        if self._ready is None:
            raise ServerFailed("the server is not running")
        return self._ready

    @property
    def pid(self) -> int:
        """Process id of the server that was launched, ready or not. Raises ServerFailed."""
        if self._server is None:
            raise ServerFailed("the server is not running")
        return self._server.process.pid

    @property
    def pids(self) -> list[int]:
        """Return all server processes, as of the time when the server was ready."""
        return self._members

    def sibling(self, name: str) -> "Broker":
        """Return a second broker, over a folder inside this broker's folder."""
        folder = self.folder / name
        folder.mkdir()
        broker = Broker(folder, durability=self.durability)
        broker.environment = self.environment
        return broker

    def launch(self) -> Server:
        """Start the server's process without waiting until it is ready."""
        ready_file = self.folder / "ready.json"
        ready_file.unlink(missing_ok=True)
        # -P: import the packages of the chosen installation, not of the working directory.
        command = [self.python or sys.executable]
        if self.python is not None or self.environment is not None:
            command.append("-P")
        command += ["-m", "cmqd", "serve", "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self._port}", "--ready-file", str(ready_file)]
        if self.durability != "fsync":
            command += ["--durability", self.durability]
        command += self.flags
        self._server = Server(command, self.log_file, environment=self.environment)
        return self._server

    def poll_ready(self) -> Ready | None:
        """Return the content of the ready file, or None while the server starts.

        Raises ServerFailed when the server has ended.
        """
        assert self._server is not None
        try:
            text = (self.folder / "ready.json").read_text()
        except FileNotFoundError:
            self._server.check("the server")
            return None
        self._ready = parse_ready(text)
        if self._ready is not None:
            # The next start listens on the same port, so that clients can reconnect.
            self._port = self._ready.port
            self._members = self._server.pids()
        return self._ready

    async def start(self, interval: float = 0.01) -> Ready:
        """Start the server and wait until it is ready.

        Raises:
            ServerFailed: the server ended, or is not ready in time.
        """
        server = self.launch()
        deadline = time.monotonic() + START_SECONDS
        while (ready := self.poll_ready()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"the server was not ready within {START_SECONDS:.0f} s:\n{server.log_tail()}")
            await asyncio.sleep(interval)
        return ready

    def cpu_seconds(self) -> float:
        """Return the CPU time of all server processes so far."""
        return cpu_seconds(self._members)

    def rss_mib(self) -> float:
        """Return the resident memory of all server processes now."""
        return rss_kib(self._members) / 1024

    def check_alive(self) -> None:
        """Check that the server is running.

        Raises:
            ServerFailed: the server has ended by itself.
        """
        if self._server is not None:
            self._server.check("the server")

    def wait(self) -> int | None:
        """Wait until the server ends by itself, and return its exit code; None if it is not running."""
        return None if self._server is None else self._server.process.wait()

    def kill(self) -> None:
        """Send SIGKILL to all server processes, as close together as signals allow, and wait for their end."""
        if self._server is None:
            return
        victims = self._server.pids()
        # Stop all processes first: a process that saw a dead peer would shut down in order.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            signal_all(victims, number)
        self._server.process.wait(STOP_SECONDS)
        self._await_end(victims)
        self._server = self._ready = None

    def stop(self) -> None:
        """Ask the server to end (SIGTERM); kill the server after a timeout."""
        if self._server is None:
            return
        members = self._server.pids()
        self._server.process.terminate()
        try:
            self._server.process.wait(STOP_SECONDS)
            self._await_end(members)
        except subprocess.TimeoutExpired:
            self.kill()
        self._server = self._ready = None

    def _await_end(self, pids: list[int]) -> None:
        # Only children can be waited for; poll the kernel for the end of grandchildren.
        deadline = time.monotonic() + STOP_SECONDS
        while any((stat := read_stat(pid)) is not None and stat.running for pid in pids):
            if time.monotonic() > deadline:
                raise ServerFailed(f"processes {pids} did not end within {STOP_SECONDS:.0f} s")
            time.sleep(0.002)


@contextmanager
def broker_folder(scratch: Path, *, durability: str = "fsync", keep: bool = False) -> Generator[Broker]:
    """Yield a broker that is not yet started, over a new folder in ``scratch``.

    At the end the broker is killed and the folder removed (``keep``: not removed, for inspection).
    """
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cmqd-bench-", dir=scratch))
    broker = Broker(folder, durability=durability)
    try:
        yield broker
    finally:
        try:
            broker.kill()
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
