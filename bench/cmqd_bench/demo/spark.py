"""Spark reads the log of a broker, and finds the same counts as the broker and the demo's own books.

Real input is published to a topic in three parts. A part of the copies is consumed, a part is left in flight, and a
part becomes dead letters. Then the log is sealed and read with Spark. A batch must have the states that the books
expect. A stream must bring the same rows as a batch. The reconciliation must add up. The middle part, replayed into
another queue, must arrive exactly once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from cmq_cli.app import run as run_cmq
from cmq_cli.exitcodes import ExitCode
from cmqd_bench.demo.input import Source
from cmqd_bench.demo.progress import announce, bars, watching
from cmqd_bench.demo.subscribers import (
    EVERYTHING,
    EXACT,
    PATTERN,
    TOPIC,
    choose_subscribers,
    create_topic,
    matches,
    queue_of,
)
from cmqd_bench.demo.traffic import NUMBER, headers_of, longest_body, next_batch, number_of
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import scratch_root
from cmqd_client import Client, connect
from cmqd_log.reconcile import ask, reconcile
from pyspark_cmqd.session import check_installed, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MASTER = "local[2]"
FEWEST = 200
SEGMENT_BYTES = 2 << 20
HISTORY_MS = 3_600_000
STREAM_BATCHES = 4
SHOWN_KEYS = 5
DEAD = "demo-dead"
REPLAYED = "demo-replayed"
PARTS = 3
MIDDLE = 1
BATCH = 256
MOST_DEAD = 100
MARGIN_SECONDS = 0.05
"""Pause between the parts: no message is published close to the recorded times."""
HIDDEN_SECONDS = 3600.0
MOVE_SECONDS = 30.0


class Traffic:
    """The messages of a run: published in parts, then partly consumed, left in flight, or failed."""

    def __init__(self, source: Source, messages: int) -> None:
        self.messages = messages
        self.subscribers = choose_subscribers(source.routing_keys)
        self.published = 0
        self.taken = 0
        """Messages received so far."""
        self.departed: dict[tuple[str, str], set[int]] = {}
        """Numbers of the received messages, by subscriber and resulting state."""
        self.middle: tuple[datetime, datetime] = (datetime.min, datetime.min)
        """Begin and end of the middle part."""
        self._source = source
        self._edges = [messages * part // PARTS for part in range(PARTS + 1)]

    def by_key(self) -> Counter[str]:
        """Count the messages by routing key."""
        return Counter(self._source.routing_key(number) for number in range(self.messages))

    def expected(self, name: str) -> int:
        """Return the number of copies that a subscriber should get."""
        counts = self.by_key().items()
        return sum(count for key, count in counts if any(matches(each, key) for each in self.subscribers[name]))

    def states_of(self, name: str) -> dict[str, int]:
        """Return the expected states of a subscriber's copies; states without copies are left out."""
        states = {state: len(numbers) for (subscriber, state), numbers in self.departed.items() if subscriber == name}
        states["active"] = self.expected(name) - sum(states.values())
        return {state: count for state, count in states.items() if count}

    def shares(self) -> Sequence[tuple[str, str, int]]:
        """Return the messages to receive: subscriber, resulting state and count."""
        pattern, exact = map(self.expected, (PATTERN, EXACT))
        return (
            (EVERYTHING, "deleted", self.messages // 2),
            (PATTERN, "deleted", pattern // 4),
            (EXACT, "dead_lettered", min(exact // 2, MOST_DEAD)),
            (EVERYTHING, "in_flight", max(self.messages // 20, 1)),
        )

    @property
    def middle_numbers(self) -> range:
        """Numbers of the messages of the middle part."""
        return range(self._edges[MIDDLE], self._edges[MIDDLE + 1])

    async def publish(self, client: Client) -> None:
        """Create topic, queues and subscriptions, and publish all parts."""
        topic = await create_topic(client, self._source, self.subscribers, visibility_timeout=HIDDEN_SECONDS)
        for name in (DEAD, REPLAYED):
            await client.create_queue(name, max_message_bytes=longest_body(self._source))
        await client.queue(queue_of(EXACT)).set_attributes(dead_letter_queue=DEAD, dead_letter_max_receives=1)
        source = self._source
        times: list[datetime] = []
        for part in range(PARTS):
            times.append(await self._pause())
            numbers = iter(range(self._edges[part], self._edges[part + 1]))
            while batch := next_batch(numbers, source, BATCH):
                await topic.publish_batch(
                    [source.body(number) for number in batch],
                    routing_keys=[source.routing_key(number) for number in batch],
                    headers=headers_of(batch),
                )
                self.published += len(batch)
        times.append(await self._pause())
        self.middle = times[MIDDLE], times[MIDDLE + 1]

    async def _pause(self) -> datetime:
        await asyncio.sleep(MARGIN_SECONDS)
        now = datetime.fromtimestamp(time.time(), UTC)
        await asyncio.sleep(MARGIN_SECONDS)
        return now

    async def consume(self, client: Client) -> None:
        """Receive all shares, and wait until the failed messages are dead letters."""
        for name, state, count in self.shares():
            await self._take(client, name, state, count)
        dead, expected = client.queue(DEAD), len(self.departed.get((EXACT, "dead_lettered"), ()))
        async with asyncio.timeout(MOVE_SECONDS):
            while (await dead.attributes()).active < expected:  # noqa: ASYNC110 - it tells when asked
                await asyncio.sleep(MARGIN_SECONDS)

    async def _take(self, client: Client, name: str, state: str, count: int) -> None:
        queue = client.queue(queue_of(name))
        while count > 0:
            messages = await queue.receive(min(256, count), wait=5)
            if not messages:
                raise TimeoutError(f"{queue.name} gave nothing more, {count} were to come")
            if state == "deleted":
                await queue.delete_batch(messages)
            elif state == "dead_lettered":
                # The policy permits a single receive, so the broker moves the released messages.
                await queue.release_batch(messages)
            numbers = [number for message in messages if (number := number_of(message)) is not None]
            self.departed.setdefault((name, state), set()).update(numbers)
            count -= len(messages)
            self.taken += len(messages)

    async def counted(self, client: Client) -> dict[str, dict[str, int]]:
        """Return the broker's own counts by queue: active and in flight."""
        counts: dict[str, dict[str, int]] = {}
        for name in (*map(queue_of, self.subscribers), DEAD):
            info = await client.queue(name).attributes()
            counts[name] = {"active": info.active, "in_flight": info.in_flight}
        return counts

    async def replayed(self, client: Client) -> Counter[int | None]:
        """Receive the replayed messages; count the deliveries with the published body by number."""
        queue = client.queue(REPLAYED)
        found: Counter[int | None] = Counter()
        while messages := await queue.receive(256, wait=0):
            for message in messages:
                number = number_of(message)
                found[number if number is not None and message.body == self._source.body(number) else None] += 1
            await queue.delete_batch(messages)
        return found


class Proofs:
    """The statements to prove, a line each of the closing table."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, bool]] = []

    def add(self, statement: str, count: int, meaning: str, holds: bool) -> None:
        """Add a statement, true or not."""
        self.lines.append((statement, f"{count:,}", meaning, holds))

    @property
    def hold(self) -> bool:
        """True if every statement is true."""
        return all(holds for *_, holds in self.lines)


class Excursion:
    """A run of the demo, over a broker that the run starts."""

    def __init__(self, broker: Broker, traffic: Traffic, console: Console) -> None:
        self.proofs = Proofs()
        self._broker = broker
        self._log = str(broker.data)
        self._traffic = traffic
        self._console = console
        self._counted: Mapping[str, Mapping[str, int]] = {}

    def run(self) -> None:
        """Run all steps in order."""
        begun = time.monotonic()
        uvloop.run(self._publish_and_consume())
        self._console.print(f"starting Spark ({MASTER}) ...")
        # The groups of the demo are few: Spark would divide them among 200 tasks.
        settings = {"spark.sql.shuffle.partitions": "4", "spark.sql.python.filterPushdown.enabled": "true"}
        with spark_session(MASTER, "cmqd demo", settings=settings) as spark:
            self._states(spark.read.format("cmqd").option("mode", "all").load(self._log))
            self._keys(spark.read.format("cmqd").options(topic=TOPIC).load(self._log))
            self._stream(spark)
            self._reconcile()
            self._replay()
        self._console.print(self._closing_table(time.monotonic() - begun))

    async def _publish_and_consume(self) -> None:
        traffic = self._traffic
        ready = await self._broker.start()
        self._console.print(f"broker started (loop process {ready.pid}, storage process {ready.storage_pid})")
        async with connect(ready.url) as client:
            figures = [
                ("published", traffic.messages, lambda: traffic.published),
                ("received", sum(count for *_, count in traffic.shares()), lambda: traffic.taken),
            ]
            with bars(self._console) as progress:
                async with watching(progress, figures):
                    await traffic.publish(client)
                    await traffic.consume(client)
            last = (await client.seal_segments()).last_lsn
            self._counted = await traffic.counted(client)
        self._console.print(f"sealed: rows 1 to {last:,} of the log can be read")

    def _collected(self, description: str, frame: "DataFrame") -> "list[Row]":
        with bars(self._console) as progress:
            task = progress.add_task(description, total=None, rate="")
            rows = frame.collect()
            _finish(progress, task)
            return rows

    # ------------------------------------------------------------------ the checks

    def _states(self, frame: "DataFrame") -> None:
        """Compare the states of all copies: Spark, the broker, and the books."""
        traffic = self._traffic
        in_spark = {
            (row.queue, row.event): row["count"]
            for row in self._collected("states", frame.groupBy("queue", "event").count())
        }
        expected = {(DEAD, "active"): len(traffic.departed.get((EXACT, "dead_lettered"), ()))}
        for name in traffic.subscribers:
            expected |= {(queue_of(name), state): count for state, count in traffic.states_of(name).items()}
        table = Table("queue", "state", title="What became of the copies", title_justify="left")
        for column in ("Spark", "broker", "our books"):
            table.add_column(column, justify="right")
        agree = True
        for queue, state in sorted({*in_spark, *expected}):
            count, books = in_spark.get((queue, state), 0), expected.get((queue, state), 0)
            # The broker counts messages in the queue; only the log has the messages that left the queue.
            broker = self._counted[queue].get(state)
            same = count == books and broker in (None, count)
            agree = agree and same
            shown = "" if broker is None else f"{broker:,}"
            table.add_row(queue, state, f"{count:,}", shown, f"{books:,}", style=None if same else "bold red")
        self._console.print(table)
        meaning = "in the state that the broker and our books say"
        self.proofs.add("copies and dead letters", sum(in_spark.values()), meaning, agree)
        consumed = frame.where(f"queue = '{queue_of(EVERYTHING)}' AND event = 'deleted'")
        numbers = self._collected("consumed", consumed.selectExpr(f"cast(headers['{NUMBER}'] AS int) AS number"))
        right = Counter(row.number for row in numbers) == Counter(traffic.departed[EVERYTHING, "deleted"])
        self.proofs.add("of them consumed", len(numbers), f"by {EVERYTHING!r}: the very ones that we deleted", right)

    def _keys(self, frame: "DataFrame") -> None:
        """Compare the number of messages by routing key."""
        expected = self._traffic.by_key()
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
        """Compare the rows of a stream of several batches with the rows of a batch."""
        columns = "lsn long, row_index int, queue string, msg_id string, body binary"
        folder = self._broker.folder / "stream"
        limit = max(self._traffic.messages // STREAM_BATCHES, 1)
        hashed = ("lsn", "row_index", "queue", "msg_id", "xxhash64(body) AS hash")
        frame = spark.readStream.format("cmqd").schema(columns).option("maxMessagesPerTrigger", str(limit))
        writer = frame.load(self._log).selectExpr(*hashed).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        with bars(self._console) as progress:
            task = progress.add_task("stream", total=None, rate="")
            query = writer.start(str(folder / "rows"))
            running = True
            while running:
                running = not query.awaitTermination(1)
                progress.update(task, completed=sum(each["numInputRows"] for each in query.recentProgress))
            _finish(progress, task)
        batches = sum(each["numInputRows"] > 0 for each in query.recentProgress)
        streamed = spark.read.parquet(str(folder / "rows"))
        batch = spark.read.format("cmqd").schema(columns).load(self._log).selectExpr(*hashed)
        both = batch.selectExpr("*", "1 AS once").unionAll(streamed.selectExpr("*", "-1 AS once"))
        sums = both.groupBy(*streamed.columns).agg({"once": "sum"})
        (row,) = self._collected("streamed", streamed.groupBy().count())
        (differs,) = self._collected("compared", sums.where("`sum(once)` <> 0").groupBy().count())
        meaning = f"AvailableNow, {batches} batches of about {limit:,} messages: the same rows as in one batch"
        self.proofs.add("streamed", row["count"], meaning, not differs["count"] and row["count"] > 0)

    def _reconcile(self) -> None:
        """Count the messages that came, and the states of the messages, as ``cmq reconcile`` does."""
        with bars(self._console) as progress:
            task = progress.add_task("reconcile", total=None, rate="")
            result = reconcile(ask(self._log), lambda done, total: progress.update(task, completed=done, total=total))
            _finish(progress, task)
        total = result.total
        meaning = f"= {total.count('consumed'):,} consumed + {total.count('dead'):,} dead"
        meaning += f" + {total.count('waiting'):,} waiting, as of row {result.lsn:,}"
        self.proofs.add("reconciled", total.total, meaning, result.holds and total.total > 0)

    def _replay(self) -> None:
        """Replay the middle part into another queue with ``cmq replay``, and receive it there."""
        traffic, url = self._traffic, self._broker.ready.url
        since, until = (moment.isoformat(timespec="milliseconds") for moment in traffic.middle)
        words = ["--queue", queue_of(EVERYTHING), "--from", since, "--to", until, "--into", REPLAYED]
        self._console.print(f"cmq replay {' '.join(words)}", markup=False)
        words += ["--path", self._log, "--state", str(self._broker.folder / "journal")]
        # In this process, as the session of Spark is here.
        code = run_cmq(["--url", url, "replay", *words])

        async def receive() -> Counter[int | None]:
            async with connect(url) as client:
                return await traffic.replayed(client)

        found = uvloop.run(receive())
        right = code == ExitCode.OK and found == Counter(traffic.middle_numbers)
        meaning = f"the middle third, by its times: each once, with its body, in {REPLAYED!r}"
        self.proofs.add("replayed", found.total(), meaning, right)

    def _closing_table(self, seconds: float) -> Table:
        title = "All of it agrees" if self.proofs.hold else "IT DOES NOT AGREE"
        table = Table("what", title=title, title_justify="left")
        table.add_column("count", justify="right")
        table.add_column("meaning")
        for statement, count, meaning, holds in self.proofs.lines:
            meaning = meaning if holds else f"NOT SO: {meaning}"
            table.add_row(statement, count, meaning, style=None if holds else "bold red")
        table.add_section()
        table.add_row("all in all", f"{seconds:.1f} s", "the start of Spark included")
        return table


def _finish(progress: Progress, task: TaskID) -> None:
    """Complete a bar: Spark omits needless tasks, so the count of tasks may fall short."""
    done = max(progress.tasks[task].completed, 1)
    progress.update(task, completed=done, total=done)


def run_demo(source: Source, messages: int, console: Console, scratch: Path | None) -> bool:
    """Run the whole demo; return True if all counts agree."""
    check_installed()
    root = scratch_root(scratch)
    announce("cmqd demo with Spark", source, messages, root, console)
    with broker_folder(root) as broker:
        # Without history the segments of consumed messages would be reclaimed, and Spark could not read them.
        broker.flags += ["--keep-history-ms", str(HISTORY_MS), "--segment-bytes", str(SEGMENT_BYTES)]
        excursion = Excursion(broker, Traffic(source, messages), console)
        excursion.run()
    return excursion.proofs.hold
