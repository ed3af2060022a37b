"""Servers as child processes with a log. The harness signals only these processes and their descendants."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cmqd_bench.failures import BenchFailed
from cmqd_bench.machine.processes import family, read_stat

START_SECONDS = 60.0
STOP_SECONDS = 20.0
TAIL_LINES = 20


class ServerFailed(BenchFailed):
    """A server did not start, or ended; the text has the end of its log."""


class Server:
    """A process of a server, and its log."""

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start a process in a folder, with an environment; None = those of this process."""
        self._log_file = log_file
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Return the process and its descendants; empty after the end, when its number may be another's."""
        return [] if self.process.poll() is not None else [member.pid for member in family(self.process.pid)]

    def check(self, name: str) -> None:
        """Check that the process has not ended.

        Raises:
            ServerFailed: the process has ended.
        """
        if (code := self.process.poll()) is not None:
            raise ServerFailed(f"{name} ended with exit code {code}:\n{self.log_tail()}")

    def wait_until(self, is_ready: Callable[[], bool], name: str) -> None:
        """Wait until the server answers.

        Raises:
            ServerFailed: the server ended, or does not answer in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            self.check(name)
            if time.monotonic() > deadline:
                raise ServerFailed(f"{name} was not ready within {START_SECONDS:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self) -> str:
        """Return the end of the server's output."""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the server to end; kill the server and its descendants after a timeout."""
        members = self.pids()
        signal_all(members, signal.SIGCONT)
        signal_all(members[:1], number)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also if the wait was interrupted: the server must not outlive the run.
            running = [pid for pid in members if (stat := read_stat(pid)) is not None and stat.running]
            signal_all(running, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Return True if a server listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
