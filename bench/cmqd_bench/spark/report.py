"""The parts of ``python -m cmqd_bench spark``, combined in a report.

batch   all columns, and one column, to ``noop``, against Parquet (zstd) of the same rows in the same session
prune   one queue of fifty, one hour of fifty: seconds, segments and bytes read
stream  Trigger.AvailableNow over the same log, against the batch; and a check that every row comes exactly once
sink    into a real broker: messages a second, and CPU by process
tail    the cost to a broker under load of a reader that follows the log
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cmqd_bench.commands.plans import Spark
from cmqd_bench.machine.conditions import conditions, scratch_root, version_of
from cmqd_bench.spark.reading import Reading
from cmqd_bench.spark.session import MASTER, session
from cmqd_bench.spark.sink import measure_sink
from cmqd_bench.spark.tail import VARIANTS, Load, measure_tail

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
        if "tail" in plan.parts:
            load = Load(plan.tail_rate, plan.tail_seconds, body)
            figures["tail"] = measure_tail(spark, scratch, load, plan.tail_rounds, share=plan.share_cores)
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
    print("\n".join(lines_of(figures)))


def lines_of(figures: Mapping[str, Any]) -> list[str]:
    """Return the report as lines of text."""
    lines = [f"spark: {figures['messages']:,} messages of {figures['body']} bytes, {figures['master']}"]
    if "seconds" in figures:
        lines.append(f"  {figures['segments']} segments, {figures['log_bytes']:,} bytes; rounds in turns, seconds:")
        for name, times in figures["seconds"].items():
            lines.append(f"    {name:<15} {' '.join(f'{one:8.2f}' for one in times)}")
    if "batch" in figures:
        batch = figures["batch"]
        for name, rate in batch["messages_per_second"].items():
            lines.append(f"  {name:<15} {rate:>12,} messages/s")
        ratio = batch["of_parquet"]
        lines.append(f"  batch is {ratio['best']:.0%} of parquet (best rounds; {ratio['median']:.0%} of the medians)")
    if "stream" in figures:
        stream = figures["stream"]
        for name in ("times_batch", "limited_times_batch"):
            ratio = stream[name]
            lines.append(f"  stream {name}: {ratio['best']:.2f} (best rounds; {ratio['median']:.2f} of the medians)")
        once = stream["exactly_once"]
        lines.append(
            f"  stream against batch: {once['rows']:,} rows, {once['different_rows']:,} different, the same sum, "
            f"in {once['batches']} batches"
        )
    if "prune" in figures:
        for name in ("everything", "one_queue", "one_hour"):
            one = figures["prune"][name]
            lines.append(
                f"  {name:<15} {one['messages']:>12,} messages: {one['segments']} segments, {one['partitions']} "
                f"partitions, {one['bytes_read']:,} bytes read"
            )
    if "sink" in figures:
        lines += _sink_lines(figures["sink"])
    if "tail" in figures:
        lines += _tail_lines(figures["tail"])
    return lines


def _sink_lines(sink: Mapping[str, Any]) -> list[str]:
    cores = ", ".join(f"{name} {value}" for name, value in sink["cores"].items())
    return [
        f"  {'sink':<15} {sink['messages_per_second']:>12,} messages/s ({sink['messages']:,} by {sink['tasks']} tasks)",
        f"    us a message: server {sink['server_cpu_us_per_message']}, tasks {sink['task_cpu_us_per_message']}",
        f"    cores: {cores}",
    ]


def _tail_lines(tail: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  tail: {tail['rate']:,} messages/s in batches of {tail['batch']}, "
        f"a trigger every {tail['trigger_seconds']} s, cores {tail['cores']}; medians"
    ]
    for variant in VARIANTS:
        one = tail["medians"][variant]
        lines.append(
            f"    {variant:<6} server {one['server_cpu_us_per_message']:.2f} us a message, "
            f"send p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms"
        )
    for name in ("tail_times_none", "tail_times_other", "other_times_none"):
        one = tail[name]
        lines.append(
            f"    {name:<17} CPU {one['server_cpu_us_per_message']:.2f}, p50 {one['p50']:.2f}, p99 {one['p99']:.2f}"
        )
    return lines
