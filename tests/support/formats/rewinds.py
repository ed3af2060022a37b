"""Folders with rewinds and changed windows, from before the records carried the rewind floor.

``python -m support.formats.rewinds TARGET`` (from ``tests/``) wrote ``rewinds-2.tar.xz`` once, with the code before
``QueueRewound`` and ``QueueAttributesSet`` got their field ``rewind_floor``. The archive holds a data folder per
content below, and in ``expected.json`` the positions by state that the broker's index and the Spark connector had after
each record of these kinds. Code that writes the field cannot make the archive again.
"""

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cmqd.core.broker import Broker
from cmqd_fold.time_steps import MAX_STEPS
from cmqd_reading.log_fold import LogFold
from cmqd_segment.manifest import read_manifest
from cmqd_segment.records import AnyRecord, QueueAttributesSet, QueueRewound, pack_runs
from cmqd_segment.scan import readable_segments, scan_segment
from support.core.builders import KEY, START_MS, Rig
from support.core.busy_rig import busy_rig
from support.core.rewinds import consume
from support.spark.log_folder import Row, rows_of, write_folder

ARCHIVE = Path(__file__).parents[2] / "formats" / "rewinds-2.tar.xz"
SECONDS = 1000
MINUTES = 60 * SECONDS
RECORDS_A_ROW = 400


def many_steps() -> Rig:
    """More time steps than a queue keeps, so that neighbours were merged; then shorter and longer windows."""
    rig = Rig()
    rig.create(rewind_ms=60 * MINUTES)
    for number in range(MAX_STEPS + 300):
        rig.send(b"x")
        rig.now_ms += 101 + number % 7
    consume_all(rig)
    rig.rewind(rig.now_ms - 2 * MINUTES)
    consume_all(rig)
    for window_ms in (20 * MINUTES, 15 * MINUTES + 77, 60 * MINUTES):
        rig.set(rewind_ms=window_ms)
        rig.now_ms += 33 * SECONDS
    assert rig.rewind(rig.now_ms - 18 * MINUTES).messages
    consume_all(rig)
    rig.send(*[b"y"] * 100)
    rig.set(retention_ms=10 * MINUTES, rewind_ms=10 * MINUTES)
    rig.set(rewind_ms=0)
    consume(rig, 48)
    rig.set(rewind_ms=30 * MINUTES, retention_ms=4 * 24 * 60 * MINUTES)
    consume_all(rig)
    assert rig.rewind(rig.now_ms - 9 * MINUTES).messages == 52
    return rig


def consume_all(rig: Rig) -> None:
    consume(rig, rig.queue().index.active_count)


def stepped_clock() -> Rig:
    """Broker time steps back between the sends and the changes of the window."""
    ahead = Rig()
    ahead.now_ms += 365 * 24 * 60 * MINUTES
    ahead.create(rewind_ms=120 * MINUTES)
    for _ in range(5):
        ahead.send(b"1", b"2")
        ahead.now_ms += 20 * SECONDS
    consume(ahead, 8)
    rig = ahead.crash(step_to_ms=START_MS)
    rig.settle(10 * MINUTES)
    rig.send(b"3", b"4")
    consume(rig, 2)
    rig.rewind(rig.now_ms - MINUTES)
    rig.settle(30 * MINUTES)
    rig.set(rewind_ms=35 * MINUTES)
    rig.set(rewind_ms=120 * MINUTES)
    rig.rewind(rig.now_ms - 60 * MINUTES)
    return rig


def contents() -> Iterator[tuple[str, Rig]]:
    yield "many-steps", many_steps()
    yield "stepped-clock", stepped_clock()
    for seed in (1, 2, 3):
        yield f"busy-{seed}", busy_rig(seed, 500)[0]


def fewer_rows(rows: list[Row]) -> list[Row]:
    """The same records in fewer rows; each row ends with a record that drops rewindable messages."""
    joined: list[Row] = []
    records: list[AnyRecord] = []
    bodies: list[bytes] = []
    time_ms = 0
    for some, their_bodies, time_ms in rows:
        records += some
        bodies += their_bodies
        if len(records) > RECORDS_A_ROW or any(map(lets_go, some)):
            joined.append((records, bodies, time_ms))
            records, bodies = [], []
    return [*joined, (records, bodies, time_ms)] if records else joined


def lets_go(record: AnyRecord) -> bool:
    return isinstance(record, QueueRewound | QueueAttributesSet)


def rows_in(folder: Path) -> Iterator[tuple[int, list[AnyRecord]]]:
    """LSN and records of all rows of a folder."""
    manifest = read_manifest(folder)
    for entry in readable_segments(manifest):
        for row in scan_segment(folder / entry.file, sealed=entry.state == "sealed", bodies=False):
            yield row.lsn, row.records


def states_in(folder: Path) -> list[Any]:
    """The positions of each queue by state after each row with a rewind or changed attributes, and at the end.

    Both folds are asked: the broker's index, and the Spark connector.
    """
    broker, fold = Broker(KEY), LogFold()
    told: list[Any] = []
    lsn = 0
    for lsn, records in rows_in(folder):
        for record in records:
            broker.replay(record, lsn)
        fold.apply(lsn, records)
        touched = {record.queue_id for record in records if isinstance(record, QueueRewound | QueueAttributesSet)}
        if touched:
            told.append([lsn, *(told_of(broker, fold, queue_id) for queue_id in sorted(touched))])
    told.append([lsn, *(told_of(broker, fold, queue_id) for queue_id in sorted(broker.queues))])
    return told


def told_of(broker: Broker, fold: LogFold, queue_id: int) -> dict[str, Any]:
    told: dict[str, Any] = {"queue": queue_id}
    queue = broker.queues.get(queue_id)
    if queue is not None:
        told["live"] = pack_runs(queue.index.live)
        told["active"] = pack_runs(queue.index.active)
        told["rewindable"] = pack_runs(queue.index.rewindable)
        index = fold.queues[queue_id].index
        assert index is not None
        told["spark: rewindable"] = pack_runs(index.rewindable)
    told["spark"] = {
        state: pack_runs(positions) for state, positions in fold.queues[queue_id].sets().items() if positions
    }
    return told


def make(target: Path) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as place:
        expected: dict[str, Any] = {}
        for name, rig in contents():
            folder = Path(place) / name
            folder.mkdir()
            rows = fewer_rows(rows_of(rig))
            write_folder(folder, [rows])
            expected[name] = states_in(folder)
            for _, *queues in expected[name]:
                for told in queues:
                    assert told.get("rewindable") == told.get("spark: rewindable"), (name, told)
        (Path(place) / "expected.json").write_text(json.dumps(expected, indent=None))
        with tarfile.open(target / ARCHIVE.name, "w:xz") as tar:
            for path in sorted(Path(place).iterdir()):
                tar.add(path, path.name)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
