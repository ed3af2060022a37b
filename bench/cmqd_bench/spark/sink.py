"""The sink into a real broker: messages a second, and the load of each process meanwhile."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from cmqd_bench.load.session import Session
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.processes import cpu_seconds, machine_busy_seconds
from cmqd_bench.spark.session import SparkCpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "sink"
MESSAGES = 500_000
"""Messages per round, enough for ten seconds or more; the broker retains all messages."""
WARM_UP_MESSAGES = 2_000
PARTITIONS = 2
"""Number of tasks, as many as cores."""


def measure_sink(spark: "SparkSession", scratch: Path, messages: int, body: int, rounds: int) -> dict[str, Any]:
    """Run all rounds into fresh brokers; the best round counts."""
    messages = min(messages, MESSAGES)
    frame = rows(spark, 0, messages, body)
    each: list[dict[str, Any]] = []
    for _ in range(rounds):
        with broker_folder(scratch) as broker:
            each.append(_round(spark, broker, frame, messages, body))
    best = max(each, key=lambda one: one["messages_per_second"])
    return {"messages": messages, "tasks": PARTITIONS, **best, "rounds": each}


def rows(spark: "SparkSession", first: int, stop: int, body: int) -> "DataFrame":
    """Return different bodies, generated in the tasks."""
    text = f"encode(rpad(concat('message ', id, ' '), {body}, md5(string(id))), 'UTF-8')"
    return spark.range(first, stop, 1, PARTITIONS).selectExpr(f"{text} AS body")


def _round(spark: "SparkSession", broker: Broker, frame: "DataFrame", messages: int, body: int) -> dict[str, Any]:
    uvloop.run(_started(broker))
    _write(broker, rows(spark, messages, messages + WARM_UP_MESSAGES, body))
    pid = broker.ready.pid
    busy, spark_before = machine_busy_seconds(), SparkCpu.now()
    loop, servers = cpu_seconds([pid]), broker.cpu_seconds()
    begin = time.perf_counter()
    _write(broker, frame)
    seconds = time.perf_counter() - begin
    loop, servers = cpu_seconds([pid]) - loop, broker.cpu_seconds() - servers
    busy, cost = machine_busy_seconds() - busy, SparkCpu.now() - spark_before
    stored = _stored(spark, broker)
    expected = messages + WARM_UP_MESSAGES
    assert stored == expected, f"the broker has {stored} messages instead of {expected}"
    return {
        "seconds": round(seconds, 3),
        "messages_per_second": round(messages / seconds),
        "server_cpu_us_per_message": round(servers / messages * 1e6, 3),
        "task_cpu_us_per_message": round(cost.python / messages * 1e6, 3),
        # Shares of a core by process; "broker_loop" is single-threaded.
        "cores": {
            "broker_loop": round(loop / seconds, 2),
            "broker_storage": round((servers - loop) / seconds, 2),
            "tasks": round(cost.python / seconds, 2),
            "java": round(cost.java / seconds, 2),
            "others": round(max(busy - servers - cost.python - cost.java, 0.0) / seconds, 2),
            "there_are": len(os.sched_getaffinity(0)),
        },
    }


async def _started(broker: Broker) -> None:
    await broker.start()
    session = Session(broker)
    await session.create_queue(QUEUE)
    session.close_all()


def _write(broker: Broker, frame: "DataFrame") -> None:
    broker.check_alive()
    frame.write.format("cmqd").mode("append").option("url", broker.ready.url).option("queue", QUEUE).save()


def _stored(spark: "SparkSession", broker: Broker) -> int:
    """Return the number of different bodies in the broker's log."""
    source = spark.read.format("cmqd").schema("body binary").option("includeActive", "true")
    return source.load(str(broker.data)).distinct().count()
