"""The cost of a reader that follows the log: the same load with and without the reader, in turns.

bench/README.md describes the load and the variants. ``tail`` against ``none`` is the total cost of a reader on the
broker's machine; ``other`` is the share of that cost that comes from the shared machine and not from the log.
"""

import asyncio
import gc
import os
from collections import deque
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import uvloop

from cmqd_bench.figures.measure import Guard
from cmqd_bench.load.clients import Tally, refuse
from cmqd_bench.load.pacer import Pacer
from cmqd_bench.load.session import running
from cmqd_bench.load.wire import SENT, LoadConnection, SendTemplate
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.spark.log import write_log
from cmqd_bench.spark.session import SparkCpu, spark_processes

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NONE, OTHER, TAIL = "none", "other", "tail"
VARIANTS = (NONE, OTHER, TAIL)
BATCH = 16
CONNECTIONS = 32
WARM_UP_SECONDS = 2.0
TRIGGER_SECONDS = 1.0
SEGMENT_BYTES = 16 << 20
"""Small, so that segments are sealed during the reading."""
START_SECONDS = 60.0
CATCH_UP_SECONDS = 30.0
OTHER_SECONDS = 52
"""The separate log lasts for this time and for the measured time."""
TOLD = "xxhash64(lsn, row_index, msg_id, body)"
"""Hash of a message; the sum of the hashes does not depend on the order of messages."""


@dataclass(frozen=True)
class Load:
    """The load of the broker in a run."""

    rate: int = 16_000
    """Rate in messages a second: a few hundredths of a core for the load, a fifth of a core for the broker."""
    seconds: float = 8.0
    """Measured time."""
    body: int = 256


class PacedSender:
    """Sends batches at intended times, a batch in flight per connection; latency counts from the intended time."""

    def __init__(self, connections: Sequence[LoadConnection], template: SendTemplate, tally: Tally) -> None:
        self._free = deque(connections)
        self._template = template
        self._tally = tally
        self._waiting: deque[int] = deque()
        self._intended: dict[LoadConnection, int] = {}
        self.asked = 0
        """Messages with an intended time since the start."""
        self.messages = 0
        """Messages that the broker has stored, by its answers."""
        for connection in connections:
            connection.on_reply = partial(self._on_reply, connection)

    @property
    def is_idle(self) -> bool:
        """True if every request was answered."""
        return not self._intended

    def send(self, intended_ns: int) -> None:
        """Send a batch at its intended time."""
        self.asked += self._template.batch
        if self._free:
            self._go(self._free.popleft(), intended_ns)
        else:
            self._waiting.append(intended_ns)

    def _go(self, connection: LoadConnection, intended_ns: int) -> None:
        self._intended[connection] = intended_ns
        connection.write(self._template.at(intended_ns))

    def _on_reply(self, connection: LoadConnection, payload: bytes, opcode: int) -> None:
        intended_ns = self._intended.pop(connection)
        if opcode == SENT:
            self.messages += self._template.batch
            self._tally.sent += self._template.batch
            self._tally.latency.record((monotonic_ns() - intended_ns) // 1000)
        else:
            # Refused as busy: not repeated, and counted.
            refuse(payload, opcode, self._tally)
        if self._waiting:
            self._go(connection, self._waiting.popleft())
        else:
            self._free.append(connection)


@contextmanager
def cores_apart() -> Generator[bool]:
    """Reserve the first core for this process and its servers, the rest for Spark; yield False on a single core."""
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    if cores == first:
        yield False
        return
    os.sched_setaffinity(0, first)
    pin(spark_processes(), cores - first)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, cores)
        pin(spark_processes(), cores)


def pin(pids: Iterable[int], cores: Collection[int]) -> None:
    """Restrict all threads of processes, and future threads and children, to the given cores."""
    for pid in pids:
        # A thread started meanwhile inherits the cores of its parent thread; a second pass catches late threads.
        for _ in range(2):
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cores)


def measure_tail(spark: "SparkSession", scratch: Path, load: Load, rounds: int, *, share: bool) -> dict[str, Any]:
    """Run all rounds; return ratios of their medians. ``share``: broker and Spark share all cores."""
    other = scratch / "other"
    asyncio.run(write_log(other, round(load.rate * (OTHER_SECONDS + load.seconds)), load.body))
    with nullcontext(False) if share else cores_apart() as apart:
        return {"cores": "apart" if apart else "shared", **_rounds(spark, scratch, other, load, rounds)}


def _rounds(spark: "SparkSession", scratch: Path, other: Path, load: Load, rounds: int) -> dict[str, Any]:
    each: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    gc.freeze()
    gc.disable()
    try:
        for number in range(rounds):
            # The order changes from round to round, so that slow changes of the machine affect all variants alike.
            turn = number % len(VARIANTS)
            for variant in (*VARIANTS[turn:], *VARIANTS[:turn]):
                with broker_folder(scratch) as broker:
                    checkpoint = scratch / f"tail-{number}-{variant}"
                    each[variant].append(uvloop.run(_run(spark, broker, variant, other, checkpoint, load)))
                gc.collect()
    finally:
        gc.enable()
    middle = {
        variant: {
            "server_cpu_us_per_message": median(one["server_cpu_us_per_message"] for one in runs),
            **{
                name: median(one["latency_ms"][percentile] for one in runs)
                for name, percentile in (("p50_ms", "p50"), ("p99_ms", "p99"))
            },
        }
        for variant, runs in each.items()
    }
    return {
        "rate": load.rate,
        "batch": BATCH,
        "trigger_seconds": TRIGGER_SECONDS,
        "medians": middle,
        "tail_times_none": _times(middle[TAIL], middle[NONE]),
        "tail_times_other": _times(middle[TAIL], middle[OTHER]),
        "other_times_none": _times(middle[OTHER], middle[NONE]),
        "rounds": each,
    }


def _times(above: dict[str, float], below: dict[str, float]) -> dict[str, float]:
    return {name.removesuffix("_ms"): round(value / below[name], 3) for name, value in above.items()}


async def _run(
    spark: "SparkSession", broker: Broker, variant: str, other: Path, checkpoint: Path, load: Load
) -> dict[str, Any]:
    broker.flags = ["--segment-bytes", str(SEGMENT_BYTES)]
    async with running(broker) as session:
        queue = await session.create_queue("tail")
        template = SendTemplate(queue, batch=BATCH, size=load.body)
        sender = PacedSender(await session.connect(CONNECTIONS), template, session.tally)
        query: StreamingQuery | None = None
        try:
            with Pacer(load.rate / BATCH, sender.send) as pacer:
                await session.guard.sleep(1.0)
                if variant != NONE:
                    folder = broker.data if variant == TAIL else other
                    query = _follow(spark, folder, variant, checkpoint, load)
                    async with asyncio.timeout(START_SECONDS):
                        while not _read(query)[0]:
                            await session.guard.sleep(0.2)
                await session.guard.sleep(WARM_UP_SECONDS)
                meter = session.meter()
                pacer.late.clear()
                before = (0, 0) if query is None else _read(query)
                meter.start()
                cost = SparkCpu.now()
                await session.guard.sleep(load.seconds)
                cost = SparkCpu.now() - cost
                round_ = meter.finish(
                    lambda tally: tally.sent,
                    {
                        "intended_rate": load.rate,
                        "load_late_p99_ms": pacer.late.percentile(99) / 1000,
                        "spark_cores": {
                            "java": round(cost.java / load.seconds, 2),
                            "python": round(cost.python / load.seconds, 2),
                        },
                    },
                )
            if query is not None:
                after = _read(query)
                reading = {"messages": after[0] - before[0], "triggers": after[1] - before[1]}
                if variant == TAIL:
                    await _caught_up(session.guard, query, sender)
                    reading |= {"messages_sent": sender.asked, "messages_at_the_end": sender.messages}
                    query.stop()
                    _check_once(spark, broker.data, query)
                round_ = round_.with_extra({"reader": reading})
            return round_.as_json()
        finally:
            if query is not None:
                query.stop()


def _follow(spark: "SparkSession", folder: Path, variant: str, checkpoint: Path, load: Load) -> "StreamingQuery":
    """Start a stream with a trigger every second.

    A Spark session is only known in the thread that made the session; the load waits meanwhile, unmeasured.
    """
    reader = spark.readStream.format("cmqd")
    if variant == TAIL:
        reader = reader.option("includeActive", "true")
    else:
        reader = reader.option("maxMessagesPerTrigger", str(round(load.rate * TRIGGER_SECONDS)))
    frame = reader.load(str(folder)).observe("told", *_told())
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime=f"{TRIGGER_SECONDS} seconds").start()


def _told() -> "list[Column]":
    """Return columns: the number of messages, and a sum that identifies their content."""
    from pyspark.sql import functions as F

    return [
        F.expr("count(1)").alias("messages"),
        F.expr(f"CAST(sum(CAST({TOLD} AS DECIMAL(20, 0))) AS STRING)").alias("sum"),
    ]


def _check_once(spark: "SparkSession", folder: Path, query: "StreamingQuery") -> None:
    """Check that the stream had every message of the log exactly once.

    Raises:
        AssertionError: a message is missing, or came twice.
    """
    from pyspark.sql import functions as F

    frame = spark.read.format("cmqd").option("includeActive", "true").load(str(folder))
    (whole,) = frame.agg(*_told(), F.expr("count(DISTINCT lsn, row_index)").alias("different")).collect()
    batches = [progress.observedMetrics["told"] for progress in query.recentProgress if progress["numInputRows"]]
    found = sum(int(one["messages"]) for one in batches), sum(int(one["sum"]) for one in batches)
    assert whole["messages"] == whole["different"], f"the log has {whole['messages'] - whole['different']} twice"
    assert found == (int(whole["messages"]), int(whole["sum"])), f"the reader had {found[0]} messages, but others"


def _read(query: "StreamingQuery") -> tuple[int, int]:
    """Return the number of messages and of batches so far."""
    error = query.exception()
    if error is not None:
        raise error
    counts = [progress["numInputRows"] for progress in query.recentProgress]
    return sum(counts), sum(count > 0 for count in counts)


async def _caught_up(guard: Guard, query: "StreamingQuery", sender: PacedSender) -> None:
    """Wait until the reader has every sent message.

    Raises:
        AssertionError: the reader has more messages than were sent.
        TimeoutError: the reader does not catch up.
    """
    async with asyncio.timeout(CATCH_UP_SECONDS):
        while not sender.is_idle:
            await guard.sleep(0.05)
        while (found := _read(query)[0]) < sender.messages:
            await guard.sleep(0.2)
    assert found == sender.messages, f"the reader had {found} messages of {sender.messages}"
