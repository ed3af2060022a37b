"""Outcomes that are damaged, lost, or of another log, and rounds that meet a full disk: unknown, and never wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from cmqd_reading.states import State
from cmqd_segment.checkpoint import CheckpointEnd
from cmqd_segment.manifest import SegmentEntry, read_manifest, write_manifest
from cmqd_segment.outcomes import OutcomesHeader, encode_outcomes
from support.core.builders import Rig
from support.eventually import eventually
from support.spark.log_folder import rows_of
from support.storage.full_disk import StartBroker
from support.storage.outcome_rig import OutcomeRig, facts, stuck, told_by, whole

pytestmark = pytest.mark.system


def flipped(data: bytes, _entry: SegmentEntry) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def of_another_log(data: bytes, entry: SegmentEntry) -> bytes:
    """A whole file of the same segment, generation and size, that tells of other messages."""
    assert entry.outcomes is not None
    empty = encode_outcomes(OutcomesHeader(entry.number, entry.first_lsn, entry.outcomes.generation), [])
    return empty.ljust(len(data), b"\0")


FAULTS: dict[str, Callable[[bytes, SegmentEntry], bytes | None]] = {
    "missing": lambda _data, _entry: None,
    "truncated": lambda data, _entry: data[:-1],
    "empty": lambda _data, _entry: b"",
    "flipped": flipped,
    "of another log": of_another_log,
    "of another segment": lambda data, entry: encode_outcomes(OutcomesHeader(entry.number + 1, 1, 1), []),
}


def break_first(folder: Path, fault: Callable[[bytes, SegmentEntry], bytes | None]) -> None:
    entry = read_manifest(folder).segments[0]
    path = folder / entry.outcomes_file
    data = path.read_bytes()
    path.chmod(0o600)
    broken = fault(data, entry)
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken)


def assert_never_wrong(rig: OutcomeRig, positions: range, known: int) -> None:
    """Each message is told as the whole log tells it, or not at all; ``known`` of them are told."""
    queue_id = rig.core.queue("q").queue_id
    told, _ = told_by(rig.folder)
    found = facts(told[queue_id], positions.start, positions.stop)
    expected = facts(whole(rig.core.log.rows)[queue_id], positions.start, positions.stop)
    for one, other in zip(found, expected, strict=True):
        assert one == other or (one[0] in (None, State.GONE) and one[1] is None and one[2] is None)
    assert sum(one == other for one, other in zip(found, expected, strict=True)) == known


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_broken_file_is_lost_at_the_next_start_and_later_outcomes_are_kept(fault: str, tmp_path: Path) -> None:
    rig = await stuck(tmp_path / "data", deleted=49)
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    break_first(rig.folder, FAULTS[fault])
    await rig.start()
    for _ in range(3):
        rig.core.delete(*rig.core.handles(most=10)[1:])
        rig.core.settle(60_000)
    await rig.segment()
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    # 49 left in the lost file, 27 since; 24 are there, of which the first was received.
    assert_never_wrong(rig, range(100), known=27 + 24)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_file_that_breaks_while_the_broker_runs_is_not_added_to(fault: str, tmp_path: Path) -> None:
    rig = await stuck(tmp_path / "data", deleted=49)
    await rig.leave_behind()
    await rig.drop_behind_first()

    break_first(rig.folder, FAULTS[fault])
    for _ in range(3):
        rig.core.delete(*rig.core.handles(most=10)[1:])
        rig.core.settle(60_000)
    await rig.segment()
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    assert_never_wrong(rig, range(100), known=27 + 24)
    first = read_manifest(rig.folder).segments[0].outcomes
    assert first is not None
    assert first.known_from > 0


async def test_a_folder_of_an_earlier_format_begins_at_its_oldest_checkpoint(tmp_path: Path) -> None:
    """Its rows may take hours to read, and hold up every drop meanwhile."""
    rig = await stuck(tmp_path / "data", deleted=49)
    await rig.checkpoint()
    await rig.rig.log.close()
    manifest = read_manifest(rig.folder)
    old = [structs.replace(entry, outcomes=None) for entry in manifest.segments]
    write_manifest(rig.folder, structs.replace(manifest, format=2, segments=old))
    oldest = manifest.checkpoints[0]

    await rig.start()
    rig.core.delete(*rig.core.handles(most=10)[1:])
    await rig.segment()
    await rig.leave_behind()
    await rig.rig.log.close()

    first = read_manifest(rig.folder).segments[0].outcomes
    assert first is not None
    assert first.generation > 0
    assert first.known_from == oldest.end_lsn


async def test_the_changes_of_an_abandoned_checkpoint_count_for_the_next(tmp_path: Path) -> None:
    rig = await stuck(tmp_path / "data")
    *parts, end = rig.core.checkpoint()
    assert isinstance(end, CheckpointEnd)
    await rig.changes.tell()
    # The storage reads the file back, and finds another number of parts.
    for part in (*parts, structs.replace(end, parts=end.parts + 1)):
        rig.rig.log.write_checkpoint(part)
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    assert_never_wrong(rig, range(100), known=100)


async def test_a_damaged_oldest_checkpoint_ends_what_outcomes_cover(tmp_path: Path) -> None:
    """No round can begin from it, so the rows up to the next checkpoint are never folded."""
    rig = await stuck(tmp_path / "data", deleted=49)
    await rig.leave_behind()
    rig.core.delete(*rig.core.handles(most=10))
    await rig.segment()
    await rig.checkpoint()
    await rig.rig.log.close()
    manifest = read_manifest(rig.folder)
    oldest = rig.folder / manifest.checkpoints[0].file
    oldest.write_bytes(oldest.read_bytes()[:-1])

    await rig.start()
    first = read_manifest(rig.folder).segments[0].outcomes
    assert first is not None
    assert first.known_from == manifest.checkpoints[1].end_lsn
    await rig.leave_behind()
    await rig.drop_behind_first()
    await rig.rig.log.close()

    assert_never_wrong(rig, range(100), known=100 - 10)


async def test_a_round_on_a_short_disk_is_ended_and_the_rows_go(start: StartBroker, folder: Path) -> None:
    broker = await start()
    core = Rig()
    core.create("q")
    core.send(*[b"x"] * 10)
    rig = broker.rig
    upto = 0

    async def segment() -> None:
        nonlocal upto
        for records, bodies, time_ms in rows_of(core)[upto:]:
            rig.log.append(records, bodies, time_ms)
            await rig.commit()
            upto += 1
        await rig.log.seal_now()

    async def checkpoint() -> None:
        done = len(rig.checkpoints_done)
        *parts, end = core.checkpoint()
        for part in parts:
            rig.log.write_checkpoint(part)
        rig.log.tell_changes([segment.number for segment in rig.log.closed_segments()], [])
        rig.log.write_checkpoint(end)
        await rig.until(lambda: len(rig.checkpoints_done) > done)

    await segment()
    core.delete(*core.handles(most=10)[1:])
    await segment()
    await checkpoint()
    await rig.until(lambda: rig.log.droppable_lsn > 0)
    core.create("later")
    await segment()
    await checkpoint()
    assert rig.states[-1].rounds_skipped == 0
    mark = broker.process.service.log.space.mark_bytes()
    broker.disk.free = mark + mark // 8
    await rig.until(lambda: rig.states[-1].is_short)

    await checkpoint()

    await rig.until(lambda: rig.states[-1].rounds_skipped == 1)
    await eventually(lambda: [entry.number for entry in read_manifest(folder).checkpoints] == [2, 3])
    newer = read_manifest(folder).checkpoints[0]
    first = read_manifest(folder).segments[0].outcomes
    assert first is not None
    assert (first.known_from, first.upto) == (newer.end_lsn, newer.lsn)
