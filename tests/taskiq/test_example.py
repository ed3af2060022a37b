"""The example program, its worker in a process of its own, against a real broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.running_broker import RunningBroker

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
