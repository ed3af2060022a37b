"""Where large blocks come from, and the memory that a process keeps after a burst of them."""

import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

from cmqd.allocator import (
    KEPT_BYTES,
    LARGE_BYTES,
    LARGEST_BYTES,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    QUIET_SECONDS,
    REUSED_BYTES,
    CLibrary,
    LargeBlocks,
)
from cmqd.server.admission.memory_budget import MemoryBudget

RESIDENT = """
import os
from cmqd.allocator import LargeBlocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

BURST = (
    RESIDENT
    + """
large = LargeBlocks()
held, small = [], []
before = resident()
for number in range(200):
    held.append(b"x" * (1 << 20))
    # Lives on behind the block, and so keeps the end of the heap where it is.
    small.append(b"y" * 2048)
    large.note_held(len(held) << 20)
peak = resident() - before
held.clear()
print(peak, resident() - before)
"""
)

FLOOD_OF_READS = (
    RESIDENT
    + """
calls = []

class Timer:
    def cancel(self):
        calls.clear()

def call_later(seconds, call):
    calls.append(call)
    return Timer()

large = LargeBlocks(call_later)
before = resident()
held, small = [], []
for number in range(1000):
    held.append(b"x" * (100 << 10))
    small.append(b"y" * 2048)
    large.note_held(len(held) * (100 << 10))
held.clear()
large.note_held(0)
grown = resident() - before
for call in calls:
    call()
print(grown, resident() - before)
"""
)


class FakeLibrary(CLibrary):
    """Notes the calls."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []
        self.returns = 0

    def set_option(self, option: int, value: int) -> None:
        self.options.append((option, value))

    def return_free_pages(self) -> None:
        self.returns += 1


class Planned:
    """Calls that are planned, each with its time."""

    def __init__(self) -> None:
        self.calls: dict[PlannedCall, tuple[float, Callable[[], object]]] = {}

    def call_later(self, seconds: float, call: Callable[[], object]) -> "PlannedCall":
        planned = PlannedCall(self)
        self.calls[planned] = (seconds, call)
        return planned

    def pass_time(self) -> None:
        """Make the calls."""
        due, self.calls = self.calls, {}
        for _, call in due.values():
            call()


class PlannedCall:
    def __init__(self, planned: Planned) -> None:
        self._planned = planned

    def cancel(self) -> None:
        del self._planned.calls[self]


def test_large_blocks_come_from_the_system_while_much_is_held() -> None:
    library = FakeLibrary()
    blocks = LargeBlocks(library=library)
    assert library.options == [(M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES)]
    library.options.clear()

    blocks.note_held(REUSED_BYTES)
    assert not library.options
    blocks.note_held(REUSED_BYTES + 1)
    blocks.note_held(4 * REUSED_BYTES)
    blocks.note_held(REUSED_BYTES // 2 + 1)
    assert library.options == [(M_MMAP_THRESHOLD, LARGE_BYTES)]
    blocks.note_held(REUSED_BYTES // 2)
    blocks.note_held(REUSED_BYTES)
    assert library.options == [(M_MMAP_THRESHOLD, LARGE_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES)]


def test_free_pages_go_back_once_when_a_flood_has_been_over_for_a_while() -> None:
    library, planned = FakeLibrary(), Planned()
    blocks = LargeBlocks(planned.call_later, library)

    blocks.note_held(REUSED_BYTES + 1)
    assert not planned.calls
    blocks.note_held(REUSED_BYTES // 2)
    blocks.note_held(0)
    assert ([seconds for seconds, _ in planned.calls.values()], library.returns) == ([QUIET_SECONDS], 0)
    planned.pass_time()
    assert library.returns == 1

    blocks.note_held(REUSED_BYTES)
    blocks.note_held(0)
    assert not planned.calls, "that was no flood"


def test_free_pages_stay_between_two_floods() -> None:
    library, planned = FakeLibrary(), Planned()
    blocks = LargeBlocks(planned.call_later, library)

    for _ in range(3):
        blocks.note_held(REUSED_BYTES + 1)
        assert not planned.calls
        blocks.note_held(0)
    planned.pass_time()

    assert library.returns == 1


def test_the_budget_tells_the_memory_held_after_each_change() -> None:
    told: list[int] = []
    budget = MemoryBudget(1_000, lambda: 0, told.append)

    class Holding:
        account = "a"

        def drop(self, text: str) -> None:
            """Nothing to free."""

    first, second = Holding(), Holding()
    budget.hold(first, 400)
    budget.hold(second, 300)
    budget.hold(first, 0)
    budget.hold(second, 2_000)

    assert told == [400, 700, 300, 0]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such option")
def test_the_memory_of_a_burst_goes_back_to_the_system() -> None:
    peak, kept = figures_of(BURST)

    assert peak > 190 << 20
    assert kept < 2 * REUSED_BYTES


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such function")
def test_the_memory_of_a_flood_of_small_reads_goes_back_to_the_system() -> None:
    """Small blocks behind the reads keep the heap from shrinking."""
    grown, kept = figures_of(FLOOD_OF_READS)

    assert grown > 2 * KEPT_BYTES
    assert kept < KEPT_BYTES


def figures_of(script: str) -> list[int]:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return [int(figure) for figure in run.stdout.split()]
