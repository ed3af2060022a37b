"""``spark.read.format("cmqd")`` in a real session."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_cmqd.schema import COLUMNS
from support.log_folder import queue_created, sends, write_folder
from support.log_rig import NOW_MS, body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

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
    assert frame.rdd.getNumPartitions() == 3
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


def test_a_narrower_schema(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").schema("queue string, lsn long").load(str(folder))

    assert {tuple(row) for row in frame.distinct().collect()} >= {("bills", 3), ("orders", 2)}


def test_nothing_to_read_is_an_empty_frame(spark: "SparkSession", folder: Path):
    frame = spark.read.format("cmqd").option("startingTimestamp", str(NOW_MS + 3_600_000)).load(str(folder))

    assert frame.collect() == []
