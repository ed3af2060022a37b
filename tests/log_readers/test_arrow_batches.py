"""Columns about copies, positions, dedup ids and states: read from folders that a storage process wrote, no session."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any

import pytest

from cmqd_log.options import parse_options
from cmqd_log.reading.arrow_batches import schema_of
from cmqd_log.reading.planning import plan_batch
from cmqd_log.reading.tasks import read_task
from cmqd_log.schema import COLUMNS
from cmqd_segment.records import NumbersReserved, TopicCreated
from cmqd_types.messages import printed_id
from support.core.builders import Rig
from support.spark.log_folder import rows_of, write_folder

pytestmark = [pytest.mark.spark, pytest.mark.system]

SCHEMA = schema_of(COLUMNS)


def read(folder: Path, **options: str) -> "list[dict[str, Any]]":
    tasks = plan_batch(parse_options({"path": str(folder), **options}), list(COLUMNS))
    return [row for task in tasks for batch in read_task(task, SCHEMA) for row in batch.to_pylist()]


def failing_subscriber() -> Rig:
    """Two subscribers of a topic; every message of the second becomes a dead letter."""
    rig = Rig()
    rig.create("dead")
    rig.create("work", dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.create_topic()
    rig.subscribe("work", name="worker")
    rig.subscribe("other", name="other")
    rig.publish(b"1", b"2", each=[["red"], ["blue"]], dedup_ids=["one", None])
    rig.receive("work", visibility_timeout_ms=1000)
    rig.settle(1100)
    return rig


def test_a_dead_letter_knows_its_topic_and_tags_and_what_it_is_a_copy_of(tmp_path: Path):
    rig = failing_subscriber()
    rig.send(b"3", name="work")
    rig.receive("work", visibility_timeout_ms=1000)
    rig.settle(1100)
    write_folder(tmp_path / "data", [rows_of(rig)])

    rows = read(tmp_path / "data")
    published = [row for row in rows if row["event"] == "published"]
    moved = [row for row in rows if row["event"] == "moved"]

    originals = [(row["msg_id"], row["enqueue_ts"]) for row in published]
    assert [(row["queue"], row["topic"], row["subscription"], row["tags"]) for row in moved] == [
        ("dead", "news", "worker", ["red"]),
        ("dead", "news", "worker", ["blue"]),
        ("dead", None, None, None),
    ]
    copies = [row for row in rows if row["event"] == "copied"]
    assert [(row["queue"], row["subscription"]) for row in copies] == [("work", "worker")] * 2 + [
        ("other", "other")
    ] * 2
    assert [(row["copy_of"]["msg_id"], row["copy_of"]["publish_ts"]) for row in copies] == originals * 2
    assert [row["copy_of"] and row["copy_of"]["msg_id"] for row in moved] == [
        published[0]["msg_id"],
        published[1]["msg_id"],
        None,
    ]
    assert [row["copy_of"] for row in published] == [None, None]
    assert [row["subscription"] for row in published] == [None, None]
    # Filters and replays by tag include dead letters.
    assert [row["msg_id"] for row in read(tmp_path / "data", queue="dead", tags="blue")] == [moved[1]["msg_id"]]


def test_a_redriven_message_keeps_its_topic_and_routing_key(tmp_path: Path):
    rig = Rig()
    rig.create("dead")
    rig.create("work", dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.create_topic(filter_type="routing")
    rig.subscribe("work", name="worker", binding_keys=["#"])
    rig.publish(b"1", labels="order.paid")
    rig.receive("work", visibility_timeout_ms=1000)
    rig.settle(1100)
    rig.redrive("dead")
    rig.settle(2000)
    write_folder(tmp_path / "data", [rows_of(rig)])

    moved = [row for row in read(tmp_path / "data") if row["event"] == "moved"]

    assert [(row["queue"], row["topic"], row["routing_key"], row["origin"]["reason"]) for row in moved] == [
        ("dead", "news", "order.paid", "receives"),
        ("work", "news", "order.paid", "redrive"),
    ]


def test_a_late_copy_names_its_topic_although_the_topic_is_gone(tmp_path: Path):
    rig = Rig()
    rig.create("full")
    rig.force("full", max_backlog=1)
    rig.create_topic()
    rig.subscribe("full", name="late")
    rig.send(b"in the way", name="full")
    rig.publish(b"1", labels=["red"])
    rig.force("full", max_backlog=100)
    rig.settle(60_000)
    rows = rows_of(rig)
    created = [at for at, (records, _, _) in enumerate(rows) if isinstance(records[-1], TopicCreated)]
    assert len(created) == 1
    # The row that made the topic is empty: as if reclaimed, with the topic deleted before the checkpoint.
    rows[created[0]] = ([NumbersReserved(1, 1, 1)], [], rows[created[0]][2])
    write_folder(tmp_path / "data", [rows])

    (late,) = [row for row in read(tmp_path / "data") if row["subscription"] == "late"]

    assert (late["event"], late["queue"], late["topic"], late["tags"]) == ("copied", "full", "news", ["red"])
    assert late["copy_of"]["publish_ts"] < late["enqueue_ts"]


def test_positions_are_dense_in_each_queue_and_topic(tmp_path: Path):
    rig = failing_subscriber()
    rig.send(*[b"x"] * 5, name="other")
    write_folder(tmp_path / "data", [rows_of(rig)])

    positions: dict[tuple[str | None, str | None], list[int]] = {}
    for row in read(tmp_path / "data", batchRows="2"):
        positions.setdefault((row["queue"], row["topic"] if row["queue"] is None else None), []).append(row["position"])

    assert positions == {
        ("work", None): [0, 1],
        ("dead", None): [0, 1],
        ("other", None): [*range(7)],
        (None, "news"): [0, 1],
    }


def test_dedup_ids_are_those_of_the_producer(tmp_path: Path):
    rig = failing_subscriber()
    write_folder(tmp_path / "data", [rows_of(rig)])

    ids = [(row["event"], row["dedup_id"]) for row in read(tmp_path / "data") if row["dedup_id"] is not None]

    assert ids == [("published", "one")]


def test_states_say_for_which_row_they_are_told(tmp_path: Path):
    rig = failing_subscriber()
    write_folder(tmp_path / "data", [rows_of(rig)])
    last = rig.log.last_lsn

    assert {row["as_of_lsn"] for row in read(tmp_path / "data")} == {None}
    assert {row["as_of_lsn"] for row in read(tmp_path / "data", mode="all")} == {last}
    assert {row["as_of_lsn"] for row in read(tmp_path / "data", mode="backlog", endingLsn=str(last - 1))} == {last - 1}


def test_message_ids_of_originals_are_printed_as_everywhere(tmp_path: Path):
    rig = failing_subscriber()
    write_folder(tmp_path / "data", [rows_of(rig)])
    rows = read(tmp_path / "data", topic="news")

    assert {row["msg_id"] for row in rows} == {
        row["copy_of"]["msg_id"] for row in read(tmp_path / "data", queue="other")
    }
    assert all(row["msg_id"] == printed_id(int(row["msg_id"][4:], 16)) for row in rows)
