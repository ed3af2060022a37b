"""The cost of a seal with and without the side file and the actors, in turns: ``python -m cmqd_bench.sealing``.

A segment has messages that are sent, received and deleted; consumers delete in any order within a window of messages.
Each turn writes the segment twice and seals it with the steps of the broker, once with the side file and the table of
actors and once without. The garbage collector is off, as in the storage process.
The odd turns begin with the side file. Printed are CPU and time of both seals and the median of the ratios of the
turns.
"""

import argparse
import asyncio
import gc
import os
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import structs

from cmqd.log.values import Durability
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.segments.segment import WritableSegment, create_segment
from cmqd.storage.writing.sealer import copy_wal, cut_wal, finish_file, truncate_wal, write_tables
from cmqd.storage.writing.side_files import RowsRead, content_of, write_side
from cmqd_segment.manifest import SegmentEntry, SegmentState, SideEntry, SourceName
from cmqd_segment.records import AnyRecord, MessagesDeleted, MessagesReceived, MessagesSent, pack_runs
from cmqd_segment.rows import encode_queues, encode_records
from cmqd_types.actors import Actor
from cmqd_types.messages import Headers

ACTOR = Actor("account", "AKID0123456789", "worker of a host", "10.0.0.1")
NOW_MS = 1_700_000_000_000
ROW_RECORDS = 16


class Seal(NamedTuple):
    """The cost of a seal, in seconds."""

    cpu: float
    time: float


def rows(messages: int, queues: int, batch: int, body: int, window_size: int, *, headers: bool) -> Iterator[LogRow]:
    """Yield the rows of the segment: a record for each batch of messages of a queue, ``ROW_RECORDS`` records a row."""
    order = random.Random(1)
    records: list[tuple[AnyRecord, int]] = []
    each: list[Headers | None] = [{"kind": "order", "trace": "4bf92f3577b34da6a3ce929d0e0e4736"}]
    headers_of_all = batch * each if headers else None
    positions = [0] * queues
    lease = 1
    for number in range(0, messages, window_size):
        queue = number // window_size % queues
        first = positions[queue]
        positions[queue] += window_size
        client = [1 + queue]
        window = list(range(first, first + window_size))
        for start in range(first, first + window_size, batch):
            sizes = [body] * batch
            sent = MessagesSent(queue, start, number + start, NOW_MS, sizes, headers_of_all, actors=client)
            records.append((sent, batch * body))
        for start in range(first, first + window_size, batch):
            received = MessagesReceived(queue, [start, batch], lease + start - first, NOW_MS, NOW_MS + 30_000, client)
            records.append((received, 0))
        order.shuffle(window)
        for start in range(0, window_size, batch):
            deleted = pack_runs(sorted(window[start : start + batch]))
            leases = pack_runs(sorted(lease + position - first for position in window[start : start + batch]))
            records.append((MessagesDeleted(queue, deleted, leases, NOW_MS, client), 0))
        lease += window_size
    for lsn, start in enumerate(range(0, len(records), ROW_RECORDS), 1):
        row = records[start : start + ROW_RECORDS]
        stored: dict[int, tuple[int, int, int]] = {}
        for record, size in row:
            if isinstance(record, MessagesSent):
                low, _, before = stored.get(record.queue_id, (record.first_position, 0, 0))
                stored[record.queue_id] = low, record.first_position + len(record.sizes), before + size
        count = sum(stop - low for low, stop, _ in stored.values())
        summary = encode_queues([(number, *bounds) for number, bounds in stored.items()])
        data = bytes(sum(size for _, size in row))
        yield LogRow(lsn, NOW_MS, count, summary, encode_records([record for record, _ in row]), data)


async def filled(folder: Path, content: list[LogRow]) -> WritableSegment:
    """Write a segment that is to be sealed."""
    segment = await create_segment(1, folder / "00000001.db", Durability.OS, NOW_MS)
    for start in range(0, len(content), 64):
        segment.insert(content[start : start + 64])
        segment.committed(content[start : start + 64])
    return segment


async def seal(segment: WritableSegment, names: list[SourceName], *, has_side: bool) -> tuple[Seal, SegmentEntry]:
    """Seal a segment as the broker does when it is in a hurry."""

    read = RowsRead(segment.index.queues)

    def side(entry: SegmentEntry) -> SideEntry | None:
        return write_side(segment.path, entry, partial(content_of, read, names)) if has_side else None

    def read_rows() -> None:
        read.read(segment.connection.raw, segment.path.name, lambda _: False, lambda _: None)

    os.sync()
    began, cpu = time.perf_counter(), time.process_time()
    await segment.connection.run(copy_wal, segment)
    actors: list[tuple[int, Actor]] = []
    if has_side:
        await segment.connection.run(read_rows)
        actors = [(number, ACTOR) for number in read.named.actors]
    await segment.connection.run(write_tables, segment, names, actors)
    await segment.connection.run(cut_wal, segment, lambda: False)
    await segment.connection.run(truncate_wal, segment)
    await segment.close()
    entry = finish_file(segment.path, structs.replace(segment.entry(), state=SegmentState.SEALED), side)
    return Seal(time.process_time() - cpu, time.perf_counter() - began), entry


async def measure(arguments: argparse.Namespace) -> None:
    """Measure in turns and print the figures."""
    gc.disable()
    content = list(
        rows(
            arguments.messages,
            arguments.queues,
            arguments.batch,
            arguments.body,
            arguments.window,
            headers=arguments.headers,
        )
    )
    used = range(min(arguments.queues, -(-arguments.messages // arguments.window)))
    names = [SourceName(number, "account", f"queue-{number}") for number in used]
    seals: dict[bool, list[Seal]] = {False: [], True: []}
    sizes = ""
    for turn in range(arguments.turns):
        for has_side in (turn % 2 == 1, turn % 2 == 0):
            with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
                cost, entry = await seal(await filled(Path(folder), content), names, has_side=has_side)
            seals[has_side].append(cost)
            if entry.side is not None:
                share = entry.side.bytes / entry.bytes
                sizes = f"segment {entry.bytes:,} bytes, side file {entry.side.bytes:,} ({share:.2%})"
    print(sizes)
    for place, name in enumerate(Seal._fields):
        without, with_side = ([cost[place] for cost in seals[key]] for key in (False, True))
        ratios = sorted(after / before for before, after in zip(without, with_side, strict=True))
        print(
            f"{name}: {1000 * median(without):.1f} ms without, {1000 * median(with_side):.1f} ms with;"
            f" ratio {median(ratios):.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=73_000)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--batch", type=int, default=20, help="messages a record")
    parser.add_argument("--body", type=int, default=256)
    parser.add_argument("--window", type=int, default=1_000, help="messages that are deleted in any order")
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--scratch", type=Path)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
