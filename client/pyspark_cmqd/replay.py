"""Replay by Spark, with a master: a slice of a run is a job, and a range of its rows is a task that runs the copy core.

A slice stays a job, because the end of a job is the only word of the executors before the driver, with the journal,
names the next slice. Executors read the log and send; Java moves plans and numbers of messages alone.
"""

# pyspark tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import structs

from cmqd_log.copy.journal import Journal, write_journal
from cmqd_log.copy.pace import Pace
from cmqd_log.copy.replay import POLL_SECONDS, Tell, send_part, target_of
from cmqd_log.copy.sending import IN_FLIGHT, Target
from cmqd_log.copy.slices import SliceReader
from pyspark_cmqd.session import SparkError, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from cmqd_log.data_folder.plan import Task


def replay(
    spark: "SparkSession", journal: Journal, file: Path, url: str, *, stopped: Callable[[], bool], tell: Tell
) -> bool:
    """Send the remaining slices; return True if all are sent, False after a stop.

    Args:
        spark: a session.
        journal: brought up to date, in memory and in its file.
        file: of the journal.
        url: of the server, with the key.
        stopped: polled; True cancels the running job and ends the replay.
        tell: see :data:`cmqd_log.copy.replay.Tell`.

    Raises:
        SparkError: a slice failed; the run can be resumed.
        CmqdSourceError: the log cannot be read, or the journal cannot be written.
    """
    if journal.is_done:
        return True
    context = spark.sparkContext
    with TemporaryDirectory(prefix="cmqd-replay-") as cache:
        # The tasks of a slice are new readers: without a folder for the run each fetches the files of a URL again.
        # Executors on other machines do: no process would remove their files at the end of the run.
        reader = SliceReader(journal, file, cache if str(context.master).startswith("local") else "")
        return _send_slices(context, reader, journal, file, url, stopped, tell)


def _send_slices(
    context: "SparkContext",
    reader: SliceReader,
    journal: Journal,
    file: Path,
    url: str,
    stopped: Callable[[], bool],
    tell: Tell,
) -> bool:
    # The pace of a task ends with the task, so the slices have a pace of their own.
    pace = Pace(journal.rate) if journal.rate else None
    while not journal.is_done:
        one = journal.next_slice
        free_at = time.monotonic()
        if pace is not None:
            free_at += pace.wait_seconds(one.messages, free_at)
        while (pause_s := free_at - time.monotonic()) > 0 and not stopped():
            tell(None, None)
            time.sleep(min(pause_s, POLL_SECONDS))
        if stopped():
            return False
        parts = reader.parts(one, journal.parallel)
        journal.begin(time.time())
        write_journal(journal, file)
        begun = time.monotonic()
        sent = _send(context, parts, journal, url, stopped, tell) if parts else 0
        if sent is None:
            return False
        doubt = journal.end(sent, time.monotonic() - begun, time.time())
        # Before anything else: an end of the run before this line sends the slice again, after this line never.
        write_journal(journal, file)
        tell(one, doubt)
    return True


def _send(
    context: "SparkContext",
    parts: "Sequence[Sequence[Task]]",
    journal: Journal,
    url: str,
    stopped: Callable[[], bool],
    tell: Tell,
) -> int | None:
    """Send the parts of a slice; return the number of messages, or None if the job was cancelled for a stop."""
    # The tasks share the rate, and a slice of few rows has fewer tasks: each of them gets a larger share.
    at_once = min(tasks_at_once(str(context.master), journal.parallel), len(parts))
    # With the code of the job and not with the parts: Spark writes parts to a file, and a target has the key.
    run = partial(
        send_part, journal=structs.replace(journal, slices=[], doubts=[]), target=task_target(journal, url, at_once)
    )
    group = f"{journal.run}-{journal.done}"

    def send() -> list[int]:
        context.setJobGroup(group, "cmq replay", interruptOnCancel=True)
        return context.parallelize(parts, len(parts)).map(run).collect()

    has_cancelled = False
    # In a thread: this thread could not react to a signal inside a call of Java.
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        while wait([sending], POLL_SECONDS).not_done:
            tell(None, None)
            if stopped():
                # Repeated at every poll, because Spark ignores a cancel that comes before the job has begun.
                has_cancelled = True
                try:
                    context.cancelJobGroup(group)
                except Exception:
                    # Java has ended, and the job with it.
                    break
        error = sending.exception()
    if error is None:
        return sum(sending.result())
    if has_cancelled:
        return None
    raise SparkError(_why(error)) from error


def _why(error: BaseException) -> str:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError | Py4JNetworkError):
        return f"Spark's Java process ended during the run: it was killed or ran out of memory ({type(error).__name__})"
    return reason_of(error)


def task_target(journal: Journal, url: str, at_once: int) -> Target:
    """Return the target of a task, of which ``at_once`` share the rate of the run."""
    whole = target_of(journal, url)
    return changed(whole, in_flight=IN_FLIGHT, max_rate=whole.max_rate / at_once)


def tasks_at_once(master: str, parallel: int) -> int:
    """Return how many of the tasks run at the same time: as many as there are cores. The cores of a cluster are
    unknown; there all tasks count, because together they must not exceed the rate.
    """
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if local is None:
        return parallel
    cores = {None: 1, "*": len(os.sched_getaffinity(0))}.get(local[1]) or int(local[1])
    return min(parallel, cores)
