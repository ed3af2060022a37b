"""Monitoring of the command ``cmqd-gateway`` before a real broker."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cmqd_client import sync
from support.eventually import eventually_elsewhere
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port

pytestmark = pytest.mark.system


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}") as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def test_the_metrics_are_read_with_the_key_of_a_file_on_a_listener_of_their_own(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        with sync.connect(server.url) as client:
            key = client.accounts.create_key(roles=["read"])
            client.create_queue("orders").send(b"123")
        key_file = tmp_path / "metrics.key"
        key_file.touch(mode=0o600)
        key_file.write_text(f"{key.secret_id}:{key.secret_key}\n")
        flags = ("--metrics-listen", "127.0.0.1:0", "--metrics-key-file", str(key_file))
        with RunningGateway(tmp_path, server, *flags) as gateway:
            status, text = get(gateway.ready["metrics_address"], "/metrics")

            assert status == 200
            assert 'cmqd_queue_messages_sent_total{account="admin",queue="orders"} 1.0' in text.splitlines()
            assert get(gateway.host, "/metrics")[0] == 404
            assert key.secret_key is not None
            assert key.secret_key not in gateway.log


def test_the_gateway_is_ready_while_its_broker_answers(tmp_path: Path) -> None:
    with (
        reserve_port() as reserved,
        RunningServer(tmp_path, "--listen", f"127.0.0.1:{reserved.getsockname()[1]}") as server,
        RunningGateway(tmp_path, server, "--broker-patience-seconds", "0.5") as gateway,
    ):
        eventually_elsewhere(lambda: get(gateway.host, "/readyz")[0] == 200)
        server.kill()
        # The result of the last probe is used for a second.
        eventually_elsewhere(lambda: get(gateway.host, "/readyz")[0] == 503)
        assert get(gateway.host, "/healthz") == (200, "ok\n")
        server.start()
        eventually_elsewhere(lambda: get(gateway.host, "/readyz")[0] == 200)
