"""The example program against a real broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.running_broker import RunningBroker

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
