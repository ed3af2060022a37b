"""A body that ends a worker of Celery goes to the dead letters, and the next worker goes on: a real worker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd_client import connect
from support.bench.long_benches import long_bench
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

WORKER = """
import os, signal, sys
from celery import Celery
import cmqd_kombu

app = Celery("shop", broker=sys.argv[1])
app.conf.worker_enable_remote_control = False

@app.task(name="shop.price")
def price():
    print("a price")
    os.kill(os.getpid(), signal.SIGTERM)

app.worker_main(["--quiet", "worker", "--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"])
"""
HEADERS = {"task": "shop.price", "id": "1a"}


@long_bench
async def test_a_body_that_ends_a_worker_becomes_a_dead_letter(broker: RunningBroker, tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(WORKER)
    head = json.dumps(["application/json", "utf-8", HEADERS, {}]).encode()
    async with connect(broker.url, request_timeout=300, connect_timeout=300) as client:
        await client.create_queue("dead")
        await client.create_queue("celery", dead_letter_queue="dead", dead_letter_max_receives=1)
        await client.queue("celery").send(head + b"\n5", headers={"kombu": "1"})
        await client.queue("celery").send(head + b"\n[[], {}, {}]", headers={"kombu": "1"})

        def run() -> str:
            """Run a worker to its end and return its log."""
            command = [sys.executable, program, broker.url]
            return subprocess.run(command, capture_output=True, text=True, check=False).stderr

        first, second = run(), run()
        assert ("a price" in first, "TypeError" in first) == (False, True), first
        assert ("a price" in second, "TypeError" in second) == (True, False), second

        (dead,) = await client.queue("dead").receive(2, wait=0)
        assert dead.body == head + b"\n5"
