"""A real broker: the example program, and a subscriber that survives a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_faststream import CmqBroker
from support.eventually import eventually
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


def test_the_faststream_example(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as broker:
        command = [sys.executable, EXAMPLES / "faststream_orders.py", broker.url]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [
        "receipts: [(1, 250), (2, 1000)]",
        "rejected: nothing to pay",
        "the price of 4: 1000",
    ], ran.stderr


async def test_a_subscriber_survives_a_killed_broker(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as server:
        broker = CmqBroker(server.url, logger=None)
        bodies: list[str] = []

        @broker.subscriber("orders")
        async def handle(body: str) -> None:
            bodies.append(body)
            if bodies == ["first"]:
                server.kill()  # before the acknowledgement; the acknowledgement is repeated until the broker is back
                server.start()

        async with broker:
            await broker.start()
            await broker.publish("first", "orders")
            await eventually(lambda: bodies)
            await broker.publish("second", "orders")
            await eventually(lambda: "second" in bodies)
            while (await broker.client.queue("orders").attributes()).in_flight:
                pass
    assert bodies == ["first", "second"]
