"""A real broker over one data folder, for kills and restarts.

Signals go only to processes that this module started: the broker's loop process, and the storage process (a child of
the loop process, as the kernel says).
"""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from support.crash.traces.tracing import start_traced
from support.processes.environment import broker_environment
from support.processes.forked_program import ForkedProgram
from support.processes.running_server import AnyProcess

_POLL_SECONDS = 0.005
WAY_COMMITS = 60
"""Commits between two changes of the process that commits: kills and power failures meet both, and the switches."""
_PROGRAM = """
import sys, time
skew_ns, clock_ns = int(sys.argv.pop(1)) * 1_000_000, time.time_ns
way_commits, commits = int(sys.argv.pop(1)), 0
time.time_ns = lambda: clock_ns() + skew_ns
time.time = lambda: time.time_ns() / 1e9
from cmqd.storage.loop_side.commit_way import CommitWay
def note(way, commit_us, size):
    global commits
    commits += 1
    changes = way_commits > 0 and commits % way_commits == 0
    way.by_loop ^= changes
    return changes
CommitWay.note = note
from cmqd.__main__ import main
sys.exit(main())
"""
"""``cmqd`` with another wall clock, which changes the process that commits by itself. Its first arguments are the lead
in milliseconds, and the commits between two changes, 0 = none."""


class BrokerFailedError(Exception):
    """The broker did not start, or reported success after a kill; the text has the end of its log."""


class Victim(Enum):
    """The target of a SIGKILL among the broker's two processes."""

    LOOP = "the loop process alone"
    STORAGE = "the storage process alone"
    BOTH = "both processes"


@dataclass(frozen=True, slots=True)
class Ready:
    """The ready file of a broker that answers."""

    pid: int
    storage_pid: int
    url: str


class CrashingBroker:
    """``cmqd serve`` with the files of its run in ``folder``.

    Args:
        folder: gets ``data`` (the data folder), ``server.log`` and ``ready.json``.
        flags: further flags of ``cmqd serve``.
        way_commits: commits between two changes of the process that commits, in every other start and in traced starts;
            0 = the storage process commits, or the process that the broker chooses.
    """

    def __init__(self, folder: Path, *, flags: Sequence[str] = (), way_commits: int = 0) -> None:
        self.data = folder / "data"
        self._log = folder / "server.log"
        self._ready_file = folder / "ready.json"
        self._flags = tuple(flags)
        self._way_commits = way_commits
        self._starts = 0
        self.clock_skew_ms = 0
        """Lead of the broker's wall clock over the machine's, from its next start on."""
        self._process: AnyProcess | None = None
        self._ready: Ready | None = None

    @property
    def ready(self) -> Ready:
        if self._ready is None:
            raise BrokerFailedError("the broker is not running")
        return self._ready

    def start(self, *, trace_file: Path | None = None, hold_ms: float = 0.0, seed: int = 0) -> Ready:
        """Start the broker, under the tracer if a trace is wanted, and wait until the broker answers.

        Raises:
            BrokerFailedError: the broker ended.
        """
        self.spawn(trace_file=trace_file, hold_ms=hold_ms, seed=seed)
        while (ready := self.look()) is None:
            time.sleep(_POLL_SECONDS)
        return ready

    def spawn(self, *, trace_file: Path | None = None, hold_ms: float = 0.0, seed: int = 0) -> None:
        """Start the processes, as ``start`` does, without a wait."""
        self._ready = None
        self._ready_file.unlink(missing_ok=True)
        # Every other start: one that changes the way is slower.
        way_commits = self._way_commits if trace_file is not None or self._starts % 2 else 0
        self._starts += 1
        is_changed = bool(self.clock_skew_ms or way_commits)
        program = ("-c", _PROGRAM, str(self.clock_skew_ms), str(way_commits)) if is_changed else ("-m", "cmqd")
        arguments = ["serve", "--data", str(self.data), "--listen", "127.0.0.1:0"]
        arguments += ["--ready-file", str(self._ready_file), *self._flags]
        command = [sys.executable, *program, *arguments]
        with self._log.open("ab") as log:
            if trace_file is None and not is_changed:
                self._process = ForkedProgram("cmqd", arguments, output=log, environment=broker_environment())
            elif trace_file is None:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=broker_environment()
                )
            else:
                self.data.mkdir(exist_ok=True)
                self._process = start_traced(
                    command,
                    folder=self.data,
                    trace_file=trace_file,
                    hold_ms=hold_ms,
                    seed=seed,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                )

    def look(self) -> Ready | None:
        """Return the ready file of the broker that was started; None before the broker answers.

        Raises:
            BrokerFailedError: the broker ended.
        """
        try:
            told: dict[str, Any] = json.loads(self._ready_file.read_text())
        except (FileNotFoundError, ValueError):
            code = self.exit_code
            if code is not None:
                raise BrokerFailedError(f"ended with {code} at its start\n{self.log_tail()}") from None
            return None
        contexts: dict[str, Any] = tomllib.loads(Path(told["context_file"]).read_text())["contexts"]
        # The context was written at the first start; the port has changed since.
        credentials = str(contexts["admin"]["url"]).rpartition("@")[0]
        self._ready = Ready(told["pid"], told["storage_pid"], f"{credentials}@{told['host']}:{told['port']}")
        return self._ready

    @property
    def exit_code(self) -> int | None:
        """Exit code of the broker that was started last; None while the broker runs."""
        return None if self._process is None else self._process.poll()

    def processes(self) -> list[int]:
        """Return the loop process and its children, before the broker answers too; empty of an ended broker."""
        if self._process is None or self._process.poll() is not None:
            return []
        pid = self._process.pid
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [pid, *(int(child) for task in tasks for child in (task / "children").read_text().split())]

    def kill(self, victim: Victim) -> None:
        """SIGKILL to one or both processes; returns when the loop process has ended. Raises BrokerFailedError."""
        self.strike(victim)
        self.wait_for_death()

    def strike(self, victim: Victim) -> None:
        """SIGKILL to one or both processes, without a wait. Raises BrokerFailedError."""
        _, ready = self._running()
        if _parent_of(ready.storage_pid) != ready.pid:
            raise BrokerFailedError(f"process {ready.storage_pid} is not a child of {ready.pid}\n{self.log_tail()}")
        if victim in {Victim.STORAGE, Victim.BOTH}:
            os.kill(ready.storage_pid, signal.SIGKILL)
        if victim in {Victim.LOOP, Victim.BOTH}:
            os.kill(ready.pid, signal.SIGKILL)

    def wait_for_death(self) -> None:
        """Return when the loop process has ended after a strike.

        Raises:
            BrokerFailedError: the loop process ended as if there had been no kill.
        """
        process, _ = self._running()
        code = self._wait_for_end(process)
        if code == 0:
            raise BrokerFailedError(f"the broker lost its storage process and reported success\n{self.log_tail()}")

    def stop(self) -> int:
        """Ask the broker to end (SIGTERM); the exit code."""
        process, ready = self._running()
        os.kill(ready.pid, signal.SIGTERM)
        return self._wait_for_end(process)

    def clean_up(self) -> None:
        """Kill the remaining processes, at any end of a test. A tracer ends its traced processes."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        ready = self._ready
        if ready is not None and process.pid == ready.pid and _parent_of(ready.storage_pid) == ready.pid:
            os.kill(ready.storage_pid, signal.SIGKILL)
        process.kill()
        process.wait()

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-25:])

    def _running(self) -> "tuple[AnyProcess, Ready]":
        if self._process is None or self._ready is None:
            raise BrokerFailedError("the broker is not running")
        return self._process, self._ready

    def _wait_for_end(self, process: "AnyProcess") -> int:
        try:
            return process.wait()
        finally:
            self.clean_up()
            self._process = self._ready = None


def has_ended(pid: int) -> bool:
    """True if a process is gone, or only waits for its parent to take note of its end."""
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def _parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    """State, parent and further fields; empty when there is no process of this id."""
    try:
        # The preceding command stands in parentheses and may hold any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
