"""Rounds: before rows may go, the storage keeps how messages left, beside the segments that stay."""

import asyncio
import random
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from cmqd_reading.log_fold import LogFold, Told
from cmqd_reading.states import Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import decode_part, read_payloads
from cmqd_segment.manifest import Manifest, SegmentEntry, read_manifest
from cmqd_segment.outcomes import Outcome, read_outcomes
from cmqd_segment.records import AnyRecord
from cmqd_segment.scan import scan_segment
from cmqd_segment.schema import open_read_only
from support.core.builders import Rig
from support.core.busy_rig import busy_rig
from support.spark.log_folder import rows_of
from support.storage.log_rig import ForkedPlace, LogRig

pytestmark = pytest.mark.system


class Broker:
    """The rows and checkpoints of a core, handed to a real storage."""

    def __init__(self, folder: Path, core: Rig) -> None:
        self.folder = folder
        self.core = core
        self.place = ForkedPlace(folder, durability="os")
        self.upto = 0

    async def start(self) -> None:
        self.rig = LogRig(self.place.log())
        await self.rig.open()

    async def write(self, upto: int = 0) -> None:
        """Commit the rows of the core."""
        rows = rows_of(self.core)[self.upto : upto or None]
        for records, bodies, time_ms in rows:
            self.rig.log.append(records, bodies, time_ms)
            await self.rig.commit()
        self.upto += len(rows)

    async def roll(self) -> None:
        await self.rig.log.seal_now()

    async def checkpoint(self, parts: Sequence[AnyPart] = (), changed: Collection[int] | None = None) -> None:
        """Write a checkpoint; every segment has changed, or these."""
        done = len(self.rig.checkpoints_done)
        parts = parts or self.core.checkpoint()
        numbers = [segment.number for segment in self.rig.log.closed_segments()]
        for part in parts:
            if isinstance(part, CheckpointEnd):
                self.rig.log.tell_changes(numbers if changed is None else list(changed), [])
            self.rig.log.write_checkpoint(part)
        await self.rig.until(lambda: len(self.rig.checkpoints_done) > done)
        await self.covered()

    async def covered(self) -> None:
        """Wait until rows may go up to the older of two checkpoints."""
        await self.rig.until(lambda: self.rig.log.droppable_lsn >= self.manifest.checkpoints[-2:][0].lsn)

    async def kill_at(self, step: int) -> None:
        """Kill the storage process once the round under way has come to a step, and begin again."""
        segments = self.folder / "segments"
        steps = (
            lambda: True,
            lambda: any(segments.glob("*.outcomes.tmp")) or any(segments.glob("*.outcomes")),
            lambda: any(segments.glob("*.outcomes")),
            lambda: any(entry.outcomes_file for entry in self.manifest.segments),
        )
        while not steps[step]():  # noqa: ASYNC110 - of the files of another process
            await asyncio.sleep(0)
        await self.place.crash(self.rig.log)
        await self.start()
        await self.covered()

    async def drop(self, *firsts: int) -> None:
        """Drop the segments that begin with these rows."""
        for segment in self.rig.log.closed_segments():
            if segment.first_lsn in firsts:
                assert await self.rig.log.drop_segments([segment.number], self.upto) == [segment.number]

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder)


def entries_of(folder: Path, entry: SegmentEntry) -> list[Outcome]:
    if entry.outcomes is None or not entry.outcomes.generation:
        return []
    file = folder / entry.outcomes_file
    assert file.stat().st_size == entry.outcomes.bytes
    return read_outcomes(file, entry.number, entry.first_lsn, entry.outcomes.generation)


def told_by(folder: Path) -> tuple[dict[int, Result], dict[int, list[tuple[int, int]]]]:
    """The results from the files of a stopped broker, and the positions that its segments hold, by queue id."""
    manifest = read_manifest(folder)
    told: dict[int, list[Told]] = {}
    held: dict[int, list[tuple[int, int]]] = {}
    entries: list[Outcome] = []
    rows: dict[int, list[AnyRecord]] = {}
    for segment in manifest.segments:
        entries += entries_of(folder, segment)
        for row in scan_segment(folder / segment.file, sealed=True, bodies=False):
            rows[row.lsn] = row.records
        raw = open_read_only(folder / segment.file, sealed=True)
        for queue_id, first, stop in raw.execute("SELECT queue_id, first_position, stop_position FROM sparse"):
            held.setdefault(queue_id, []).append((first, stop))
            if segment.outcomes is not None:
                told.setdefault(queue_id, []).append(
                    Told(first, stop, segment.outcomes.known_from, segment.outcomes.upto)
                )
        raw.close()
    entries.sort(key=lambda entry: (entry.lsn, entry.record))
    fold = LogFold(told=told)
    for payload in read_payloads(folder / manifest.checkpoints[0].file):
        fold.load(decode_part(payload))
    for lsn in [*sorted(rows), max(rows) + 1]:
        fold.skip(lsn)
        while entries and entries[0].lsn < lsn:
            fold.apply_outcome(entries.pop(0))
        if lsn in rows:
            fold.apply(lsn, rows[lsn])
    return fold.results(), held


def facts(result: Result, first: int, stop: int) -> list[tuple[State | None, int | None, int | None]]:
    """State, time of the delete and receive count of messages; None = not told."""
    times = {position: time_ms for start, end, time_ms in result.deleted for position in range(start, end)}
    found: list[tuple[State | None, int | None, int | None]] = []
    for position in range(first, stop):
        state = next((state for state, positions in result.sets.items() if position in positions), None)
        count = result.counts.get(position, int(state in (State.DELETED, State.IN_FLIGHT)))
        is_known = position not in result.uncounted
        found.append((state, times.get(position) if state is State.DELETED else None, count if is_known else None))
    return found


def whole(rows: Sequence[Sequence[AnyRecord]]) -> dict[int, Result]:
    fold = LogFold()
    for lsn, records in enumerate(rows, 1):
        fold.apply(lsn, records)
    return fold.results()


def assert_exact(broker: Broker) -> None:
    expected = whole(broker.core.log.rows)
    found, held = told_by(broker.folder)
    for queue_id, ranges in held.items():
        for first, stop in ranges:
            if queue_id in expected:
                assert facts(found[queue_id], first, stop) == facts(expected[queue_id], first, stop), queue_id


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_rows_go_the_messages_of_the_others_are_told_exactly(seed: int, tmp_path: Path) -> None:
    core, checkpoints = busy_rig(seed, 300)
    choose = random.Random(seed)
    broker = Broker(tmp_path / "data", core)
    await broker.start()
    for parts in checkpoints:
        header, end = parts[0], parts[-1]
        assert isinstance(header, CheckpointHeader)
        assert isinstance(end, CheckpointEnd)
        await broker.write(choose.randrange(header.lsn, end.lsn + 1))
        await broker.roll()
        await broker.write(end.lsn)
        await broker.checkpoint(parts)
        droppable = [
            segment.first_lsn
            for segment in broker.rig.log.closed_segments()
            if segment.last_lsn <= broker.rig.log.droppable_lsn
        ]
        await broker.drop(*choose.sample(droppable, len(droppable) // 3))
        if choose.random() < 0.2:
            await broker.rig.log.close()
            await broker.start()
            await broker.covered()
    await broker.write()
    await broker.rig.log.close()

    assert broker.manifest.dropped
    assert_exact(broker)


@pytest.mark.parametrize("step", range(4))
async def test_a_kill_at_each_step_of_a_round_loses_no_outcome(step: int, tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.roll()
    older = broker.manifest.checkpoints[0]
    numbers = [segment.number for segment in broker.rig.log.closed_segments()]
    done = len(broker.rig.checkpoints_done)
    for part in broker.core.checkpoint():
        if isinstance(part, CheckpointEnd):
            broker.rig.log.tell_changes(numbers, [])
        broker.rig.log.write_checkpoint(part)
    await broker.rig.until(lambda: len(broker.rig.checkpoints_done) > done)

    await broker.kill_at(step)

    assert older not in broker.manifest.checkpoints
    listed = {broker.folder / entry.outcomes_file for entry in broker.manifest.segments if entry.outcomes_file}
    assert set((broker.folder / "segments").glob("*.outcomes*")) == listed != set()
    await broker.drop(3)
    await broker.rig.log.close()
    assert_exact(broker)


async def stuck(folder: Path) -> Broker:
    """A queue with 100 messages in the first segment; 99 were deleted in the second."""
    core = Rig()
    core.create("q")
    core.send(*[b"x"] * 100)
    broker = Broker(folder, core)
    await broker.start()
    await broker.write()
    await broker.roll()
    await broker.checkpoint()
    core.delete(*core.handles(most=16)[1:])
    for _ in range(6):
        core.delete(*core.handles(most=14))
    core.settle(60_000)
    await broker.write()
    await broker.roll()
    return broker


async def test_three_checkpoints_without_a_change_move_the_known_rows_and_write_no_file(tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.checkpoint()
    for _ in range(3):
        broker.core.create(f"q{broker.upto}")
        await broker.write()
        await broker.roll()
        await broker.checkpoint(changed=())
        first = broker.manifest.segments[0].outcomes
        assert first is not None
        # Its own rows tell what happened up to row 2.
        assert (first.known_from, first.upto) == (2, broker.manifest.checkpoints[0].lsn)
        assert first.generation == 1
    await broker.drop(3)
    await broker.rig.log.close()

    assert_exact(broker)


async def test_a_round_that_fails_lets_the_rows_go_and_says_what_is_not_known(tmp_path: Path) -> None:
    broker = await stuck(tmp_path / "data")
    # In the way of the first file.
    (broker.folder / "segments" / "00000001.1.outcomes.tmp").mkdir()
    await broker.checkpoint()
    broker.core.create("other")
    await broker.write()
    await broker.roll()
    await broker.checkpoint()
    older = broker.manifest.checkpoints[0]
    first = broker.manifest.segments[0].outcomes
    assert first is not None
    assert (first.generation, first.known_from, first.upto) == (0, older.end_lsn, older.lsn)
    await broker.drop(3)
    (broker.folder / "segments" / "00000001.1.outcomes.tmp").rmdir()
    await broker.rig.log.close()

    found, _ = told_by(broker.folder)
    assert [state for state, *_ in facts(found[broker.core.queue("q").queue_id], 0, 100)] == [
        State.ACTIVE,
        *[None] * 99,
    ]
