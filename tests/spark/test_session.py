"""Failures of commands with Spark, and the part of Spark's text that is shown."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_cmqd import session
from pyspark_cmqd.session import reason_of, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TRACE = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate partitions: Traceback (most recent call last):
  File "driver.py", line 24, in plan_batch
    raise FolderError(...)
cmqd_log.errors.FolderError: /data is not a data folder: it has no manifest
 SQLSTATE: 38000"""


def test_what_our_own_code_said_is_the_reason():
    assert reason_of(RuntimeError(TRACE)) == "/data is not a data folder: it has no manifest"
    assert reason_of(RuntimeError("first\nsecond")) == "first"
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_a_failure_of_the_copy_core_is_the_reason():
    text = (
        "Caused by: x\ncmqd_log.copy.sending.SendError: messages cannot be sent to queue 'q': QueueNotFound\n\n\tat a"
    )

    assert reason_of(RuntimeError(text)) == "messages cannot be sent to queue 'q': QueueNotFound"


def test_a_query_that_fails_says_why(spark: "SparkSession", tmp_path: Path):
    with pytest.raises(Exception, match="has no manifest") as failure:
        spark.read.format("cmqd").load(str(tmp_path)).collect()

    assert reason_of(failure.value).endswith("is not a data folder: it has no manifest")


def test_a_session_that_is_there_is_used_and_left(spark: "SparkSession"):
    with spark_session("local[1]", "test") as found:
        assert found is spark

    assert spark.range(1).count() == 1


def test_a_session_of_our_own_talks_to_python_by_unix_sockets(spark: "SparkSession", tmp_path: Path):
    """``spark`` has the setting of a session of our own, and Spark takes it."""
    name = "spark.python.unix.domain.socket.enabled"
    settings = session._settings(tmp_path, "local[1]")  # pyright: ignore[reportPrivateUsage]

    def kind(_: Iterable[int]) -> Iterable[str]:
        yield os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower()

    assert settings[name] == spark.sparkContext.getConf().get(name) == "true"
    assert spark.sparkContext.parallelize([1], 1).mapPartitions(kind).collect() == ["true"]


def test_what_is_started_meanwhile_writes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    redirected = session._output_to  # pyright: ignore[reportPrivateUsage]

    with redirected(tmp_path / "log"):
        os.write(1, b"out ")
        os.write(2, b"err")
    os.write(1, b"seen")

    assert (tmp_path / "log").read_text() == "out err"
    assert capfd.readouterr().out == "seen"


def test_an_interrupt_that_py4j_logs_is_not_shown():
    is_shown = session._is_not_py4j  # pyright: ignore[reportPrivateUsage]
    record = logging.LogRecord("root", logging.ERROR, "py4j/clientserver.py", 1, "interrupted", None, None)

    assert not is_shown(record)
    record.module = "elsewhere"
    assert is_shown(record)
