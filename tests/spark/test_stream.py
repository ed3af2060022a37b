"""``spark.readStream.format("cmqd")`` in a real session: limits, restarts, a crash in the middle of a batch."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false, reportUnknownLambdaType=false

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.log_folder import queue_created, sends, write_folder
from support.log_rig import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROWS = 12
PATIENCE_SECONDS = 90


def rows_from(first: int, count: int) -> list[Any]:
    return [sends(7, position, 10) for position in range(first, first + 10 * count, 10)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve rows of ten messages each, in two segments."""
    folder = tmp_path / "data"
    created = ([queue_created(7, "orders")], [], NOW_MS)
    write_folder(folder, [[created, *rows_from(0, 6)], rows_from(60, 6)])
    return folder


class Run:
    """One run of a query with what is there now, into a list of batches."""

    def __init__(self, spark: "SparkSession", folder: Path, checkpoint: Path, **options: str) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.failing_batch: int | None = None
        source = spark.readStream.format("cmqd").options(**options)
        self._frame = source.schema("lsn long, row_index int, body binary").load(str(folder))
        self._checkpoint = str(checkpoint)

    def __call__(self) -> "Run":
        writer = self._frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_SECONDS), "the query goes on"
            self.progress = query.recentProgress
        finally:
            query.stop()
        return self

    def _take(self, frame: "DataFrame", batch: int) -> None:
        rows = sorted((row.lsn, row.row_index) for row in frame.collect())
        if batch == self.failing_batch:
            raise RuntimeError("in the middle of a batch")
        self.batches.append(rows)

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for batch in self.batches for row in batch]


def messages(first_lsn: int, last_lsn: int) -> list[tuple[int, int]]:
    return [(lsn, index) for lsn in range(first_lsn, last_lsn + 1) for index in range(10)]


def test_all_there_is_and_what_came_later(spark: "SparkSession", folder: Path, tmp_path: Path):
    first = Run(spark, folder, tmp_path / "checkpoint", maxMessagesPerTrigger="45")()

    assert [len(batch) for batch in first.batches] == [40, 40, 40]
    assert first.rows == messages(2, 13)
    source = first.progress[-1]["sources"][0]
    assert json.loads(source["endOffset"]) == {"lsn": 13}
    assert json.loads(source["latestOffset"]) == {"lsn": 13}

    write_folder(folder, [rows_from(120, 2)])
    second = Run(spark, folder, tmp_path / "checkpoint")()

    assert second.rows == messages(14, 15)


def test_a_batch_that_failed_is_the_same_batch_again(spark: "SparkSession", folder: Path, tmp_path: Path):
    broken = Run(spark, folder, tmp_path / "checkpoint", maxBytesPerTrigger="1000")
    broken.failing_batch = 1
    with pytest.raises(Exception, match="in the middle"):
        broken()
    write_folder(folder, [rows_from(120, 2)])

    # Another limit: what was planned stays as it was planned.
    again = Run(spark, folder, tmp_path / "checkpoint", maxMessagesPerTrigger="100")()

    assert broken.rows == messages(2, 3)
    assert again.batches[0] == messages(4, 5)
    assert again.rows == messages(4, 15)


def test_a_stream_from_a_row_on(spark: "SparkSession", folder: Path, tmp_path: Path):
    run = Run(spark, folder, tmp_path / "checkpoint", startingLsn="10", endingLsn="11")()

    assert run.rows == messages(10, 11)


def test_only_events_are_streamed(spark: "SparkSession", folder: Path, tmp_path: Path):
    with pytest.raises(Exception, match="a stream is of events"):
        Run(spark, folder, tmp_path / "checkpoint", mode="backlog")()
