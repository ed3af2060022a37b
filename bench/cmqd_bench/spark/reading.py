"""Batch and stream over a log, against Parquet of the same rows in the same session, rounds interleaved; and the bytes
read by a narrow query.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cmqd_bench.spark.log import HOUR_MS, QUEUES, START_MS, sealed, write_log
from cmqd_bench.spark.session import timed, to_noop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE_QUEUE = {"queue": "queue-07"}
ONE_HOUR = {
    "startingTimestamp": str(START_MS + 25 * HOUR_MS),
    "endingTimestamp": str(START_MS + 26 * HOUR_MS),
}
LIMITED_BATCHES = 10
"""Approximate number of batches of a stream with a limit."""
TOLD = "xxhash64(lsn, row_index, segment, event, queue, msg_id, body, enqueue_ts)"
"""Hash of a row; the sum of the hashes does not depend on the order of rows."""
ROW_COLUMNS = "lsn long, row_index int, segment string, event string, queue string, msg_id string, body binary"


class Reading:
    """A log, and the measurements of a round."""

    def __init__(self, spark: "SparkSession", scratch: Path, messages: int, body: int) -> None:
        """Write the log, and its rows as Parquet by way of the source."""
        self._spark = spark
        self._messages = messages
        self._scratch = scratch
        self._checkpoints = 0
        self._folder = scratch / "data"
        self._parquet = str(scratch / "parquet")
        written = timed(lambda: asyncio.run(write_log(self._folder, messages, body)))
        converted = timed(lambda: self._source().write.option("compression", "zstd").parquet(self._parquet))
        assert spark.read.parquet(self._parquet).count() == messages
        segments = sealed(self._folder)
        self.log = {
            "segments": len(segments),
            "log_bytes": sum(entry.bytes for entry in segments),
            "write_seconds": round(written, 3),
            "to_parquet_seconds": round(converted, 3),
        }

    def measure(self, parts: Collection[str], rounds: int) -> dict[str, Any]:
        """Measure the requested parts of ``batch``, ``prune`` and ``stream``."""
        actions: dict[str, Callable[[], object]] = {"cmqd": partial(to_noop, self._source())}
        if "batch" in parts:
            actions["parquet"] = lambda: to_noop(self._spark.read.parquet(self._parquet))
            actions["one_column"] = partial(
                to_noop, self._spark_reader().schema("queue string").load(str(self._folder))
            )
        if "stream" in parts:
            actions["stream"] = lambda: self._stream(self._messages)
            limit = str(max(self._messages // LIMITED_BATCHES, 1))
            actions["limited_stream"] = lambda: self._stream(
                self._messages, maxMessagesPerTrigger=limit, minPartitions="2"
            )
            actions["empty_stream"] = lambda: self._stream(0, startingLsn="latest")
        if "prune" in parts:
            actions["one_queue"] = partial(to_noop, self._source(**ONE_QUEUE))
            actions["one_hour"] = partial(to_noop, self._source(**ONE_HOUR))
        seconds: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(rounds):
            for name, action in actions.items():
                seconds[name].append(round(timed(action), 3))
        found: dict[str, Any] = {"seconds": seconds}
        if "batch" in parts:
            whole = ("cmqd", "parquet", "one_column")
            found["batch"] = {
                "messages_per_second": {name: round(self._messages / min(seconds[name])) for name in whole},
                "of_parquet": ratios(seconds["parquet"], seconds["cmqd"]),
            }
        if "stream" in parts:
            found["stream"] = {
                "messages_per_second": round(self._messages / min(seconds["stream"])),
                "times_batch": ratios(seconds["stream"], seconds["cmqd"]),
                "limited_times_batch": ratios(seconds["limited_stream"], seconds["cmqd"]),
                "exactly_once": self._exactly_once(),
            }
        if "prune" in parts:
            found["prune"] = {
                "everything": bytes_read(self._folder),
                "one_queue": bytes_read(self._folder, **ONE_QUEUE),
                "one_hour": bytes_read(self._folder, **ONE_HOUR),
                "queues": QUEUES,
            }
        return found

    def _spark_reader(self) -> Any:
        return self._spark.read.format("cmqd")

    def _source(self, **options: str) -> "DataFrame":
        return self._spark_reader().options(**options).load(str(self._folder))

    def _checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._scratch / f"checkpoint-{self._checkpoints}")

    def _stream(self, messages: int, **options: str) -> None:
        """Read the same rows as a stream over the current log."""
        frame = self._spark.readStream.format("cmqd").options(**options).load(str(self._folder))
        query = frame.writeStream.format("noop").option("checkpointLocation", self._checkpoint())
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        found = sum(progress["numInputRows"] for progress in running.recentProgress)
        assert found == messages, f"the stream had {found} messages instead of {messages}"

    def _exactly_once(self) -> dict[str, Any]:
        """Compare a stream of several batches with the batch: rows, different rows, a sum over all rows.

        Batches read disjoint ranges of rows of the log, so rows that differ within a batch differ in the whole stream.
        Raises AssertionError.
        """
        batches: list[Sequence[int]] = []

        def take(frame: "DataFrame", _number: int) -> None:
            batches.append(_told(frame))

        frame = self._spark.readStream.format("cmqd").schema(f"{ROW_COLUMNS}, enqueue_ts timestamp")
        limit = str(max(self._messages // LIMITED_BATCHES, 1))
        frame = frame.options(maxMessagesPerTrigger=limit, minPartitions="2").load(str(self._folder))
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint())
        query.trigger(availableNow=True).start().awaitTermination()
        whole = _told(self._source())
        ranges = sorted((batch[3], batch[4]) for batch in batches)
        apart = all(before[1] < after[0] for before, after in pairwise(ranges))
        sums = [sum(batch[place] for batch in batches) for place in range(3)]
        assert apart, f"batches overlap: {ranges}"
        assert sums == list(whole[:3]), f"the stream had {sums}, the batch {whole}"
        assert sums[0] == sums[1] == self._messages, f"the stream had {sums[0]} rows, {sums[1]} of them different"
        return {"batches": len(batches), "rows": sums[0], "different_rows": sums[1], "sum": str(sums[2])}


def _told(frame: "DataFrame") -> Sequence[int]:
    """Return rows, different rows, a sum over their content, first and last LSN."""
    (row,) = (
        frame.selectExpr("lsn", "row_index", f"{TOLD} AS told")
        .selectExpr(
            "count(*)",
            "count(DISTINCT lsn, row_index)",
            "CAST(sum(CAST(told AS DECIMAL(20, 0))) AS STRING)",
            "min(lsn)",
            "max(lsn)",
        )
        .collect()
    )
    return [int(value) for value in row]


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the ratios of the best rounds and of the medians."""
    return {
        "best": round(min(above) / min(below), 3),
        "median": round(median(above) / median(below), 3),
    }


def bytes_read(folder: Path, **options: str) -> Mapping[str, int]:
    """Do the work of the executors in this process; return the rows found and the bytes read."""

    from cmqd_log.data_folder.plan import gathered
    from cmqd_log.options import parse_options
    from cmqd_log.reading.arrow_batches import schema_of
    from cmqd_log.reading.planning import plan_batch
    from cmqd_log.reading.tasks import read_task
    from cmqd_log.schema import COLUMNS

    schema = schema_of(COLUMNS)
    before = _read_so_far()
    tasks = plan_batch(parse_options({"path": str(folder), **options}), list(COLUMNS))
    messages = sum(batch.num_rows for task in tasks for batch in read_task(task, schema))
    return {
        "messages": messages,
        "segments": len({task.piece.extent.number for task in tasks}),
        "partitions": len(gathered(tasks, 1)),
        "bytes_read": _read_so_far() - before,
    }


def _read_so_far() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])
