"""A server of Spark Connect on the loopback, until its standard input ends.

    python -m support.spark.connect_server FOLDER

The first line of the output is the port. Files of Spark are in the folder.
"""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingModuleSource=false

import sys
from pathlib import Path
from typing import Any

from support.spark.small_spark import small_spark


def main(folder: Path) -> None:
    settings = {
        "spark.driver.memory": "512m",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    spark = small_spark("local[2]", "cmqd connect", folder, settings)
    java: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    # An object of Scala is a field of its class.
    service: Any = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    print(service.localPort(), flush=True)
    sys.stdin.read()
    spark.stop()


main(Path(sys.argv[1]))
