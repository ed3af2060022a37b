"""``df.write.format("cmqd")`` and ``df.writeStream.format("cmqd")`` against a real broker."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs

from cmqd_client import Client, FilterType, Queue, connect
from cmqd_log.errors import CmqdSourceError
from cmqd_log.schema import LOG_ID
from cmqd_segment.manifest import read_manifest
from pyspark_cmqd.sending.sink import BATCH_ID, QUERY_ID, stream_ids
from support.processes.running_broker import RunningBroker
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

QUERY_SECONDS = 120
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(broker_folder: Path) -> Iterator[RunningBroker]:
    with RunningBroker(broker_folder, "--durability", "os") as broker:
        yield broker


@pytest.fixture
def queue(broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = str(request.node.name).split("[")[0][-60:]

    async def create(client: Client) -> None:
        await client.create_queue(name)

    run(broker, create)
    return name


def run(broker: RunningBroker, work: Any) -> Any:
    """Run a function with a client of the broker."""

    async def with_client() -> Any:
        async with connect(broker.url) as client:
            return await work(client)

    return asyncio.run(with_client())


async def drain(queue: Queue) -> list[Any]:
    messages: list[Any] = []
    while received := await queue.receive(256, wait=0):
        messages += received
        await queue.delete_batch(received)
    return messages


def taken(broker: RunningBroker, name: str) -> list[Any]:
    """Take all messages out of a queue."""

    async def take(client: Client) -> list[Any]:
        return await drain(client.queue(name))

    return run(broker, take)


def count(broker: RunningBroker, name: str) -> int:
    async def ask(client: Client) -> int:
        return (await client.queue(name).attributes()).active

    return run(broker, ask)


def numbered(spark: "SparkSession", rows: int, parts: int = 2) -> "DataFrame":
    return spark.range(0, rows, 1, parts).selectExpr("concat('row-', id) AS body", "id")


def bodies_of(rows: int) -> Counter[bytes]:
    return Counter(b"row-%d" % number for number in range(rows))


def write(frame: "DataFrame", broker: RunningBroker, **options: str) -> None:
    frame.write.format("cmqd").mode("append").options(url=broker.url, **options).save()


def test_a_dataframe_is_sent_with_headers_and_delays(spark: "SparkSession", broker: RunningBroker, queue: str) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(concat('row-', id) AS binary) AS body",
        "map('number', cast(id AS string)) AS headers",
        "CASE WHEN id = 7 THEN 3600 ELSE 0 END AS delay",
        "'left out' AS other",
    )

    write(frame, broker, queue=queue, batchSize="100")

    messages = taken(broker, queue)
    assert Counter(message.body for message in messages) == bodies_of(1000) - Counter([b"row-7"])
    assert all(message.headers["number"] == message.body.decode()[4:] for message in messages)
    first = [int(message.body[4:]) for message in messages if int(message.body[4:]) < 500]
    assert first == sorted(first), "a partition is sent in its order"


def test_rows_of_one_dedup_id_are_stored_once(spark: "SparkSession", broker: RunningBroker, queue: str) -> None:
    frame = numbered(spark, 400).selectExpr("body", "id div 2 AS `order`")

    write(frame, broker, queue=queue, dedupIdColumn="order")
    write(frame, broker, queue=queue, dedupIdColumn="order")

    assert len(taken(broker, queue)) == 200


def test_rows_of_a_log_are_not_dropped_because_their_producers_used_an_id_twice(
    spark: "SparkSession", broker: RunningBroker, queue: str, tmp_path: Path
) -> None:
    # Far apart in time both were stored; copied side by side the second would be taken for a repeat of the first.
    rows = [sends(7, 0, 2), sends(7, 2, 2)]
    with_ids = [
        ([structs.replace(records[0], dedup_ids=["invoice", None])], bodies, at_ms) for records, bodies, at_ms in rows
    ]
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS), *with_ids]])
    log = spark.read.format("cmqd").load(str(tmp_path / "data"))
    assert [row.dedup_id for row in log.orderBy("position").collect()] == ["invoice", None] * 2

    write(log, broker, queue=queue)
    assert len(taken(broker, queue)) == 4

    write(log.select("body", "dedup_id"), broker, queue=queue)
    assert len(taken(broker, queue)) == 4

    write(log, broker, queue=queue, dedupIdColumn="dedup_id")
    assert len(taken(broker, queue)) == 3


@pytest.fixture
def log(spark: "SparkSession", tmp_path: Path) -> "DataFrame":
    """A log of four messages in two rows."""
    rows = [sends(7, 0, 2), sends(7, 2, 2)]
    write_folder(tmp_path / "data", [[([queue_created(7, "orders")], [], NOW_MS), *rows]])
    return spark.read.format("cmqd").load(str(tmp_path / "data"))


def test_rows_of_a_log_have_permanent_ids(
    spark: "SparkSession", broker: RunningBroker, broker_folder: Path, queue: str, log: "DataFrame", tmp_path: Path
) -> None:
    log_id = read_manifest(tmp_path / "data").log_id
    assert log.schema["lsn"].metadata == {LOG_ID: log_id}

    write(log, broker, queue=queue, writeId="monday")
    # Another order and other partitions: the place of a row does not count.
    write(log.orderBy("position", ascending=False).repartition(3), broker, queue=queue, writeId="monday")
    assert count(broker, queue) == 4
    write(log, broker, queue=queue)
    assert count(broker, queue) == 8

    stored = spark.read.format("cmqd").options(queue=queue, includeActive="true").load(str(broker_folder / "data"))
    ids = [row.dedup_id for row in stored.orderBy("position").collect()]
    assert {len(name.split(":")[0]) for name in ids} == {8}
    names = [f"{log_id[:8]}:{lsn}:{index}" for lsn in (2, 3) for index in (0, 1)]
    assert [name.partition(":")[2] for name in ids] == names * 2
    assert len({name.partition(":")[0] for name in ids}) == 2


def test_a_write_with_a_row_of_a_log_twice_fails(broker: RunningBroker, queue: str, log: "DataFrame") -> None:
    twice = log.union(log)

    with pytest.raises(
        Exception, match=r"DoubledRowsError: two partitions have the same rows of the log: 2:0, 2:1, 3:0"
    ):
        write(twice, broker, queue=queue)
    assert count(broker, queue) == 4
    with pytest.raises(Exception, match=r"DoubledRowsError: a partition has rows of the log twice: 2:0, 2:1"):
        write(twice.coalesce(1), broker, queue=queue)
    assert len(taken(broker, queue)) == 4

    write(twice.drop("lsn"), broker, queue=queue)
    assert len(taken(broker, queue)) == 8
    write(twice.selectExpr("*", "msg_id AS own"), broker, queue=queue, dedupIdColumn="own")
    assert len(taken(broker, queue)) == 4


def test_a_union_of_two_logs_loses_no_row_in_silence(
    spark: "SparkSession", broker: RunningBroker, queue: str, log: "DataFrame", tmp_path: Path
) -> None:
    write_folder(tmp_path / "other", [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 2)]])
    other = spark.read.format("cmqd").load(str(tmp_path / "other"))

    with pytest.raises(Exception, match=r"DoubledRowsError: two partitions .* Rows of two logs can have the same lsn"):
        write(log.union(other), broker, queue=queue)
    assert len(taken(broker, queue)) == 4

    for one in (log, other):
        write(one, broker, queue=queue, writeId="both")
    assert len(taken(broker, queue)) == 6


def test_a_stream_with_a_row_of_a_log_twice_fails(
    spark: "SparkSession", broker: RunningBroker, queue: str, log: "DataFrame", tmp_path: Path
) -> None:
    def run_stream(frame: "DataFrame", checkpoint: str) -> None:
        writer = frame.writeStream.format("cmqd").options(url=broker.url, queue=queue)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_SECONDS)

    source = spark.readStream.format("cmqd").load(str(tmp_path / "data"))
    with pytest.raises(Exception, match="DoubledRowsError: two partitions have the same rows of the log"):
        run_stream(source.union(spark.readStream.format("cmqd").load(str(tmp_path / "data"))), "twice")
    assert len(taken(broker, queue)) == 4

    run_stream(source, "once")
    assert len(taken(broker, queue)) == 4


def test_the_rows_of_a_task_that_spark_repeats_are_stored_once(
    broker: RunningBroker, queue: str, log: "DataFrame", tmp_path: Path
) -> None:
    settings = {"folder": str(tmp_path / "spark"), "data": str(tmp_path / "data"), "url": broker.url, "queue": queue}
    (tmp_path / "spark").mkdir()
    command = [sys.executable, "-m", "support.spark.repeated_task", json.dumps(settings)]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}

    driver = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=QUERY_SECONDS)

    assert driver.returncode == 0, driver.stderr[-2000:]
    attempts = sorted(path.name for path in (tmp_path / "spark").glob("attempt-*"))
    assert attempts == ["attempt-0", "attempt-1"]
    assert Counter(message.body for message in taken(broker, queue)) == Counter(
        row.body for row in log.select("body").collect()
    )


def test_each_write_is_one_of_its_own_unless_it_has_a_name(
    spark: "SparkSession", broker: RunningBroker, queue: str
) -> None:
    frame = numbered(spark, 300)

    for _ in range(2):
        write(frame, broker, queue=queue)
    assert Counter(message.body for message in taken(broker, queue)) == bodies_of(300) + bodies_of(300)

    for _ in range(2):
        write(frame, broker, queue=queue, writeId="monday")
    assert Counter(message.body for message in taken(broker, queue)) == bodies_of(300)


def test_a_tag_topic_gets_tags(spark: "SparkSession", broker: RunningBroker) -> None:
    async def prepare(client: Client) -> None:
        topic = await client.ensure_topic("fruit")
        for name, tags in (("apples", ["apple"]), ("everything", None)):
            await client.ensure_queue(name)
            await topic.subscribe(name, queue=name, filter_tags=tags)

    run(broker, prepare)
    frame = numbered(spark, 100).selectExpr(
        "body", "CASE WHEN id % 4 = 0 THEN array('apple', 'red') END AS tags", "map('a', 'b') AS headers"
    )

    write(frame, broker, topic="fruit")

    assert len(taken(broker, "apples")) == 25
    messages = taken(broker, "everything")
    assert Counter(message.body for message in messages) == bodies_of(100)
    assert all(message.headers == {"a": "b"} for message in messages)


def test_a_routing_topic_gets_keys(spark: "SparkSession", broker: RunningBroker) -> None:
    async def prepare(client: Client) -> None:
        topic = await client.ensure_topic("events", filter_type=FilterType.ROUTING)
        await client.ensure_queue("evens")
        await topic.subscribe("evens", queue="evens", binding_keys=["*.even"])

    run(broker, prepare)
    frame = numbered(spark, 100).selectExpr("body", "concat(id, if(id % 2 = 0, '.even', '.odd')) AS key")

    write(frame, broker, topic="events", routingKeyColumn="key")

    assert len(taken(broker, "evens")) == 50


def test_a_write_that_cannot_be_made_fails_with_the_reason(
    spark: "SparkSession", broker: RunningBroker, queue: str
) -> None:
    with pytest.raises(Exception, match="option 'queue' is missing"):
        write(numbered(spark, 1), broker)
    with pytest.raises(Exception, match="column 'body' has type bigint"):
        write(spark.range(1).selectExpr("id AS body"), broker, queue=queue)
    with pytest.raises(Exception, match="use append"):
        numbered(spark, 1).write.format("cmqd").mode("overwrite").options(url=broker.url, queue=queue).save()
    with pytest.raises(Exception, match=r"SendError: messages cannot be sent to queue 'nowhere' .*QueueNotFound"):
        write(numbered(spark, 10), broker, queue="nowhere")
    with pytest.raises(Exception, match="RowError: column 'body' of row 3 of its partition is null"):
        write(spark.range(0, 5, 1, 1).selectExpr("if(id = 3, null, 'x') AS body"), broker, queue=queue)
    write(numbered(spark, 0), broker, queue=queue)


def test_a_write_outlives_a_crash_of_the_broker(spark: "SparkSession", tmp_path: Path) -> None:
    rows = 60_000
    with RunningBroker(tmp_path) as broker:

        async def create(client: Client) -> None:
            await client.create_queue("orders")

        run(broker, create)
        crashed: list[int] = []

        def crash() -> None:
            while not count(broker, "orders"):
                pass
            broker.kill()
            broker.start()
            crashed.append(count(broker, "orders"))

        crashing = threading.Thread(target=crash)
        crashing.start()
        try:
            write(numbered(spark, rows), broker, queue="orders", batchSize="16", inFlight="4")
        finally:
            crashing.join()

        assert 0 < crashed[0] < rows, "it was in the middle"
        assert Counter(message.body for message in taken(broker, "orders")) == bodies_of(rows)


@pytest.fixture
def small_batches(spark: "SparkSession") -> Iterator[None]:
    """Arrow batches of 100 rows, so that a task has sent messages before it fails."""
    before = spark.conf.get(ARROW_ROWS)
    spark.conf.set(ARROW_ROWS, "100")
    yield
    spark.conf.set(ARROW_ROWS, str(before))


@pytest.mark.usefixtures("small_batches")
def test_a_stream_that_crashed_in_mid_batch_stores_each_row_once(
    spark: "SparkSession", broker: RunningBroker, queue: str, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf

    lines, marker = tmp_path / "lines", str(tmp_path / "mended")
    lines.mkdir()
    for number in range(3):
        rows = range(number * 1000, number * 1000 + 1000)
        # Long bodies: the sink gets rows by the size of Spark's buffers, and must have sent rows before the crash.
        file = lines / f"{number}.txt"
        file.write_text("\n".join(f"row-{row}{' ' * 1000}" for row in rows))
        # Spark takes files in the order of their times; files written within a tick of the clock have none.
        os.utime(file, (number + 1, number + 1))

    def fails_once(text: str) -> str:
        import os

        if text.startswith("row-1900 ") and not os.path.exists(marker):
            raise ValueError("this row is the crash")
        return text

    def start() -> Any:
        read = spark.readStream.option("maxFilesPerTrigger", "1").text(str(lines))
        frame = read.select(udf(fails_once, useArrow=False)("value").alias("body"))
        writing = frame.writeStream.format("cmqd").options(url=broker.url, queue=queue, batchSize="20", inFlight="2")
        return writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    query = start()
    with pytest.raises(Exception, match="this row is the crash"):
        query.awaitTermination(QUERY_SECONDS)
    sent = count(broker, queue)
    assert 1000 < sent < 2000, "the second batch was sent in part"

    Path(marker).touch()
    again = start()
    assert again.awaitTermination(QUERY_SECONDS)

    assert again.id == query.id
    assert Counter(message.body.rstrip() for message in taken(broker, queue)) == bodies_of(3000)


class FakeTask:
    """The context of a task."""

    def __init__(self, partition: int, **properties: str) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get({QUERY_ID: "query", BATCH_ID: "batch"}[key])


def test_a_row_of_a_stream_has_one_name_in_every_run_and_no_other_has_it() -> None:
    query = "0f8fad5b-d9cb-469f-a165-70867728950e"
    longest = FakeTask(2**31 - 1, query=query, batch=str(2**63 - 1))

    def name(row: int = 0, partition: int = 0, **properties: str) -> str:
        task: Any = FakeTask(partition, **{"query": query, "batch": "5", **properties})
        return stream_ids(task).take([(row, None, None)])[0]

    assert name() == name()
    assert len({name(), name(1), name(0, 1), name(batch="6"), name(query="other"), name(1, 1)}) == 6
    assert len(stream_ids(cast("Any", longest)).take([(2**31, None, None)])[0]) <= 64


def test_a_row_of_a_log_has_one_name_in_every_partition_of_a_batch_of_a_stream() -> None:
    def name(partition: int = 0, lsn: int = 7, index: int = 1, log: str = "0123abcd", **properties: str) -> str:
        task: Any = FakeTask(partition, **{"query": "query", "batch": "5", **properties})
        return stream_ids(task, log).take([(0, lsn, index)])[0]

    assert name() == name(partition=3)
    assert name()[8:] == ":0123abcd:7:1"
    others = {name(batch="6"), name(query="other"), name(lsn=8), name(index=2), name(log="0123abce")}
    assert len(others | {name()}) == 6


def test_a_stream_that_cannot_name_its_rows_fails() -> None:
    task: Any = FakeTask(0, query="x")
    with pytest.raises(CmqdSourceError, match="set dedupIdColumn"):
        stream_ids(task).take([(0, None, None)])
