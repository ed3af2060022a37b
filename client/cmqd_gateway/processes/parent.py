"""The parent of the gateway processes of a setting: forks the processes, replaces dead ones, and ends all.

    parent ──► fork ──► process 0, the first ─┐
      │                 process 1             ├─ listen at the same ports (SO_REUSEPORT)
      │                 ...                   ─┘
      └─ lines of the broker ──► a pipe to every process

- The parent serves no client and has no event loop and no thread, so a fork is possible at any time. The processes
  share the memory of the parent until they write there, and the state of :mod:`cmqd_gateway.processes.share`.
- A process that dies is replaced, after pauses that grow from half a second to half a minute. Until then the system
  sends new connections to the remaining processes. A process that cannot open its files, or that the broker refuses,
  ends all.
- The end of the parent ends the processes: by their pipe, and on Linux also after kill -9.
- At a regular end the first process goes last, because the further processes ask the first until their requests have
  ended. A process that does not end is killed.
- The parent holds every port with a socket that does not listen. No second gateway, and no other program, can then
  listen at the port, although the processes share the port. Port 0 becomes the same free port in all processes.
"""

import contextlib
import ctypes
import dataclasses
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import msgspec

from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.process.gateway_settings import Settings, split_address
from cmqd_gateway.processes.share import Share, Shares

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""Life of a process after which the next pause is ``FIRST_PAUSE_SECONDS`` again."""
FIRST_LATER_SECONDS: Final = 1.0
"""Longest time at the end for which the first process waits for the others."""
KILL_SECONDS: Final = 30.0
"""Time from the begin of the end until processes that still run are killed."""
_STEP_SECONDS: Final = 0.05
_READ_BYTES: Final = 4_096
_PR_SET_PDEATHSIG: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_REGULAR: Final = (0, -signal.SIGTERM, -signal.SIGINT)
"""Outcomes at the end: a second signal may find the process without its handlers."""
_SHARED_PORTS: Final = ("listen", "listen_https", "listen_cmq_tcp")

RunProcess: TypeAlias = Callable[[Settings, int, Share], int]
"""Runs a gateway with settings, the descriptor of a pipe with lines of the broker, and a share; returns its exit code.
"""

_log = get_logger()


class _Process(msgspec.Struct):
    """A process that runs."""

    pid: int
    lines: int
    """Descriptor of the pipe to the process."""
    started_at: float


class Parent:
    """See the module."""

    def __init__(
        self, settings: Settings, parent_fd: int | None, run_process: RunProcess, final_codes: frozenset[int]
    ) -> None:
        """Make the parent.

        Args:
            settings: the settings of the gateway.
            parent_fd: pipe of the parent's own parent, with lines of the broker; None = the gateway has no parent.
            run_process: runs a gateway, in a forked process.
            final_codes: exit codes of a process that end all processes.
        """
        self._settings = settings
        self._parent_fd = parent_fd
        self._run_process = run_process
        self._final_codes = final_codes
        self._processes: dict[int, _Process] = {}
        """The processes that run, by number."""
        self._due: dict[int, float] = {}
        """Times at which processes are started again, by number."""
        self._pauses: dict[int, float] = {}
        self._ports: list[socket.socket] = []
        self._incomplete = b""
        self._last_lines: dict[tuple[str, ...], bytes] = {}
        """The last line of every kind, for a process that starts later."""
        self._ending_since: float | None = None
        self._is_first_told = False
        """True once the first process is told to end."""
        self._code = 0
        self._woken, self._wakes = socket.socketpair()
        # Not epoll: its table would be shared with the forked processes.
        self._selector = selectors.PollSelector()

    def run(self) -> int:
        """Run the processes until SIGTERM, SIGINT or the end of ``parent_fd``; return the exit code.

        Raises:
            OSError: a port is in use, or an address is wrong.
        """
        self._settings = self._with_held_ports()
        number, rate = self._settings.http_processes, self._settings.max_requests_per_second_per_key
        with tempfile.TemporaryDirectory(prefix="cmqd-gateway-") as folder:
            self._shares = Shares(number, rate, Path(folder))
            self._watch()
            for process in range(number):
                self._start(process)
            while self._processes or self._due:
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                self._reap()
                self._start_due()
                self._proceed_with_end()
            self._shares.close()
        return self._code

    # ------------------------------------------------------------------ ports

    def _with_held_ports(self) -> Settings:
        """Hold the ports; return the settings with the ports that port 0 became."""
        found: dict[str, Any] = {}
        for name in _SHARED_PORTS:
            address = getattr(self._settings, name)
            if address:
                host, port = split_address(name, address)
                held = _held_port(host, port, is_shared=self._settings.reuse_port)
                self._ports.append(held)
                found[name] = f"{address.rpartition(':')[0]}:{held.getsockname()[1]}"
        return dataclasses.replace(self._settings, **found)

    # ------------------------------------------------------------------ signals and lines

    def _watch(self) -> None:
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _wake)
        self._selector.register(self._woken, selectors.EVENT_READ, self._take_signals)
        if self._parent_fd is not None:
            self._selector.register(self._parent_fd, selectors.EVENT_READ, self._take_lines)

    def _take_signals(self) -> None:
        numbers = self._woken.recv(_READ_BYTES)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._begin_end()
        elif signal.SIGHUP in numbers:
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGHUP)

    def _take_lines(self) -> None:
        assert self._parent_fd is not None
        received = os.read(self._parent_fd, _READ_BYTES)
        if not received:
            self._selector.unregister(self._parent_fd)
            self._begin_end()
            return
        *lines, self._incomplete = (self._incomplete + received).split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                self._last_lines[tuple(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))] = line
            for process in self._processes.values():
                _tell(process.lines, line)

    # ------------------------------------------------------------------ processes

    def _start(self, number: int) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        for line in self._last_lines.values():
            _tell(writing, line)
        # Blocked until the child has no handlers of the parent: a signal of the child would wake the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        parent_pid = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(writing)
            self._run_forked(number, reading, parent_pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(reading)
        self._processes[number] = _Process(pid, writing, time.monotonic())
        _log.info("gateway_process_started", process=number, pid=pid)

    def _run_forked(self, number: int, lines: int, parent_pid: int) -> None:
        """Run a gateway in the forked process, and end the process."""
        code = 1
        try:
            share = self._shares.of(number)
            self._release_inherited(share)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent_pid:
                code = self._run_process(self._settings, lines, share)
        except BaseException:
            traceback.print_exc()
        finally:
            # Not an exit of the interpreter, which would run the clean-up of the parent too.
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _release_inherited(self, share: Share) -> None:
        """Close the descriptors of the parent, and forget the handlers of its signals."""
        signal.set_wakeup_fd(-1)
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        # Until the gateway handles the signal: the default would end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._shares.close_others(share)
        for process in self._processes.values():
            os.close(process.lines)
        for held in (*self._ports, self._woken, self._wakes):
            held.close()
        if self._parent_fd is not None:
            os.close(self._parent_fd)

    def _reap(self) -> None:
        for number, process in list(self._processes.items()):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                os.close(process.lines)
                del self._processes[number]
                self._shares.memory.empty_row(number)
                self._ended(number, process, os.waitstatus_to_exitcode(status))

    def _ended(self, number: int, process: _Process, code: int) -> None:
        if self._ending_since is not None:
            self._code = self._code or int(code not in _REGULAR)
        elif code in self._final_codes:
            self._code = code
            self._begin_end()
        else:
            now = time.monotonic()
            is_steady = now - process.started_at >= STEADY_SECONDS
            pause = FIRST_PAUSE_SECONDS if is_steady else self._pauses.get(number, FIRST_PAUSE_SECONDS)
            self._pauses[number] = min(pause * 2, LONGEST_PAUSE_SECONDS)
            self._due[number] = now + pause
            outcome = f"exit code {code}" if code >= 0 else f"signal {-code}"
            _log.warning("gateway_process_ended", process=number, outcome=outcome, starts_again_in_s=pause)

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._start(number)

    # ------------------------------------------------------------------ end

    def _begin_end(self) -> None:
        if self._ending_since is not None:
            return
        self._ending_since = time.monotonic()
        self._due.clear()
        for held in self._ports:
            held.close()
        self._signal(signal.SIGTERM, lambda number: number > 0)

    def _proceed_with_end(self) -> None:
        if self._ending_since is None:
            return
        lasted = time.monotonic() - self._ending_since
        if lasted >= KILL_SECONDS:
            self._signal(signal.SIGKILL, lambda number: True)
        elif not self._is_first_told and (lasted >= FIRST_LATER_SECONDS or not any(self._processes)):
            self._is_first_told = True
            self._signal(signal.SIGTERM, lambda number: number == 0)

    def _signal(self, signal_number: signal.Signals, is_meant: Callable[[int], bool]) -> None:
        for number, process in self._processes.items():
            if is_meant(number):
                os.kill(process.pid, signal_number)

    def _timeout(self) -> float | None:
        """Return the time to wait for events; None = without a limit."""
        if self._ending_since is not None:
            return _STEP_SECONDS
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None


def _held_port(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """Return a socket that holds a port for the processes.

    Raises:
        OSError: the port is in use, or the address is wrong.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    held = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        held.bind(address)
        # After the bind, which fails at a port in use: from now on the processes can share the port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    return held


def _tell(lines: int, line: bytes) -> None:
    """Write a line for a process. A process that reads no more must not hold up the parent."""
    with contextlib.suppress(OSError):
        os.write(lines, line + b"\n")


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number of the signal wakes the parent."""
