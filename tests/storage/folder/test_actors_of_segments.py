"""A sealed segment has a table of the actors that its rows name."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from cmqd.storage.source_names import ActorsOfRows
from cmqd.storage.writing.sealer import ACTORS_TOGETHER
from cmqd_segment.checkpoint import ActorsSlice, CheckpointEnd, CheckpointHeader
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.records import ActorSeen, AnyRecord, MessagesSent
from cmqd_segment.schema import open_read_only, read_actors
from cmqd_types.actors import Actor
from support.spark.log_folder import drop_segment
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, OpenProcess


def actor(number: int) -> Actor:
    return Actor("shop", "AKID", f"worker {number}", "10.0.0.1", "" if number % 2 else "127.0.0.1")


def seen(*numbers: int) -> list[AnyRecord]:
    return [ActorSeen(number, actor(number)) for number in numbers]


def sent_by(*numbers: int) -> AnyRecord:
    """A send that joins a message of each client."""
    runs = [number for each in numbers for number in (1, each)]
    return MessagesSent(7, 0, 1000, NOW_MS, [0] * len(numbers), actors=runs if len(numbers) > 1 else [*numbers])


async def store(rig: LogRig, *records: AnyRecord) -> None:
    rig.log.append(records, (), NOW_MS)
    await rig.commit()


async def write_checkpoint(rig: LogRig, next_number: int, kept: Iterable[int]) -> None:
    lsn = rig.log.last_lsn
    done = len(rig.checkpoints_done)
    for part in (
        CheckpointHeader(lsn, NOW_MS, 1, 1, 1),
        ActorsSlice(next_number, [(number, actor(number)) for number in kept]),
        CheckpointEnd(lsn, 2),
    ):
        rig.log.write_checkpoint(part)
    await rig.until(lambda: len(rig.checkpoints_done) > done)


def tables(folder: Path) -> list[list[int]]:
    """The numbers in the table of each sealed segment, in the order of the segments."""
    found: list[list[int]] = []
    for entry in read_manifest(folder).segments:
        if entry.state is SegmentState.SEALED:
            with closing(open_read_only(folder / entry.file, sealed=True)) as raw:
                actors = read_actors(raw)
            assert actors == {number: actor(number) for number in actors}
            found.append(sorted(actors))
    return found


# ---------------------------------------------------------------------- the table of the loop process


def test_a_checkpoint_forgets_the_actors_that_it_lacks() -> None:
    actors = ActorsOfRows()
    for number in (1, 2, 3):
        actors.note(number, actor(number))
    actors.note_written(CheckpointHeader(2, NOW_MS, 1, 1, 1))
    # Number 3 came while the checkpoint was written.
    actors.note_written(ActorsSlice(3, [(2, actor(2))]))
    assert len(actors) == 3
    actors.note_written(CheckpointEnd(3, 2))

    assert actors.of([1, 2, 3, 4]) == [(2, actor(2)), (3, actor(3))]


def test_a_checkpoint_that_was_abandoned_forgets_no_actor() -> None:
    actors = ActorsOfRows()
    actors.note(1, actor(1))
    actors.note_written(CheckpointHeader(2, NOW_MS, 1, 1, 1))
    actors.note_written(ActorsSlice(2, []))
    actors.note_written(CheckpointHeader(3, NOW_MS, 1, 1, 1))
    actors.note_written(CheckpointEnd(3, 1))

    assert len(actors) == 1


def test_the_end_of_a_checkpoint_keeps_the_order_of_the_log() -> None:
    actors = ActorsOfRows()
    for number in (5, 6, 9, 12):
        actors.note(number, actor(number))
    for part in (
        CheckpointHeader(9, NOW_MS, 1, 1, 1),
        ActorsSlice(10, [(5, actor(5)), (9, actor(9))]),
    ):
        actors.note_written(part)
    actors.note(13, actor(13))
    actors.note_written(CheckpointEnd(13, 2))
    assert [number for number, _ in actors.of(range(20))] == [5, 9, 12, 13]

    actors.note_written(CheckpointHeader(14, NOW_MS, 1, 1, 1))
    actors.note_written(ActorsSlice(14, [(13, actor(13))]))
    actors.note_written(CheckpointEnd(14, 2))
    assert [number for number, _ in actors.of(range(20))] == [13]


# ---------------------------------------------------------------------- segments


@pytest.mark.system
class TestFolder:
    async def test_the_seal_writes_the_actors(self, open_process: OpenProcess, folder: Path) -> None:
        rig = await open_process()
        await store(rig, *seen(1, 2))
        await rig.log.seal_now()

        assert tables(folder) == [[1, 2]]

    async def test_a_segment_has_the_actors_that_its_rows_name_and_no_others(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await store(rig, *seen(1, 2, 3))
        await rig.log.seal_now()
        await store(rig, *seen(4), sent_by(2))
        await rig.log.seal_now()
        await store(rig, sent_by(3), sent_by(1, 4))
        await rig.log.seal_now()
        # The record of actor 9 was lost.
        await store(rig, sent_by(9))
        await rig.log.seal_now()

        assert tables(folder) == [[1, 2, 3], [2, 4], [1, 3, 4], []]
        assert rig.log.sealed_upto == rig.log.last_lsn

    async def test_an_actor_that_a_checkpoint_lacks_is_in_no_later_segment(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await store(rig, *seen(1, 2))
        await rig.log.seal_now()
        await write_checkpoint(rig, 3, [2])
        await store(rig, *seen(3), sent_by(1, 2))
        await rig.log.seal_now()

        assert tables(folder) == [[1, 2], [2, 3]]

    async def test_after_a_crash_actors_come_from_the_checkpoint_and_the_rows_behind_it(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await store(rig, *seen(1, 2))
        await rig.log.seal_now()
        await store(rig, *seen(3))
        await write_checkpoint(rig, 4, [1, 3])
        await store(rig, *seen(4), sent_by(1))
        await ForkedPlace(folder).crash(rig.log)
        # The record of actor 1 is gone.
        drop_segment(folder, 1)

        rig = await open_process()
        await rig.log.close()

        assert tables(folder) == [[1, 3, 4]]

    async def test_more_actors_than_a_frame_has(self, open_process: OpenProcess, folder: Path) -> None:
        rig = await open_process()
        numbers = range(1, ACTORS_TOGETHER + 10)
        await store(rig, *seen(*numbers))
        await rig.log.seal_now()

        assert tables(folder) == [list(numbers)]

    async def test_a_second_seal_keeps_the_actors_that_the_rows_name(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        """As after the loss of the manifest, when every segment is sealed again."""
        rig = await open_process()
        await store(rig, *seen(1), sent_by(5))
        await rig.log.close()
        (folder / "manifest").unlink()
        segment = folder / "segments" / "00000001.db"
        segment.chmod(0o600)
        with closing(sqlite3.connect(segment)) as raw:
            # Actor 5 is forgotten by the log. An older version kept all known actors here, among them 2.
            rows = [(number, *structs.astuple(actor(number))) for number in (2, 5)]
            raw.executemany("INSERT INTO actors VALUES (?,?,?,?,?,?)", rows)
            raw.commit()

        rig = await open_process(accept_loss=True)
        await rig.log.close()

        assert tables(folder)[0] == [1, 5]


def test_a_segment_without_the_table_has_no_actors(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as raw:
        assert read_actors(raw) == {}
