"""The Spark source against Parquet of the same rows, in one session; and how little it reads where little is asked for.

The log is written by the real storage: rows of 256 messages of one queue each, fifty queues in turn, the time of the
log going over fifty hours, in twenty segments or a few more. Rounds are interleaved, so that a noisy minute hits all.
"""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingModuleSource=false

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmqd.storage.processlog import StorageProcessLog
from cmqd.storage.settings import Durability, StorageSettings
from cmqd_bench.machine import conditions, scratch_root
from cmqd_segment.manifest import SegmentState, read_manifest
from cmqd_segment.records import MessagesSent, QueueAttributes, QueueCreated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES = 50
HOURS = 50
BATCH = 256
SEGMENTS = 22
"""A little more than the twenty that are asked for."""
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
AHEAD_ROWS = 64
WORDS = [f"word{number:03d} " for number in range(1000)]


async def write_log(folder: Path, messages: int, body: int) -> None:
    """Sealed segments with so many messages, as a broker would leave them behind."""
    settings = StorageSettings(
        folder=str(folder),
        durability=Durability.OS,
        segment_bytes=max(messages * (body + 8) // SEGMENTS, 1 << 16),
        hold_retired=False,
    )
    log = StorageProcessLog(settings)
    durable = asyncio.Event()

    def on_durable(lsn: int) -> None:
        durable.set()
        log.flush()

    log.on_durable = on_durable
    log.on_page = lambda read_id, found, missing: None
    log.on_fatal = lambda error: sys.exit(str(error))
    log.on_state = lambda state: None
    log.on_checkpoint_done = lambda lsn: None
    log.on_checkpoint_wanted = lambda: None
    await log.open()
    async for _ in log.recover():
        pass
    created = [
        QueueCreated(number + 1, "bench", f"queue-{number:02d}", QueueAttributes(), START_MS)
        for number in range(QUEUES)
    ]
    log.append(created, [], START_MS)
    choose = random.Random(1)
    text = "".join(choose.choices(WORDS, k=20_000)).encode()
    positions = [0] * QUEUES
    rows = -(-messages // BATCH)
    sizes = [body] * BATCH
    for row in range(rows):
        queue = row % QUEUES
        count = min(BATCH, messages - row * BATCH)
        bodies = [text[at : at + body] for at in (choose.randrange(len(text) - body) for _ in range(count))]
        at_ms = START_MS + row * HOURS * HOUR_MS // rows
        first = row * BATCH + 1
        log.append([MessagesSent(queue + 1, positions[queue], first, at_ms, sizes[:count])], bodies, at_ms)
        positions[queue] += count
        log.flush()
        while log.last_lsn - log.durable_lsn > AHEAD_ROWS:
            durable.clear()
            await durable.wait()
    while log.durable_lsn < log.last_lsn:
        durable.clear()
        await durable.wait()
    await log.close()


def session(scratch: Path) -> "SparkSession":
    """``local[2]`` on the loopback."""
    from pyspark.sql import SparkSession

    from pyspark_cmqd.java import use_java

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    use_java()
    builder: Any = SparkSession.builder
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master("local[2]").appName("cmqd_bench").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def to_noop(frame: "DataFrame") -> None:
    """Compute all of a frame and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def stream_to_noop(spark: "SparkSession", folder: Path, checkpoint: Path) -> int:
    """The same rows as a stream; how many there were."""
    frame = spark.readStream.format("cmqd").load(str(folder))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return sum(progress["numInputRows"] for progress in running.recentProgress)


def bytes_read(folder: Path, **options: str) -> tuple[int, int, int]:
    """Messages, partitions, and bytes that this process reads of files when it does what the executors would do."""
    import pyarrow as pa

    from pyspark_cmqd.columns import arrow_type
    from pyspark_cmqd.driver import plan_batch
    from pyspark_cmqd.options import parse_options
    from pyspark_cmqd.reading import read_task
    from pyspark_cmqd.schema import COLUMNS

    schema = pa.schema([pa.field(name, arrow_type(name)) for name in COLUMNS])
    before = _read_so_far()
    tasks = plan_batch(parse_options({"path": str(folder), **options}), list(COLUMNS))
    messages = sum(batch.num_rows for task in tasks for batch in read_task(task, schema))
    return messages, len(tasks), _read_so_far() - before


def _read_so_far() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def measure(messages: int, body: int, rounds: int, scratch: Path) -> dict[str, Any]:
    """All figures."""
    folder = scratch / "data"
    written = timed(lambda: asyncio.run(write_log(folder, messages, body)))
    sealed = [entry for entry in read_manifest(folder).segments if entry.state is SegmentState.SEALED]
    hour = {
        "startingTimestamp": str(START_MS + 25 * HOUR_MS),
        "endingTimestamp": str(START_MS + 26 * HOUR_MS),
    }
    spark = session(scratch)
    try:
        source = spark.read.format("cmqd").load(str(folder))
        parquet = str(scratch / "parquet")
        converted = timed(lambda: source.write.option("compression", "zstd").parquet(parquet))
        assert spark.read.parquet(parquet).count() == messages
        names = ("cmqd", "parquet", "stream", "one column", "one queue", "one hour")
        seconds: dict[str, list[float]] = {name: [] for name in names}
        narrow = partial(to_noop, spark.read.format("cmqd").schema("queue string").load(str(folder)))
        queue = partial(to_noop, spark.read.format("cmqd").option("queue", "queue-07").load(str(folder)))
        hours = partial(to_noop, spark.read.format("cmqd").options(**hour).load(str(folder)))
        for number in range(rounds):
            checkpoint = scratch / f"checkpoint-{number}"
            seconds["cmqd"].append(timed(lambda: to_noop(source)))
            seconds["parquet"].append(timed(lambda: to_noop(spark.read.parquet(parquet))))
            begin = time.perf_counter()
            found = stream_to_noop(spark, folder, checkpoint)
            seconds["stream"].append(time.perf_counter() - begin)
            assert found == messages, f"the stream had {found} messages"
            seconds["one column"].append(timed(narrow))
            seconds["one queue"].append(timed(queue))
            seconds["one hour"].append(timed(hours))
    finally:
        spark.stop()
    best = {name: min(times) for name, times in seconds.items()}
    return {
        "messages": messages,
        "body": body,
        "segments": len(sealed),
        "log_bytes": sum(entry.bytes for entry in sealed),
        "write_seconds": written,
        "to_parquet_seconds": converted,
        "seconds": seconds,
        "messages_per_second": {name: messages / best[name] for name in ("cmqd", "parquet", "stream", "one column")},
        "of_parquet": best["parquet"] / best["cmqd"],
        "stream_times_batch": best["stream"] / best["cmqd"],
        "one_queue": dict(zip(_READ, bytes_read(folder, queue="queue-07"), strict=True)),
        "one_hour": dict(zip(_READ, bytes_read(folder, **hour), strict=True)),
        "everything": dict(zip(_READ, bytes_read(folder), strict=True)),
    }


_READ = ("messages", "partitions", "bytes_read")


def print_spark(messages: int, body: int, rounds: int, scratch: Path | None, *, json_output: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="cmqd-spark-", dir=scratch_root(scratch)) as name:
        figures = measure(messages, body, rounds, Path(name))
        report = {"scenario": "spark", **figures, "conditions": conditions(Path(name))}
    if json_output:
        print(json.dumps(report))
        return
    print(f"spark: {messages:,} messages of {body} bytes in {figures['segments']} segments, local[2]")
    for name, rate in figures["messages_per_second"].items():
        times = " ".join(f"{one:.2f}" for one in figures["seconds"][name])
        print(f"  {name:<12} {rate:>12,.0f} messages/s   rounds of {times} s")
    print(f"  {figures['of_parquet']:.0%} of parquet; the stream takes {figures['stream_times_batch']:.2f} x the batch")
    for name in ("everything", "one_queue", "one_hour"):
        one = figures[name]
        print(
            f"  {name:<12} {one['messages']:>12,} messages, {one['partitions']} parts, {one['bytes_read']:,} bytes read"
        )
