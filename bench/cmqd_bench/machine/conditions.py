"""The conditions of a run: machine, kernel, disk and versions. A figure without its conditions is meaningless."""

import os
import platform
import resource
import sqlite3
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from cmqd_bench.failures import BenchFailed

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems in memory: fsync costs no time there, so a durable figure would be wrong."""
SCRATCH = Path(__file__).resolve().parents[2] / "scratch"
VERSIONED = ("cmqd", "msgspec", "uvloop", "aiosqlite", "pyroaring")


class ConditionsError(BenchFailed):
    """The machine cannot run the requested scenario; the text names the change that is needed."""


def cpu_model() -> str:
    """Return the CPU model as named by the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Return type and device of the file system of ``path``: of the mount with the longest prefix."""
    if mounts is None:
        mounts = Path("/proc/self/mounts").read_text()
    path = path.resolve()
    best, found = -1, ("unknown", "unknown")
    for line in mounts.splitlines():
        device, mount, kind = line.split()[:3]
        # The kernel writes a blank as \040.
        mount_path = Path(mount.replace("\\040", " "))
        if path.is_relative_to(mount_path) and len(mount_path.parts) >= best:
            best, found = len(mount_path.parts), (kind, device)
    return found


def scratch_root(wanted: Path | None) -> Path:
    """Return the parent of data folders: ``wanted``, else the temporary directory, else a folder beside this package.

    The folder beside this package is used when the temporary directory is in memory.

    Raises ConditionsError for a folder in memory.
    """
    candidates = [wanted] if wanted else [Path(tempfile.gettempdir()), SCRATCH]
    for candidate in candidates:
        candidate.mkdir(parents=True, exist_ok=True)
        if file_system(candidate)[0] not in MEMORY_FILE_SYSTEMS:
            return candidate
    raise ConditionsError(
        f"{candidates[-1]} is on {file_system(candidates[-1])[0]}, where fsync costs nothing; "
        "name a folder on a disk with --scratch"
    )


def raise_file_limit(wanted: int) -> int:
    """Raise the soft limit of open files to ``wanted`` and return the limit in force.

    The hard limit bounds the soft limit; root may raise the hard limit, too. Started servers inherit both.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if target < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
                return wanted
            except (ValueError, OSError):
                pass  # not privileged: stay within the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return wanted


def need_files(wanted: int, cause: str) -> None:
    """Raise the limit of open files.

    Raises:
        ConditionsError: this user may not have so many open files.
    """
    limit = raise_file_limit(wanted)
    if limit < wanted:
        raise ConditionsError(f"{cause} needs {wanted} open files; this user may have {limit} (ulimit -Hn)")


def commit() -> str:
    """Return the measured commit, with ``+`` for local changes; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=10", "--dirty=+"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip()


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def conditions(scratch: Path) -> dict[str, object]:
    """Return the facts about this machine that a reader needs to judge or repeat a run."""
    kind, device = file_system(scratch)
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "versions": {name: version_of(name) for name in VERSIONED},
        "commit": commit(),
        "file_system": kind,
        "device": device,
    }
