"""A Spark session for ``cmq replay --master``: finds a Java, and sends the output of Spark and Java to a file.

    with spark_session("local[2]", "cmq replay") as spark: ...

An existing session is used as it is and stays open.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import logging
import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmqd_log.errors import CmqdSourceError
from pyspark_cmqd.java import JavaError, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_LINES = 6
"""Number of lines of Spark's output in the error about a session that does not start."""
_NEEDED = ("pyspark", "pyarrow", "pyroaring")
_OURS = re.compile(r"^(?:pyspark_cmqd|cmqd_log|cmqd_client)(?:\.[a-z_]+)+\.(\w+): (.+)$", re.MULTILINE)


class SparkError(CmqdSourceError):
    """Spark cannot be used, or failed; the text has the reason, and the packages to install if a package is missing."""


def check_installed() -> None:
    """Check that the packages of the extra ``spark`` are installed.

    Raises:
        SparkError: a package is missing.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SparkError(
            f"Spark needs the extra cmqd[spark] (pip install 'cmqd[spark]'): {', '.join(missing)} is missing"
        )


@contextmanager
def spark_session(master: str, name: str, *, settings: Mapping[str, str] | None = None) -> Generator["SparkSession"]:
    """Open a session with times in UTC; a session that was made here is stopped at the end.

    Args:
        master: the master of Spark, for a new session.
        name: the name of the application, for a new session.
        settings: further settings of Spark.

    Raises:
        SparkError: Spark or Java is missing, the session does not start, or Spark fails while the session is used.
    """
    check_installed()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    try:
        use_java()
    except JavaError as error:
        raise SparkError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="cmq-spark-", ignore_cleanup_errors=True) as place:
        builder: Any = SparkSession.builder
        for setting, value in {**_settings(Path(place), master), **(settings or {})}.items():
            builder = builder.config(setting, value)
        log = Path(place) / "spark.log"
        try:
            with _output_to(log):
                spark = builder.master(master).appName(name).getOrCreate()
        except Exception as error:
            told = log.read_text(errors="replace").splitlines() if log.exists() else []
            # Without the frames of Java, which help only the developers of Spark.
            words = [line for line in told if not line.startswith(("\tat ", " "))]
            raise SparkError("\n".join([f"Spark did not start: {reason_of(error)}", *words[-LOG_LINES:]])) from error
        root = logging.getLogger()
        root.addFilter(_is_not_py4j)
        try:
            yield spark
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise SparkError(f"Spark failed: {reason_of(error)}") from error
        finally:
            # Stopping fails if Java has died; the first error has the reason and must not be hidden.
            with suppress(Exception):
                spark.stop()
            root.removeFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Filter the root logger: py4j logs an interrupt with a traceback, although the interrupt is raised as well."""
    return record.module not in ("java_gateway", "clientserver")


def private_settings(place: Path, master: str) -> dict[str, str]:
    """Return the settings of a private session: files in a folder, no web page, a listener on the loopback alone.

    Times are in UTC. Settings of speed and size keep the defaults of Spark.
    """
    settings = {
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(place / "local"),
        }
    return settings


def _settings(place: Path, master: str) -> dict[str, str]:
    settings = private_settings(place, master) | {
        # By TCP a task waits 40 ms before the start: Java holds back its data (Nagle) until Python has acknowledged the
        # data before (delayed ACK). Since Spark 4.1; older versions have no such setting, and use TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.log.level": "WARN",
    }
    # Else the workers run the first "python3" in the PATH, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return settings


@contextmanager
def _output_to(file: Path) -> Generator[None]:
    """Redirect the output of processes that start meanwhile (Java and its children) from the terminal to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for number in (1, 2):
            os.dup2(handle, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)
        os.close(handle)


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure in a line: the message of our own code if there is one, else the head of Spark's
    message.
    """
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return ours[-1][1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
