"""A driver of Spark in a process of its own, to be killed in the middle of a batch.

    python -m support.spark.stream_driver JSON

Two queries read the same log: the first writes Parquet files, the second sends to a broker. JSON: ``source`` and
``sink`` (options), ``parquet`` (a folder), ``checkpoint`` (the prefix of two folders), ``folder`` (for files of Spark),
``stop_file`` (once the file exists, the remaining rows are read, and the driver ends), ``hold`` (a file: while it
exists, a task waits after some rows, so that a batch has a middle), ``held`` (the prefix of files that waiting tasks
write).
"""

# pyspark tells pyright little of its types, and is not there without the Spark set.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingModuleSource=false

import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.spark.small_spark import small_spark

MOST_FAILURES = 3
ILL_SIZED = re.compile(r"Task serialization failed: .*Illegal size \d+ of collection")


def main(settings: dict[str, Any]) -> None:
    from pyspark.sql.functions import udf
    from pyspark.sql.types import BinaryType

    own = {
        "spark.driver.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.adaptive.enabled": "false",
    }
    spark = small_spark("local[4]", "cmqd killed driver", Path(settings["folder"]), own)

    def begin(name: str) -> Any:
        frame = spark.readStream.format("cmqd").options(**settings["source"]).load()
        held = udf(holding(settings["hold"], f"{settings['held']}-{name}"), BinaryType(), useArrow=False)
        writer = frame.select(held("body").alias("body")).writeStream
        if name == "queue":
            writer = writer.format("cmqd").options(**settings["sink"])
        else:
            writer = writer.format("parquet").option("path", settings["parquet"])
        return writer.option("checkpointLocation", f"{settings['checkpoint']}-{name}").start()

    queries = [Supervised(partial(begin, name)) for name in ("files", "queue")]
    while not os.path.exists(settings["stop_file"]):
        for query in queries:
            query.run(0.1)
    for query in queries:
        query.finish()


class Supervised:
    """A query that is begun again, as an operator would do, after the single failure that is Spark's own.

    With two queries in a driver Spark now and then says "Task serialization failed: ... Illegal size 5 of collection,
    expected 6": a collection in the driver's Java has changed meanwhile. The batch is then run again, as after a crash.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._query = begin()
        self._failures = 0

    def run(self, seconds: float) -> None:
        """Watch the query for a time."""
        self._watch(lambda: self._query.awaitTermination(seconds))

    def finish(self) -> None:
        """Read all that there is, and end."""
        while not self._watch(lambda: self._query.processAllAvailable()):
            pass
        self._query.stop()

    def _watch(self, wait: Callable[[], Any]) -> bool:
        """True if the query did not fail meanwhile. Raises the failure if it is not Spark's own."""
        try:
            wait()
        except Exception as error:
            self._failures += 1
            if not ILL_SIZED.search(str(error)) or self._failures > MOST_FAILURES:
                raise
            print(f"begun again after: {error}", file=sys.stderr)
            self._query = self._begin()
            return False
        return True


def holding(hold: str, held: str) -> Callable[[bytes], bytes]:
    """A function that returns each body unchanged; before some bodies a task waits while the file exists."""

    def passed(body: bytes) -> bytes:
        if int(body[:8]) % 256 == 250:
            while os.path.exists(hold):
                Path(held).touch()
                time.sleep(0.05)
        return body

    return passed


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
