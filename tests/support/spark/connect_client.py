"""A client of Spark Connect in a process of its own: a process with a session of Spark takes no second kind.

    python -m support.spark.connect_client JSON

JSON: ``port`` of the server, ``data`` (a data folder, which is read), ``url`` and ``queue`` (the target of the rows),
``checkpoint`` (a folder for a stream). The output is JSON: the rows that were read, and the error of a wrong option.
"""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingModuleSource=false

import json
import sys
from typing import Any

QUERY_SECONDS = 120


def main(settings: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    spark = builder.remote(f"sc://127.0.0.1:{settings['port']}").getOrCreate()
    target = {"url": settings["url"], "queue": settings["queue"]}

    log = spark.read.format("cmqd").load(settings["data"])
    rows = [[row.lsn, row.row_index, bytes(row.body).decode()] for row in log.orderBy("position").collect()]
    for _ in range(2):
        log.write.format("cmqd").mode("append").options(writeId="once", **target).save()
    stream = spark.readStream.format("cmqd").load(settings["data"]).writeStream.format("cmqd").options(**target)
    query = stream.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    ended = query.awaitTermination(QUERY_SECONDS)
    try:
        spark.read.format("cmqd").option("mode", "wrong").load(settings["data"]).count()
        error = ""
    except Exception as refused:
        error = str(refused)
    print(json.dumps({"rows": rows, "ended": ended, "error": error}))
    spark.stop()


main(json.loads(sys.argv[1]))
