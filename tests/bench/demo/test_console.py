"""The broker for visitors of the console: its link signs in, its queues move, and it ends in order."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually_elsewhere
from support.processes.environment import plain_environment


def call(method: str, url: str, body: Any = None, cookie: str = "") -> tuple[Any, str]:
    """Return the answer in JSON, and the cookie that it sets."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Cookie": cookie}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer), str(answer.headers.get("Set-Cookie", "")).partition(";")[0]


@pytest.mark.system
def test_a_visitor_signs_in_with_the_link_and_sees_the_shop_at_work(tmp_path: Path):
    scratch, log = tmp_path / "scratch", tmp_path / "log"
    command = [sys.executable, "-m", "cmqd_bench.demo", "--console", "--no-browser", "--scratch", str(scratch)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, env=plain_environment()) as demo:
        try:
            eventually_elsewhere(lambda: "Another link" in log.read_text() or demo.poll() is not None)
            found = re.search(r"(http://\S+)/console/#token=(\S+)", log.read_text())
            assert found is not None, log.read_text()
            base = found[1]
            info, cookie = call("POST", f"{base}/console/session", {"token": found[2]})
            assert info["key"]["is_admin"]

            def counts(queue: str) -> Any:
                return call("GET", f"{base}/api/v1/queues/{queue}", cookie=cookie)[0]["counts"]

            # Orders are delayed, broken ones are dead letters, and a queue without consumers grows.
            eventually_elsewhere(lambda: counts("orders-dead")["active"])
            eventually_elsewhere(lambda: counts("orders")["delayed"])
            eventually_elsewhere(lambda: counts("invoices")["active"])
        finally:
            demo.send_signal(signal.SIGTERM)

    assert demo.returncode == 0
    assert list(scratch.iterdir()) == []
