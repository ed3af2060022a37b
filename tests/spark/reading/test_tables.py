"""A data folder as a table of Spark's catalog: ``CREATE TABLE ... USING cmqd``."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten orders and five bills, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("log") / "da ta"
    created = [queue_created(7, "orders"), queue_created(8, "bills")]
    write_folder(folder, [[(created, [], NOW_MS), sends(7, 0, 10), sends(8, 0, 5)]])
    return folder


@pytest.fixture
def sql(spark: "SparkSession") -> "Iterator[Any]":
    """Runs a statement and returns its rows; tables are dropped at the end."""

    def run(statement: str) -> list[Any]:
        return spark.sql(statement).collect()

    yield run
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE {table.name}")


def count(sql: Any, what: str) -> int:
    ((number,),) = sql(f"SELECT count(*) FROM {what}")
    return number


@pytest.mark.parametrize("place", ["LOCATION '{}'", "OPTIONS (path '{}')"])
def test_a_table_reads_its_folder_and_dropping_it_leaves_the_folder(sql: Any, folder: Path, place: str):
    before = sorted(folder.rglob("*"))
    sql(f"CREATE TABLE log USING cmqd {place.format(folder)}")

    assert count(sql, "log") == 15
    assert count(sql, "log WHERE queue = 'bills'") == 5
    sql("DROP TABLE log")
    assert sorted(folder.rglob("*")) == before


def test_options_of_a_table_hold_unless_a_query_says_otherwise(spark: "SparkSession", sql: Any, folder: Path):
    sql(f"CREATE TABLE log USING cmqd OPTIONS (queue 'orders', mode 'backlog') LOCATION '{folder}'")

    assert sql("SELECT DISTINCT queue, event FROM log") == [("orders", "active")]
    assert sql("SELECT DISTINCT queue FROM log WITH (queue = 'bills')") == [("bills",)]
    assert spark.read.option("queue", "bills").table("log").count() == 5


def test_a_table_is_a_stream_too(spark: "SparkSession", sql: Any, folder: Path, tmp_path: Path):
    sql(f"CREATE TABLE log USING cmqd OPTIONS (queue 'bills') LOCATION '{folder}'")
    writer = spark.readStream.table("log").select("msg_id").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
    query.start(str(tmp_path / "out")).awaitTermination(60)

    assert spark.read.parquet(str(tmp_path / "out")).count() == 5


def test_a_table_that_cannot_be_read_is_not_made(sql: Any, folder: Path):
    with pytest.raises(Exception, match="option 'quue' cannot be"):
        sql(f"CREATE TABLE log USING cmqd OPTIONS (quue 'orders') LOCATION '{folder}'")
    with pytest.raises(Exception, match="option 'path' is missing"):
        sql("CREATE TABLE log USING cmqd")


def test_a_table_with_a_list_of_columns_says_what_to_run(sql: Any, folder: Path):
    sql(f"CREATE TABLE log (lsn bigint, queue string) USING cmqd LOCATION '{folder}'")

    with pytest.raises(Exception, match="option 'path' is missing") as refused:
        sql("SELECT * FROM log")
    assert count(sql, f"log WITH (path = '{folder}')") == 15
    (statements,) = re.findall("run: (.*)", str(refused.value))
    *making, select = statements.replace("/srv/cmqd/data", str(folder)).split("; ")
    for statement in making:
        sql(statement)
    assert len(sql(select)) == 15


def test_the_statement_that_spark_shows_is_not_the_statement_to_run(sql: Any, folder: Path):
    sql(f"CREATE TABLE log USING cmqd OPTIONS (queue 'bills') LOCATION '{folder}'")
    ((shown,),) = sql("SHOW CREATE TABLE log")
    sql("DROP TABLE log")
    sql(f"{shown} USING cmqd" if "USING" not in shown else shown)

    with pytest.raises(Exception, match="as in the output of SHOW CREATE TABLE, Spark keeps no folder"):
        sql("SELECT * FROM log")


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO log SELECT * FROM log", "INSERT INTO log (body) VALUES (X'00')", "INSERT OVERWRITE log TABLE log"],
)
@pytest.mark.parametrize("columns", ["", "(body binary)"])
def test_an_insert_into_a_table_of_a_log_shows_the_write_to_a_queue(
    sql: Any, folder: Path, statement: str, columns: str
):
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    sql(f"CREATE TABLE log {columns} USING cmqd LOCATION '{folder}'")
    if columns:
        statement = statement.replace("SELECT * FROM log", "VALUES (X'00')").replace("TABLE log", "VALUES (X'00')")

    with pytest.raises(Exception, match="INSERT INTO a table of a log fails") as refused:
        sql(statement)

    assert '.write.format("cmqd").mode("append").option("queue", "NAME").save()' in str(refused.value)
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before
