"""The latency of the disk alone at the pace of a scenario: the lower bound for a durable message."""

import os
import time
from pathlib import Path

from cmqd_load.histogram import Histogram

FILE_BYTES = 64 * 1024 * 1024
WRITE_BYTES = 12 * 1024
"""Bytes that a commit of one small message writes, roughly."""
RATE = 1_000
"""Syncs a second: a wake-up of ``idle`` costs two commits, at 500 wake-ups a second."""
SECONDS = 3.0


def sync_floor_ms(folder: Path, *, syncs: int = int(RATE * SECONDS)) -> dict[str, float]:
    """Return percentiles, in milliseconds, of small writes with fdatasync in ``folder``, in an open loop at ``RATE``.

    Blocks for about ``syncs / RATE`` seconds; to be called while no server runs. A stall counts for every write
    that was due meanwhile, as in the scenarios.
    """
    histogram = Histogram()
    path = folder / "floor.bin"
    block = b"\0" * WRITE_BYTES
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # Allocated beforehand: a sync of a growing file also writes metadata.
        os.pwrite(descriptor, b"\0" * FILE_BYTES, 0)
        os.fsync(descriptor)
        started = time.monotonic()
        for number in range(syncs):
            due = started + number / RATE
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            os.pwrite(descriptor, block, number * WRITE_BYTES % (FILE_BYTES - WRITE_BYTES))
            os.fdatasync(descriptor)
            histogram.record(int((time.monotonic() - due) * 1_000_000))
    finally:
        os.close(descriptor)
        path.unlink()
    return {f"p{percent:g}".replace(".", ""): histogram.percentile(percent) / 1000 for percent in (50, 99, 99.9)}


def longest_sync_ms(folder: Path, seconds: float) -> float:
    """Return the longest of 50 small writes with fdatasync a second, in milliseconds; blocks for ``seconds``.

    For a thread beside a running server: measures stalls of the disk, which affect every process.
    """
    longest = 0.0
    path = folder / "sync.bin"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for _ in range(int(seconds * 50)):
            begin = time.monotonic()
            os.pwrite(descriptor, bytes(WRITE_BYTES), 0)
            os.fdatasync(descriptor)
            duration = time.monotonic() - begin
            longest = max(longest, duration)
            time.sleep(max(0.0, 0.02 - duration))
    finally:
        os.close(descriptor)
        path.unlink()
    return longest * 1000
