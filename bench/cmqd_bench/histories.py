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
from collections.abc import Iterator
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
from cmqd_segment.manifest import SegmentEntry, SegmentState, read_manifest
from cmqd_segment.records import AnyRecord, MessagesDeleted, MessagesReceived, MessagesSent, QueueCreated
from cmqd_types.attributes import QueueAttributes
from pyspark_cmqd.data_folder.histories import HistoryReader

QUEUES = 9
BATCH = 20
START_MS = 1_700_000_000_000
AHEAD_ROWS = 256
SOON = QUEUES
"""Rows between a send and its receive or delete, if these follow soon."""


class Sent(NamedTuple):
    """A batch of messages."""

    first_id: int
    lsns: tuple[int, int, int]
    """Rows of send, receive and delete; rows behind the end of the log do not exist."""


class Written(NamedTuple):
    """The log: each row from the second on has a batch."""

    rows: int
    segment_rows: int

    def lsns(self, batch: int) -> tuple[int, int, int]:
        """Return the rows of send, receive and delete of a batch."""
        sent = batch + 2
        soon, segment = SOON, self.segment_rows - self.segment_rows % QUEUES
        receive, delete = ((soon, 2 * soon), (soon, segment), (segment, 2 * segment))[batch % QUEUES % 3]
        return sent, sent + receive, sent + delete

    def records(self, batch: int) -> list[AnyRecord]:
        """Return the records of a row: a send, and the receives and deletes that are due."""
        now_ms = START_MS + batch
        queue, first = batch % QUEUES, batch // QUEUES * BATCH
        found: list[AnyRecord] = [MessagesSent(queue + 1, first, 1 + batch * BATCH, now_ms, self.sizes)]
        _, receive, delete = (lsn - batch - 2 for lsn in self.lsns(batch))
        if batch >= receive:
            earlier = batch - receive
            runs = [earlier // QUEUES * BATCH, BATCH]
            found.append(MessagesReceived(queue + 1, runs, 1 + batch * BATCH, now_ms, now_ms + 3_600_000))
        if batch >= delete:
            earlier = batch - delete
            lease = 1 + (earlier + receive) * BATCH
            found.append(MessagesDeleted(queue + 1, [earlier // QUEUES * BATCH, BATCH], [lease, BATCH], now_ms))
        return found

    sizes: list[int] = []


def batches(written: Written) -> Iterator[int]:
    """Yield the number of each batch."""
    return iter(range(written.rows - 1))


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

    async def write(self, written: Written, body: int, unsealed: int) -> None:
        """Write the rows, and seal all but the last ones."""
        log = self.log
        log.append(
            [QueueCreated(n + 1, "bench", f"queue-{n}", QueueAttributes(), START_MS) for n in range(QUEUES)],
            [],
            START_MS,
        )
        log.close_row()
        bodies = [random.Random(1).randbytes(body)] * BATCH
        for batch in batches(written):
            log.append(written.records(batch), bodies, START_MS + batch)
            log.close_row()
            if batch % 16 == 0:
                await self.until_behind(AHEAD_ROWS)
            is_end = batch + 2 == written.rows - unsealed
            if is_end or ((batch + 2) % written.segment_rows == 0 and batch + 2 < written.rows - unsealed):
                await self.until_behind(0)
                await log.seal_now()
        await self.until_behind(0)


def sample(written: Written, sealed: list[SegmentEntry], count: int, choose: random.Random) -> dict[str, list[int]]:
    """Return ids of messages by the number of segments that name them, and of messages in unsealed rows."""
    lasts = [entry.last_lsn for entry in sealed]
    chosen: dict[str, list[int]] = {name: [] for name in ("one segment", "two segments", "three segments", "unsealed")}
    names = list(chosen)
    while any(len(ids) < count for ids in chosen.values()):
        is_new = len(chosen["unsealed"]) < count
        batch = choose.randrange(lasts[-1] - 1 if is_new else 0, written.rows - 1) if is_new else None
        if batch is None:
            batch = choose.randrange(lasts[-1] - 1)
        lsns = written.lsns(batch)
        message_id = 1 + batch * BATCH + choose.randrange(BATCH)
        if lsns[0] > lasts[-1]:
            chosen["unsealed"].append(message_id)
        elif lsns[-1] <= lasts[-1]:
            segments = {sum(last < lsn for last in lasts) for lsn in lsns}
            if len(chosen[names[len(segments) - 1]]) < count:
                chosen[names[len(segments) - 1]].append(message_id)
    return chosen


def told(times: list[float]) -> str:
    """Return p50 and the longest of times in milliseconds."""
    return f"p50 {1000 * median(times):.1f} ms, max {1000 * max(times):.1f} ms"


async def over_the_wire(log: StorageProcessLog, ids: list[int], name: str) -> None:
    """Read histories through the storage process."""
    assert log.process_id is not None
    times: list[float] = []
    holds: list[float] = []
    sleeps: list[float] = []
    is_over = False

    async def ping() -> None:
        while not is_over:
            began = time.perf_counter()
            await log.find_rows(1, 0)
            holds.append(time.perf_counter() - began)
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            sleeps.append(time.perf_counter() - began - 0.001)

    for pinging in (False, True):
        pinger = asyncio.create_task(ping()) if pinging else None
        cpu = cpu_seconds([log.process_id])
        times.clear()
        for message_id in ids:
            began = time.perf_counter()
            answer = await log.read_history(message_id)
            times.append(time.perf_counter() - began)
            assert answer.history is not None and answer.history.events, message_id
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
    written = Written(segments * segment_rows + arguments.unsealed, segment_rows, [arguments.body] * BATCH)
    folder = Path(tempfile.mkdtemp(dir=root, prefix="cmqd-histories-"))
    if shutil.disk_usage(root).free < 1.5e9 * arguments.gigabytes:
        sys.exit(f"{root} has too little room")
    print(json.dumps(conditions(root)))
    log = Log(folder / "data")
    try:
        await log.open()
        began = time.perf_counter()
        await log.write(written, arguments.body, arguments.unsealed)
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
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
