"""The real broker as a tool of tests: its start, a crash, its end, and the text of a start that failed."""

import errno
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from cmqd.testing import BrokerNotReadyError, BrokerProcess
from cmqd_client.sync import connect

pytestmark = pytest.mark.system


def test_answered_sends_survive_a_kill_and_the_port_stays(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        url = broker.url
        with connect(url) as client:
            client.create_queue("orders").send(b"a")
            broker.kill()
            broker.start()
            (message,) = client.queue("orders").receive()

        assert broker.url == url
        assert message.body == b"a"
        assert "listening" in broker.log


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two sockets cannot share a port so")
def test_no_other_program_gets_the_port_while_the_broker_is_down(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
            other.bind(("127.0.0.1", broker.port))
        broker.start()

    assert caught.value.errno == errno.EADDRINUSE
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", broker.port))
        other.listen()


def test_a_start_takes_no_second_broker_and_a_kill_needs_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--ephemeral") as broker:
        with pytest.raises(RuntimeError, match="already running"):
            broker.start()
        assert broker.stop() == 0
        with pytest.raises(RuntimeError, match="is not running"):
            broker.kill()


def test_a_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    with pytest.raises(BrokerNotReadyError, match="no-such-flag"):
        BrokerProcess(tmp_path, "--no-such-flag").start()


def test_settings_of_the_caller_do_not_reach_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMQD_REGION", "elsewhere")

    with BrokerProcess(tmp_path) as broker, connect(broker.url) as client:
        assert client.status()["region"] != "elsewhere"
    with (
        BrokerProcess(tmp_path, environment=dict(os.environ)) as broker,
        connect(broker.url, region="elsewhere") as client,
    ):
        assert client.status()["region"] == "elsewhere"


def test_the_time_of_a_start_is_shown(tmp_path: Path) -> None:
    # Shown, not asserted: a busy machine takes longer. The bar is a second.
    started = time.perf_counter()
    with BrokerProcess(tmp_path) as broker:
        print(f"ready after {time.perf_counter() - started:.2f} s")
        assert broker.port
