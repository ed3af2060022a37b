"""The modes as read from disk, at random rows, with more of the log behind: equal to the broker's answers there."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyroaring import BitMap64

from cmqd.core.broker import Broker
from cmqd_log.data_folder.plan import Task, is_sealed
from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_reading.events import Event, stored_in
from cmqd_reading.states import State
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.manifest import read_manifest, write_manifest
from cmqd_segment.records import TransactionsEnded, count_runs
from cmqd_types.messages import printed_id
from support.core.builders import Rig
from support.core.busy_rig import busy_rig, replayed
from support.spark import log_folder
from support.spark.log_folder import queue_created, rows_of, sends, write_folder
from support.storage.log_rig import NOW_MS, LogRig

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""

COLUMNS = ("queue", "msg_id", "event", "receive_count", "body")
SCHEMA = schema_of(COLUMNS)
ROWS_READ_AT = 6

Told = tuple[str, str, str, int, bytes]
LIVE = ("active", "delayed", "in_flight", "half")


def read(folder: Path, **options: str) -> "list[Told]":
    tasks = plan_batch(parse_options({"path": str(folder), **options}), COLUMNS)
    rows = [row for task in tasks for batch in read_task(task, SCHEMA) for row in batch.to_pylist()]
    return [tuple(row[name] for name in COLUMNS) for row in rows]


def told_by_the_broker(rig: Rig, broker: Broker) -> "Counter[Told]":
    """Every message that is in a queue."""
    found: Counter[Told] = Counter()
    for queue_id, queue in broker.queues.items():
        index = queue.index
        held = {one.position: one.receive_count for one in index.leases.by_number.values()}
        for position in index.live:
            count = held[position] if position in held else index.history.get(position)[0]
            if position in index.active:
                state = "active"
            elif position in index.half:
                state = "half"
            elif position in held:
                state = "in_flight"
            else:
                assert position in index.delays.scheduled or position in index.delays.overflow
                state = "delayed"
            stored = rig.log.stored[queue_id, position]
            found[queue.name, printed_id(stored.message_id), state, count, stored.body] += 1
    return found


def stored_until(rig: Rig, lsn: int) -> int:
    """Stored messages of queues; a committed half message counts once."""
    count = 0
    for records in rig.log.rows[:lsn]:
        count += sum(len(one.run.sizes) for one in stored_in(records) if one.event is not Event.PUBLISHED)
        count -= sum(
            count_runs(one.positions) for one in records if isinstance(one, TransactionsEnded) and one.committed
        )
    return count


@pytest.mark.parametrize("seed", range(8))
def test_modes_at_a_row_say_what_the_broker_said_there(seed: int, tmp_path: Path) -> None:
    rig, _ = busy_rig(seed, 150)
    rows = rows_of(rig)
    third = len(rows) // 3
    folder = tmp_path / "data"
    write_folder(folder, [rows[:third], rows[third : 2 * third], rows[2 * third :]], durability="os")

    for lsn in [*random.Random(seed).sample(range(2, len(rows)), ROWS_READ_AT), len(rows)]:
        expected = told_by_the_broker(rig, replayed(rig.log.rows[:lsn]))
        every = read(folder, mode="all", endingLsn=str(lsn))
        assert Counter(one for one in every if one[2] in LIVE) == expected
        assert len(every) == stored_until(rig, lsn)
        backlog = Counter({told: count for told, count in expected.items() if told[2] != "half"})
        assert Counter(read(folder, mode="backlog", endingLsn=str(lsn))) == backlog
        consumed = [one for one in every if one[2] == "deleted"]
        assert Counter(read(folder, mode="consumed", endingLsn=str(lsn))) == Counter(consumed)


async def write_with_checkpoints(folder: Path, rig: Rig, checkpoints: "Mapping[int, list[AnyPart]]") -> None:
    """The rows of a broker, with a segment up to each of the LSNs, and a checkpoint there if given parts."""
    await log_folder.write_with_checkpoints(folder, rows_of(rig), checkpoints)


def test_with_a_segment_gone_all_is_told_that_the_oldest_checkpoint_can_tell(tmp_path: Path) -> None:
    rig = Rig()
    rig.create("q", retention_ms=60_000, rewind_ms=30_000)
    rig.send(*[b"x"] * 6)
    sent = rig.log.last_lsn
    rig.delete(*rig.handles(most=2))
    deleted = rig.log.last_lsn
    older = rig.checkpoint()
    rig.receive(most=1, visibility_timeout_ms=1000)
    rig.delete(*rig.handles(most=1))
    rig.settle(120_000)
    expired = rig.log.last_lsn
    newer = rig.checkpoint()
    rig.send(b"x")
    folder = tmp_path / "data"
    ends = {sent: [], deleted: older, expired: newer, rig.log.last_lsn: []}
    asyncio.run(write_with_checkpoints(folder, rig, ends))
    whole = Counter(state for _, _, state, *_ in read(folder, mode="all"))
    assert whole == {"deleted": 3, "expired": 3, "active": 1}

    manifest = read_manifest(folder)
    (gone,) = (entry for entry in manifest.segments if entry.first_lsn == sent + 1)
    manifest.segments.remove(gone)
    manifest.dropped.append((gone.first_lsn, gone.last_lsn))
    write_manifest(folder, manifest)
    (folder / gone.file).unlink()

    assert len(manifest.checkpoints) == 2
    states = Counter(state for _, _, state, *_ in read(folder, mode="all"))
    # Two messages can be rewound as of the checkpoint, so the checkpoint knows of their deletion.
    assert states == whole


def test_states_are_cut_for_each_segment_sealed_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    planned: list[Task] = []

    def plan(log_rig: LogRig) -> None:
        options = {"path": str(folder), "mode": "all", "includeActive": "true"}
        planned[:] = plan_batch(parse_options(options), COLUMNS)

    # The rows of the last segment are read before its seal.
    groups = [[([queue_created(7, "q")], [], NOW_MS), sends(7, 0, 10), sends(7, 10, 5)], [sends(7, 15, 20)]]
    write_folder(folder, groups, before_close=plan)

    sealed, live = planned
    assert (is_sealed(sealed.piece.extent), is_sealed(live.piece.extent)) == (True, False)
    for task, first, stop in ((sealed, 0, 15), (live, 15, 35)):
        (states,) = task.states.values()
        assert list(BitMap64.deserialize(states.sets[State.ACTIVE])) == [*range(first, stop)]
        assert sum(batch.num_rows for batch in read_task(task, SCHEMA)) == stop - first
