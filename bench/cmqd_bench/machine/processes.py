"""Costs of processes, read from ``/proc``: CPU seconds and resident memory of a process and its children.

Costs cover whole processes, with all their threads, and include reaped children, so that a server cannot hide work in
a helper.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
"""Units of CPU time a second in ``/proc/<pid>/stat``: 100 on Linux, so a figure is good to 10 ms per process."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The kernel's counters of a process at a moment."""

    pid: int
    parent: int
    state: str
    cpu_ticks: int
    """User and system time of all threads, living or ended."""
    reaped_ticks: int
    """User and system time of children that ended and were waited for."""

    @property
    def running(self) -> bool:
        """True for a living process, not a zombie."""
        return self.state not in "ZX"


def parse_stat(text: str) -> ProcessStat:
    """Read the line of ``/proc/<pid>/stat``.

    The command is in parentheses and may contain blanks and parentheses, so fields count from the last ``)``.
    """
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    # proc(5) numbers the fields from 1; the state, field 3, is the first after the command.
    state, parent = fields[0], int(fields[1])
    user, system, reaped_user, reaped_system = (int(field) for field in fields[11:15])
    return ProcessStat(int(head.split(None, 1)[0]), parent, state, user + system, reaped_user + reaped_system)


def read_stat(pid: int) -> ProcessStat | None:
    """Return the counters of a process now; None if the process does not exist."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def family(pid: int) -> list[ProcessStat]:
    """Return the counters of a process and all its living descendants."""
    children: dict[int, list[ProcessStat]] = {}
    members: list[ProcessStat] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            if stat.pid == pid:
                members.append(stat)
            else:
                children.setdefault(stat.parent, []).append(stat)
    for member in members:  # grows during the loop
        members.extend(children.get(member.pid, ()))
    return members


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of processes so far, all threads and reaped children included."""
    ticks = 0
    for pid in pids:
        if (stat := read_stat(pid)) is not None:
            ticks += stat.cpu_ticks + stat.reaped_ticks
    return ticks / CLOCK_TICKS


def parse_rss_kib(status: str) -> int:
    """Return ``VmRSS`` from the text of ``/proc/<pid>/status``; 0 for a process without memory (a zombie)."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def rss_kib(pids: Iterable[int]) -> int:
    """Return the sum of the resident memory of processes; shared pages count once per process."""
    total = 0
    for pid in pids:
        try:
            total += parse_rss_kib(Path(f"/proc/{pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def parse_busy_ticks(text: str) -> int:
    """Return the busy time of all cores from the text of ``/proc/stat``, stolen time included."""
    # cpu user nice system idle iowait irq softirq steal ...
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in text.split(None, 9)[1:9])
    return user + nice + system + irq + softirq + steal


def machine_busy_seconds() -> float:
    """Return the CPU seconds of all processes of the machine so far."""
    return parse_busy_ticks(Path("/proc/stat").read_text()) / CLOCK_TICKS
