"""Power failures around a WAL that is filled with zeros ahead: the fill, the switch to the segment, and its commits.

``make test`` takes every third moment in the life of a whole broker, and ``make test-all`` all moments: it sets
``CMQD_POWER_FAILURES``.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.writing.wal_filling import CHUNK_BYTES
from cmqd_segment.manifest import MANIFEST_NAME, read_manifest
from cmqd_segment.scan import verify_side
from support.crash.load_topics import PUSH_FLAGS, Endpoints
from support.crash.power import SEED, traced_life
from support.crash.traces.disk import Unsynced, disk_after
from support.crash.traces.trace import (
    AnyEvent,
    FolderSynced,
    Removed,
    Renamed,
    Resized,
    Synced,
    SyncStarted,
    Written,
    read_trace,
)
from support.crash.traces.tracing import start_traced
from support.storage.damage import in_another_boot
from support.storage.log_rig import InProcess, LogRig, settings_for
from support.storage.wals import FRAME_BYTES, HEADER_BYTES

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

FILLED_BYTES = 4 << 20
"""Size of a segment, and so of a fill. No WAL that was not filled has exactly this size."""
USED_FRAMES = 60
"""Frames in a filled WAL after which a life may end."""
STEP = 1 if "CMQD_POWER_FAILURES" in os.environ else 3
"""``make test`` has every third power failure, from a first by chance; ``make test-all`` has all."""
FLAGS = ("--segment-bytes", str(FILLED_BYTES), *PUSH_FLAGS)


def is_filled_and_used(folder: Path) -> bool:
    """Return whether some commits have gone into a WAL that was filled ahead."""
    for wal in (folder / "data" / "segments").glob("*-wal"):
        try:
            with wal.open("rb") as file:
                if wal.stat().st_size == FILLED_BYTES:
                    file.seek(HEADER_BYTES + USED_FRAMES * FRAME_BYTES)
                    if any(file.read(HEADER_BYTES)):
                        return True
        except FileNotFoundError:
            continue
    return False


def cuts_around_fills(events: Sequence[AnyEvent], chance: random.Random) -> list[int]:
    """Choose moments: in a fill, between the fill and its manifest, and in each of the first commits in its place."""
    fill = next(at for at, event in enumerate(events) if isinstance(event, Written) and event.zeros == CHUNK_BYTES)
    written = events[fill]
    assert isinstance(written, Written)
    wal = written.file
    commits = [
        at
        for at, event in enumerate(events)
        if at > fill and isinstance(event, Written) and event.file == wal and not event.zeros
    ]
    synced = [
        at for at, event in enumerate(events) if at > commits[0] and isinstance(event, Synced) and event.file == wal
    ]
    steps = [
        at
        for at in range(fill, commits[0])
        if isinstance(events[at], SyncStarted | Synced | FolderSynced)
        or (isinstance(event := events[at], Renamed) and event.new_path == MANIFEST_NAME)
    ]
    # The header of the WAL alone, any part of the first commits, and a moment after one of their syncs.
    return [
        fill,
        chance.choice(steps) + 1,
        commits[0] + 1,
        chance.choice(commits[1:40]) + 1,
        chance.choice(synced[:20]) + 1,
    ]


async def test_answered_messages_survive_a_power_failure_at_every_step_of_a_fill(
    tmp_path: Path, endpoints: Endpoints
) -> None:
    folder = tmp_path / "life"
    life = await traced_life(folder, endpoints, FLAGS, until=lambda: is_filled_and_used(folder))
    kinds = (Unsynced.SCRAMBLED, Unsynced.DROPPED, Unsynced.SCRAMBLED, Unsynced.KEPT)
    cuts = cuts_around_fills(life.events, life.chance)
    for number, cut in enumerate(cuts[life.chance.randrange(STEP) :: STEP]):
        unsynced = kinds[number % len(kinds)]

        violations = await life.violations(tmp_path / f"rebuilt-{number}", cut, unsynced)

        told = "\n".join(map(str, violations[:20]))
        assert not violations, f"seed {SEED}, cut {cut} of {len(life.events)}, {unsynced}\n{told}"


WRITER = """
import asyncio, os, sys, time
from pathlib import Path
from support.storage.log_rig import LogRig, ProcessPlace

FILLED_BYTES = 2 << 20
folder = Path("data")

def is_filled_and_used():
    for wal in (folder / "segments").glob("*-wal"):
        try:
            if wal.stat().st_size == FILLED_BYTES and any(wal.read_bytes()[:32]):
                return True
        except FileNotFoundError:
            continue  # sealed meanwhile
    return False

async def work():
    rig = LogRig(ProcessPlace(folder, segment_bytes=FILLED_BYTES, state_interval_ms=20).log())
    await rig.open()
    async def store():
        lsn = await rig.store(1, rig.log.last_lsn, 1)
        print(lsn, time.monotonic_ns(), flush=True)
    while not is_filled_and_used():
        await store()
    for _ in range(5):
        await store()
    await rig.log.seal_now()
    for _ in range(3):
        await store()
    os._exit(0)

asyncio.run(work())
"""
"""Single messages until a filled segment is in use, then a seal; tells when each row had been durable."""
STEPS = (Renamed, Removed, Resized, FolderSynced)
"""Changes of names and lengths: the steps of preparing, switching and sealing."""


async def test_rows_survive_a_power_failure_at_every_step_of_preparing_switching_and_sealing(tmp_path: Path) -> None:
    (tmp_path / "life").mkdir()
    traced = start_traced(
        ["/usr/bin/env", "-C", str(tmp_path / "life"), sys.executable, "-c", WRITER],
        folder=tmp_path / "life",
        trace_file=tmp_path / "trace",
        stdout=subprocess.PIPE,
    )
    output, _ = traced.communicate()
    assert traced.returncode == 0
    durable_at = [int(line.split()[1]) for line in output.splitlines()]
    events = read_trace(tmp_path / "trace")
    chance = random.Random(SEED)
    # From the last rows before the first fill: after every step, before and after zeros, and in commits by chance.
    begin = (
        next(at for at, event in enumerate(events) if isinstance(event, Written) and event.zeros == CHUNK_BYTES) - 40
    )
    steps = {at + 1 for at in range(begin, len(events)) if isinstance(events[at], STEPS)}
    zeros = [at for at, event in enumerate(events) if isinstance(event, Written) and event.zeros == CHUNK_BYTES]
    others = [at for at in range(begin, len(events)) if at not in steps]
    cuts = sorted(steps.union(zeros, chance.sample(others, 10)))
    for cut in cuts[chance.randrange(STEP) :: STEP]:
        # A disk that keeps all is that of a kill -9, at each step of ``tests/storage/writing/test_wal_filling.py``.
        for unsynced in (Unsynced.SCRAMBLED, Unsynced.DROPPED):
            rebuilt = tmp_path / "rebuilt"
            disk_after(events[:cut], unsynced, chance).write_to(rebuilt)
            in_another_boot(rebuilt / "data")
            durable = sum(at_ns <= events[cut - 1].at_ns for at_ns in durable_at)
            case = f"seed {SEED}, cut {cut} of {len(events)}, {unsynced}"
            listed = [entry for entry in read_manifest(rebuilt / "data").segments if entry.side is not None]
            assert not any(verify_side(rebuilt / "data", entry) for entry in listed), case
            process = InProcess()
            log = StorageProcessLog(settings_for(rebuilt / "data"), process.start)
            rig = LogRig(log)

            report = await rig.open()

            assert not report.numbers_jump, case
            rows = [lsn for lsn, _, _ in rig.rows]
            assert rows == list(range(1, len(rows) + 1)), case
            assert len(rows) >= durable, case
            await log.kill()
            assert process.task is not None
            await process.task
            shutil.rmtree(rebuilt)
