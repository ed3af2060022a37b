"""A checkpoint of a stream belongs to a selection, and a copy of the log can be behind a checkpoint."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownParameterType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from cmqd_log.data_folder.positions import Offset
from cmqd_log.data_folder.selections import MAX_SHOWN, selection_of
from cmqd_log.errors import BehindError, OptionError, OtherLogError
from cmqd_log.options import parse_options
from cmqd_segment.manifest import read_manifest, write_manifest
from pyspark_cmqd.reading import stream as stream_module
from pyspark_cmqd.reading.partition import CmqdPartition
from pyspark_cmqd.reading.stream import CmqdStreamReader
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS, LogRig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

HOUR_MS = 3_600_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows 2 to 5 in a segment, 6 and 7 in the next, an hour later; orders and bills in turns."""
    folder = tmp_path / "data"
    created = ([queue_created(7, "orders"), queue_created(8, "bills")], [], NOW_MS)
    first = [sends(7, 0, 10), sends(8, 0, 5), sends(7, 10, 10), sends(8, 5, 5)]
    write_folder(folder, [[created, *first], [sends(number, 20, 10, NOW_MS + HOUR_MS) for number in (7, 8)]])
    return folder


def reader_of(folder: Path, **options: str) -> CmqdStreamReader:
    columns: Any = StructType([StructField("lsn", LongType())])
    return CmqdStreamReader(parse_options({"path": str(folder), **options}), columns)


def newest(reader: CmqdStreamReader, start: "Offset | None" = None) -> Offset:
    return reader.latestOffset(start or reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"queue": "orders"}, {"queue": "bills"}),
        ({"queue": "orders"}, {}),
        ({}, {"queue": "orders"}),
        ({"queue": "orders"}, {"queueId": "7"}),
        ({"topic": "news"}, {"queue": "news"}),
        ({"account": "owner"}, {"account": "other"}),
        ({"tags": "red"}, {"tags": "blue,red"}),
        ({"routingKey": "eu.#"}, {"routingKey": "eu.*"}),
        ({"queuePattern": "or.*"}, {"queuePattern": "b.*"}),
    ],
)
def test_another_selection_is_refused_with_both_named(folder: Path, before: dict[str, str], after: dict[str, str]):
    end = newest(reader_of(folder, **before))

    shown = [", ".join(f"{name}={text}" for name, text in one.items()) or "all messages" for one in (before, after)]
    uses: list[Callable[[CmqdStreamReader], Any]] = [
        lambda reader: reader.latestOffset(end, ReadAllAvailable()),
        lambda reader: reader.partitions({"lsn": 0}, end),
    ]
    for use in uses:
        with pytest.raises(OptionError, match="allowNewSelection") as refused:
            use(reader_of(folder, **after))
        assert f"has read {shown[0]} up to row 7, and its options select {shown[1]};" in str(refused.value)

    allowed = reader_of(folder, allowNewSelection="true", **after)
    moved = newest(allowed, end)
    assert moved == end | selection_of(allowed.options)
    assert newest(reader_of(folder, **after), moved) == moved


def test_the_order_of_names_and_other_options_are_not_part_of_a_selection(folder: Path):
    end = newest(reader_of(folder, queue="orders,bills", batchRows="5"))

    assert newest(reader_of(folder, queue="bills, orders", minPartitions="4", includeActive="true"), end) == end


def test_an_offset_without_a_selection_is_taken_once_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture):
    manifest = read_manifest(folder)
    start = manifest.starts[-1].number
    old: Offset = {"lsn": 7, "log_id": manifest.log_id, "start": start}
    reader = reader_of(folder, queue="orders")

    moved = newest(reader, old)

    assert moved == old | selection_of(reader.options)
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("the position at row 7 names no selection")
    assert told.endswith("as a position of queue=orders")
    reader.partitions(old, moved)
    assert len(caplog.records) == 1
    with pytest.raises(OptionError):
        newest(reader_of(folder, queue="bills"), moved)


def test_the_text_of_a_selection_is_bounded_and_its_digest_is_not_of_the_text(folder: Path):
    queues = [",".join(f"queue-{number:05d}" for number in range(last)) for last in (1000, 1001)]
    first, second = (selection_of(parse_options({"path": "data", "queue": each})) for each in queues)

    assert first["selection"] == second["selection"]
    assert len(str(first["selection"])) == MAX_SHOWN
    assert first["selection_digest"] != second["selection_digest"]


def test_a_checkpoint_of_spark_is_refused_under_another_queue(spark: "SparkSession", folder: Path, tmp_path: Path):
    def run(**options: str) -> int:
        frame = spark.readStream.format("cmqd").options(**options).load(str(folder)).select("lsn", "queue")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).count()

    assert run(queue="orders", endingLsn="5") == 20
    with pytest.raises(Exception, match="has read queue=orders up to row 5, and its options select queue=bills"):
        run(queue="bills")
    assert run(queue="orders") == 30
    assert run(queue="bills", allowNewSelection="true") == 30


# ---------------------------------------------------------------------- lag


@pytest.mark.parametrize(
    ("options", "limit", "rows", "messages", "seconds"),
    [
        ({}, 10, 5, 30 * 3 // 5 + 20, 3_600),
        ({"queue": "orders"}, 10, 4, 20 * 2 // 5 + 10, 3_600),
        ({"queuePattern": "none"}, 10, 0, 0, 0),
        ({}, 1000, 0, 0, 0),
    ],
)
def test_the_reported_offset_tells_the_lag(
    folder: Path, options: dict[str, str], limit: int, rows: int, messages: int, seconds: int
):
    """Messages of a segment that is read in part are estimated by its rows."""
    reader = reader_of(folder, **options)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(limit))

    told = reader.reportLatestOffset()

    assert (told["lsn"], end["lsn"]) == (7, 7 - rows)
    assert told == newest(reader_of(folder, **options)) | {
        "rows_behind": rows,
        "messages_behind": messages,
        "bytes_behind": 40 * messages,
        "seconds_behind": seconds,
    }


def test_the_lag_counts_unsealed_rows(folder: Path):
    def look(rig: LogRig) -> None:
        reader = reader_of(folder, includeActive="true", queue="bills")
        reader.latestOffset({"lsn": 7}, ReadMaxRows(1))
        told = reader.reportLatestOffset()
        assert [told[f"{name}_behind"] for name in ("rows", "messages", "bytes")] == [1, 7, 280]

    write_folder(folder, [[sends(8, 30, 3), sends(8, 33, 7)]], before_close=look)


# ---------------------------------------------------------------------- copies


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy without the two rows that the folder has gained since."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    write_folder(folder, [[sends(7, 30, 10), sends(8, 30, 10)]])
    return copy


def catch_up(folder: Path, copy: Path) -> None:
    for path in folder.glob("segments/*"):
        shutil.copy(path, copy / "segments" / path.name)
    write_manifest(copy, read_manifest(folder))


def test_a_copy_that_ends_before_the_row_of_a_stream_is_behind(folder: Path, copy: Path):
    end = newest(reader_of(folder))

    uses: list[Callable[[CmqdStreamReader], Any]] = [
        lambda reader: reader.latestOffset(end, ReadAllAvailable()),
        lambda reader: reader.partitions({"lsn": 0}, end),
    ]
    for use in uses:
        with pytest.raises(BehindError, match=r"copy that is behind by 2 rows: .* up to row 9, .* end at row 7"):
            use(reader_of(copy))
    with pytest.raises(OtherLogError):
        newest(reader_of(copy), {"lsn": 9})
    with pytest.raises(OtherLogError):
        newest(reader_of(copy), {**end, "log_id": "another"})


def test_a_stream_waits_for_the_rows_of_a_copy(folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch):
    end = newest(reader_of(folder))
    waits: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds
        if len(waits) == 3:
            catch_up(folder, copy)

    monkeypatch.setattr(stream_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stream_module.time, "sleep", sleep)

    with pytest.raises(BehindError):
        newest(reader_of(copy, waitForRows="1"), end)
    assert len(waits) == 2
    assert newest(reader_of(copy, waitForRows="1"), end) == end
    (part,) = reader_of(copy).partitions({"lsn": 7}, end)
    assert isinstance(part, CmqdPartition)
    assert len(waits) == 3
