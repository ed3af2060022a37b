"""A driver of Spark in a process of its own, in which the task of a write fails at its last row, and is repeated.

    python -m support.spark.repeated_task JSON

JSON: ``data`` (a data folder, which is read), ``url`` and ``queue`` (the target), ``folder`` (for files of Spark, and a
file ``attempt-N`` of each attempt). A local master repeats tasks only if it says how often.
"""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingModuleSource=false

import json
import sys
from pathlib import Path
from typing import Any

from support.spark.small_spark import small_spark


def main(settings: dict[str, Any]) -> None:
    from pyspark.sql.functions import udf
    from pyspark.sql.types import BinaryType

    folder = settings["folder"]
    small_batches = {"spark.driver.memory": "512m", "spark.sql.execution.arrow.maxRecordsPerBatch": "1"}
    spark = small_spark("local[1,2]", "cmqd repeated task", Path(folder), small_batches)

    rows = spark.read.format("cmqd").load(settings["data"]).select("body", "lsn", "row_index").coalesce(1)
    last = rows.orderBy("lsn", "row_index").collect()[-1].body

    def without_the_last_body_at_first(body: bytearray) -> bytearray | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        Path(folder, f"attempt-{attempt}").touch()
        # The sink refuses a message without a body, behind the rows that it has sent.
        return None if body == last and not attempt else body

    body = udf(without_the_last_body_at_first, BinaryType(), useArrow=False)
    writer = rows.withColumn("body", body("body")).write.format("cmqd").mode("append")
    writer.options(url=settings["url"], queue=settings["queue"], batchSize="1").save()


main(json.loads(sys.argv[1]))
