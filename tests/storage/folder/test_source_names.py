"""A sealed segment names its queues and topics, and the manifest has the names without the segment."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cmqd.storage.source_names import SourceNames
from cmqd_segment.manifest import MAX_SOURCES, SegmentEntry, SegmentState, SourceName, read_manifest
from cmqd_segment.records import (
    AnyRecord,
    QueueCreated,
    QueueDeleted,
    TopicCreated,
    TopicDeleted,
)
from cmqd_segment.schema import open_read_only, read_names
from cmqd_types.attributes import QueueAttributes, TopicAttributes
from support.formats.archives import ARCHIVES, unpack
from support.spark.log_folder import add_checkpoint, drop_segment
from support.storage.log_rig import NOW_MS, ForkedPlace, LogRig, OpenProcess


def created(number: int, name: str) -> QueueCreated:
    return QueueCreated(number, "owner", name, QueueAttributes(), NOW_MS)


def test_names_of_what_was_deleted_stay_until_every_segment_with_it_is_sealed() -> None:
    names = SourceNames()
    names.note([created(1, "one"), created(2, "two"), TopicCreated(3, "owner", "news", TopicAttributes(), NOW_MS)], 1)
    names.note([QueueDeleted(1)], 5)
    names.note([TopicDeleted(3)], 9)

    names.forget_deleted(4)
    assert [name.name for name in names.of([1, 2, 3, 4])] == ["one", "two", "news"]
    names.forget_deleted(5)
    assert names.of([1, 2, 3]) == [SourceName(2, "owner", "two"), SourceName(3, "owner", "news", True)]
    names.forget_deleted(100)
    assert len(names) == 1


async def log_records(rig: LogRig, *records: AnyRecord) -> None:
    rig.log.append(records, (), NOW_MS)
    await rig.commit()


def sealed(folder: Path) -> list[SegmentEntry]:
    return [entry for entry in read_manifest(folder).segments if entry.state is SegmentState.SEALED]


def named(folder: Path, entry: SegmentEntry) -> dict[int, str]:
    """The rows of a segment's table of names."""
    with closing(open_read_only(folder / entry.file, sealed=True)) as raw:
        return {number: name for number, _, name, _ in read_names(raw)}


@pytest.mark.system
class TestFolder:
    async def test_the_seal_writes_names_and_counts(self, open_process: OpenProcess, folder: Path) -> None:
        rig = await open_process()
        await log_records(rig, created(1, "orders"), created(2, "empty"))
        await rig.store(1, 0, 3, 40)
        await rig.log.close()

        (entry,) = sealed(folder)
        assert entry.sources == [(1, 3, 120)]
        assert read_manifest(folder).names == [SourceName(1, "owner", "orders")]
        with closing(open_read_only(folder / entry.file, sealed=True)) as raw:
            assert raw.execute("SELECT * FROM names").fetchall() == [(1, "owner", "orders", 0, 3, 120)]

    async def test_a_queue_is_named_though_it_was_deleted_and_its_creation_reclaimed(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await log_records(rig, created(1, "gone"))
        await rig.log.seal_now()
        await rig.store(1, 0, 3)
        await log_records(rig, QueueDeleted(1))
        await rig.log.seal_now()
        await rig.checkpoint()
        await rig.log.close()

        drop_segment(folder, 1)
        (entry,) = sealed(folder)
        assert named(folder, entry) == {1: "gone"}
        # Its name goes with its last segment.
        rig = await open_process()
        assert await rig.log.drop_segments([entry.number], 0) == [entry.number]
        assert read_manifest(folder).names == []

    async def test_the_manifest_names_a_deleted_queue_while_a_segment_with_it_is_not_sealed(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await log_records(rig, created(1, "gone"), created(2, "unused"))
        await rig.log.seal_now()
        await rig.store(1, 0, 3)
        await log_records(rig, QueueDeleted(1), QueueDeleted(2))
        assert read_manifest(folder).names == []
        await rig.checkpoint()
        assert read_manifest(folder).names == [SourceName(1, "owner", "gone")]
        await ForkedPlace(folder).crash(rig.log)
        drop_segment(folder, 1)

        # No checkpoint, row or sealed segment names the queue any more.
        rig = await open_process()
        await rig.checkpoint()
        assert read_manifest(folder).names == [SourceName(1, "owner", "gone")]
        await rig.log.close()
        (entry,) = sealed(folder)
        assert named(folder, entry) == {1: "gone"}

    async def test_after_a_crash_names_come_from_the_segment_itself(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        """The checkpoint does not have a queue that was deleted before."""
        rig = await open_process()
        await log_records(rig, created(1, "short"))
        await rig.store(1, 0, 3)
        await log_records(rig, QueueDeleted(1))
        await rig.checkpoint()
        await ForkedPlace(folder).crash(rig.log)

        rig = await open_process()
        await rig.log.close()

        (entry,) = sealed(folder)
        assert named(folder, entry) == {1: "short"}

    async def test_after_a_crash_names_come_from_an_earlier_segment(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await log_records(rig, *(created(number, f"q{number}") for number in range(1, MAX_SOURCES + 2)))
        for number in range(1, MAX_SOURCES + 2):
            rig.send(number, 0, 1)
        await rig.commit()
        await rig.log.seal_now()
        await rig.store(7, 1, 3)
        await log_records(rig, QueueDeleted(7))
        await rig.checkpoint()
        await ForkedPlace(folder).crash(rig.log)

        rig = await open_process()
        await rig.log.close()

        many, one = sealed(folder)
        assert (many.sources, len(named(folder, many))) == ([], MAX_SOURCES + 1)
        assert [number for number, _, _ in one.sources] == [7]
        assert named(folder, one) == {7: "q7"}

    async def test_a_segment_with_an_id_that_nothing_names_has_no_digest(
        self, open_process: OpenProcess, folder: Path
    ) -> None:
        rig = await open_process()
        await log_records(rig, created(1, "orders"))
        await rig.store(1, 0, 3)
        await rig.store(2, 0, 3)
        await rig.log.close()

        (entry,) = sealed(folder)
        assert entry.sources == []
        assert named(folder, entry) == {1: "orders"}

    @pytest.mark.parametrize("archive", ARCHIVES[:1], ids=lambda path: path.name)
    async def test_a_segment_that_format_1_left_unsealed_gets_its_table(self, archive: Path, tmp_path: Path) -> None:
        folder, _ = unpack(archive, tmp_path)
        rig = LogRig(ForkedPlace(folder).log())
        await rig.open()
        await rig.log.close()

        first, second, third = sealed(folder)
        for entry in (first, second):
            assert (entry.sources, named(folder, entry)) == ([], {})
        assert {number for number, _, _ in third.sources} == set(named(folder, third))
        assert "orders" in named(folder, third).values()

    async def test_a_second_seal_keeps_the_names_of_the_first(self, open_process: OpenProcess, folder: Path) -> None:
        """As after the loss of the manifest, when every segment is sealed again."""
        rig = await open_process()
        await log_records(rig, created(1, "gone"))
        await rig.log.seal_now()
        await rig.store(1, 0, 3)
        await log_records(rig, QueueDeleted(1))
        await rig.log.close()
        add_checkpoint(folder, 3, {})
        (folder / "manifest").unlink()

        rig = await open_process(accept_loss=True)
        await rig.log.close()

        assert [named(folder, entry) for entry in sealed(folder)][:2] == [{}, {1: "gone"}]


def test_a_segment_without_the_table_has_no_names(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as raw:
        assert read_names(raw) == []
