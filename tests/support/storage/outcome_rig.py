"""The rows and checkpoints of a core, handed to a real storage, and what its files then tell of each message."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from cmqd.server.log_upkeep.segment_changes import SegmentChanges
from cmqd_reading.log_fold import LogFold, Told
from cmqd_reading.states import Result, State
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd
from cmqd_segment.checkpoint_file import decode_part, read_payloads
from cmqd_segment.manifest import Manifest, SegmentEntry, read_manifest
from cmqd_segment.outcomes import Outcome, OutcomesError, check_outcomes, read_outcomes
from cmqd_segment.records import AnyRecord
from cmqd_segment.scan import scan_segment
from cmqd_segment.schema import open_read_only
from support.core.builders import Rig
from support.spark.log_folder import rows_of
from support.storage.log_rig import ForkedPlace, LogRig


class OutcomeRig:
    """The rows and checkpoints of a core, handed to a real storage."""

    def __init__(self, folder: Path, core: Rig) -> None:
        self.folder = folder
        self.core = core
        self.place = ForkedPlace(folder, durability="os")
        self.upto = 0

    async def start(self) -> None:
        self.rig = LogRig(self.place.log())
        await self.rig.open()
        broker = self.core.broker
        self.changes = SegmentChanges(
            log=self.rig.log,
            live_in=broker.live_in,
            there_in=broker.there_in,
            moves_of=broker.moves_of,
            is_kept=lambda _: True,
            timer=time.perf_counter,
        )

    async def write(self, upto: int = 0) -> None:
        """Commit the rows of the core."""
        rows = rows_of(self.core)[self.upto : upto or None]
        for records, bodies, time_ms in rows:
            self.rig.log.append(records, bodies, time_ms)
            await self.rig.commit()
        self.upto += len(rows)

    async def roll(self) -> None:
        await self.rig.log.seal_now()

    async def checkpoint(self, parts: Sequence[AnyPart] = (), *, is_covered: bool = True) -> None:
        """Write a checkpoint of this moment, with the changes that the loop process would tell. Of parts that were
        taken before, every segment has changed. Wait for the round, unless told otherwise.
        """
        done = len(self.rig.checkpoints_done)
        await self.write_checkpoint(parts)
        await self.rig.until(lambda: len(self.rig.checkpoints_done) > done)
        if is_covered:
            await self.covered()

    async def write_checkpoint(self, parts: Sequence[AnyPart] = ()) -> None:
        """Hand a checkpoint to the storage."""
        is_now = not parts
        for part in parts or self.core.checkpoint():
            if isinstance(part, CheckpointEnd):
                if is_now:
                    await self.changes.tell()
                else:
                    self.changes.tell_all()
            self.rig.log.write_checkpoint(part)

    async def segment(self) -> None:
        """Commit the rows of the core, and end the segment."""
        await self.write()
        await self.roll()

    async def leave_behind(self) -> None:
        """Write later rows, and checkpoints until all rows so far may go."""
        last_lsn = self.core.log.last_lsn
        while True:
            self.core.create(f"later-{self.core.log.last_lsn}")
            await self.segment()
            if self.rig.log.droppable_lsn >= last_lsn:
                return
            await self.checkpoint()

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

    async def drop_behind_first(self) -> None:
        """Drop all segments that may go but the first."""
        _, *others = self.rig.log.closed_segments()
        numbers = [segment.number for segment in others if segment.last_lsn <= self.rig.log.droppable_lsn]
        assert numbers
        assert sorted(await self.rig.log.drop_segments(numbers, self.upto)) == numbers

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
    check_outcomes(file, entry.number, entry.first_lsn, entry.outcomes.generation, entry.outcomes.sha256)
    return list(read_outcomes(file, entry.number, entry.first_lsn, entry.outcomes.generation))


def told_by(folder: Path) -> tuple[dict[int, Result], dict[int, list[tuple[int, int]]]]:
    """The results from the files of a stopped broker, and the positions that its segments hold, by queue id."""
    manifest = read_manifest(folder)
    told: dict[int, list[Told]] = {}
    held: dict[int, list[tuple[int, int]]] = {}
    entries: list[Outcome] = []
    rows: dict[int, list[AnyRecord]] = {}
    for segment in manifest.segments:
        outcomes = segment.outcomes
        try:
            entries += entries_of(folder, segment)
        except (OutcomesError, FileNotFoundError):
            outcomes = None
        for row in scan_segment(folder / segment.file, sealed=True, bodies=False):
            rows[row.lsn] = row.records
        raw = open_read_only(folder / segment.file, sealed=True)
        for queue_id, first, stop in raw.execute("SELECT queue_id, first_position, stop_position FROM sparse"):
            held.setdefault(queue_id, []).append((first, stop))
            if outcomes is not None:
                told.setdefault(queue_id, []).append(Told(first, stop, outcomes.known_from, outcomes.upto))
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
    times = {position: time_ms for start, end, time_ms in result.ended for position in range(start, end)}
    found: list[tuple[State | None, int | None, int | None]] = []
    for position in range(first, stop):
        state = next((state for state, positions in result.sets.items() if position in positions), None)
        count = result.counts.get(position, int(state in (State.DELETED, State.IN_FLIGHT)))
        is_known = state is not None and position not in result.uncounted
        found.append((state, times.get(position) if state is State.DELETED else None, count if is_known else None))
    return found


def whole(rows: Sequence[Sequence[AnyRecord]]) -> dict[int, Result]:
    fold = LogFold()
    for lsn, records in enumerate(rows, 1):
        fold.apply(lsn, records)
    return fold.results()


def assert_exact(broker: OutcomeRig) -> None:
    expected = whole(broker.core.log.rows)
    found, held = told_by(broker.folder)
    for queue_id, ranges in held.items():
        for first, stop in ranges:
            if queue_id in expected:
                assert facts(found[queue_id], first, stop) == facts(expected[queue_id], first, stop), queue_id


async def stuck(folder: Path, deleted: int = 99) -> OutcomeRig:
    """A queue with 100 messages in the first segment; of all but the first, so many were deleted in the second."""
    core = Rig()
    core.create("q")
    core.send(*[b"x"] * 100)
    broker = OutcomeRig(folder, core)
    await broker.start()
    await broker.write()
    await broker.roll()
    await broker.checkpoint()
    (first,) = core.handles(most=1)
    while deleted:
        handles = core.handles(most=min(deleted, 16))
        core.delete(*handles)
        deleted -= len(handles)
    core.release(first)
    core.settle(60_000)
    await broker.write()
    await broker.roll()
    return broker
