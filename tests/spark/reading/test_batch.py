"""``spark.read.format("cmqd")`` in a real session."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from cmqd_log.schema import COLUMNS
from cmqd_segment.records import MessagesSent
from support.core.builders import START_MS, Rig
from support.spark.log_folder import queue_created, rows_of, sends, write_folder
from support.spark.log_store import serving
from support.storage.log_rig import NOW_MS, body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS, BILLS = 7, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two queues in three segments: 300 orders, 100 bills (in the first and the last)."""
    folder = tmp_path_factory.mktemp("log") / "data"
    created = [queue_created(ORDERS, "orders"), queue_created(BILLS, "bills")]
    write_folder(
        folder,
        [
            [(created, [], NOW_MS), sends(ORDERS, 0, 100), sends(BILLS, 0, 50)],
            [sends(ORDERS, 100, 100, NOW_MS + 60_000)],
            [sends(ORDERS, 200, 100, NOW_MS + 120_000), sends(BILLS, 50, 50, NOW_MS + 120_000)],
        ],
    )
    return folder


def test_all_columns_of_all_messages(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").load(str(folder))

    rows = frame.orderBy("lsn", "row_index").collect()

    assert frame.columns == list(COLUMNS)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == COLUMNS
    # Three segments, all of them small.
    assert frame.rdd.getNumPartitions() == 1
    assert [row.queue for row in rows] == ["orders"] * 100 + ["bills"] * 50 + ["orders"] * 200 + ["bills"] * 50
    orders = [row for row in rows if row.queue == "orders"]
    assert [bytes(row.body) for row in orders] == [body(ORDERS, position) for position in range(300)]
    assert [row.msg_id for row in orders] == [f"Msg-{7_000_000 + position:016x}" for position in range(300)]
    assert [row.row_index for row in orders] == [*range(100)] * 3
    first = rows[0]
    assert first.event == "sent"
    assert first.segment == "00000001"
    assert first.topic is None
    assert first.tags is None
    assert first.headers is None
    assert first.origin is None
    assert first.enqueue_ts.astimezone(UTC) == datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.mark.parametrize("switched_on", [True, False])
def test_queues_of_one_name_are_told_apart_by_their_account(spark: "SparkSession", tmp_path: Path, switched_on: bool):
    theirs = structs.replace(queue_created(BILLS, "orders"), account="other")
    created = [queue_created(ORDERS, "orders"), theirs]
    write_folder(tmp_path / "data", [[(created, [], NOW_MS), sends(ORDERS, 0, 10), sends(BILLS, 0, 5)]])
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, str(switched_on).lower())
    try:
        for mode in ("events", "all", "backlog"):
            frame = spark.read.format("cmqd").option("mode", mode).load(str(tmp_path / "data"))
            counts = {
                (row.account, row.queue): row["count"] for row in frame.groupBy("account", "queue").count().collect()
            }
            assert counts == {("owner", "orders"): 10, ("other", "orders"): 5}
            assert frame.where("account = 'other' AND queue = 'orders'").count() == 5
            assert frame.where("account IN ('owner', 'nobody')").count() == 10
    finally:
        spark.conf.unset(setting)


def test_a_narrower_schema(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").schema("queue string, lsn long").load(str(folder))

    assert {tuple(row) for row in frame.distinct().collect()} >= {("bills", 3), ("orders", 2)}


def test_nothing_to_read_is_an_empty_frame(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").option("startingTimestamp", str(NOW_MS + 3_600_000)).load(str(folder))

    assert frame.collect() == []


def test_one_queue_in_more_parts(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").options(queue="bills", minPartitions=4).load(str(folder))

    assert frame.rdd.getNumPartitions() >= 4
    assert frame.count() == 100
    assert {row.queue for row in frame.select("queue").distinct().collect()} == {"bills"}


def test_a_time_range(spark: "SparkSession", folder: Path):
    options = {"startingTimestamp": str(NOW_MS + 60_000), "endingTimestamp": str(NOW_MS + 120_000)}

    rows = spark.read.format("cmqd").options(**options).load(str(folder)).select("lsn").distinct().collect()

    assert [row.lsn for row in rows] == [4]


def test_small_batches(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").option("batchRows", 7).load(str(folder))

    bodies = [bytes(row.body) for row in frame.orderBy("lsn", "row_index").collect() if row.queue == "orders"]

    assert bodies == [body(ORDERS, position) for position in range(300)]


@pytest.mark.parametrize("switched_on", [True, False])
def test_filters_are_right_with_push_down_and_without(spark: "SparkSession", folder: Path, switched_on: bool):
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, str(switched_on).lower())
    try:
        frame = spark.read.format("cmqd").load(str(folder))
        one = frame.where("queue = 'bills' AND lsn >= 5")
        some = frame.where("queue IN ('bills', 'none') AND lsn < 5")
        since = frame.where("enqueue_ts >= timestamp_millis(1700000060000)")
        times = since.where("enqueue_ts < timestamp_millis(1700000120000)")
        none = frame.where("queue = 'orders' AND queue = 'bills'")

        assert (one.count(), some.count(), times.count(), none.count()) == (50, 50, 100, 0)
        whole = spark.read.format("cmqd").option("minPartitions", 3).load(str(folder))
        parts = whole.where("queue = 'bills' AND lsn >= 5").rdd.getNumPartitions()
        assert parts < 3 if switched_on else parts == 3
    finally:
        spark.conf.unset(setting)


def test_modes(spark: "SparkSession", tmp_path: Path):
    rig = Rig()
    rig.create("dead")
    rig.create("q", dead_letter_queue="dead", dead_letter_max_receives=1)
    rig.send(*[b"message %d" % number for number in range(10)])
    rig.delete(*rig.handles(most=3))
    rig.receive(most=1, visibility_timeout_ms=1000)
    rig.settle(1100)
    rig.receive(most=2, visibility_timeout_ms=100_000)
    rig.send(b"later", delay_ms=60_000)
    (handle,) = rig.handles(most=1)
    rig.reject(handle, reasons=["no such customer"])
    folder = tmp_path / "data"
    write_folder(folder, [rows_of(rig)])

    def states(**options: str) -> "list[tuple[str, str, bytes, int]]":
        frame = spark.read.format("cmqd").options(**options).load(str(folder))
        rows = frame.orderBy("lsn", "row_index").collect()
        return [(row.queue, row.event, bytes(row.body), row.receive_count) for row in rows]

    backlog = [
        *(("q", "in_flight", b"message %d" % number, 1) for number in (4, 5)),
        *(("q", "active", b"message %d" % number, 0) for number in range(7, 10)),
        ("dead", "active", b"message 3", 0),
        ("q", "delayed", b"later", 0),
        ("dead", "active", b"message 6", 0),
    ]
    deleted = [("q", "deleted", b"message %d" % number, 1) for number in range(3)]
    assert states(mode="backlog") == backlog
    assert states(mode="consumed") == deleted
    assert states(mode="dead") == [("dead", "active", b"message 3", 0), ("dead", "active", b"message 6", 0)]
    assert states(mode="all") == [
        *deleted,
        ("q", "dead_lettered", b"message 3", 1),
        *backlog[:2],
        ("q", "dead_lettered", b"message 6", 1),
        *backlog[2:],
    ]
    # The state of an earlier row, when nothing had been received.
    sent = next(lsn for lsn, records in enumerate(rig.log.rows, 1) if isinstance(records[-1], MessagesSent))
    assert {state for _, state, *_ in states(mode="all", endingLsn=str(sent))} == {"active"}

    dead, rejected = spark.read.format("cmqd").option("mode", "dead").load(str(folder)).orderBy("lsn").collect()
    assert (dead.origin.queue, dead.origin.reason, dead.origin.receive_count) == ("q", "receives", 1)
    assert dead.origin.rejection is None
    assert (rejected.origin.reason, rejected.origin.rejection) == ("rejected", "no such customer")
    consumed = spark.read.format("cmqd").option("mode", "consumed").load(str(folder)).collect()
    assert {row.deleted_ts.astimezone(UTC).timestamp() for row in consumed} == {START_MS / 1000}


def test_topics_tags_and_headers(spark: "SparkSession", tmp_path: Path):
    rig = Rig()
    rig.create_topic()
    rig.subscribe("a")
    rig.subscribe("b")
    rig.publish(b"1", b"2", labels=["red", "blue"], headers=[{"k": "v"}, None])
    rig.publish(b"3", labels=["green"])
    folder = tmp_path / "data"
    write_folder(folder, [rows_of(rig)])

    def read(**options: str) -> "list[Any]":
        frame = spark.read.format("cmqd").options(**options).load(str(folder))
        return frame.orderBy("lsn", "row_index").collect()

    rows = read()
    assert [(row.event, row.queue, row.topic, bytes(row.body), row.row_index) for row in rows] == [
        ("published", None, "news", b"1", 0),
        ("published", None, "news", b"2", 1),
        ("copied", "a", "news", b"1", 2),
        ("copied", "a", "news", b"2", 3),
        ("copied", "b", "news", b"1", 4),
        ("copied", "b", "news", b"2", 5),
        ("published", None, "news", b"3", 0),
        ("copied", "a", "news", b"3", 1),
        ("copied", "b", "news", b"3", 2),
    ]
    assert rows[0].headers == {"k": "v"}
    assert rows[1].headers is None
    assert rows[0].tags == ["red", "blue"]
    assert [bytes(row.body) for row in read(topic="news", tags="green,black")] == [b"3"]
    assert [bytes(row.body) for row in read(queue="b", tags="blue")] == [b"1", b"2"]


def test_errors_say_what_is_wrong(spark: "SparkSession", folder: Path):
    with pytest.raises(Exception, match="has no queue of this name"):
        spark.read.format("cmqd").option("queue", "nobody").load(str(folder)).collect()
    with pytest.raises(Exception, match="columns are lsn"):
        spark.read.format("cmqd").schema("bodies binary").load(str(folder)).collect()
    with pytest.raises(Exception, match="has no option of this name"):
        spark.read.format("cmqd").option("qname", "orders").load(str(folder)).collect()


def test_a_url_is_read_and_each_file_is_fetched_once(spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
    with serving(folder.parent) as store:

        def read() -> list[int]:
            options = {"queue": "orders", "cacheFolder": str(tmp_path / "cache")}
            frame = spark.read.format("cmqd").options(**options).load(store.url)
            return [row.position for row in frame.orderBy("lsn", "row_index").collect()]

        assert read() == list(range(300))
        fetched = store.fetched()
        assert 3 <= fetched <= 6, "driver and executors may meet over a file"

        assert read() == list(range(300))
        assert store.fetched() == fetched
