"""A process with the modules of the product loaded: forks a child for each program that a test starts.

A new interpreter takes 0.4 s of processor time to import the broker, 0.2 s the storage process and 0.7 s the gateway;
a child is there in 0.02 s. ``ForkedProgram`` asks for children; this file is the program of the server.

A child runs ``__main__`` of its module as ``python -m`` does, with the descriptors, environment, folder and signals of
a new process, and ends behind its threads and its functions of ``atexit``, see ``ChildEnd``. Its process id, its exit
code and its death are real. A broker's own children stay children of the broker: each is forked ahead, waits for the
broker's ``subprocess.Popen``, and then becomes the program that the broker names.
"""

import asyncio
import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

# The folder of this file is in the path.
from fork_requests import STATUS, request_text

from cmqd_logs.quick_start import import_structlog

MODULES = {
    # Nothing of its start is lost by the order: the commands import structlog in the same way.
    "cmqd": ("cmqd.ha.commands", "cmqd.server.process.daemon", "aiohttp"),
    "cmqd.storage": ("cmqd.storage.service", "cmqd.storage.redundancy.engine_choice", "aiosqlite", "uvloop"),
    "cmqd_gateway": ("cmqd_gateway.process.command",),
    "cmq_cli": ("cmq_cli.app",),
}
"""Imports of each program, loaded before its first child."""
_LARGEST = 1 << 17
_MOST_DESCRIPTORS = 32


class ChildEnd:
    """The end of a child, once its program has ended, with its threads and its functions of ``atexit``.

    The interpreter would then free all modules, and so write into each page that the child shares with this process:
    a third of the processor time of a broker that starts and ends. Tests of the start itself, in a new interpreter,
    have that end.
    """

    def __init__(self) -> None:
        """Become the last function of ``atexit``: before any module of a program is loaded."""
        self.status: int | None = None
        """The exit code of the program; None in this process, and in a program that SIGINT ends."""
        atexit.register(self._end)

    def run(self, module: str) -> None:
        """Run a module, and keep its exit code."""
        self.status = 1
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            self.status = 0
        except SystemExit as end:
            self.status = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        except KeyboardInterrupt:
            self.status = None
            raise

    def _end(self) -> None:
        if self.status is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # the interpreter tells of output that is lost
        os._exit(self.status)


class Request:
    """A program to run, with its descriptors."""

    def __init__(self, text: bytes, descriptors: Sequence[int]) -> None:
        wanted: dict[str, Any] = json.loads(text)
        self.module: str = wanted["module"]
        self.arguments: list[str] = wanted["arguments"]
        self._environment: dict[str, str] = wanted["environment"]
        self._folder: str = wanted["folder"]
        self._mask: int = wanted["mask"]
        self._numbers: list[int] = wanted["numbers"]
        self._searches_folder: bool = wanted["searches_folder"]
        self._leads: bool = wanted["leads"]
        self._descriptors = descriptors

    def install(self) -> None:
        """Give this process the descriptors, environment and signals of a new interpreter."""
        first_free = 1 + max(64, *self._numbers)
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD, first_free) for each in self._descriptors]
        for each in map(int, os.listdir("/proc/self/fd")):
            if each not in moved:
                try:
                    os.close(each)
                except OSError:  # the descriptor of the listing itself
                    pass
        for source, number in zip(moved, self._numbers, strict=True):
            os.dup2(source, number)
            os.close(source)
        os.chdir(self._folder)
        os.umask(self._mask)
        os.environ.clear()
        os.environ.update(self._environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._leads:
            os.setsid()
        if self._searches_folder:
            sys.path.insert(0, self._folder)
        sys.argv = [self.module, *self.arguments]

    def children(self) -> list[str]:
        """Return the modules of the children that the program will start."""
        if (self.module, *self.arguments[:1]) != ("cmqd", "serve"):
            return []
        storage = [] if "--ephemeral" in self.arguments else ["cmqd.storage"]
        return [*storage, "cmqd_gateway"] if "--http" in self.arguments else storage


def _received(source: socket.socket) -> tuple[bytes, list[int]]:
    text, descriptors, _, _ = socket.recv_fds(source, _LARGEST, _MOST_DESCRIPTORS)
    return text, descriptors


def _serve(requests: socket.socket) -> Request | None:
    """Fork for each request, and report the ends; return the request in a child, None once the tests are over."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                pid, status = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _report(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                continue
            text, descriptors = _received(requests)
            if not text:
                return None
            *given, status = descriptors
            request = Request(text, given)
            for module in (request.module, *request.children()):
                load(module)
            pid = os.fork()
            if pid == 0:
                return request
            for each in given:
                os.close(each)
            _report(status, pid)
            ended = os.pidfd_open(pid)
            running[ended] = (pid, status)
            poll.register(ended, select.POLLIN)


def _report(status: int, value: int) -> None:
    try:
        os.write(status, STATUS.pack(value))
    except BrokenPipeError:  # the test waits no more
        pass


class Child:
    """A child of this process, with the calls of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ChildOfLoop(Child):
    """The same with the calls of ``asyncio.subprocess.Process``."""

    async def wait(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the end and return the exit status."""
        loop = asyncio.get_running_loop()
        if self.poll() is None:
            ended, over = os.pidfd_open(self.pid), asyncio.Event()
            loop.add_reader(ended, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(ended)
                os.close(ended)
        code = self.poll()
        assert code is not None
        return code


class ForkedAhead:
    """Waiting children of a broker; the broker names their programs."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, socket.socket]] = {}
        self._popen: Any = subprocess.Popen
        self._exec: Any = asyncio.create_subprocess_exec

    def fork(self, module: str) -> Request | None:
        """Fork a child; return its request in the child, None in this process."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if pid := os.fork():
            its.close()
            self._waiting[module] = (pid, ours)
            return None
        ours.close()
        for _, other in self._waiting.values():
            other.close()
        text, descriptors = _received(its)
        if not text:
            os._exit(0)
        return Request(text, descriptors)

    def replace_starts(self) -> None:
        """Let the broker use its waiting children in place of new processes."""
        setattr(subprocess, "Popen", self._start)  # noqa: B010
        setattr(asyncio, "create_subprocess_exec", self._start_in_loop)  # noqa: B010

    def _start(self, command: Sequence[Any], *rest: Any, **options: Any) -> Any:
        pid = self._given(command, options)
        return self._popen(command, *rest, **options) if pid is None else Child(pid)

    async def _start_in_loop(self, *command: Any, **options: Any) -> Any:
        pid = self._given(command, options)
        return await self._exec(*command, **options) if pid is None else ChildOfLoop(pid)

    def _given(self, command: Sequence[Any], options: Mapping[str, Any]) -> int | None:
        """Give a waiting child its program and return its process id; None without a waiting child."""
        words = [str(word) for word in command]
        module = words[words.index("-m") + 1] if "-m" in words else ""
        # A check of settings by the same program has no descriptors.
        if words[0] != sys.executable or module not in self._waiting or "pass_fds" not in options:
            return None
        pid, requests = self._waiting.pop(module)
        numbers = [0, 1, 2, *options["pass_fds"]]
        text = request_text(
            module,
            words[words.index(module) + 1 :],
            options.get("env") or os.environ,
            numbers,
            searches_folder="-P" not in words,
            leads=bool(options.get("start_new_session")),
        )
        with requests, open(os.devnull) as nothing:
            socket.send_fds(requests, [text], [nothing.fileno(), *numbers[1:]])
        return pid


@cache
def load(module: str) -> None:
    """Import the modules of a program."""
    for name in MODULES[module]:
        importlib.import_module(name)
    # Collections of the children then leave these objects and their pages alone.
    gc.collect()
    gc.freeze()


def main() -> None:
    # Not for the children: the folder of this file.
    del sys.path[0]
    end = ChildEnd()
    import_structlog()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    request.install()
    if children := request.children():
        ahead = ForkedAhead()
        for module in children:
            if (own := ahead.fork(module)) is not None:
                own.install()
                end.run(own.module)
                return
        ahead.replace_starts()
    end.run(request.module)


if __name__ == "__main__":
    main()
