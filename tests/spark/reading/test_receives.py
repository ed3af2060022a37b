"""Table ``receives`` by ``spark.read.format("cmqd")``: the rows of the model, and of a scan."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cmqd_log
from cmqd_log.schema import RECEIVES
from support.spark.received_folder import ReceivedFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ReceivedFolder:
    """Segments are gone."""
    return ReceivedFolder(tmp_path_factory.mktemp("log") / "data", 8, gone=5)


def read(spark: "SparkSession", folder: Path, **options: str) -> "DataFrame":
    return spark.read.format("cmqd").options(table="receives", **options).load(str(folder))


def test_spark_has_the_receives_of_the_broker(spark: "SparkSession", made: ReceivedFolder) -> None:
    frame = read(spark, made.folder)
    rows = frame.toArrow().to_pylist()

    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == list(RECEIVES.items())
    made.assert_equal(rows)
    assert rows == cmqd_log.scan(made.folder, table="receives").read_all().to_pylist()


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_and_options_select_alike(spark: "SparkSession", made: ReceivedFolder, pushdown: str) -> None:
    rows = cmqd_log.scan(made.folder, table="receives", endingLsn=300).read_all().to_pylist()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        found = read(spark, made.folder, endingLsn="300").where("queue = 'q' AND lsn > 100").select("lease").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    expected = [row["lease"] for row in rows if row["queue"] == "q" and (row["lsn"] or 0) > 100]
    assert [row.lease for row in found] == expected
    assert found


def test_a_table_of_a_catalog_has_the_columns_of_receives(spark: "SparkSession", made: ReceivedFolder) -> None:
    spark.sql(f"CREATE TABLE received USING cmqd OPTIONS (table 'receives', account 'first') LOCATION '{made.folder}'")
    try:
        hows = spark.sql("SELECT how, count(*) AS n FROM received GROUP BY how").collect()
    finally:
        spark.sql("DROP TABLE received")

    rows = cmqd_log.scan(made.folder, table="receives", account="first").read_all().to_pylist()
    assert {row.how: row.n for row in hows} == {
        how: sum(row["how"] == how for row in rows) for how in {row["how"] for row in rows}
    }


def test_columns_of_another_table_are_refused(spark: "SparkSession", made: ReceivedFolder) -> None:
    with pytest.raises(Exception, match="columns are account, queue, queue_id"):
        spark.read.format("cmqd").schema("body binary").options(table="receives").load(str(made.folder)).collect()
    with pytest.raises(Exception, match="give one of log, receives"):
        spark.read.format("cmqd").option("table", "queues").load(str(made.folder)).collect()
