"""Replay by Spark, with a master: a slice of a run is a job, read with ``format("cmqd")`` and written with the sink.

A replayed message keeps body, headers and, in a topic, tags or routing key; it does not keep delay, id and times. The
dedup id of a replayed message is the name of the run and the message id.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cmqd_log.copy.journal import Doubt, Journal, Slice, states_file, write_journal
from cmqd_log.copy.requests import MARK
from cmqd_log.options import Mode
from cmqd_log.schema import COLUMNS
from pyspark_cmqd.session import SparkError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.1
"""Interval at which a running slice, and a request to stop, are checked."""
_NO_HEADERS = "cast(map() AS map<string,string>)"
_NO_TAGS = "cast(array() AS array<string>)"
"""Empty values in place of nulls. Spark takes 60 microseconds to pass a null of a map or an array to a Python writer,
longer than all other work on the message."""


def replay(
    spark: "SparkSession",
    journal: Journal,
    file: Path,
    url: str,
    *,
    stopped: Callable[[], bool],
    tell: "Callable[[Slice | None, Doubt | None], object]",
) -> bool:
    """Send the remaining slices; return True if all are sent, False after a stop.

    Args:
        spark: a session.
        journal: brought up to date, in memory and in its file.
        file: of the journal.
        url: of the server, with the key.
        stopped: polled; True cancels the running job and ends the replay.
        tell: called with every sent slice and its doubts, and with None while a slice is in progress.

    Raises:
        SparkError: a slice failed; the run can be resumed.
        JournalError: the journal cannot be written.
    """
    while not journal.is_done:
        if stopped():
            return False
        one = journal.next_slice
        journal.begin(time.time())
        write_journal(journal, file)
        begun = time.monotonic()
        with _Watch(spark, journal, stopped, lambda: tell(None, None)) as watch:
            try:
                sent = _send(spark, journal, one, file, url)
            except Exception as error:
                if watch.has_cancelled:
                    return False
                raise SparkError(_why(error)) from error
        doubt = journal.end(sent, time.monotonic() - begun, time.time())
        # Before anything else: an end of the run before this line sends the slice again, after this line never.
        write_journal(journal, file)
        tell(one, doubt)
    return True


def _send(spark: "SparkSession", journal: Journal, one: Slice, file: Path, url: str) -> int:
    """Send a slice, and return the number of its messages.

    Runs in the thread of the session: on other threads Spark does not know this format for writing.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    frame = _frame(spark, journal, one, file)
    at_once = tasks_at_once(str(spark.sparkContext.master), journal.parallel)
    if journal.rate is not None and at_once > 1:
        # The tasks share the rate, and a slice of few rows has fewer tasks: each of them gets a larger share.
        at_once = min(at_once, max(frame.rdd.getNumPartitions(), 1))
    observed = Observation()
    frame = frame.observe(observed, F.count(F.lit(1)).alias("messages"))
    frame.write.format("cmqd").mode("append").options(url=url, **sink_options(journal, at_once)).save()
    return int(observed.get["messages"])


def _why(error: Exception) -> str:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, OSError | Py4JNetworkError):
        return f"Spark's Java process ended during the run: it was killed or ran out of memory ({type(error).__name__})"
    return reason_of(error)


class _Watch:
    """Polls for a stop while a job runs, in a thread of its own, and then cancels the job."""

    def __init__(
        self, spark: "SparkSession", journal: Journal, stopped: Callable[[], bool], tell: Callable[[], object]
    ) -> None:
        self.has_cancelled = False
        self._context = spark.sparkContext
        self._group = f"{journal.run}-{journal.done}"
        self._stopped, self._tell = stopped, tell
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "_Watch":
        self._context.setJobGroup(self._group, "cmq replay", interruptOnCancel=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._ends.wait(POLL_SECONDS):
            self._tell()
            if self._stopped():
                # Repeated at every poll, because Spark ignores a cancel that comes before the job has begun.
                self.has_cancelled = True
                try:
                    self._context.cancelJobGroup(self._group)
                except Exception:
                    # Java has ended, and the job with it.
                    return


def _frame(spark: "SparkSession", journal: Journal, one: Slice, file: Path) -> "DataFrame":
    """Return the messages of a slice, with the columns of the sink."""
    options = {
        **journal.source,
        "startingLsn": str(one.first_lsn),
        "endingLsn": str(one.last_lsn),
        "minPartitions": str(journal.parallel),
        "failOnDataLoss": str(not journal.allow_data_loss),
    }
    if options.get("mode", Mode.EVENTS) != Mode.EVENTS:
        options["statesFile"] = str(states_file(file))
    label = "" if journal.queue else "routing_key" if journal.routing else "tags"
    needed = {"event", "msg_id", "body", "headers", label} - {""}
    if journal.mark:
        needed |= {"queue", "topic", "enqueue_ts"}
    if journal.starting_ms is not None or journal.ending_ms is not None:
        needed |= {"enqueue_ts"}
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name in needed)
    frame = spark.read.format("cmqd").schema(schema).options(**options).load()
    frame = frame.where(frame.event.isin(journal.events))
    if journal.starting_ms is not None:
        frame = frame.where(f"enqueue_ts >= timestamp_millis({journal.starting_ms})")
    if journal.ending_ms is not None:
        frame = frame.where(f"enqueue_ts < timestamp_millis({journal.ending_ms})")
    headers = f"coalesce(headers, {_NO_HEADERS}) AS headers"
    if journal.mark:
        came = (
            "concat_ws('/', coalesce(queue, topic), msg_id, date_format(enqueue_ts, \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\"))"
        )
        others = f"map_filter(coalesce(headers, {_NO_HEADERS}), (name, value) -> name != '{MARK}')"
        headers = f"map_concat({others}, map('{MARK}', {came})) AS headers"
    columns = [f"coalesce(tags, {_NO_TAGS}) AS tags"] if label == "tags" else [label] if label else []
    frame = frame.selectExpr("body", headers, *columns, f"concat('{journal.run}:', msg_id) AS dedup_id")
    # Neighbours of the log stay together and in order, because the same task sends them.
    return frame.coalesce(journal.parallel)


def tasks_at_once(master: str, parallel: int) -> int:
    """Return how many of the tasks run at the same time: as many as there are cores. The cores of a cluster are
    unknown; there all tasks count, because together they must not exceed the rate.
    """
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if local is None:
        return parallel
    cores = {None: 1, "*": len(os.sched_getaffinity(0))}.get(local[1]) or int(local[1])
    return min(parallel, cores)


def sink_options(journal: Journal, at_once: int) -> dict[str, str]:
    """Return the options of the sink without the options of the server; ``at_once`` tasks share the rate."""
    options = {"queue": journal.queue} if journal.queue else {"topic": journal.topic}
    if journal.parallel == 1:
        # A request that is refused or lost, and then repeated, must not fall behind later requests.
        options |= {"ordered": "true", "uniqueDedupIds": "true"}
    if journal.rate is not None:
        options["maxMessagesPerSecond"] = f"{journal.rate / at_once:.6f}"
    return options
