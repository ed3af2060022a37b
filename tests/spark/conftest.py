"""One Spark session for all tests of the connector, small and on the loopback alone."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.small_spark import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A real session. Where there is no Java at all this fails: a skipped contract is no contract."""
    session = small_spark("local[2]", "cmqd tests", tmp_path_factory.mktemp("spark"), {"spark.driver.memory": "1g"})
    yield session
    session.stop()
