"""Rows with changed bytes on disk: refused by every reader, and never passed over."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cmqd_log.data_folder.catalog import read_catalog
from cmqd_log.data_folder.folder import Folder
from cmqd_log.errors import DataLossError, FolderError
from cmqd_log.options import parse_options
from cmqd_log.reading import tasks
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_stretches, read_task
from cmqd_segment.manifest import LossEntry, read_manifest, write_manifest
from cmqd_segment.rows import NO_QUEUES
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""

ORDERS = 7
DAMAGED = 2
SCHEMA = pa.schema([pa.field("lsn", arrow_type("lsn"))])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A queue with messages in rows 2 and 3."""
    folder = tmp_path / "data"
    write_folder(
        folder, [[([queue_created(ORDERS, "orders")], [], NOW_MS), sends(ORDERS, 0, 10), sends(ORDERS, 10, 5)]]
    )
    return folder


def change(folder: Path, column: str, value: object) -> None:
    """Of the row in the middle, with its checksum as it was."""
    (segment,) = (each for each in (folder / "segments").glob("*.db") if holds_rows(each))
    with closing(sqlite3.connect(segment)) as raw:
        raw.execute(f"UPDATE log SET {column} = ? WHERE lsn = ?", (value, DAMAGED))
        raw.commit()


def holds_rows(segment: Path) -> bool:
    with closing(sqlite3.connect(f"file:{segment}?mode=ro&immutable=1", uri=True)) as raw:
        return raw.execute("SELECT count(*) FROM log").fetchone()[0] > 0


def read(folder: Path, **options: str) -> list[int]:
    tasks = plan_batch(parse_options({"path": str(folder), **options}), SCHEMA.names)
    return [lsn for task in tasks for batch in read_task(task, SCHEMA) for lsn in batch.column("lsn").to_pylist()]


CHANGES = [("messages", 0), ("time_ms", NOW_MS + 1), ("queues", NO_QUEUES), ("meta", b"\x90")]


@pytest.mark.parametrize(("column", "value"), CHANGES, ids=[column for column, _ in CHANGES])
@pytest.mark.parametrize("mode", ["events", "backlog", "all"])
def test_a_row_that_is_read_is_checked_whole(folder: Path, column: str, value: object, mode: str):
    assert read(folder, mode=mode) == [2] * 10 + [3] * 5

    change(folder, column, value)

    with pytest.raises(FolderError, match=f"row {DAMAGED} of .* is damaged: its records do not match their checksum"):
        read(folder, mode=mode)


@pytest.mark.parametrize(("column", "value"), CHANGES[:3], ids=[column for column, _ in CHANGES[:3]])
def test_so_it_is_where_names_are_known_already(folder: Path, column: str, value: object):
    (task,) = plan_batch(parse_options({"path": str(folder)}), SCHEMA.names)
    change(folder, column, value)

    with pytest.raises(FolderError, match="do not match their checksum"):
        list(read_task(task, SCHEMA))
    with pytest.raises(FolderError, match="do not match their checksum"):
        list(read_stretches(task))


def test_a_damaged_row_names_no_queue(folder: Path):
    change(folder, "time_ms", 0)
    opened = Folder(str(folder))

    with pytest.raises(FolderError, match="do not match their checksum"):
        read_catalog(opened, opened.view(include_active=False))


@pytest.mark.parametrize("few", [-1, 8])
def test_a_summary_that_is_none_is_told_as_damage(folder: Path, few: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "FEW_QUEUES", few)
    (task,) = plan_batch(parse_options({"path": str(folder), "queue": "orders"}), SCHEMA.names)
    change(folder, "queues", b"\xc1")

    with pytest.raises(FolderError, match=f"row {DAMAGED} of .* cannot be decoded"):
        list(read_task(task, SCHEMA))


def accept(folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest.losses.append(LossEntry(DAMAGED, DAMAGED, "do not match their checksum"))
    write_manifest(folder, manifest)


def test_a_row_that_was_given_up_as_lost_is_lost_data_and_not_damage(folder: Path):
    change(folder, "messages", 0)
    accept(folder)

    with pytest.raises(DataLossError, match=f"row {DAMAGED} of"):
        read(folder)
    assert read(folder, failOnDataLoss="false") == [3] * 5
    assert read(folder, mode="all", failOnDataLoss="false") == [3] * 5
