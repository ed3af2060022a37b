"""Reads of a live folder: the broker sends, receives, deletes, rolls and seals segments meanwhile."""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false, reportUnknownLambdaType=false

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from cmqd_client import connect
from cmqd_segment.manifest import SegmentState, read_manifest
from support.processes.running_server import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

BODY_BYTES = 400
BATCH = 64
PAUSE_SECONDS = 0.05


class Load:
    """Numbered messages to a queue, and a consumer that deletes half of the messages."""

    def __init__(self, url: str) -> None:
        self.sent = 0
        """Answered."""
        self.deleted = 0
        self.error: BaseException | None = None
        self._url = url
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._both())
        except BaseException as error:
            self.error = error

    async def _both(self) -> None:
        async with connect(self._url) as client:
            queue = await client.ensure_queue("orders", visibility_timeout=3600)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(queue))
                group.create_task(self._consume(queue))

    async def _send(self, queue: Any) -> None:
        while not self._ends.is_set():
            first = self.sent
            await queue.send_batch([b"%08d" % number + b"." * BODY_BYTES for number in range(first, first + BATCH)])
            self.sent += BATCH
            # Below the full rate: a read covers all rows, and a slow read would cover ever more.
            await asyncio.sleep(PAUSE_SECONDS)

    async def _consume(self, queue: Any) -> None:
        while not self._ends.is_set():
            messages = await queue.receive(32, wait=0.1)
            if messages:
                # The other messages stay in flight, so that no segment is reclaimed.
                result = await queue.delete_batch(messages[::2])
                result.raise_for_failures()
                self.deleted += len(messages[::2])


@contextmanager
def loaded(folder: Path) -> Generator[tuple[RunningServer, Load]]:
    with RunningServer(folder, "--segment-bytes", str(1 << 20)) as server:
        load = Load(server.url)
        load.start()
        try:
            yield server, load
        finally:
            load.stop()


def numbers(frame: "DataFrame") -> list[int]:
    rows = frame.selectExpr("cast(substring(body, 1, 8) as string) as number", "lsn", "row_index")
    return [int(row.number) for row in rows.orderBy("lsn", "row_index").collect()]


def sealed(data: Path) -> int:
    return sum(one.state is SegmentState.SEALED for one in read_manifest(data).segments)


def test_every_read_is_of_one_moment(spark: "SparkSession", tmp_path: Path):
    with loaded(tmp_path) as (server, load):

        def read(**options: str) -> "DataFrame":
            return spark.read.format("cmqd").options(queue="orders", includeActive="true", **options).load(str(data))

        data = server.data
        while load.deleted < 100:
            assert load.error is None
        seen = reads = 0
        while reads < 3 or sealed(data) < 2:
            reads += 1
            before = load.sent
            found = numbers(read())
            # Every message that was answered before, no message twice, and no gap.
            assert len(found) >= before
            assert found == list(range(len(found)))
            assert len(found) >= seen
            seen = len(found)

            before, deleted = load.sent, load.deleted
            states = (
                read(mode="all")
                .selectExpr("event", "cast(cast(substring(body, 1, 8) as string) as int) as number")
                .collect()
            )
            assert sorted(row.number for row in states) == list(range(len(states)))
            assert len(states) >= before
            by_state = {state: sum(row.event == state for row in states) for state in {row.event for row in states}}
            assert set(by_state) <= {"active", "in_flight", "deleted"}
            assert by_state["deleted"] >= deleted
            # Receives are in order: no received message stands behind a message that was not received.
            active = [row.number for row in states if row.event == "active"]
            assert not active or active == list(range(active[0], len(states)))

    # Stopped: all segments are sealed, and the sealed reading has all messages.
    assert numbers(spark.read.format("cmqd").option("queue", "orders").load(str(data))) == list(range(load.sent))


def test_a_stream_follows_the_broker(spark: "SparkSession", tmp_path: Path):
    with loaded(tmp_path) as (server, load):
        while load.sent < 1000:
            assert load.error is None
        options = {"queue": "orders", "includeActive": "true", "maxMessagesPerTrigger": "5000"}
        frame = spark.readStream.format("cmqd").options(**options).load(str(server.data))
        found: list[int] = []
        writer = frame.writeStream.foreachBatch(lambda frame, _: found.extend(numbers(frame)))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            while len(found) < 4_000:
                assert load.error is None
                assert query.exception() is None
                query.awaitTermination(1)
            # The batch is reported after the function of the batch has returned.
            while (progress := cast("Any", query.lastProgress)) is None:
                query.awaitTermination(1)
        finally:
            query.stop()

    assert found == list(range(len(found)))
    assert progress["sources"][0]["latestOffset"] is not None
