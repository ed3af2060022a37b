"""The time of histories by id in a large log, from files and through the storage process.

``python -m cmqd_bench.histories`` writes a log by the storage of a broker: queues with sends, receives and deletes. A
third of the queues deletes a message soon, a third a segment later, and a third receives a segment later and deletes
two segments later. Then the histories of random messages are read, of the sealed segments and of the rows that are not
sealed yet. The log is deleted at the end.

The storage process is asked for rows of the catalog all the time: its answer waits while the loop of the process is
held.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from cmqd.log.values import Durability
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.storage_settings import StorageSettings
from cmqd_bench.machine.conditions import conditions, scratch_root
from cmqd_bench.machine.processes import cpu_seconds
from cmqd_log.data_folder.histories import HistoryReader
from cmqd_segment.manifest import SegmentEntry, SegmentState, read_manifest
from cmqd_segment.records import AnyRecord, MessagesDeleted, MessagesReceived, MessagesSent, QueueCreated
from cmqd_types.attributes import QueueAttributes

QUEUES = 9
BATCH = 20
START_MS = 1_700_000_000_000
AHEAD_ROWS = 256
SOON = QUEUES
"""Rows between a send and its receive or delete, if these follow soon."""


class Written(NamedTuple):
    """The log: each row from the second on has a batch of messages of a queue."""

    rows: int
    segment_rows: int
    body: int

    def lags(self, batch: int) -> tuple[int, int]:
        """Return the rows from the send of a batch to its receive and to its delete."""
        segment = self.segment_rows - self.segment_rows % QUEUES
        return ((SOON, 2 * SOON), (SOON, segment), (segment, 2 * segment))[batch % QUEUES % 3]

    def lsns(self, batch: int) -> tuple[int, int, int]:
        """Return the rows of send, receive and delete of a batch; those behind the end do not exist."""
        receive, delete = self.lags(batch)
        return batch + 2, batch + 2 + receive, batch + 2 + delete

    def records(self, batch: int) -> list[AnyRecord]:
        """Return the records of a row: a send, and the receives and deletes that are due."""
        now_ms = START_MS + batch
        queue = batch % QUEUES + 1
        sizes = [self.body] * BATCH
        found: list[AnyRecord] = [MessagesSent(queue, _position(batch), 1 + batch * BATCH, now_ms, sizes)]
        receive, delete = self.lags(batch)
        if batch >= receive:
            positions = [_position(batch - receive), BATCH]
            found.append(MessagesReceived(queue, positions, 1 + batch * BATCH, now_ms, now_ms + 3_600_000))
        if batch >= delete:
            lease = 1 + (batch - delete + receive) * BATCH
            found.append(MessagesDeleted(queue, [_position(batch - delete), BATCH], [lease, BATCH], now_ms))
        return found


def _position(batch: int) -> int:
    return batch // QUEUES * BATCH


class Log:
    """A log with its storage process."""

    def __init__(self, folder: Path) -> None:
        settings = StorageSettings.of(Settings(data=folder, durability=Durability.OS, min_free_bytes=1 << 30))
        # Sealed when this program says so.
        self.log = StorageProcessLog(replace(settings, segment_bytes=1 << 32, hold_retired=False))
        self._changed = asyncio.Event()
        self.log.on_durable = self._on_durable
        self.log.on_page = lambda read_id, found, missing: None
        self.log.on_fatal = lambda error: sys.exit(str(error))
        self.log.on_state = lambda state: None
        self.log.on_checkpoint_done = lambda lsn: None
        self.log.on_checkpoint_wanted = lambda: None

    def _on_durable(self, lsn: int) -> None:
        self._changed.set()
        self.log.flush()

    async def open(self) -> None:
        """Start the storage process."""
        await self.log.open()
        async for _ in self.log.recover():
            pass

    async def until_behind(self, rows: int) -> None:
        """Wait until at most so many rows are not durable."""
        self.log.flush()
        while self.log.last_lsn - self.log.durable_lsn > rows:
            self._changed.clear()
            await self._changed.wait()

    async def write(self, written: Written, unsealed: int) -> None:
        """Write the rows, and seal all but the last ones."""
        log = self.log
        log.append(
            [QueueCreated(n + 1, "bench", f"queue-{n}", QueueAttributes(), START_MS) for n in range(QUEUES)],
            [],
            START_MS,
        )
        log.close_row()
        bodies = [random.Random(1).randbytes(written.body)] * BATCH
        sealed_rows = written.rows - unsealed
        for batch in range(written.rows - 1):
            log.append(written.records(batch), bodies, START_MS + batch)
            log.close_row()
            if batch % 16 == 0:
                await self.until_behind(AHEAD_ROWS)
            lsn = batch + 2
            if lsn == sealed_rows or (lsn < sealed_rows and lsn % written.segment_rows == 0):
                await self.until_behind(0)
                await log.seal_now()
        await self.until_behind(0)


def sample(written: Written, sealed: list[SegmentEntry], count: int, choose: random.Random) -> dict[str, list[int]]:
    """Return ids of messages by the number of segments that name them, and of messages in unsealed rows."""
    lasts = [entry.last_lsn for entry in sealed]
    upto = lasts[-1]
    kinds = ("one segment", "two segments", "three segments")
    chosen: dict[str, list[int]] = {kind: [] for kind in kinds}
    while any(len(ids) < count for ids in chosen.values()):
        batch = choose.randrange(upto - 1)
        lsns = written.lsns(batch)
        if lsns[-1] <= upto:
            segments = {sum(last < lsn for last in lasts) for lsn in lsns}
            ids = chosen[kinds[len(segments) - 1]]
            if len(ids) < count:
                ids.append(1 + batch * BATCH + choose.randrange(BATCH))
    chosen["rows that are not sealed"] = [1 + choose.randrange(upto, written.rows - 1) * BATCH for _ in range(count)]
    return chosen


def told(times: list[float]) -> str:
    """Return p50 and the longest of times in milliseconds."""
    return f"p50 {1000 * median(times):.1f} ms, max {1000 * max(times):.1f} ms"


async def over_the_wire(log: StorageProcessLog, ids: list[int], name: str) -> None:
    """Read histories through the storage process."""
    assert log.process_id is not None
    times: list[float] = []
    holds: list[float] = []
    is_over = False

    async def ping() -> None:
        while not is_over:
            began = time.perf_counter()
            await log.find_rows(1, 0)
            holds.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)

    for pinging in (False, True):
        pinger = asyncio.create_task(ping()) if pinging else None
        cpu = cpu_seconds([log.process_id])
        times.clear()
        for message_id in ids:
            began = time.perf_counter()
            answer = await log.read_history(message_id)
            times.append(time.perf_counter() - began)
            assert answer.history is not None, message_id
        cpu = (cpu_seconds([log.process_id]) - cpu) / len(ids)
        if pinger is None:
            print(f"storage process, {name}: first {1000 * times[0]:.1f} ms, {told(times)}; CPU {1000 * cpu:.1f} ms")
        else:
            is_over = True
            await pinger
            print(f"  meanwhile other questions to that process: {told(holds)} ({len(holds)})")


def from_files(folder: Path, ids: list[int], name: str) -> None:
    """Read histories from the files, each with a reader of its own and, in the second run, with a common one."""
    times: list[float] = []
    opened: list[int] = []
    for message_id in ids:
        began = time.perf_counter()
        reader = HistoryReader(str(folder))
        reader.history(message_id)
        times.append(time.perf_counter() - began)
        opened.append(reader.opened)
    print(f"files, {name}, a reader for each: {told(times)}; segments opened {min(opened)} to {max(opened)}")
    times.clear()
    reader = HistoryReader(str(folder))
    for message_id in ids:
        began = time.perf_counter()
        reader.history(message_id)
        times.append(time.perf_counter() - began)
    print(f"files, {name}, one reader: {told(times)}")


async def measure(arguments: argparse.Namespace) -> None:
    """Write the log, read histories, and delete the log."""
    root = scratch_root(arguments.scratch)
    segments = arguments.segments
    row_bytes = BATCH * (arguments.body + 6)
    sealed_rows = int(arguments.gigabytes * 1e9) // row_bytes
    segment_rows = sealed_rows // segments
    written = Written(segments * segment_rows + arguments.unsealed, segment_rows, arguments.body)
    if shutil.disk_usage(root).free < 1.5e9 * arguments.gigabytes:
        sys.exit(f"{root} has too little room")
    folder = Path(tempfile.mkdtemp(dir=root, prefix="cmqd-histories-"))
    print(json.dumps(conditions(root)))
    log = Log(folder / "data")
    try:
        await log.open()
        began = time.perf_counter()
        await log.write(written, arguments.unsealed)
        sealed = [entry for entry in read_manifest(folder / "data").segments if entry.state is SegmentState.SEALED]
        side_bytes = [entry.side.bytes for entry in sealed if entry.side is not None]
        print(
            f"{sum(entry.bytes for entry in sealed) / 1e9:.2f} GB in {len(sealed)} sealed segments of"
            f" {segment_rows:,} rows, side files of {median(side_bytes):,.0f} bytes; {arguments.unsealed:,} rows not"
            f" sealed; {BATCH * (written.rows - 1):,} messages of {arguments.body:,} bytes in {QUEUES} queues;"
            f" written in {time.perf_counter() - began:.0f} s"
        )
        chosen = sample(written, sealed, arguments.ids, random.Random(2))
        for name, ids in chosen.items():
            await over_the_wire(log.log, ids, name)
        for name, ids in chosen.items():
            await asyncio.to_thread(from_files, folder / "data", ids, name)
    finally:
        await log.log.kill()
        shutil.rmtree(folder)


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--segments", type=int, default=150)
    parser.add_argument("--unsealed", type=int, default=1_000, help="rows that are not sealed")
    parser.add_argument("--body", type=int, default=1_024)
    parser.add_argument("--ids", type=int, default=50, help="messages of each kind")
    parser.add_argument("--scratch", type=Path)
    arguments = parser.parse_args()
    if arguments.segments < 5:
        # In fewer segments no message is in three of them, and the choice of messages would not end.
        parser.error("--segments is at least 5")
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
