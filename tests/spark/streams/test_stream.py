"""``spark.readStream.format("cmqd")`` in a real session: limits, restarts, a crash in the middle of a batch."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false, reportUnknownLambdaType=false

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import Task, View
from cmqd_log.data_folder.positions import Offset
from cmqd_log.data_folder.selections import selection_of
from cmqd_log.errors import DataLossError, FolderError, OptionError, OtherLogError
from cmqd_log.options import parse_options
from cmqd_log.schema import DDL
from cmqd_segment.manifest import read_manifest, write_manifest
from pyspark_cmqd.reading.partition import CmqdPartition
from pyspark_cmqd.reading.stream import CmqdStreamReader
from support.spark.log_folder import add_checkpoint, drop_segment, queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# All of them: Spark makes a schema of DDL only where there is a session.
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROWS = 12
LAG = ("rows_behind", "messages_behind", "bytes_behind", "seconds_behind")
ALL = selection_of(parse_options({"path": "data"}))


def rows_from(first: int, count: int) -> list[Any]:
    return [sends(7, position, 10) for position in range(first, first + 10 * count, 10)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve rows of ten messages, in two segments."""
    folder = tmp_path / "data"
    created = ([queue_created(7, "orders")], [], NOW_MS)
    write_folder(folder, [[created, *rows_from(0, 6)], rows_from(60, 6)])
    return folder


class Run:
    """A run of a query over the present rows, into a list of batches."""

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
            query.awaitTermination()
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
    assert json.loads(source["endOffset"])["lsn"] == 13
    nothing = dict.fromkeys(LAG, 0)
    assert json.loads(source["latestOffset"]) == json.loads(source["endOffset"]) | nothing
    first_trigger = json.loads(first.progress[0]["sources"][0]["latestOffset"])
    assert [first_trigger[name] for name in LAG[:2]] == [8, 60 * 2 // 7 + 60]

    write_folder(folder, [rows_from(120, 2)])
    second = Run(spark, folder, tmp_path / "checkpoint")()

    assert second.rows == messages(14, 15)


def test_a_batch_that_failed_is_the_same_batch_again(spark: "SparkSession", folder: Path, tmp_path: Path):
    broken = Run(spark, folder, tmp_path / "checkpoint", maxBytesPerTrigger="1000")
    broken.failing_batch = 1
    with pytest.raises(Exception, match="in the middle"):
        broken()
    write_folder(folder, [rows_from(120, 2)])

    # A changed limit: planned batches stay as planned.
    again = Run(spark, folder, tmp_path / "checkpoint", maxMessagesPerTrigger="100")()

    assert broken.rows == messages(2, 3)
    assert again.batches[0] == messages(4, 5)
    assert again.rows == messages(4, 15)


def test_a_stream_from_a_row_on(spark: "SparkSession", folder: Path, tmp_path: Path):
    run = Run(spark, folder, tmp_path / "checkpoint", startingLsn="10", endingLsn="11")()

    assert run.rows == messages(10, 11)


# ---------------------------------------------------------------------- the driver in a trigger


class Looks:
    """Counts the views of the folder, and can change the folder before a view."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        view = Folder.view

        def look(folder: Folder, *, include_active: bool) -> View:
            self.count += 1
            return view(folder, include_active=include_active)

        monkeypatch.setattr(Folder, "view", look)


def reader_of(folder: Path, **options: str) -> CmqdStreamReader:
    columns: Any = StructType.fromDDL(DDL)
    return CmqdStreamReader(parse_options({"path": str(folder), **options}), columns)


def test_a_trigger_looks_at_the_folder_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    reader = reader_of(folder)
    start = reader.initialOffset()
    looks = Looks(monkeypatch)

    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert reader.reportLatestOffset() == end | dict.fromkeys(LAG, 0)
    reader.partitions(start, end)

    assert looks.count == 1
    write_folder(folder, [rows_from(120, 2)])
    assert reader.reportLatestOffset()["lsn"] == 15
    assert reader.latestOffset(end, reader.getDefaultReadLimit())["lsn"] == 15


def test_a_batch_that_is_planned_again_needs_no_look_before(folder: Path):
    again = reader_of(folder)

    assert len(again.partitions({"lsn": 0}, {"lsn": 13})) == 1


def test_small_segments_share_a_partition(folder: Path):
    for first in (120, 140, 160):
        write_folder(folder, [rows_from(first, 2)])
    one, three = reader_of(folder), reader_of(folder, minPartitions="3")
    start: Offset = {"lsn": 0}
    end: Offset = {"lsn": 19}

    assert [len(each.tasks) for each in partitions_of(one, start, end)] == [5]
    parts = partitions_of(three, start, end)
    assert len(parts) >= 3
    assert [task.piece.upto for part in parts for task in tasks_of(part)] == [7, 13, 15, 17, 19]


def partitions_of(reader: CmqdStreamReader, start: Offset, end: Offset) -> list[CmqdPartition]:
    return [part for part in reader.partitions(start, end) if isinstance(part, CmqdPartition)]


def tasks_of(part: CmqdPartition) -> list[Task]:
    return [task for task in part.tasks if isinstance(task, Task)]


def test_what_was_reclaimed_between_two_looks_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch):
    reader = reader_of(folder, queue="orders")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    drop_segment(folder, 1)

    with pytest.raises(DataLossError, match="no longer has rows 1 to 7"):
        reader.partitions(start, end)

    lenient = reader_of(folder, queue="orders", failOnDataLoss="false")
    (part,) = partitions_of(lenient, start, end)
    assert [(task.piece.above, task.piece.upto) for task in tasks_of(part)] == [(7, 13)]


def test_a_time_that_was_reclaimed_is_told_before_the_first_batch(folder: Path):
    drop_segment(folder, 1)
    asked = {"startingTimestamp": str(NOW_MS)}

    with pytest.raises(DataLossError, match="no longer has rows 1 to 7"):
        reader_of(folder, **asked).initialOffset()

    assert reader_of(folder, failOnDataLoss="false", **asked).initialOffset()["lsn"] == 7
    assert reader_of(folder, startingTimestamp=str(NOW_MS + 1)).initialOffset()["lsn"] == 13
    assert reader_of(folder).initialOffset()["lsn"] == 7


def test_the_newest_rows_were_reclaimed_and_that_is_told(folder: Path):
    drop_segment(folder, 8)
    reader = reader_of(folder)
    end = reader.latestOffset({"lsn": 7}, reader.getDefaultReadLimit())

    assert end["lsn"] == 13
    with pytest.raises(DataLossError, match="no longer has rows 8 to 13"):
        reader.partitions({"lsn": 7}, end)
    assert reader_of(folder, failOnDataLoss="false").partitions({"lsn": 7}, end) == []


def test_a_query_that_was_farther_than_the_log_is(folder: Path):
    reader = reader_of(folder)

    with pytest.raises(
        FolderError, match=r"has read up to row 14 of .* readable rows end at row 13: the folder holds another log"
    ):
        reader.latestOffset({"lsn": 14}, reader.getDefaultReadLimit())
    assert reader.latestOffset({"lsn": 13}, reader.getDefaultReadLimit())["lsn"] == 13


def test_a_query_may_wait_for_the_row_that_is_written_next(folder: Path):
    reader = reader_of(folder, startingLsn="14")

    assert reader.initialOffset()["lsn"] == 13
    assert reader.latestOffset({"lsn": 13}, reader.getDefaultReadLimit())["lsn"] == 13
    with pytest.raises(OptionError, match=r"newest readable row of .* is row 13; give at most 14"):
        reader_of(folder, startingLsn="15").initialOffset()
    # An earlier version began queries at later rows.
    kept = reader_of(folder, startingLsn="100")
    assert kept.latestOffset({"lsn": 99}, kept.getDefaultReadLimit())["lsn"] == 99


@pytest.mark.parametrize("limits", [{}, {"maxMessagesPerTrigger": "10"}])
def test_a_query_of_an_unknown_queue_warns_once_and_waits(
    folder: Path, caplog: pytest.LogCaptureFixture, limits: dict[str, str]
):
    reader = reader_of(folder, queuePattern="bil.*", **limits)
    start = end = reader.initialOffset()

    for _ in range(2):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert reader.partitions(start, end) == []
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("option 'queuePattern' cannot be 'bil.*': the log of ")
    assert told.endswith(" has none up to row 13; the stream waits for it")

    write_folder(folder, [[([queue_created(8, "bills")], [], NOW_MS), sends(8, 0, 10)]])
    later = reader.latestOffset(end, ReadAllAvailable())
    assert [task.wanted for part in partitions_of(reader, end, later) for task in tasks_of(part)] == [frozenset({8})]
    assert len(caplog.records) == 1
    known = reader_of(folder, queuePattern="bil.*", **limits)
    known.latestOffset(start, known.getDefaultReadLimit())
    assert len(caplog.records) == 1


def test_a_queue_that_was_made_in_rows_that_are_gone(folder: Path):
    reader = reader_of(folder, queue="later", failOnDataLoss="false")
    assert reader.partitions({"lsn": 0}, {"lsn": 13}) == []
    write_folder(folder, [[([queue_created(8, "later")], [], NOW_MS)], [sends(8, 0, 10)]])
    add_checkpoint(folder, 14, {7: "orders", 8: "later"})
    drop_segment(folder, 14)

    (part,) = partitions_of(reader, {"lsn": 13}, {"lsn": 15})

    assert [(task.piece.above, task.wanted) for task in tasks_of(part)] == [(14, frozenset({8}))]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "all"}, "option 'mode' cannot be 'all': a stream reads events; the other modes"),
        ({"table": "receives"}, "option 'table' cannot be 'receives': a stream reads the table log"),
        ({"quue": "orders"}, "option 'quue' cannot be used: the source has no option of this name"),
        ({"startingLsn": "15"}, "option 'startingLsn' cannot be 15: the newest readable row"),
    ],
)
def test_a_stream_that_is_refused_has_the_sentence_in_its_last_line(
    spark: "SparkSession", folder: Path, tmp_path: Path, options: dict[str, str], sentence: str
):
    with pytest.raises(Exception, match=sentence) as refused:
        Run(spark, folder, tmp_path / "checkpoint", **options)()

    (traceback,) = re.findall(r"Traceback .*?(?= SQLSTATE)", str(refused.value), re.DOTALL)
    assert f"OptionError: {sentence}" in traceback.rstrip().splitlines()[-1]


def test_rows_that_were_reclaimed_between_two_triggers(spark: "SparkSession", folder: Path, tmp_path: Path):
    first = Run(spark, folder, tmp_path / "checkpoint", endingLsn="5")()
    assert first.rows == messages(2, 5)
    drop_segment(folder, 1)

    with pytest.raises(Exception, match="no longer has rows 6 to 7"):
        Run(spark, folder, tmp_path / "checkpoint")()
    # The query fails until data loss is allowed, and then continues behind the gap.
    with pytest.raises(Exception, match="no longer has rows 6 to 7"):
        Run(spark, folder, tmp_path / "checkpoint")()
    again = Run(spark, folder, tmp_path / "checkpoint", failOnDataLoss="false")()

    assert again.rows == messages(8, 13)


def test_rows_that_are_reclaimed_under_a_running_query(spark: "SparkSession", folder: Path, tmp_path: Path):
    run = Run(spark, folder, tmp_path / "checkpoint", maxMessagesPerTrigger="30")
    take = run._take  # pyright: ignore[reportPrivateUsage]

    def drops(frame: "DataFrame", batch: int) -> None:
        take(frame, batch)
        if batch == 0:
            drop_segment(folder, 1)

    run._take = drops  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Exception, match="no longer has rows 5 to 7"):
        run()
    assert run.rows == messages(2, 4)


# The log of a position


def test_offsets_name_the_log_and_the_start_that_wrote_the_row(folder: Path):
    manifest = read_manifest(folder)
    reader = reader_of(folder)
    starts = {entry.first_lsn: entry.number for entry in manifest.starts}

    assert reader.initialOffset() == {"lsn": 0, "log_id": manifest.log_id, "start": ""} | ALL
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert end == {"lsn": 13, "log_id": manifest.log_id, "start": starts[8]} | ALL
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_an_offset_of_another_log_is_refused_though_its_row_is_there(folder: Path, tmp_path: Path):
    other = tmp_path / "other"
    write_folder(other, [rows_from(0, 20)])
    kept = reader_of(other).latestOffset({"lsn": 0}, ReadAllAvailable())

    for use in (
        lambda reader: reader.latestOffset({**kept, "lsn": 7}, reader.getDefaultReadLimit()),
        lambda reader: reader.partitions({"lsn": 0}, {**kept, "lsn": 7}),
        lambda reader: reader.partitions({**kept, "lsn": 7}, {"lsn": 13}),
    ):
        with pytest.raises(OtherLogError, match=f"belongs to log {kept['log_id']}, and .* holds log"):
            use(reader_of(folder))


def test_a_restored_copy_is_read_on_until_it_grows_anew(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = reader_of(folder).latestOffset({"lsn": 0}, ReadAllAvailable())
    for data in (folder, copy):
        write_folder(data, [rows_from(120, 3)])
    after = reader_of(folder).latestOffset(before, ReadAllAvailable())

    assert reader_of(copy).latestOffset(before, ReadAllAvailable())["lsn"] == after["lsn"]
    with pytest.raises(
        OtherLogError, match="restored from an older copy, and the broker has written its rows from 14 on again"
    ):
        reader_of(copy).latestOffset(after, ReadAllAvailable())


def test_an_offset_of_an_earlier_version_is_taken_once_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture):
    reader = reader_of(folder)

    proven = reader.latestOffset({"lsn": 13}, reader.getDefaultReadLimit())
    assert proven | dict.fromkeys(LAG, 0) == reader.reportLatestOffset()
    assert reader.latestOffset({"lsn": 7}, reader.getDefaultReadLimit()) == proven
    reader.partitions({"lsn": 7}, proven)
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "the position at row 13 names no selection",
        "the position at row 13 names no log",
    ]
    with pytest.raises(OtherLogError):
        reader.latestOffset({"lsn": 14}, reader.getDefaultReadLimit())


def test_a_folder_without_an_id_is_read_as_before(folder: Path, caplog: pytest.LogCaptureFixture):
    write_manifest(folder, structs.replace(read_manifest(folder), log_id="", starts=[]))
    reader = reader_of(folder)

    assert reader.latestOffset({"lsn": 0}, reader.getDefaultReadLimit()) == {"lsn": 13} | ALL
    assert not caplog.records
