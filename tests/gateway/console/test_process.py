"""The console's events from the command ``cmqd-gateway`` before a real broker that dies and comes back."""

import http.client
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import sync
from support.eventually import eventually_elsewhere
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port

pytestmark = pytest.mark.system


class Events:
    """An event stream, read by blocking."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self, name: str) -> Any:
        """Return the data of the next event of a name."""
        event = ""
        while line := self._response.readline().decode():
            if line.startswith("event: "):
                event = line.removeprefix("event: ").strip()
            elif line.startswith("data: ") and event == name:
                return json.loads(line.removeprefix("data: "))
        raise EOFError(f"the stream ended without {name}")


@contextmanager
def events_of(gateway: RunningGateway) -> Generator[Events]:
    connection = http.client.HTTPConnection(gateway.host)
    try:
        authorization = f"Bearer {gateway.secret_id}:{gateway.secret_key}"
        connection.request("GET", "/console/events", headers={"Authorization": authorization})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield Events(response)
    finally:
        connection.close()


def test_a_page_lives_through_a_crash_of_the_broker(tmp_path: Path) -> None:
    flags = ("--broker-patience-seconds", "0.5")
    with (
        reserve_port() as reserved,
        RunningServer(tmp_path, "--listen", f"127.0.0.1:{reserved.getsockname()[1]}") as server,
        RunningGateway(tmp_path, server, *flags) as gateway,
    ):
        with sync.connect(server.url) as client:
            client.create_queue("orders").send(b"a")
        with events_of(gateway) as events:
            assert events.next("figures")["now"]["active"] == 1
            server.kill()
            while not events.next("broker")["is_away"]:
                pass
            server.start()
            while events.next("broker")["is_away"]:
                pass
            after = events.next("figures")

        # Totals go on over the restart; the rates of the time without the broker are not known.
        assert (after["now"]["active"], after["counts"]["queues"]) == (1, 1)


def test_the_end_of_the_gateway_ends_an_open_page_first(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, RunningGateway(tmp_path, server) as gateway, events_of(gateway) as events:
        events.next("figures")
        gateway.process.terminate()

        assert events.next("bye") == {"reason": "draining"}
        eventually_elsewhere(lambda: gateway.process.poll() is not None)


def test_the_history_begins_with_a_gateway_that_may_read(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--http", "127.0.0.1:0") as server:
        ready_file = server.ready_file.with_name(f"{server.ready_file.name}.http")
        eventually_elsewhere(ready_file.exists)
        ready = json.loads(ready_file.read_text())
        with sync.connect(server.url) as client:
            key = client.accounts.create_key(roles=["read"])

        def columns() -> Any:
            connection = http.client.HTTPConnection(ready["host"], ready["port"])
            authorization = f"Bearer {key.secret_id}:{key.secret_key}"
            connection.request("GET", "/console/history?range=15m", headers={"Authorization": authorization})
            answer = json.loads(connection.getresponse().read())
            connection.close()
            return answer.get("columns", {})

        eventually_elsewhere(lambda: any(value is not None for value in columns().get("free_bytes", [])))
