"""Runs a command and records all changes that it and its children make to the files of a folder.

    python -m support.crash.traces.tracer --folder DIR --output FILE [--hold-ms N] [--seed S] -- command ...

A program of its own, because ptrace belongs to one thread, and waiting for "any child" would take the exit codes of a
test's other children. At its end, for any reason, the kernel ends all traced processes.

``--hold-ms N`` makes the disk slow: every other sync is held for a random time up to N milliseconds before
its run. An acknowledgement that does not wait for the sync then comes well before the sync.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from support.crash.traces import ptrace, trace
from support.crash.traces.followed import AfterCall, FolderFollower
from support.crash.traces.syscalls import Architecture, filter_program, this_architecture

_SYNCS = {"fsync", "fdatasync", "sync", "syncfs"}
_POLL_SECONDS = 0.0003
_STOPPING_SIGNALS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


class Follower(Protocol):
    """Looks at the calls of traced threads."""

    def before(self, thread: int, name: str, call: ptrace.Call) -> AfterCall | None:
        """The work at the end of a call that is about to run; None: there is none."""
        ...

    def forget(self, thread: int) -> None:
        """The thread has ended, or runs a new program in new memory."""
        ...


class Tracer:
    """A command with all its children; ``run`` returns when the last process has ended."""

    def __init__(
        self,
        follower: Follower,
        *,
        hold_ms: float = 0.0,
        seed: int = 0,
        architecture: Architecture | None = None,
    ) -> None:
        self._follower = follower
        self._architecture = architecture or this_architecture()
        self._names = self._architecture.names
        self._hold_seconds = hold_ms / 1000
        self._random = random.Random(seed)
        self._after: dict[int, AfterCall] = {}
        self._held: list[tuple[float, int]] = []
        self._threads: set[int] = set()
        self._exit_code = 0

    def run(self, command: Sequence[str]) -> int:
        """The command's exit code, as a shell would report it."""

        def execute() -> None:
            try:
                os.execvp(command[0], list(command))
            except OSError as error:
                os.write(2, f"cannot start {command[0]}: {error}\n".encode())

        return self.run_function(execute)

    def run_function(self, function: Callable[[], None]) -> int:
        """Run a function in a traced child of this process; the child's exit code, 127 if the function returns."""
        first = self._start(function)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.kill())
        while True:
            try:
                thread, status = os.waitpid(-1, ptrace.WAIT_ALL | (os.WNOHANG if self._held else 0))
            except ChildProcessError:
                return self._exit_code
            if thread == 0:
                self._release_held()
                continue
            if os.WIFSTOPPED(status):
                self._threads.add(thread)
                try:
                    self._on_stop(thread, status)
                except ProcessLookupError:
                    pass  # killed while it was stopped; its end is reported next
                continue
            self._threads.discard(thread)
            self._after.pop(thread, None)
            self._follower.forget(thread)
            if thread == first:
                self._exit_code = os.waitstatus_to_exitcode(status) & 0xFF

    def kill(self) -> None:
        """End all traced processes."""
        for thread in list(self._threads):
            try:
                os.kill(thread, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _start(self, function: Callable[[], None]) -> int:
        program = filter_program(self._architecture)
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(go)
                os.read(ready, 1)  # wait until the tracer is attached: without a tracer the filter refuses the calls
                ptrace.install_filter(program)
                function()
            except BaseException as error:
                os.write(2, f"the traced function failed: {error!r}\n".encode())
            finally:
                os._exit(127)
        os.close(ready)
        ptrace.seize(child)
        self._threads.add(child)
        os.write(go, b"g")
        os.close(go)
        return child

    def _on_stop(self, thread: int, status: int) -> None:
        number = os.WSTOPSIG(status)
        event = (status >> 16) & 0xFF
        if number == signal.SIGTRAP | ptrace.SYSCALL_STOP:
            after = self._after.pop(thread, None)
            if after is not None:
                result = ptrace.result_of(thread)
                if result >= 0:
                    after(result)
            ptrace.run(thread)
        elif event == ptrace.StopEvent.SECCOMP:
            self._before_call(thread)
        elif event == ptrace.StopEvent.STOP and number in _STOPPING_SIGNALS:
            ptrace.keep_stopped(thread)
        elif event != ptrace.StopEvent.NONE:
            if event == ptrace.StopEvent.EXEC:
                self._follower.forget(thread)
            ptrace.run(thread)
        else:
            ptrace.run(thread, signal=number)

    def _before_call(self, thread: int) -> None:
        call = ptrace.call_of(thread)
        name = self._names[call.number]
        after = self._follower.before(thread, name, call)
        if after is None:
            ptrace.run(thread)
            return
        self._after[thread] = after
        if name in _SYNCS and self._hold_seconds and self._random.random() < 0.5:
            self._held.append((time.monotonic() + self._random.random() * self._hold_seconds, thread))
        else:
            ptrace.run_to_call_end(thread)

    def _release_held(self) -> None:
        now = time.monotonic()
        due = [thread for until, thread in self._held if until <= now]
        self._held = [(until, thread) for until, thread in self._held if until > now]
        for thread in due:
            try:
                ptrace.run_to_call_end(thread)
            except ProcessLookupError:
                continue
        if not due:
            time.sleep(_POLL_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--hold-ms", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    with arguments.output.open("wb") as output:
        follower = FolderFollower(arguments.folder.resolve(), lambda event: trace.write_event(output, event))
        tracer = Tracer(follower, hold_ms=arguments.hold_ms, seed=arguments.seed)
        return tracer.run(arguments.command)


if __name__ == "__main__":
    sys.exit(main())
