"""Where large blocks come from, and the memory that a process keeps after a burst of them."""

import platform
import subprocess
import sys

import pytest

from cmqd.allocator import (
    KEPT_BYTES,
    LARGE_BYTES,
    LARGEST_BYTES,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    REUSED_BYTES,
    LargeBlocks,
)
from cmqd.server.memory_budget import MemoryBudget

BURST = """
import os
from cmqd.allocator import LargeBlocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

large = LargeBlocks()
held, small = [], []
before = resident()
for number in range(200):
    held.append(b"x" * (1 << 20))
    # Lives on behind the block, and so keeps the end of the heap where it is.
    small.append(b"y" * 2048)
    {note}
peak = resident() - before
held.clear()
print(peak, resident() - before)
"""


def test_large_blocks_come_from_the_system_while_much_is_held() -> None:
    options: list[tuple[int, int]] = []
    blocks = LargeBlocks(lambda option, value: options.append((option, value)))
    assert options == [(M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES)]
    options.clear()

    blocks.note_held(REUSED_BYTES)
    assert not options
    blocks.note_held(REUSED_BYTES + 1)
    blocks.note_held(4 * REUSED_BYTES)
    blocks.note_held(REUSED_BYTES // 2 + 1)
    assert options == [(M_MMAP_THRESHOLD, LARGE_BYTES)]
    blocks.note_held(REUSED_BYTES // 2)
    blocks.note_held(REUSED_BYTES)
    assert options == [(M_MMAP_THRESHOLD, LARGE_BYTES), (M_MMAP_THRESHOLD, LARGEST_BYTES)]


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
    script = BURST.format(note="large.note_held(len(held) << 20)")

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    peak, kept = map(int, run.stdout.split())
    assert peak > 190 << 20
    assert kept < 2 * REUSED_BYTES
