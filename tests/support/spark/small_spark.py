"""A Spark session for tests: small, quick to start, and on the loopback alone."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def small_spark(master: str, name: str, folder: Path, settings: Mapping[str, str]) -> "SparkSession":
    """Start a session; all files of Spark itself are below ``folder``."""
    from pyspark.sql import SparkSession

    from pyspark_cmqd.java import use_java
    from pyspark_cmqd.session import private_settings

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Else the workers run the first "python3" of the path, without the package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    use_java()
    builder: Any = SparkSession.builder
    small = {
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        "spark.sql.shuffle.partitions": "2",
        # Like the sessions of cmq; over TCP a task waits 40 ms before its start.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    for setting, value in {**private_settings(folder, master), **small, **settings}.items():
        builder = builder.config(setting, value)
    session = builder.master(master).appName(name).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
