"""A driver is killed (SIGKILL) in the middle of a batch, and started again: no row is missing or stored twice.

Meanwhile the broker goes on sending, rolls segments and seals them.
"""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmqd_client import connect
from cmqd_segment.manifest import SegmentState, read_manifest
from support.processes.running_server import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

BATCH = 64
BODY_BYTES = 1_000
BATCHES = 28
"""Sent at a time: four times as much are several segments."""
TESTS = Path(__file__).parents[2]


class Driver:
    """``support.spark.stream_driver`` in a process, and a session, of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.hold, self.held, self.stop_file = folder / "hold", folder / "held", folder / "stop"
        self.checkpoint = folder / "checkpoint"
        self._settings = {
            **settings,
            "folder": str(folder),
            "checkpoint": str(self.checkpoint),
            "hold": str(self.hold),
            "held": str(self.held),
            "stop_file": str(self.stop_file),
        }
        self.log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "support.spark.stream_driver", json.dumps(self._settings)]
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
            )

    def wait_for(self, what: Callable[[], bool]) -> None:
        assert self._process is not None
        while not what():
            assert self._process.poll() is None, self.told()
            time.sleep(0.05)

    def told(self) -> str:
        """The end of the output of driver and Java, without Java's frames: the reason stands before many frames."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-120:])

    def kill(self) -> None:
        """Python, Java and workers, all at once."""
        if self._process is not None:
            # The process group of the session that was begun for the driver.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def finish(self) -> None:
        """Let the driver read all rows and end."""
        assert self._process is not None
        self.stop_file.touch()
        assert self._process.wait() == 0, self.told()
        self._process = None


@contextmanager
def driver(folder: Path, **settings: Any) -> "Generator[Driver]":
    one = Driver(folder, **settings)
    try:
        yield one
    finally:
        one.kill()


async def send(url: str, first: int) -> int:
    """Send numbered messages; return the next number."""
    async with connect(url) as client:
        queue = await client.ensure_queue("orders")
        for _ in range(BATCHES):
            await queue.send_batch([b"%08d" % number + b"." * BODY_BYTES for number in range(first, first + BATCH)])
            first += BATCH
            await asyncio.sleep(0.03)
    return first


def sealed(data: Path) -> int:
    return sum(one.state is SegmentState.SEALED for one in read_manifest(data).segments)


def interrupted(one: Driver, url: str) -> int:
    """Kill a driver within a batch, send on, and let a second driver finish; return the number of sent messages."""
    one.start()
    sent = asyncio.run(send(url, 0))
    # The first batches go through; then both queries are held in the middle of a batch.
    one.wait_for(lambda: all(committed(one, name) for name in ("files", "queue")))
    one.hold.touch()
    sent = asyncio.run(send(url, sent))
    one.wait_for(lambda: all(one.held.with_name(f"held-{name}").exists() for name in ("files", "queue")))
    one.kill()
    assert all(noted(one, name, "offsets") > committed(one, name) for name in ("files", "queue")), "in mid-batch"
    sent = asyncio.run(send(url, sent))

    one.hold.unlink()
    one.start()
    sent = asyncio.run(send(url, sent))
    one.finish()
    return sent


def committed(one: Driver, name: str) -> int:
    """Batches of a query that Spark has noted as done."""
    return noted(one, name, "commits")


def noted(one: Driver, name: str, what: str) -> int:
    return len(list(one.checkpoint.with_name(f"checkpoint-{name}").glob(f"{what}/[0-9]*")))


def test_each_message_is_there_once(spark: "SparkSession", tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--segment-bytes", str(1 << 20)) as server:
        asyncio.run(create(server.url, "copies"))
        source = {"path": str(server.data), "queue": "orders", "includeActive": "true", "maxMessagesPerTrigger": "1000"}
        sink = {"url": server.url, "queue": "copies", "batchSize": "16", "inFlight": "2"}
        with driver(tmp_path / "driver", source=source, sink=sink, parquet=str(tmp_path / "files")) as one:
            sent = interrupted(one, server.url)
        assert sealed(server.data) >= 3, "segments were rolled and sealed meanwhile"
        assert asyncio.run(taken(server.url, "copies")) == Counter(range(sent))

    rows = spark.read.parquet(str(tmp_path / "files")).selectExpr("cast(substring(body, 1, 8) as string) n").collect()
    assert sorted(int(row.n) for row in rows) == list(range(sent))


async def create(url: str, *names: str) -> None:
    async with connect(url) as client:
        for name in ("orders", *names):
            await client.ensure_queue(name)


async def taken(url: str, name: str) -> "Counter[int]":
    """The numbers of all messages of a queue."""
    found: Counter[int] = Counter()
    async with connect(url) as client:
        queue = client.queue(name)
        while messages := await queue.receive(256, wait=0.2):
            found.update(int(message.body[:8]) for message in messages)
            await queue.delete_batch(messages)
    return found
