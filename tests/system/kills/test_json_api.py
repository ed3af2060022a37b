"""The JSON API of ``cmqd serve --http`` through a kill of the broker: no answered send is lost or stored twice."""

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from cmqd_client.address import parse_address
from support.eventually import eventually_elsewhere
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system


class Api:
    """Calls of a running gateway with the key of ``admin``."""

    def __init__(self, server: RunningServer, *, other_than: int = 0) -> None:
        file = server.ready_file.with_name(f"{server.ready_file.name}.http")

        def ready() -> dict[str, Any]:
            return json.loads(file.read_text()) if file.exists() else {}

        eventually_elsewhere(lambda: ready().get("pid", other_than) != other_than)
        self.ready = ready()
        self.process_id = int(self.ready["pid"])
        address = parse_address(server.url)
        self.key = f"Bearer {address.secret_id}:{address.secret_key}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the answer to a request. The gateway listens before it has the broker, and answers 503 until then."""
        while True:
            connection = http.client.HTTPConnection(self.ready["host"], self.ready["port"])
            try:
                sent = {"Authorization": self.key, "Content-Type": "application/json"} | headers
                connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), sent)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            if answer.status != 503:
                assert answer.status < 300, content
                return json.loads(content) if content else None


def test_messages_and_idempotency_keys_outlive_a_killed_broker(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--http", "127.0.0.1:0") as server:
        api = Api(server)
        api.call("PUT", "/queues/orders", {"visibility_timeout": 3600})
        key = {"Idempotency-Key": "order-17"}
        first = api.call("POST", "/queues/orders/messages", {"body": "/w==", "encoding": "base64"}, **key)
        other = api.call("POST", "/queues/orders/messages", {"body": "kept"})
        (held,) = api.call("POST", "/queues/orders/receive", {"wait": 0})["messages"]

        server.process.kill()
        server.process.wait()
        server.start()
        api = Api(server, other_than=api.process_id)
        repeat = api.call("POST", "/queues/orders/messages", {"body": "/w==", "encoding": "base64"}, **key)
        (received,) = api.call("POST", "/queues/orders/receive", {"max_messages": 16, "wait": 0})["messages"]
        # The receipt handle of before the kill is valid, because the lease is on disk.
        api.call("POST", "/queues/orders/delete", {"receipt_handle": held["receipt_handle"]})
        counts = api.call("GET", "/queues/orders")["counts"]

    assert repeat == first
    assert (held["id"], held["body"], held["encoding"]) == (first["id"], "/w==", "base64")
    assert (received["id"], received["body"]) == (other["id"], "kept")
    assert (counts["active"], counts["in_flight"]) == (0, 1)
