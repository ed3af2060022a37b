"""One life of a log in which a chosen call of the operating system fails, then a kill, a start and a comparison.

    python -m support.crash.failing_calls --folder DIR [--seed S] [--sample N | --all]

The life is the same each time: ``first_run`` has a first start, commits, checkpoints, segments that are sealed and
dropped, a page and an orderly end, ``second_run`` a second start. Each run is a process with the storage service. A
first life lists the calls on files of the data folder. A call is named by its system call, its file and its number
among the calls with the same system call and file, because threads of the service take turns by chance. Then each
chosen call fails once, with EIO, with ENOSPC or by writing half of its bytes (``Fault``), in a life of its own. A
SIGKILL ends that life at the failure that the log reports, or at the end of the run if the service went on. ``check``
opens the folder again: every row that was reported durable must be there, byte for byte, and the log must take a new
row.

Without ``--all`` each call site fails once for each kind: a site is a system call and a kind of file. The chosen calls
depend on the seed alone. The program prints a line for each broken promise and a summary; its exit code is 1 if there
was one. x86-64 only. It is a program of its own, as the tracer is.
"""

import argparse
import asyncio
import contextlib
import errno
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cmqd.log.log_errors import LogError, LogFailed
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd_segment.records import AnyRecord
from support.crash.traces import ptrace
from support.crash.traces.folder_paths import AT_FDCWD, FolderPaths, signed
from support.crash.traces.syscalls import Architecture, this_architecture
from support.crash.traces.tracer import AfterCall, Tracer
from support.storage.log_rig import NOW_MS, InProcess, LogRig, body, checkpoint_parts, deleted, sent, settings_for

_READS = {17: "pread64", 0: "read"}
_WRITES = {"write", "writev", "pwrite64", "pwritev", "pwritev2"}
_OF_DESCRIPTOR = _WRITES | {"fsync", "fdatasync", "ftruncate", "fallocate"} | set(_READS.values())
_OF_PATH = {"open": 0, "creat": 0, "truncate": 0, "unlink": 0, "rmdir": 0, "mkdir": 0, "rename": 1, "link": 1}
_OF_FOLDER_AND_PATH = {
    **dict.fromkeys(("openat", "openat2", "unlinkat", "mkdirat"), 0),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), 2),
}
_NO_ROOM = {
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "fallocate",
    "openat",
    "open",
    "mkdir",
    "mkdirat",
    "rename",
    "fsync",
}
_LIFE_SECONDS = 30


Run: TypeAlias = Callable[[Path, Callable[[int], None]], Awaitable[None]]
"""Runs the log in a folder, and reports durable LSNs."""


class FileCall(NamedTuple):
    """A call on a file of the folder."""

    name: str
    path: str
    number: int
    """Number of this call among those with the same name and path, from 0."""

    @property
    def site(self) -> str:
        """The system call and the kind of file."""
        return f"{self.name} {re.sub(r'[0-9]+', '#', self.path) or 'folder'}"


class Fault(NamedTuple):
    """A call and its failure: ``EIO``, ``ENOSPC`` or ``short``."""

    call: FileCall
    kind: str


class FileCalls:
    """Follows the calls on files of the folder, and lets one of them fail."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self._paths = FolderPaths(folder)
        self._fault = fault
        self._counts: Counter[tuple[str, str]] = Counter()
        self.calls: list[FileCall] = []
        self.failed = False
        """The call of the fault was met."""

    def before(self, thread: int, name: str, call: ptrace.Call) -> AfterCall | None:
        """Count a call, and let it fail if it is that of the fault."""
        path = self._path_of(thread, name, call.arguments)
        if path is None:
            return None
        met = FileCall(name, path, self._counts[name, path])
        self._counts[name, path] += 1
        self.calls.append(met)
        if self._fault is not None and self._fault.call == met:
            self.failed = True
            if self._fault.kind == "short":
                ptrace.shorten_call(thread)
            else:
                ptrace.fail_call(thread, getattr(errno, self._fault.kind))
        return None

    def forget(self, thread: int) -> None:
        """The thread has ended."""
        self._paths.forget(thread)

    def _path_of(self, thread: int, name: str, arguments: Sequence[int]) -> str | None:
        if name in _OF_DESCRIPTOR:
            return self._paths.of_descriptor(thread, signed(arguments[0]))
        if name == "mmap":
            return self._paths.of_descriptor(thread, signed(arguments[4]))
        if name in _OF_PATH:
            return self._paths.named(thread, AT_FDCWD, arguments[_OF_PATH[name]])
        if name in _OF_FOLDER_AND_PATH:
            at = _OF_FOLDER_AND_PATH[name]
            return self._paths.named(thread, signed(arguments[at]), arguments[at + 1])
        return None


# ---------------------------------------------------------------- the life and its check


class Row(NamedTuple):
    """A row of the life."""

    record: AnyRecord
    bodies: list[bytes]


_SENT = [Row(*sent(1, 10 * number, 10, 1_000)) for number in range(24)]
_DROPPED = 80
"""Messages that the life deletes before it drops segments."""
ROWS = [*_SENT[:12], Row(deleted(1, 0, _DROPPED), []), *_SENT[12:]]
"""The rows of the life in their order; row N has LSN N + 1."""


class _Service(InProcess):
    """The storage service, which leaves its files open at its end, as the storage process does by its exit."""

    async def _run(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> int:
        return await self.service.run(control, pages, commits)


def _rig(folder: Path) -> LogRig:
    settings = settings_for(folder, segment_bytes=1 << 16, state_interval_ms=5)
    return LogRig(StorageProcessLog(settings, _Service().start))


async def _until(rig: LogRig, condition: Callable[[], object]) -> None:
    await rig.until(lambda: rig.fatal or condition())
    if rig.fatal:
        raise rig.fatal[0]


async def _store(rig: LogRig, rows: Sequence[Row], told: Callable[[int], None]) -> None:
    for row in rows:
        lsn = rig.log.append([row.record], row.bodies, NOW_MS)
        rig.log.flush()
        await _until(rig, lambda: rig.log.durable_lsn >= rig.log.last_lsn)
        told(lsn)


async def first_run(folder: Path, told: Callable[[int], None]) -> None:
    """Run from the first start to an orderly end; ``told`` gets each LSN that the log reports durable.

    Raises:
        LogFailed, LogError: the log reported a failure.
    """
    rig = _rig(folder)
    log = rig.log
    await rig.open()

    async def store(rows: Sequence[Row]) -> None:
        await _store(rig, rows, told)

    async def checkpoint() -> None:
        done = len(rig.checkpoints_done)
        # A checkpoint without room is abandoned; the server writes another one later.
        for _ in range(3):
            for part in checkpoint_parts(log.last_lsn, log.last_lsn):
                log.write_checkpoint(part)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(_until(rig, lambda: len(rig.checkpoints_done) > done), 2)
        raise LogFailed("no checkpoint of three was kept")

    await store(ROWS[:8])
    await checkpoint()
    await store(ROWS[8:16])
    for _ in range(2):  # a segment is dropped below the older of two checkpoints
        await checkpoint()
    closed = [segment for segment in log.closed_segments() if segment.last_lsn <= log.droppable_lsn]
    empty = [segment.number for segment in closed if all(stop <= _DROPPED for _, _, stop in segment.queues)]
    if empty:  # not where the seal has failed
        await log.drop_segments(empty, log.durable_lsn)
    await store(ROWS[16:20])
    read = rig.ask(1, [_DROPPED + 10, 2])
    await _until(rig, lambda: read in rig.pages)
    await log.seal_now()
    await log.close()


async def second_run(folder: Path, told: Callable[[int], None]) -> None:
    """Run from the second start to an orderly end."""
    rig = _rig(folder)
    await rig.open()
    await _store(rig, ROWS[20:], told)
    await rig.log.close()


async def check(folder: Path, durable: int) -> list[str]:
    """Open the folder and return the broken promises, as sentences."""
    broken: list[str] = []
    rig = _rig(folder)
    try:
        report = await rig.open()
        if report.last_lsn < durable:
            broken.append(f"row {durable} was reported durable, and the log ends with row {report.last_lsn}")
        for lsn, _, records in rig.rows:
            if list(records) != [ROWS[lsn - 1].record]:
                broken.append(f"row {lsn} has other records")
        found = [lsn for lsn, _, _ in rig.rows]
        if found != list(range(report.last_lsn - len(found) + 1, report.last_lsn + 1)):
            broken.append(f"the rows have a hole: {found}")
        if len(found) < report.last_lsn - report.checkpoint_lsn:
            broken.append(f"rows behind checkpoint {report.checkpoint_lsn} are missing: {found}")
        positions = [
            position
            for row in ROWS[:durable]
            if row.bodies
            for position in range(row.record.first_position, row.record.first_position + 10)  # pyright: ignore
            if position >= _DROPPED
        ]
        for position in positions[::5]:
            read = rig.ask(1, [position, 1])
            await _until(rig, lambda read=read: read in rig.pages)
            messages, missing = rig.pages[read]
            if missing or [message.body for message in messages] != [body(1, position, 1_000)]:
                broken.append(f"the message at position {position} is missing or changed")
        broken += [f"finding: {finding.kind} {finding.text}" for finding in report.findings if "damage" in finding.kind]
        rig.send(2, 0, 1)
        rig.log.flush()
        await _until(rig, lambda: rig.log.durable_lsn >= rig.log.last_lsn)
        await rig.log.close()
    except (LogError, LogFailed) as failure:
        broken.append(f"the log does not start or go on: {failure}")
    return broken


# ---------------------------------------------------------------- processes


def _in_child(work: Callable[[int], None]) -> list[str]:
    """Run work in a child of this process; the lines that it writes to the descriptor."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            signal.alarm(_LIFE_SECONDS)
            work(writes)
        except BaseException:
            os.write(writes, f"error {traceback.format_exc()!r}\n".encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        lines = stream.read().decode().splitlines()
    _, status = os.waitpid(child, 0)
    return lines if status == 0 else [*lines, f"error 'ended by signal {os.WTERMSIG(status)}'"]


def run_life(folder: Path, fault: Fault | None) -> tuple[FileCalls, list[str]]:
    """Live once under the tracer; the calls, and the lines of the life: its durable LSNs and its end."""
    reads, writes = os.pipe()
    # A line has some twenty bytes, and a pipe takes 64 KiB without a reader.
    calls = FileCalls(folder, fault)

    def told(lsn: int) -> None:
        os.write(writes, b"durable %d\n" % lsn)

    async def killed_at_its_end(run: Run) -> None:
        try:
            await run(folder, told)
            os.write(writes, b"completed\n")
        except (LogError, LogFailed) as failure:
            os.write(writes, f"failed {str(failure)[:200]!r}\n".encode())
        except BaseException:
            os.write(writes, f"error {traceback.format_exc()[-700:]!r}\n".encode())
        # Here, and not behind the loop: tasks that are cancelled at its end would close files, and SQLite would then
        # remove a WAL that kill -9 leaves.
        os.kill(os.getpid(), signal.SIGKILL)

    machine = this_architecture()
    architecture: Architecture = replace(machine, names={**machine.names, **_READS})
    for run in (first_run, second_run):

        def life(run: Run = run) -> None:
            signal.alarm(_LIFE_SECONDS)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
            asyncio.run(killed_at_its_end(run))

        Tracer(calls, architecture=architecture).run_function(life)
        if calls.failed:
            break
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        return calls, stream.read().decode().splitlines()


def _durable(lines: Sequence[str]) -> int:
    return max((int(line.split()[1]) for line in lines if line.startswith("durable")), default=0)


def run_case(folder: Path, fault: Fault | None) -> tuple[FileCalls, str, list[str]]:
    """Live with a fault and check the folder; the calls, the outcome of the life, and the broken promises."""
    calls, lines = run_life(folder, fault)
    last = lines[-1] if lines else "error 'no line'"
    outcome = last.split()[0] if not last.startswith("durable") else "ended by its time limit"
    broken = [last] if outcome in ("error", "ended by its time limit") else []

    def work(writes: int) -> None:
        null = os.open("/dev/null", os.O_WRONLY)
        os.dup2(null, 2)
        for sentence in asyncio.run(check(folder, _durable(lines))):
            os.write(writes, (sentence.replace("\n", " ") + "\n").encode())

    return calls, outcome, broken + _in_child(work)


def faults_of(calls: Sequence[FileCall]) -> list[Fault]:
    """Every fault of these calls."""
    faults: list[Fault] = []
    for call in calls:
        faults.append(Fault(call, "EIO"))
        if call.name in _NO_ROOM:
            faults.append(Fault(call, "ENOSPC"))
        if call.name in ("write", "pwrite64"):
            faults.append(Fault(call, "short"))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--sample", type=int, help="so many sites by chance")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    folder: Path = arguments.folder.resolve()
    calls, outcome, broken = run_case(folder / "listed", None)
    assert (outcome, broken) == ("completed", []), (outcome, broken)
    assert any(call.name == "unlink" and call.path.endswith(".db") for call in calls.calls), "no segment was dropped"
    faults = faults_of(calls.calls)
    sites = defaultdict[tuple[str, str], list[Fault]](list)
    for fault in faults:
        sites[fault.call.site, fault.kind].append(fault)
    # The threads of another life may not make a call with this number: a site then has up to three tries.
    tries = [chance.sample(each, min(3, len(each))) for each in sites.values()]
    if arguments.all:
        tries = [[fault] for fault in faults]
        chance.shuffle(tries)
    if arguments.sample:
        tries = chance.sample(tries, min(arguments.sample, len(tries)))
    outcomes: Counter[str] = Counter()
    failures = 0
    for number, tried in enumerate(tries):
        if number % 100 == 99:
            print(f"{number + 1} of {len(tries)}: {dict(outcomes)}", flush=True)
        outcome = "call not met"
        for fault in tried:
            calls, ended, broken = run_case(folder / "case", fault)
            shutil.rmtree(folder / "case", ignore_errors=True)
            for sentence in broken:
                where = f"{fault.call.name} {fault.call.path or 'folder'} number {fault.call.number}"
                print(f"BROKEN {fault.kind} at {where}: {sentence}", flush=True)
            failures += bool(broken)
            if calls.failed:
                outcome = ended
                break
        outcomes[outcome] += 1
    print(f"{len(calls.calls)} calls in a life, {len(faults)} faults at {len(sites)} sites and kinds")
    print(f"{len(tries)} tried: {dict(outcomes)}; {failures} lives with broken promises")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
