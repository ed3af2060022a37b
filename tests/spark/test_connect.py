"""Spark Connect: a client reads and writes through a server. In ``make test-all``, where its packages are installed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_client import connect
from support.processes.running_broker import RunningBroker
from support.spark.log_folder import queue_created, sends, write_folder
from support.storage.log_rig import NOW_MS

pytest.importorskip("grpc", reason="the client of Spark Connect is installed for make test-all")

pytestmark = [pytest.mark.spark, pytest.mark.system]

TESTS = Path(__file__).parents[1]
SECONDS = 240


def test_a_client_of_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    write_folder(tmp_path / "read", [[([queue_created(7, "orders")], [], NOW_MS), sends(7, 0, 2), sends(7, 2, 2)]])
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}

    async def create() -> None:
        async with connect(broker.url) as client:
            await client.create_queue("again")

    async def bodies() -> list[str]:
        async with connect(broker.url) as client:
            return sorted(message.body.decode() for message in await client.queue("again").receive(16, wait=0))

    with RunningBroker(tmp_path, "--durability", "os") as broker:
        asyncio.run(create())
        server = subprocess.Popen(
            [sys.executable, "-m", "support.spark.connect_server", str(tmp_path / "spark")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            assert server.stdout is not None
            settings = {
                "port": int(server.stdout.readline()),
                "data": str(tmp_path / "read"),
                "url": broker.url,
                "queue": "again",
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            client = [sys.executable, "-m", "support.spark.connect_client", json.dumps(settings)]
            told = subprocess.run(client, env=environment, capture_output=True, text=True, timeout=SECONDS)
        finally:
            # Python and its Java: the process group of the session that was begun for the server.
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            for pipe in (server.stdin, server.stdout):
                assert pipe is not None
                pipe.close()
        assert told.returncode == 0, told.stderr[-2000:]
        answer = json.loads(told.stdout.splitlines()[-1])
        stored = asyncio.run(bodies())

    assert [(lsn, index) for lsn, index, _ in answer["rows"]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    sent = [body for _, _, body in answer["rows"]]
    assert (answer["ended"], stored) == (True, sorted([*sent, *sent])), "of the write and its repeat, and of the stream"
    assert "option 'mode'" in answer["error"]
