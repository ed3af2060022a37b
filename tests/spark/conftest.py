"""A Spark session for all tests of the connector, small and on the loopback alone."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from support.spark.small_spark import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAVE_UP = "Python worker failed to connect back"
"""Spark waits ten seconds for a Python worker of a stream, and no setting changes this. A busy machine is slower."""
ATTEMPTS = 3


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A real session. Without Java the tests fail: a skipped contract is no contract."""
    session = small_spark("local[2]", "cmqd tests", tmp_path_factory.mktemp("spark"), {"spark.driver.memory": "1g"})
    yield session
    session.stop()


def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Item | None) -> bool:
    """Run a test again if Spark gave up waiting for a Python worker; report the last attempt."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for _ in range(1, ATTEMPTS):
        if not any(report.failed and GAVE_UP in report.longreprtext for report in reports):
            break
        item._initrequest()  # new function fixtures  # pyright: ignore[reportPrivateUsage]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
