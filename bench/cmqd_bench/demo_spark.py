"""The demo with Spark: ``python -m cmqd_bench.demo_spark [--input FILE] [--messages N]``.

Publishes real input to a topic of a broker in a temporary folder, consumes a part of the copies, seals the log, and
reads the log with Spark. A batch must have the counts of the broker and of the demo's books. A stream must bring the
same rows. The reconciliation must add up. A range of the log, replayed into a second queue, must arrive exactly once.
Exit code 0 if every check holds, 1 if a check fails, 2 for unusable input.
"""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportMissingModuleSource=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from cmq_cli.app import run as run_cmq
from cmq_cli.exitcodes import ExitCode
from cmqd_bench.broker import Broker, broker_folder
from cmqd_bench.demo import announce, bars, demo_main
from cmqd_bench.machine import scratch_root
from cmqd_bench.pipeline import DEAD, EVERYTHING, EXACT, NUMBER, REPLAYED, TOPIC, Pipeline
from cmqd_bench.source import Source
from cmqd_client import connect
from pyspark_cmqd.errors import CmqdSourceError
from pyspark_cmqd.reconcile import ask, reconcile
from pyspark_cmqd.session import check_installed, collected, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MASTER = "local[2]"
FEWEST = 200
SEGMENT_BYTES = 2 << 20
HISTORY_MS = 3_600_000
STREAM_BATCHES = 4
SHOWN_KEYS = 5


class Proofs:
    """The statements to prove, one per line of the closing table."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, bool]] = []

    def add(self, what: str, found: object, meaning: str, holds: bool) -> None:
        self.lines.append((what, f"{found:,}" if isinstance(found, int) else str(found), meaning, holds))

    @property
    def hold(self) -> bool:
        return all(holds for *_, holds in self.lines)


class Excursion:
    """One run, after the broker was started."""

    def __init__(self, broker: Broker, pipeline: Pipeline, console: Console, scratch: Path) -> None:
        self.proofs = Proofs()
        self._broker = broker
        self._pipeline = pipeline
        self._console = console
        self._scratch = scratch
        self._told: Mapping[str, Mapping[str, int]] = {}

    def run(self) -> None:
        """Run all steps in order."""
        begun = time.monotonic()
        uvloop.run(self._traffic())
        self._console.print(f"starting Spark ({MASTER}) ...")
        with spark_session(MASTER, "cmqd demo") as spark:
            log = spark.read.format("cmqd").option("path", str(self._broker.data))
            self._states(log.option("mode", "all").load())
            self._keys(spark.read.format("cmqd").options(topic=TOPIC).load(str(self._broker.data)))
            self._stream(spark)
            self._reconcile(spark)
            self._replay()
        seconds = time.monotonic() - begun
        self._console.print(self._closing_table(seconds))

    def _collected(self, what: str, frame: "DataFrame") -> "list[Row]":
        with bars(self._console) as progress:
            task = progress.add_task(what, total=None, rate="")
            rows = collected(frame, lambda done, total: progress.update(task, completed=done, total=total or None))
            _finish(progress, task)
            return rows

    # ------------------------------------------------------------------ the broker

    async def _traffic(self) -> None:
        pipeline = self._pipeline
        ready = await self._broker.start()
        self._console.print(f"broker started (loop process {ready.pid}, storage process {ready.storage_pid})")
        async with connect(ready.url) as client:
            with bars(self._console) as progress:
                watchers = [
                    asyncio.create_task(_watch(progress, "published", pipeline.messages, lambda: pipeline.published)),
                    asyncio.create_task(_watch(progress, "received", pipeline.to_be_taken, lambda: pipeline.taken)),
                ]
                try:
                    await pipeline.publish(client)
                    await pipeline.consume(client)
                finally:
                    for watcher in watchers:
                        watcher.cancel()
                    await asyncio.gather(*watchers, return_exceptions=True)
            last = await client.seal_segments()
            self._told = await pipeline.told(client)
        self._console.print(f"sealed: rows 1 to {last:,} of the log can be read")

    # ------------------------------------------------------------------ Spark

    def _states(self, frame: "DataFrame") -> None:
        pipeline = self._pipeline
        rows = self._collected("states", frame.groupBy("queue", "event").count())
        found: dict[str, dict[str, int]] = {}
        for row in rows:
            found.setdefault(row.queue, {})[row.event] = row["count"]
        expected = {pipeline.queue_of(name): pipeline.states_of(name) for name in pipeline.subscribers}
        expected[DEAD] = {"active": len(pipeline.dead[EXACT])}
        table = Table("queue", "state", title="What became of the copies", title_justify="left")
        for column in ("Spark", "broker", "our books"):
            table.add_column(column, justify="right")
        agree = True
        for queue in sorted({*found, *expected}):
            for state in sorted({*found.get(queue, {}), *expected.get(queue, {})}):
                spark_says = found.get(queue, {}).get(state, 0)
                we_say = expected.get(queue, {}).get(state, 0)
                # The broker counts messages in the queue; only the log has the messages that left the queue.
                broker_says = self._told[queue].get(state, 0) if state in ("active", "in_flight") else None
                same = spark_says == we_say and broker_says in (None, spark_says)
                agree = agree and same
                shown = "" if broker_says is None else f"{broker_says:,}"
                table.add_row(queue, state, f"{spark_says:,}", shown, f"{we_say:,}", style=None if same else "bold red")
        self._console.print(table)
        copies = sum(sum(states.values()) for states in found.values())
        self.proofs.add("copies and dead letters", copies, "in the state that the broker and our books say", agree)
        consumed = frame.where(f"queue = '{pipeline.queue_of(EVERYTHING)}' AND event = 'deleted'")
        numbers = self._collected("consumed", consumed.selectExpr(f"cast(headers['{NUMBER}'] AS int) AS number"))
        right = Counter(row.number for row in numbers) == Counter(pipeline.consumed[EVERYTHING])
        self.proofs.add("of them consumed", len(numbers), f"by {EVERYTHING!r}: the very ones that we deleted", right)

    def _keys(self, frame: "DataFrame") -> None:
        expected = self._pipeline.by_key()
        published = frame.where("event = 'published'").groupBy("routing_key").count()
        found = Counter({row.routing_key: row["count"] for row in self._collected("routing keys", published)})
        table = Table("routing key", title=f"The commonest of {len(expected):,} routing keys", title_justify="left")
        for column in ("Spark", "our books"):
            table.add_column(column, justify="right")
        for key, count in expected.most_common(SHOWN_KEYS):
            table.add_row(key, f"{found[key]:,}", f"{count:,}", style=None if found[key] == count else "bold red")
        self._console.print(table)
        self.proofs.add("published", found.total(), f"by {len(found):,} routing keys, each as often", found == expected)

    def _stream(self, spark: "SparkSession") -> None:
        columns = "lsn long, row_index int, queue string, msg_id string, body binary"
        place = self._scratch / "stream"
        most = max(self._pipeline.messages // STREAM_BATCHES, 1)
        hashed = ("lsn", "row_index", "queue", "msg_id", "xxhash64(body) AS hash")
        frame = spark.readStream.format("cmqd").schema(columns).option("maxMessagesPerTrigger", str(most))
        writer = frame.load(str(self._broker.data)).selectExpr(*hashed).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        with bars(self._console) as progress:
            task = progress.add_task("stream", total=None, rate="")
            query = writer.trigger(availableNow=True).start(str(place / "rows"))
            while not query.awaitTermination(1):
                progress.update(task, completed=sum(one["numInputRows"] for one in query.recentProgress))
            progress.update(task, completed=sum(one["numInputRows"] for one in query.recentProgress))
            _finish(progress, task)
            batches = sum(one["numInputRows"] > 0 for one in query.recentProgress)
        streamed = spark.read.parquet(str(place / "rows"))
        batch = spark.read.format("cmqd").schema(columns).load(str(self._broker.data)).selectExpr(*hashed)
        both = batch.selectExpr("*", "1 AS once").unionAll(streamed.selectExpr("*", "-1 AS once"))
        sums = both.groupBy(*streamed.columns).agg({"once": "sum"})
        (row,) = self._collected("streamed", streamed.groupBy().count())
        (differs,) = self._collected("compared", sums.where("`sum(once)` <> 0").groupBy().count())
        meaning = f"AvailableNow, {batches} batches of about {most:,} messages: the same rows as in one batch"
        self.proofs.add("streamed", row["count"], meaning, not differs["count"] and row["count"] > 0)

    def _reconcile(self, spark: "SparkSession") -> None:
        with bars(self._console) as progress:
            task = progress.add_task("reconcile", total=None, rate="")
            result = reconcile(
                spark,
                ask(str(self._broker.data)),
                lambda done, total: progress.update(task, completed=done, total=total or None),
            )
            _finish(progress, task)
        total = result.total
        meaning = f"= {total.count('consumed'):,} consumed + {total.count('dead'):,} dead"
        meaning += f" + {total.count('waiting'):,} waiting, as of row {result.lsn:,}"
        self.proofs.add("reconciled", total.total, meaning, result.holds and total.total > 0)

    def _replay(self) -> None:
        pipeline = self._pipeline
        since, until = (moment.isoformat(timespec="milliseconds") for moment in pipeline.middle)
        queue = pipeline.queue_of(EVERYTHING)
        words = ["--queue", queue, "--from", since, "--to", until, "--into", REPLAYED]
        self._console.print(f"cmq replay {' '.join(words)}", markup=False)
        words += ["--path", str(self._broker.data), "--state", str(self._scratch / "journal")]
        # In this process, as the session of Spark is here.
        code = run_cmq(["--url", self._broker.ready.url, "replay", *words])

        async def work() -> Counter[int]:
            async with connect(self._broker.ready.url) as client:
                return await pipeline.replayed(client)

        found = uvloop.run(work())
        right = code == ExitCode.OK and found == Counter(pipeline.middle_numbers)
        meaning = f"the middle third, by its times: each once, with its body, in {REPLAYED!r}"
        self.proofs.add("replayed", found.total(), meaning, right)

    def _closing_table(self, seconds: float) -> Table:
        holds = self.proofs.hold
        table = Table(title="All of it agrees" if holds else "IT DOES NOT AGREE", title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        table.add_column("meaning")
        for what, count, meaning, is_so in self.proofs.lines:
            table.add_row(what, count, meaning if is_so else f"NOT SO: {meaning}", style=None if is_so else "bold red")
        table.add_section()
        table.add_row("all in all", f"{seconds:.1f} s", "the start of Spark included")
        return table


def _finish(progress: Progress, task: TaskID) -> None:
    """Complete a bar: Spark omits needless tasks, so the count of tasks may fall short."""
    done = max(progress.tasks[task].completed, 1)
    progress.update(task, completed=done, total=done)


async def _watch(progress: Progress, what: str, total: int, figure: Callable[[], int]) -> None:
    """Move a bar until cancelled."""
    task = progress.add_task(what, total=total or None, rate="")
    while True:
        progress.update(task, completed=figure())
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            progress.update(task, completed=figure())
            raise


def run_demo(source: Source, messages: int, console: Console, scratch: Path | None) -> bool:
    """Run the whole demo; return True if all counts agree."""
    check_installed()
    root = scratch_root(scratch)
    announce("cmqd demo with Spark", source, messages, root, console)
    with broker_folder(root) as broker:
        # Without history the segments of consumed messages would be reclaimed, and Spark could not read them.
        broker.flags += ["--keep-history-ms", str(HISTORY_MS), "--segment-bytes", str(SEGMENT_BYTES)]
        excursion = Excursion(broker, Pipeline(source, messages), console, broker.folder)
        excursion.run()
    return excursion.proofs.hold


def main() -> int:
    """Run the program and return the exit code; see the module."""
    what = "Read a broker's log with Spark."
    return demo_main("demo_spark", what, run_demo, fewest=FEWEST, failures=(CmqdSourceError,))


if __name__ == "__main__":
    sys.exit(main())
