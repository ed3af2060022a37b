"""Rows that a query's filters skip before a read: never a row that Spark would have kept."""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingModuleSource=false

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from cmqd_log.errors import OptionError
from cmqd_log.options import parse_options
from cmqd_log.schema import COLUMNS, Table
from pyspark_cmqd.reading.columns import check_columns
from pyspark_cmqd.reading.pushdown import narrowed
from pyspark_cmqd.reading.source import CmqdDataSource

pytestmark = pytest.mark.spark
"""No session is needed."""

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1_795_262_400_000
OPTIONS = parse_options({"path": "data"})
KINDS: "list[Any]" = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def times(one: Filter) -> tuple[int | None, int | None]:
    options = narrowed(OPTIONS, [one])
    return options.starting_ms, options.ending_ms


def test_a_time_with_a_zone_is_taken():
    for noon in (NOON, NOON.astimezone(timezone(timedelta(hours=5)))):
        assert times(GreaterThanOrEqual(("enqueue_ts",), noon)) == (NOON_MS - 1, None)
        assert times(LessThan(("enqueue_ts",), noon)) == (None, NOON_MS + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_without_a_zone_is_left_to_spark(kind: Any):
    assert times(kind(("enqueue_ts",), NOON.replace(tzinfo=None))) == (None, None)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("enqueue_ts", TimestampNTZType()),
        ("lsn", IntegerType()),
        ("body", StringType()),
        ("tags", ArrayType(IntegerType())),
        ("origin", StructType([StructField("queue", StringType())])),
    ],
)
def test_a_column_has_its_own_type_and_no_other(column: str, kind: DataType):
    columns = StructType([StructField("queue", StringType()), StructField(column, kind)])

    with pytest.raises(OptionError, match=f"schema.*{column} .*{COLUMNS[column]}"):
        check_columns(columns, Table.LOG)


def test_columns_may_be_fewer_and_in_another_order():
    columns = StructType([StructField("queue", StringType(), nullable=False), StructField("lsn", LongType())])
    check_columns(columns, Table.LOG)


def test_readers_of_both_kinds_check_them():
    source = CmqdDataSource({"path": "data"})
    columns = StructType([StructField("enqueue_ts", TimestampNTZType())])

    with pytest.raises(OptionError, match="enqueue_ts"):
        source.reader(columns)
    # Of a stream the first call fails: Spark shows an error of the constructor behind an error of its own.
    with pytest.raises(OptionError, match="enqueue_ts"):
        source.streamReader(columns).initialOffset()
