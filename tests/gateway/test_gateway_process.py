"""The command ``cmqd-gateway`` as a process before a real broker: its key, its end, changes of keys, a lost broker."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import sync
from cmqd_gateway.process.command import broker_address, read_key, warn_without_tls, write_ready_file
from cmqd_gateway.process.command import run as main
from cmqd_gateway.process.gateway_settings import Settings
from support.eventually import eventually_elsewhere
from support.gateway.cmq_requests import PATH, encoded, signed
from support.processes.environment import plain_environment
from support.processes.forked_program import ForkedProgram
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port
from support.tls.certificates import make_certificate, shown_certificate

pytestmark = pytest.mark.system


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path) as server:
        yield server


def call(gateway: RunningGateway, action: str, secret_id: str = "", secret_key: str = "", **more: Any) -> Any:
    """Call an action over a connection of its own, with the admin's key unless another is given."""
    host = f"{gateway.ready['host']}:{gateway.ready['port']}"
    pair = (secret_id, secret_key) if secret_id else (gateway.secret_id, gateway.secret_key)
    form = signed({"Action": action} | more, *pair, host=host)
    connection = http.client.HTTPConnection(host)
    try:
        connection.request("POST", PATH, encoded(form))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_changes_of_keys_hold_at_once(server: RunningServer, tmp_path: Path):
    with RunningGateway(tmp_path, server) as gateway, sync.connect(server.url) as admin:
        unknown = call(gateway, "ListQueue", "imported-id", "imported-secret-key")
        admin.accounts.import_key("imported-id", "imported-secret-key", roles=["read"])
        known = call(gateway, "ListQueue", "imported-id", "imported-secret-key")
        forbidden = call(gateway, "CreateQueue", "imported-id", "imported-secret-key", queueName="orders")
        admin.accounts.set_key_roles("imported-id", roles=["read", "manage"])
        allowed = call(gateway, "CreateQueue", "imported-id", "imported-secret-key", queueName="orders")
        admin.accounts.set_key_enabled("imported-id", False)
        disabled = call(gateway, "ListQueue", "imported-id", "imported-secret-key")
        stranger = call(gateway, "ListQueue", "imported-id", "another-secret-key")
        admin.accounts.set_key_enabled("imported-id", True)
        enabled = call(gateway, "ListQueue", "imported-id", "imported-secret-key")
        admin.accounts.delete_key("imported-id")
        deleted = call(gateway, "ListQueue", "imported-id", "imported-secret-key")

        answers = [unknown, known, forbidden, allowed, disabled, enabled, deleted]
        assert [answer["code"] for answer in answers] == [4100, 0, 4000, 0, 4100, 0, 4100]
        modules = [answer["message"][:7] for answer in (unknown, disabled, deleted)]
        assert stranger["message"][:7] == "(10030)"
        assert modules == ["(10270)", "(10080)", "(10270)"]
        for secret in ("imported-secret-key", gateway.secret_key, gateway.own_key.partition(":")[2]):
            assert secret not in gateway.log
            assert secret not in server.log


def test_a_gateway_whose_broker_is_gone_refuses_and_serves_again(tmp_path: Path):
    with (
        reserve_port() as reserved,
        RunningServer(tmp_path, "--listen", f"127.0.0.1:{reserved.getsockname()[1]}") as server,
        RunningGateway(tmp_path, server, "--broker-patience-seconds", "0.5") as gateway,
    ):
        assert call(gateway, "CreateQueue", queueName="orders")["code"] == 0
        server.kill()
        refused = call(gateway, "ListQueue")
        server.start()
        eventually_elsewhere(lambda: call(gateway, "ListQueue")["code"] == 0)

    assert refused["code"] == 6000


def test_sigterm_ends_polls_without_messages_and_the_process_with_code_0(server: RunningServer, tmp_path: Path):
    answers: list[Any] = []
    with RunningGateway(tmp_path, server) as gateway, sync.connect(server.url) as admin:
        admin.create_queue("orders")
        poll = threading.Thread(
            target=lambda: answers.append(call(gateway, "ReceiveMessage", queueName="orders", pollingWaitSeconds=30))
        )
        poll.start()
        eventually_elsewhere(lambda: admin.status()["waiting_receives"] == 1 or not poll.is_alive())
        gateway.process.send_signal(signal.SIGTERM)
        poll.join()
        assert gateway.process.wait() == 0

    assert answers[0]["code"] == 7000
    assert [event in gateway.log for event in ("gateway_ready", "gateway_draining", "gateway_ended")] == [True] * 3


def test_sighup_reads_the_tls_files_again(server: RunningServer, tmp_path: Path):
    first = make_certificate(tmp_path, "first")
    flags = ("--tls-certificate", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with RunningGateway(tmp_path, server, "--listen-https", "127.0.0.1:0", *flags) as gateway:
        host, _, port = gateway.ready["addresses"][1].rpartition(":")
        assert shown_certificate(host, int(port)) == first
        second = make_certificate(tmp_path, "second")

        gateway.process.send_signal(signal.SIGHUP)
        eventually_elsewhere(lambda: "reloaded" in gateway.log)

        assert shown_certificate(host, int(port)) == second


def command(server: RunningServer, *flags: str) -> list[str]:
    return [
        sys.executable, "-m", "cmqd_gateway", "--broker", f"cmq://{server.host}:{server.port}",
        "--listen", "127.0.0.1:0", *flags,
    ]  # fmt: skip


def test_the_key_comes_through_a_pipe_whose_end_ends_the_gateway(server: RunningServer, tmp_path: Path):
    with sync.connect(server.url) as admin:
        own = admin.accounts.create_key(roles=["gateway"])
    ready, log = tmp_path / "ready.json", tmp_path / "gateway.log"
    reading, writing = os.pipe()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(server, "--key-fd", str(reading), "--parent-fd", str(reading), "--ready-file", str(ready)),
            pass_fds=[reading], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=plain_environment(),
        )  # fmt: skip
    try:
        os.close(reading)
        os.write(writing, f"{own.secret_id}:{own.secret_key}\n".encode())
        eventually_elsewhere(lambda: ready.exists() or process.poll() is not None)
        eventually_elsewhere(lambda: "broker_connected" in log.read_text() or process.poll() is not None)
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        os.close(writing)
        assert process.wait() == 0, log.read_text()
    finally:
        process.kill()
        process.wait()

    assert own.secret_key is not None
    assert own.secret_key.encode() not in arguments


def test_a_key_without_the_role_is_refused_with_a_reason(server: RunningServer, tmp_path: Path):
    with sync.connect(server.url) as admin:
        made = admin.accounts.create_key()
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"{made.secret_id}:{made.secret_key}")
    flags = command(server, "--key-file", str(key_file))

    ended = subprocess.run(flags, env=plain_environment(), capture_output=True, text=True, check=False)

    assert ended.returncode == 4
    assert "broker_refuses_gateway" in ended.stderr
    assert made.secret_key is not None
    assert made.secret_key not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "own key is missing"),
        (["--key-file", "missing"], "No such file"),
        (["--key-file", "open"], "must be 0600"),
        (["--key-file", "malformed"], "own key is malformed"),
        (["--key-file", "right", "--broker", "cmq://id:key@127.0.0.1"], "has a key"),
        (["--key-file", "right", "--broker", "http://127.0.0.1"], "must start with cmq://"),
        (["--key-file", "right", "--listen", ""], "at least one address"),
        (["--key-file", "right", "--listen", "here"], "must be host:port"),
        (["--key-file", "right", "--listen-https", "127.0.0.1:0"], "must be given together"),
        (["--key-file", "right", "--gateway-connections", "1"], "Must be >= 2"),
        (["--key-file", "right", "--body-memory-bytes", "5000000"], "3/4 of body_memory_bytes"),
    ],
)
def test_wrong_flags_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], text: str):
    monkeypatch.chdir(tmp_path)
    for name, mode, content in (("open", 0o644, "a:b"), ("malformed", 0o600, "ab"), ("right", 0o600, "a:b")):
        (tmp_path / name).touch(mode=mode)
        (tmp_path / name).write_text(content)

    with Path("output").open("wb") as output:
        ended = ForkedProgram("cmqd_gateway", flags, output=output, environment=plain_environment())
        code = ended.wait()

    assert code > 0
    assert text in Path("output").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_gateway_writes_no_core_dump(server: RunningServer, tmp_path: Path):
    with RunningGateway(tmp_path, server) as gateway:
        limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()

    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)


@pytest.mark.skipif(sys.platform != "linux", reason="a flag of Linux")
def test_no_program_gets_a_core_dump_by_a_pipe():
    # In a process of its own: the flag would hold for the tests too. 3 is PR_GET_DUMPABLE.
    program = (
        "import ctypes; from cmqd_gateway.process.command import hide_memory; prctl = ctypes.CDLL(None).prctl;"
        " before = prctl(3, 0, 0, 0, 0); hide_memory(); print(before, prctl(3, 0, 0, 0, 0))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], env=plain_environment(), capture_output=True, text=True, check=True
    )

    assert ended.stdout.split() == ["1", "0"]


def test_the_key_is_read_up_to_the_end_of_its_line():
    reading, writing = os.pipe()
    os.write(writing, b"id:se:cret\nrest")

    assert read_key(reading, None) == "id:se:cret"
    assert os.read(reading, 10) == b"rest"
    os.close(reading)
    os.close(writing)


def test_a_key_with_characters_of_urls_stays_as_it_is():
    address = broker_address("cmq://host:5680,other?region=r", "i@d:k/e:y")

    assert (address.secret_id, address.secret_key, address.region) == ("i@d", "k/e:y", "r")
    assert address.others == (("other", 5680),)


def test_plain_http_that_other_machines_can_use_is_a_warning(caplog: pytest.LogCaptureFixture):
    warn_without_tls(Settings(listen="127.0.0.1:80", metrics_listen="[::1]:9100"))
    warn_without_tls(Settings(listen="localhost:80", listen_cmq_tcp="127.0.0.1:5682"))
    warn_without_tls(
        Settings(listen="", listen_https="0.0.0.0:443", tls_certificate=Path("chain.pem"), tls_key=Path("key.pem"))
    )
    assert caplog.records == []

    open_to_all: dict[str, Any] = {
        "listen": "0.0.0.0:80",
        "metrics_listen": "192.0.2.7:9100",
        "listen_cmq_tcp": "0.0.0.0:5682",
    }
    warn_without_tls(Settings(**open_to_all))

    assert [("listening_without_tls" in record.message, record.levelname) for record in caplog.records] == (
        [(True, "WARNING")] * 3
    )
    assert "'0.0.0.0:5682'" in caplog.text
    assert "'0.0.0.0:80'" in caplog.text
    assert "'192.0.2.7:9100'" in caplog.text


def test_the_check_reads_key_and_files_and_ends(tmp_path: Path):
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("a:b")
    make_certificate(tmp_path, "first")
    flags = ["--check", "--key-file", str(key), "--listen-https", "127.0.0.1:0"]
    flags += ["--tls-key", str(tmp_path / "key.pem"), "--tls-certificate"]
    metrics = ["--metrics-listen", "127.0.0.1:0", "--metrics-key-file"]

    assert main([*flags, str(tmp_path / "certificate.pem")]) == 0
    assert main([*flags, str(tmp_path / "key.pem")]) == 2
    assert main([*flags, str(tmp_path / "certificate.pem"), *metrics, str(key)]) == 0
    assert main([*flags, str(tmp_path / "certificate.pem"), *metrics, str(tmp_path / "absent")]) == 2


def test_the_ready_file_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ready = tmp_path / "ready.json"
    renamed: list[tuple[bytes, bool]] = []
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        renamed.append((path.read_bytes(), target.exists()))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)

    write_ready_file(ready, b"{}\n")

    assert renamed == [(b"{}\n", False)]
    assert ready.read_bytes() == b"{}\n"
    assert list(tmp_path.iterdir()) == [ready]
