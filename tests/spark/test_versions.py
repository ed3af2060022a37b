"""Versions of Spark that lack what the source needs."""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingModuleSource=false

import sys

import pyspark
import pytest

import pyspark_cmqd
from pyspark_cmqd import versions
from pyspark_cmqd.versions import OldSparkError

pytestmark = pytest.mark.spark


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark whose Python streams have no admission control."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")

    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(versions, "find_spec", find_nothing)


def test_this_spark_has_the_source() -> None:
    assert pyspark_cmqd.DefaultSource.__module__ == "pyspark_cmqd.reading.source"


@pytest.mark.usefixtures("old_spark")
def test_a_spark_that_is_too_old_is_told_so_when_the_format_is_used() -> None:
    # Spark asks every package for a source and its name. An error here would break the sources of other packages.
    source = pyspark_cmqd.DefaultSource
    assert source.name() == "cmqd"

    with pytest.raises(OldSparkError) as refused:
        source({})

    assert str(refused.value) == (
        'format("cmqd") needs Spark 4.2 or later, the first with admission control of Python streams, and this is '
        "Spark 4.1.4"
    )


@pytest.mark.usefixtures("old_spark")
def test_a_spark_without_python_sources_is_told_so_when_the_source_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(sys.modules, "pyspark_cmqd.reading.refused", raising=False)

    with pytest.raises(OldSparkError, match=r"needs Spark 4\.2 or later"):
        _ = pyspark_cmqd.DefaultSource
