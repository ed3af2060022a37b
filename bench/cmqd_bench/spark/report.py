"""The parts of ``python -m cmqd_bench spark``, combined in a report."""

import json
import tempfile
from pathlib import Path
from typing import Any

from cmqd_bench.commands.plans import Spark
from cmqd_bench.figures.report import outline
from cmqd_bench.machine.conditions import conditions, scratch_root, version_of
from cmqd_bench.spark.reading import Reading
from cmqd_bench.spark.session import MASTER, session
from cmqd_bench.spark.sink import measure_sink

READING = frozenset({"batch", "prune", "stream"})
SINK_ROUNDS = 2


def measure(plan: Spark, scratch: Path) -> dict[str, Any]:
    """Return all figures of the requested parts."""
    messages, body, unix_sockets = plan.messages, plan.body, plan.unix_sockets
    figures: dict[str, Any] = {"messages": messages, "body": body, "master": MASTER, "unix_sockets": unix_sockets}
    with session(scratch, unix_sockets=unix_sockets) as spark:
        if READING & set(plan.parts):
            reading = Reading(spark, scratch, messages, body)
            figures |= reading.log
            figures |= reading.measure(plan.parts, plan.rounds)
        if "sink" in plan.parts:
            figures["sink"] = measure_sink(spark, scratch, messages, body, min(plan.rounds, SINK_ROUNDS))
    return figures


def print_spark(plan: Spark) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="cmqd-spark-", dir=scratch_root(plan.scratch)) as name:
        figures = measure(plan, Path(name))
        described: dict[str, Any] = conditions(Path(name))
    described["versions"] |= {each: version_of(each) for each in ("pyspark", "pyarrow")}
    if plan.json:
        print(json.dumps({"scenario": "spark", **figures, "conditions": described}))
        return
    print("\n".join(["spark", *outline(figures)]))
