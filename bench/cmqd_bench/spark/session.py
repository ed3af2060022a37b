"""A Spark session for all parts, and the cost of its processes."""

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmqd_bench.machine.processes import cpu_seconds, family

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"


@contextmanager
def session(scratch: Path, *, unix_sockets: bool = False) -> "Generator[SparkSession]":
    """Yield a session with ``local[2]`` on loopback and otherwise default settings; stop the session at the end.

    ``unix_sockets``: between Java and Python. By TCP a task waits 40 ms before its start, because a side keeps back its
    data until an acknowledgement (Nagle) and the peer delays the acknowledgement.
    """
    from pyspark.sql import SparkSession

    from pyspark_cmqd.java import use_java
    from pyspark_cmqd.session import private_settings

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    use_java()
    builder: Any = SparkSession.builder
    settings = private_settings(scratch, MASTER) | {
        "spark.driver.memory": "2g",
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(MASTER).appName("cmqd_bench").getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def timed(action: Callable[[], object]) -> float:
    """Return the duration of ``action`` in seconds."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def to_noop(frame: "DataFrame") -> None:
    """Compute a whole frame and discard the result."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class SparkCpu:
    """CPU seconds so far of Spark's processes, descendants of this process."""

    java: float
    python: float
    """Workers, on the driver's side too."""

    @classmethod
    def now(cls) -> "SparkCpu":
        """Return the CPU seconds so far. Spark's Java is a child of this process, and Python a child of Java."""
        below = (each.pid for each in family(os.getpid())[1:])
        everything = {each.pid for pid in below if _command(pid).endswith("java") for each in family(pid)}
        java = {pid for pid in everything if _command(pid).endswith("java")}
        return cls(cpu_seconds(java), cpu_seconds(everything - java))

    def __sub__(self, other: "SparkCpu") -> "SparkCpu":
        return SparkCpu(self.java - other.java, self.python - other.python)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
