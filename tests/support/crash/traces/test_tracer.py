"""The tracer and the rebuilt disk against real programs: exactly the changes without a sync are lost."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from support.crash.traces import trace
from support.crash.traces.disk import Unsynced, disk_after
from support.crash.traces.trace import read_trace
from support.crash.traces.tracing import start_traced

pytestmark = pytest.mark.system

_COMMITS = 60
# Commits in a thread of a child process, as the broker's storage does; says when each commit had returned.
_COMMITTER = """
import os, sqlite3, subprocess, sys, threading, time

def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

def work():
    os.mkdir("segments")
    sync_folder(".")
    database = sqlite3.connect("segments/1.db", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=" + sys.argv[2])
    database.execute("create table rows (number integer primary key, data blob)")
    sync_folder("segments")
    for number in range(int(sys.argv[3])):
        database.execute("insert into rows values (?, ?)", (number, os.urandom(300)))
        print(number, time.monotonic_ns(), flush=True)
    os._exit(0)  # no checkpoint at closing

if sys.argv[1] == "parent":
    sys.exit(subprocess.call([sys.executable, __file__, "child", *sys.argv[2:]]))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def run_traced(
    tmp_path: Path, source: str, *arguments: str, hold_ms: float = 0.0
) -> tuple[bytes, list[trace.AnyEvent]]:
    """Run a Python program in an empty folder under the tracer."""
    program = tmp_path / "program.py"
    program.write_text(source)
    folder = tmp_path / "folder"
    folder.mkdir()
    traced = start_traced(
        ["/usr/bin/env", "-C", str(folder), sys.executable, str(program), *arguments],
        folder=folder,
        trace_file=tmp_path / "trace",
        hold_ms=hold_ms,
        stdout=subprocess.PIPE,
    )
    output, _ = traced.communicate()
    assert traced.returncode == 0
    return output, read_trace(tmp_path / "trace")


def lost_commits(tmp_path: Path, synchronous: str, *, hold_ms: float) -> int:
    """The number of returned commits that were gone after a power failure, over many failures."""
    output, events = run_traced(tmp_path, _COMMITTER, "parent", synchronous, str(_COMMITS), hold_ms=hold_ms)
    commits = [(int(number), int(at_ns)) for number, at_ns in (line.split() for line in output.splitlines())]
    assert len(commits) == _COMMITS
    first_at, last_at = commits[0][1], commits[-1][1]
    cuts = [index for index, event in enumerate(events) if first_at < event.at_ns < last_at]
    chance = random.Random(1)
    lost = 0
    for attempt in range(24):
        cut = chance.choice(cuts)
        disk = disk_after(events[:cut], list(Unsynced)[attempt % 3], chance)
        rebuilt = tmp_path / f"rebuilt-{attempt}"
        disk.write_to(rebuilt)
        committed = {number for number, at_ns in commits if at_ns <= events[cut].at_ns}
        lost += len(committed - _numbers_in(rebuilt / "segments" / "1.db"))
    return lost


def _numbers_in(path: Path) -> set[int]:
    database = sqlite3.connect(path)
    try:
        return {row[0] for row in database.execute("select number from rows")}
    except sqlite3.DatabaseError:
        return set()
    finally:
        database.close()


@pytest.mark.parametrize("hold_ms", [0.0, 4.0])
def test_nothing_that_sqlite_committed_with_full_synchronous_is_lost(tmp_path: Path, hold_ms: float) -> None:
    assert lost_commits(tmp_path, "full", hold_ms=hold_ms) == 0


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_commits_with_lowered_synchronous_are_lost(tmp_path: Path, synchronous: str) -> None:
    assert lost_commits(tmp_path, synchronous, hold_ms=0.0) > _COMMITS


_EVERY_CALL = """
import ctypes, fcntl, os, shutil
libc = ctypes.CDLL(None, use_errno=True)

def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

with open("written", "w") as file:
    file.write("hello ")
    file.flush()
    file.write("world")
with open("written", "a") as file:
    file.write("!")
descriptor = os.open("pieces", os.O_RDWR | os.O_CREAT, 0o600)
os.writev(descriptor, [b"one ", b"two "])
os.pwritev(descriptor, [b"three", b" four"], 8)
os.ftruncate(descriptor, 16)
os.posix_fallocate(descriptor, 0, 20)
os.close(descriptor)
os.truncate("pieces", 19)
shutil.copyfile("written", "copied")
source, target = os.open("written", os.O_RDONLY), os.open("ranged", os.O_RDWR | os.O_CREAT)
os.copy_file_range(source, target, 5, 0, 2)
os.close(source), os.close(target)
os.mkdir("sub")
os.link("written", "sub/linked")
os.rename("copied", "sub/moved")
os.rename("sub", "other")
with open("overwritten", "w") as file:
    file.write("old")
with open("new", "w") as file:
    file.write("new")
os.replace("new", "overwritten")
with open("gone", "w") as file:
    file.write("x")
os.unlink("gone")
os.mkdir("gone")
os.rmdir("gone")
folder = os.open("other", os.O_RDONLY)
descriptor = os.open("by-folder", os.O_RDWR | os.O_CREAT, dir_fd=folder)
os.write(descriptor, bytes(5000))
os.write(descriptor, b"end")
os.close(descriptor)
with open("written", "w") as file:
    file.write("again")
"""


def contents_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_disk_that_keeps_everything_equals_the_folder(tmp_path: Path) -> None:
    _, events = run_traced(tmp_path, _EVERY_CALL)

    disk_after(events, Unsynced.KEPT, random.Random(0)).write_to(tmp_path / "rebuilt")

    assert contents_of(tmp_path / "rebuilt") == contents_of(tmp_path / "folder")
    assert (tmp_path / "rebuilt" / "pieces").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_drops_everything_unsynced_is_empty(tmp_path: Path) -> None:
    _, events = run_traced(tmp_path, _EVERY_CALL)

    disk_after(events, Unsynced.DROPPED, random.Random(0)).write_to(tmp_path / "rebuilt")

    assert contents_of(tmp_path / "rebuilt") == {}


def test_after_a_sync_of_all_nothing_is_dropped(tmp_path: Path) -> None:
    _, events = run_traced(tmp_path, _EVERY_CALL + "os.sync()\n")

    disk_after(events, Unsynced.DROPPED, random.Random(0)).write_to(tmp_path / "rebuilt")

    assert contents_of(tmp_path / "rebuilt") == contents_of(tmp_path / "folder")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import mmap\nf = open('m', 'w+b')\nf.truncate(4096)\nm = mmap.mmap(f.fileno(), 4096)\n", "mapping"),
        ("import os\nos.open('.', os.O_TMPFILE | os.O_RDWR)\n", "without a name"),
        ("import os\nos.symlink('a', 'b')\n", "symlink"),
    ],
)
def test_a_call_that_cannot_be_followed_is_an_event(tmp_path: Path, source: str, what: str) -> None:
    _, events = run_traced(tmp_path, source)

    assert any(isinstance(event, trace.Unfollowed) and what in event.what for event in events)


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20])
def test_a_torn_last_event_is_left_out(tmp_path: Path, cut: int) -> None:
    """A killed tracer leaves the bytes that it had written by then."""
    path = tmp_path / "trace"
    with path.open("wb") as file:
        trace.write_event(file, trace.Removed(1, "first"))
        whole = file.tell()
        trace.write_event(file, trace.Written(2, 1, 0, b"of the second event"))
    assert len(read_trace(path)) == 2

    path.write_bytes(path.read_bytes()[: whole + cut])

    assert read_trace(path) == [trace.Removed(1, "first")]


def test_terminating_the_tracer_kills_what_it_traces_and_leaves_a_whole_trace(tmp_path: Path) -> None:
    traced = start_traced(
        [
            sys.executable,
            "-c",
            f"open({str(tmp_path / 'f')!r}, 'w').close(); print('up', flush=True); import time; time.sleep(60)",
        ],
        folder=tmp_path,
        trace_file=tmp_path.parent / "trace",
        stdout=subprocess.PIPE,
    )
    assert traced.stdout is not None
    assert traced.stdout.readline() == b"up\n"

    traced.terminate()
    output, _ = traced.communicate()

    assert output == b""
    assert isinstance(read_trace(tmp_path.parent / "trace")[0], trace.Present)
