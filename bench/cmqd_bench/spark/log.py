"""The measured log: written by the real storage, like the log of a broker.

A row has 256 messages of a queue; fifty queues take turns. The log covers fifty hours in some twenty segments.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from cmqd.log.values import Durability
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_settings import StorageSettings
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader, QueueSlice
from cmqd_segment.manifest import SegmentEntry, SegmentState, read_manifest
from cmqd_segment.records import MessagesSent, QueueCreated
from cmqd_types.attributes import QueueAttributes

QUEUES = 50
HOURS = 50
BATCH = 256
SEGMENTS = 22
"""Slightly more than the required twenty."""
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
AHEAD_ROWS = 64
WORDS = [f"word{number:03d} " for number in range(1000)]


def sealed(folder: Path) -> list[SegmentEntry]:
    """Return the sealed segments of a data folder."""
    return [entry for entry in read_manifest(folder).segments if entry.state is SegmentState.SEALED]


async def write_log(folder: Path, messages: int, body: int) -> None:
    """Write sealed segments with ``messages`` messages."""
    settings = replace(
        StorageSettings.of(Settings(data=folder, durability=Durability.OS)),
        segment_bytes=max(2 * messages * (body + 8) // SEGMENTS, 1 << 16),
        hold_retired=False,
    )
    log = StorageProcessLog(settings)
    durable, kept = asyncio.Event(), asyncio.Event()

    def on_durable(lsn: int) -> None:
        durable.set()
        log.flush()

    log.on_durable = on_durable
    log.on_page = lambda read_id, found, missing: None
    log.on_fatal = lambda error: sys.exit(str(error))
    log.on_state = lambda state: None
    log.on_checkpoint_done = lambda lsn: kept.set()
    log.on_checkpoint_wanted = lambda: None
    await log.open()
    async for _ in log.recover():
        pass
    created = [
        QueueCreated(number + 1, "bench", _name(number), QueueAttributes(), START_MS) for number in range(QUEUES)
    ]
    log.append(created, [], START_MS)
    choose = random.Random(1)
    text = "".join(choose.choices(WORDS, k=20_000)).encode()
    positions = [0] * QUEUES
    rows = -(-messages // BATCH)
    sizes = [body] * BATCH
    for row in range(rows):
        queue = row % QUEUES
        count = min(BATCH, messages - row * BATCH)
        bodies = [text[at : at + body] for at in (choose.randrange(len(text) - body) for _ in range(count))]
        at_ms = START_MS + row * HOURS * HOUR_MS // rows
        first = row * BATCH + 1
        log.append([MessagesSent(queue + 1, positions[queue], first, at_ms, sizes[:count])], bodies, at_ms)
        positions[queue] += count
        log.flush()
        while log.last_lsn - log.durable_lsn > AHEAD_ROWS:
            durable.clear()
            await durable.wait()
        if row % (-(-rows // SEGMENTS)) == 0 and row:
            # By rows and not by size: a busy machine is late with a new segment, and the old segment grows.
            await log.seal_now()
    while log.durable_lsn < log.last_lsn:
        durable.clear()
        await durable.wait()
    # A broker leaves a checkpoint with the names of its queues; without a checkpoint a reader scans all rows for names.
    for part in checkpoint(log.last_lsn, positions):
        log.write_checkpoint(part)
    await kept.wait()
    await log.close()


def checkpoint(lsn: int, positions: Sequence[int]) -> Sequence[AnyPart]:
    """Return the parts of a checkpoint with the queues, and with no facts about messages that the reading of events
    does not need."""
    slices = [
        QueueSlice(
            lsn=lsn,
            queue_id=number + 1,
            account="bench",
            name=_name(number),
            attributes=QueueAttributes(),
            created_ms=START_MS,
            modified_ms=START_MS,
            next_position=position,
            floor=0,
            last_enqueue_ms=0,
            live=b"",
            active=b"",
            overflow=b"",
            delayed=b"",
            delays=[],
            step_positions=b"",
            step_starts=b"",
            step_ends=b"",
        )
        for number, position in enumerate(positions)
    ]
    return CheckpointHeader(lsn, START_MS, 1, 1, 1), *slices, CheckpointEnd(lsn, 1 + len(slices))


def _name(number: int) -> str:
    return f"queue-{number:02d}"
