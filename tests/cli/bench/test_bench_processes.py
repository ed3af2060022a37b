"""``cmq bench`` as a process, against a real broker: its rates, both generators, and the end by a signal."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cmq_cli.exitcodes import ExitCode
from cmqd_bench.peers.compiler import compiler
from cmqd_client.sync import connect
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def bench(broker: RunningBroker, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cmq_cli", "bench", *arguments, "--output", "json"],
        env=os.environ | {"CMQ_CONTEXT_FILE": str(broker.context_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def queues(broker: RunningBroker) -> list[str]:
    with connect(broker.url) as client:
        return list(client.queues())


@pytest.mark.parametrize("generator", ["python", "native"])
def test_a_cycle_over_a_real_broker(broker: RunningBroker, generator: str) -> None:
    if generator == "native" and compiler() is None:
        pytest.skip("no C compiler")
    running = bench(
        broker, "cycle", "--generator", generator, "--messages", "200", "--duration", "10m", "--warm-up", "0"
    )
    out, err = running.communicate()

    assert running.returncode == ExitCode.OK, err
    result: dict[str, Any] = json.loads(out)
    assert (result["generator"]["kind"], result["server"]["durability"]) == (generator, "fsync")
    assert result["deleted"] >= 200
    assert sum(second["deleted"] for second in result["by_second"]) > 0
    assert result["latency_ms"]["max"] >= result["latency_ms"]["p50"] > 0
    assert queues(broker) == []


@pytest.mark.parametrize(
    ("generator", "number"), [("python", signal.SIGINT), ("python", signal.SIGHUP), ("native", signal.SIGTERM)]
)
def test_a_signal_ends_a_run_that_removes_its_queues(
    broker: RunningBroker, generator: str, number: signal.Signals
) -> None:
    if generator == "native" and compiler() is None:
        pytest.skip("no C compiler")
    running = bench(broker, "send", "--generator", generator, "--rate", "100", "--duration", "10m", "--warm-up", "0")
    with connect(broker.url) as client:
        while not any(client.queue(name).attributes().active for name in client.queues()):
            assert running.poll() is None
    running.send_signal(number)
    _, err = running.communicate()

    assert running.returncode == ExitCode.INTERRUPTED
    assert json.loads(err.splitlines()[0]) == {"warning": "interrupted; the queues of the run are being removed"}
    assert "Traceback" not in err
    assert queues(broker) == []
