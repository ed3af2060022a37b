"""Names by id: from checkpoints, from rows, over reclaimed rows; and names that need no decoding."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import sqlite3
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec import structs
from msgspec.structs import fields

from cmqd_log.data_folder import catalog as catalog_module
from cmqd_log.data_folder.catalog import Catalog, checkpointed, follow, name_ids, read_catalog
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import Piece, View
from cmqd_log.errors import OptionError, UnknownNameError
from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_segment import checkpoint, records
from cmqd_segment.manifest import SegmentEntry, read_manifest, write_manifest
from cmqd_segment.newer import tag_of
from cmqd_segment.records import QueueDeleted
from support.cases import each_case
from support.spark.log_folder import add_checkpoint, drop_segment, forget_names, queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

KINDS = [
    kind
    for module in (checkpoint, records)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(kind.__struct_config__.tag, int)
]


def test_all_kinds_are_looked_at():
    assert {checkpoint.QueueSlice, records.QueueCreated, records.MessagesPublished} <= set(KINDS)


@each_case("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tag_is_found_however_many_fields_there_are(kind: type[msgspec.Struct]):
    packed = msgspec.msgpack.encode(kind(*(None for _ in fields(kind))))

    assert tag_of(packed) == kind.__struct_config__.tag
    assert tag_of(memoryview(packed)) == kind.__struct_config__.tag


# ---------------------------------------------------------------------- in a folder


def names(catalog: Catalog) -> dict[int, str]:
    return {number: source.name for number, source in catalog.sources.items()}


def looked_at(folder: Path) -> tuple[Folder, View]:
    data = Folder(str(folder))
    return data, data.view(include_active=False)


def pieces(view: View) -> list[Piece]:
    return [Piece(one, one.first_lsn - 1, one.last_lsn) for one in view.extents]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Row 1 creates orders, row 3 bills, row 5 debts; a row of messages follows each, and two rows are a segment.

    The segments have no tables of names, as those of format 1.
    """
    folder = tmp_path / "data"
    made = {7: "orders", 8: "bills", 9: "debts"}
    write_folder(
        folder,
        [[([queue_created(number, name)], [], NOW_MS), sends(number, 0, 5)] for number, name in made.items()],
    )
    forget_names(folder)
    return folder


@pytest.mark.system
def test_what_was_made_in_rows_that_are_gone_is_learnt_from_the_next_checkpoint(folder: Path):
    known = checkpointed(*looked_at(folder))
    follow(known, *looked_at(folder))
    write_folder(folder, [[([queue_created(10, "later")], [], NOW_MS)], [sends(10, 0, 5)]])
    add_checkpoint(folder, 7, {7: "orders", 10: "later"})
    drop_segment(folder, 7)

    follow(known, *looked_at(folder))

    assert names(known) == {7: "orders", 8: "bills", 9: "debts", 10: "later"}


@pytest.mark.system
def test_rows_that_are_left_beside_a_gap_are_looked_through_too(folder: Path):
    known = checkpointed(*looked_at(folder))
    follow(known, *looked_at(folder))
    write_folder(
        folder,
        [[sends(7, 5, 5)], [([queue_created(10, "short")], [], NOW_MS), sends(10, 0, 5)]],
    )
    # The queue was deleted before the checkpoint.
    add_checkpoint(folder, 9, {7: "orders"})
    drop_segment(folder, 7)

    follow(known, *looked_at(folder))

    assert names(known)[10] == "short"


@pytest.mark.system
def test_segments_are_opened_only_as_far_as_there_are_ids_without_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    add_checkpoint(folder, 6, {7: "orders"})
    data, view = looked_at(folder)
    opened: list[int] = []
    open_ = Folder._open  # pyright: ignore[reportPrivateUsage]

    def noted(folder: Folder, extent: SegmentEntry) -> sqlite3.Connection:
        opened.append(extent.number)
        return open_(folder, extent)

    monkeypatch.setattr(Folder, "_open", noted)
    first, second, third = (extent.number for extent in view.extents)

    catalog = checkpointed(data, view)
    assert (names(catalog), opened) == ({7: "orders"}, [])

    name_ids(catalog, data, view, pieces(view)[:1])
    assert (names(catalog), opened) == ({7: "orders"}, [first])

    # Once for its messages, once for its creation; no row behind, no row before.
    name_ids(catalog, data, view, pieces(view)[1:2])
    assert (names(catalog), opened[1:]) == ({7: "orders", 8: "bills"}, [second, second])

    name_ids(catalog, data, view, pieces(view)[:2])
    assert opened[3:] == []
    assert names(read_catalog(data, view)) == {7: "orders", 8: "bills", 9: "debts"}
    assert third in opened


@pytest.mark.system
def test_what_nothing_names_is_looked_for_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    write_folder(folder, [[sends(8, 5, 5)], [sends(8, 10, 5)]])
    forget_names(folder)
    add_checkpoint(folder, 8, {7: "orders", 9: "debts"})
    drop_segment(folder, 3)
    data, view = looked_at(folder)
    catalog = checkpointed(data, view)

    name_ids(catalog, data, view, pieces(view)[-2:-1])
    assert catalog.nameless == {8}

    monkeypatch.setattr(catalog_module, "metas", None)
    name_ids(catalog, data, view, pieces(view))
    assert names(catalog) == {7: "orders", 9: "debts"}


@pytest.mark.system
def test_a_queue_that_was_deleted_is_known_by_its_name_where_it_has_no_messages(folder: Path):
    add_checkpoint(folder, 6, {7: "orders", 9: "debts"})

    def planned(**options: str) -> list[int]:
        tasks = plan_batch(parse_options({"path": str(folder), **options}), ["lsn"])
        return [task.piece.upto for task in tasks]

    assert planned(queue="bills") == [4]
    assert planned(queue="bills", startingLsn="5") == []
    with pytest.raises(OptionError, match="has no queue of this name"):
        planned(queue="bils", startingLsn="5")
    with pytest.raises(OptionError, match="has no queue of this name"):
        planned(queue="bils", startingTimestamp=str(NOW_MS + 3_600_000))


@pytest.mark.system
def test_a_pattern_that_matches_no_queue_is_an_unknown_queue(folder: Path):
    def planned(**options: str) -> list[int]:
        tasks = plan_batch(parse_options({"path": str(folder), **options}), ["lsn"])
        return [task.piece.upto for task in tasks]

    assert planned(queuePattern="b.*") == [4]
    for options in ({}, {"startingLsn": "5"}, {"account": "owner"}, {"mode": "all"}):
        with pytest.raises(UnknownNameError, match="has no queue whose whole name matches"):
            planned(queuePattern="bil", **options)
    with pytest.raises(UnknownNameError, match="'other'"):
        planned(queuePattern="b.*", account="other")


# ---------------------------------------------------------------------- names in the segments


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    """A queue was made in row 1, has messages in rows 2 and 3, and was deleted in row 4. Row 1 is reclaimed."""
    folder = tmp_path / "deleted"
    write_folder(
        folder,
        [
            [([queue_created(7, "gone")], [], NOW_MS)],
            [sends(7, 0, 5)],
            [sends(7, 5, 5)],
            [([QueueDeleted(7), queue_created(8, "stays")], [], NOW_MS), sends(8, 0, 5)],
        ],
    )
    add_checkpoint(folder, 5, {8: "stays"})
    drop_segment(folder, 1)
    return folder


def read_rows(folder: Path, **options: str) -> list[tuple[int, str | None, str | None]]:
    asked = parse_options({"path": str(folder), **options})
    schema = pa.schema([pa.field(name, arrow_type(name)) for name in ("lsn", "queue", "account")])
    tasks = plan_batch(asked, schema.names)
    rows = [row for task in tasks for batch in read_task(task, schema) for row in batch.to_pylist()]
    return sorted({(row["lsn"], row["queue"], row["account"]) for row in rows})


@pytest.mark.system
@pytest.mark.parametrize("digests", [True, False])
def test_rows_of_a_deleted_queue_keep_its_name_though_its_creation_is_reclaimed(deleted: Path, digests: bool):
    if not digests:
        manifest = read_manifest(deleted)
        segments = [structs.replace(entry, sources=[]) for entry in manifest.segments]
        write_manifest(deleted, structs.replace(manifest, segments=segments, names=[]))

    assert read_rows(deleted) == [(2, "gone", "owner"), (3, "gone", "owner"), (5, "stays", "owner")]
    assert read_rows(deleted, queue="gone") == [(2, "gone", "owner"), (3, "gone", "owner")]


@pytest.mark.system
def test_without_names_in_the_segments_it_is_as_it_was(deleted: Path):
    forget_names(deleted)

    assert read_rows(deleted) == [(2, None, None), (3, None, None), (5, "stays", "owner")]
    with pytest.raises(OptionError):
        read_rows(deleted, queue="gone")


@pytest.mark.system
def test_no_segment_is_opened_to_learn_names_and_what_it_holds(deleted: Path, monkeypatch: pytest.MonkeyPatch):
    data, view = looked_at(deleted)
    monkeypatch.setattr(Folder, "_open", None)

    catalog = checkpointed(data, view)
    name_ids(catalog, data, view, pieces(view))

    assert names(catalog) == {7: "gone", 8: "stays"}
    planned = plan_batch(parse_options({"path": str(deleted), "queue": "stays"}), ["lsn"])
    assert [(task.piece.extent.first_lsn, task.piece.upto) for task in planned] == [(4, 5)]
