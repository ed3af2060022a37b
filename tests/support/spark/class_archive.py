"""An archive of the classes of Spark: a Java maps it at its start, in place of reading and checking 10,000 classes.

    python tests/support/spark/class_archive.py     make the archive for this environment: ``make setup-spark``

A Java that the archive does not fit, because it or Spark is another one, starts without the archive.
"""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java with a short life, for which starting matters more than running fast."""


def java_options() -> str:
    """Return the options of each Java that the tests start."""
    if not ARCHIVE.exists() or not ARCHIVE.stat().st_size:
        return QUICK_START
    return f"{QUICK_START} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off"


def make_archive() -> None:
    """Run queries of the kinds that the tests run; Java writes the classes into the archive when it ends."""
    from support.spark.small_spark import small_spark

    ARCHIVE.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_START} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:cds*=off"
    with tempfile.TemporaryDirectory() as folder:
        session = small_spark("local[2]", "class archive", Path(folder), {"spark.driver.memory": "1g"})
        gateway: Any = session.sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
        numbers = session.createDataFrame([(number, str(number)) for number in range(9)], ["number", "text"])
        numbers.createOrReplaceTempView("numbers")
        session.sql("SELECT number % 3 AS rest, count(*) FROM numbers GROUP BY 1 ORDER BY 1").collect()
        stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
        query = stream.writeStream.format("memory").queryName("stream").trigger(availableNow=True)
        query.option("checkpointLocation", folder).start().awaitTermination()
        session.stop()
        # Java ends with its input, and the archive is written before the end.
        gateway.proc.stdin.close()
        gateway.proc.wait()
    # Some Javas come without the archive of their own classes, which this one extends: an empty file says so.
    ARCHIVE.touch()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    make_archive()
