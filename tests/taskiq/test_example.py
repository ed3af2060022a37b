"""A real broker: the example program with its worker in a process of its own, and a worker that survives a kill."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from taskiq.receiver import Receiver

from cmqd_taskiq import CmqBroker
from support.eventually import eventually
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


def test_the_taskiq_example(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as broker:
        command = [sys.executable, EXAMPLES / "taskiq_orders.py", broker.url]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [
        "receipts: ['order 1: 250 cents', 'order 2: 1000 cents', 'order 4: 500 cents']",
        "rejected: rejected by the task charge",
        "the worker ended with 0",
    ], ran.stderr


async def test_a_worker_survives_a_killed_broker(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as server:
        broker = CmqBroker(server.url)
        runs: list[str] = []

        @broker.task
        async def charge(name: str) -> None:
            runs.append(name)
            if runs == ["first"]:
                server.kill()  # before the acknowledgement, which is repeated until the broker is back
                server.start()

        await broker.startup()
        finished = asyncio.Event()
        listening = asyncio.create_task(Receiver(broker, max_async_tasks=4, run_startup=False).listen(finished))
        await charge.kiq("first")
        await eventually(lambda: runs)
        await charge.kiq("second")
        await eventually(lambda: "second" in runs)
        finished.set()
        await listening
        await broker.shutdown()
    assert runs == ["first", "second"]
