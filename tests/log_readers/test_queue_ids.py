"""Queues by id: the column ``queue_id`` and the option ``queueId``, where a name had several queues."""

# pyarrow tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cmq_cli.app import run
from cmq_cli.exitcodes import ExitCode
from cmqd_log.data_folder.folder import Folder
from cmqd_log.errors import OptionError, UnknownNameError
from cmqd_log.options import parse_options
from cmqd_log.queues import queues_of
from cmqd_log.reading.arrow_batches import arrow_type
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_log.schema import COLUMNS
from cmqd_segment.manifest import read_manifest
from cmqd_segment.records import MessagesPublished, QueueDeleted, TopicCreated
from cmqd_types.attributes import TopicAttributes
from support.spark.log_folder import Row, add_checkpoint, drop_segment, forget_names, queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]

FIRST, SECOND, NEWS, OTHER = 7, 9, 11, 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A queue that was created again under its name, with positions from 0; and a topic with copies in it."""
    folder = tmp_path / "data"
    topic = TopicCreated(NEWS, "owner", "news", TopicAttributes(), NOW_MS)
    published = MessagesPublished(NEWS, 0, 50, NOW_MS, [2, 2], [SECOND, 3], 60, message_sets=[b"\3"])
    made: Row = [queue_created(FIRST, "orders"), queue_created(OTHER, "bills"), topic], [], NOW_MS
    again: Row = [QueueDeleted(FIRST), queue_created(SECOND, "orders")], [], NOW_MS
    publish: Row = [published], [b"p0", b"p1"], NOW_MS
    write_folder(folder, [[made, sends(FIRST, 0, 5), sends(OTHER, 0, 1)], [again, sends(SECOND, 0, 3), publish]])
    return folder


def read(folder: Path, **options: str) -> list[tuple[Any, ...]]:
    columns = ("queue", "topic", "queue_id", "position")
    schema = pa.schema([pa.field(name, arrow_type(name)) for name in columns])
    tasks = plan_batch(parse_options({"path": str(folder), **options}), columns)
    return [
        tuple(row[name] for name in columns)
        for task in tasks
        for batch in read_task(task, schema)
        for row in batch.to_pylist()
    ]


def test_the_id_is_the_last_column():
    assert list(COLUMNS)[-2:] == ["queue_id", "ended_ts"]


def test_a_name_has_all_queues_that_had_the_name_and_an_id_has_a_queue(folder: Path):
    first = [("orders", None, FIRST, position) for position in range(5)]
    second = [("orders", None, SECOND, position) for position in range(3)]
    copies = [("orders", "news", SECOND, position) for position in (3, 4)]

    assert read(folder, queue="orders") == [*first, *second, *copies]
    assert read(folder, queueId=str(FIRST)) == first
    assert read(folder, queueId=str(SECOND)) == [*second, *copies]
    assert read(folder, queueId=str(SECOND), account="owner", mode="backlog") == [*second, *copies]
    rows = read(folder)
    assert len({row[2:] for row in rows}) == len(rows) == 13


def test_a_message_of_a_topic_has_the_id_of_the_topic(folder: Path):
    published = [(None, "news", NEWS, 0), (None, "news", NEWS, 1)]

    assert read(folder, topic="news") == read(folder, queueId=str(NEWS)) == published


def test_an_id_may_have_lost_its_name(tmp_path: Path):
    write_folder(tmp_path / "data", [[sends(FIRST, 0, 2)]])
    forget_names(tmp_path / "data")

    assert read(tmp_path / "data", queueId=str(FIRST)) == [(None, None, FIRST, 0), (None, None, FIRST, 1)]
    with pytest.raises(UnknownNameError, match="has no queue of this id"):
        read(tmp_path / "data", queueId="8")


def test_the_command_lists_ids_and_times(folder: Path, capfd: pytest.CaptureFixture[str]):
    write_folder(folder, [[([QueueDeleted(OTHER)], [], NOW_MS + 1000)]])

    assert run(["log", "queues", "--path", str(folder), "--output", "json"]) == ExitCode.OK
    listed = json.loads(capfd.readouterr().out)
    assert [(one["id"], one["account"], one["name"], one["exists"], one["messages"]) for one in listed] == [
        (FIRST, "owner", "orders", False, 5),
        (SECOND, "owner", "orders", True, 5),
        (OTHER, "owner", "bills", False, 1),
    ]
    created, deleted = "2023-11-14T22:13:20Z", ["2023-11-14T22:13:20Z", None, "2023-11-14T22:13:21Z"]
    assert [(one["created"], one["deleted"]) for one in listed] == [(created, time) for time in deleted]

    assert run(["log", "queues", "--path", str(folder)]) == ExitCode.OK
    head, *lines = capfd.readouterr().out.splitlines()
    assert head.split() == ["id", "account", "queue", "created", "deleted", "messages"]
    assert [line.split()[:3] for line in lines] == [
        ["7", "owner", "orders"],
        ["9", "owner", "orders"],
        ["12", "owner", "bills"],
    ]
    assert run(["log", "queues", "--path", str(folder.parent)]) == ExitCode.NOT_FOUND
    assert "is not a data folder" in capfd.readouterr().err


def test_a_delete_whose_row_is_reclaimed_is_known_by_the_checkpoint(folder: Path):
    write_folder(folder, [[([QueueDeleted(OTHER)], [], NOW_MS + 1000)]])
    newest = read_manifest(folder).segments[-1]
    add_checkpoint(folder, newest.last_lsn, {SECOND: "orders"})
    drop_segment(folder, newest.first_lsn)
    data = Folder(str(folder))

    found = queues_of(data, data.view(include_active=False))

    assert [(one.id, one.exists, one.deleted_ms) for one in found] == [
        (FIRST, False, NOW_MS),
        (SECOND, True, None),
        (OTHER, False, None),
    ]


def test_a_queue_that_went_below_the_checkpoint_without_messages_is_listed(tmp_path: Path):
    creations: list[Row] = [([queue_created(id, name)], [], NOW_MS) for id, name in ((1, "orders"), (7, "brief"))]
    folder = tmp_path / "data"
    write_folder(folder, [[*creations, sends(1, 0, 3), ([QueueDeleted(7)], [], NOW_MS + 1000)], [sends(1, 3, 3)]])
    add_checkpoint(folder, 4, {1: "orders"}, active=3)
    data = Folder(str(folder))

    found = queues_of(data, data.view(include_active=False))

    assert [(one.name, one.exists, one.deleted_ms, one.messages) for one in found] == [
        ("orders", True, None, 6),
        ("brief", False, NOW_MS + 1000, 0),
    ]


@pytest.mark.parametrize("kept", [0, -40], ids=["empty", "cut"])
def test_a_damaged_checkpoint_deletes_no_queue(folder: Path, kept: int):
    newest = read_manifest(folder).segments[-1].last_lsn
    for lsn in (newest - 1, newest):
        add_checkpoint(folder, lsn, {SECOND: "orders", OTHER: "bills"})
    file = folder / read_manifest(folder).checkpoints[-1].file
    file.write_bytes(file.read_bytes()[:kept])
    data = Folder(str(folder))

    found = queues_of(data, data.view(include_active=False))

    assert [(queue.id, queue.exists) for queue in found] == [(FIRST, False), (SECOND, True), (OTHER, True)]


def test_an_id_that_the_log_does_not_have_is_an_error(folder: Path):
    with pytest.raises(UnknownNameError, match=r"'queueId' cannot be '8': the log of .* has no queue of this id"):
        read(folder, queueId="8")
    with pytest.raises(UnknownNameError, match="has no account of this name"):
        read(folder, queueId=str(FIRST), account="other")
    with pytest.raises(UnknownNameError, match="has no queue of this id"):
        read(folder, queueId=str(NEWS), mode="all")
    for options in ({"queueId": "0"}, {"queueId": "orders"}, {"queueId": "7", "queue": "orders"}):
        with pytest.raises(OptionError):
            read(folder, **options)
