"""``cmqd-gateway --http-processes 2`` before a real broker: kills of a process, of the parent and of the broker."""

import http.client
import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from support.eventually import eventually_elsewhere
from support.gateway.cmq_requests import PATH, encoded, signed
from support.gateway.processes import process_test
from support.processes.environment import plain_environment
from support.processes.forked_program import ForkedProgram
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.tls.certificates import make_certificate, shown_certificate

pytestmark = pytest.mark.system

TWO = ("--http-processes", "2", "--log-format", "json")
CONNECTIONS = 16
"""Connections that reach all processes, but for a probability of 2 ** -15. No test needs that they do."""


def pids(log: str) -> dict[int, int]:
    """Return the last pid of each process."""
    found = re.findall(r'"process": (\d), "pid": (\d+), "event": "gateway_process_started"', log)
    return {int(number): int(pid) for number, pid in found}


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def get(host: str, path: str, **headers: str) -> tuple[int, bytes]:
    """Make a request over a connection of its own."""
    connection = http.client.HTTPConnection(host)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def route(gateway: RunningGateway) -> str:
    form = signed(
        {"Action": "QueryQueueRoute", "queueName": "orders"}, gateway.secret_id, gateway.secret_key, host=gateway.host
    )
    connection = http.client.HTTPConnection(gateway.host)
    try:
        connection.request("POST", PATH, encoded(form))
        return json.dumps(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def kill(gateway: RunningGateway, number: int) -> None:
    """Kill a process, and wait until its successor serves."""
    events = gateway.log.count("gateway_process_ended"), gateway.log.count("broker_connected")
    os.kill(pids(gateway.log)[number], signal.SIGKILL)
    eventually_elsewhere(lambda: gateway.log.count("gateway_process_ended") > events[0])
    assert [get(gateway.host, "/healthz")[0] for _ in range(CONNECTIONS)] == [200] * CONNECTIONS, "the other serves"
    eventually_elsewhere(lambda: gateway.log.count("broker_connected") > events[1])


def test_a_killed_process_is_replaced_and_the_end_is_regular(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, RunningGateway(tmp_path, server, *TWO) as gateway:
        eventually_elsewhere(lambda: gateway.log.count("broker_connected") == 2)
        bearer = f"Bearer {gateway.secret_id}:{gateway.secret_key}"
        before = pids(gateway.log)
        assert gateway.ready["pid"] == gateway.process.pid
        for number in (1, 0):
            kill(gateway, number)
            # Of the first process; a further one passes the request on.
            assert [get(gateway.host, "/metrics", Authorization=bearer)[0] for _ in range(CONNECTIONS)] == (
                [200] * CONNECTIONS
            )
        after = pids(gateway.log)
        assert all(before[number] != after[number] for number in (0, 1))

    assert gateway.log.count("gateway_ended") == 2
    assert not any(is_alive(pid) for pid in after.values())
    assert "Traceback" not in gateway.log


@process_test
def test_the_end_of_the_parent_ends_the_processes(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        gateway = RunningGateway(tmp_path, server, *TWO).__enter__()
        started = pids(gateway.log)
        gateway.process.kill()
        gateway.process.wait()
        eventually_elsewhere(lambda: not any(is_alive(pid) for pid in started.values()))
        with socket.create_server((gateway.ready["host"], gateway.ready["port"])):
            pass


@process_test
def test_a_second_gateway_gets_no_share_of_the_port(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, RunningGateway(tmp_path, server, *TWO) as gateway:
        for flags in (TWO, ()):
            arguments = ["--key-file", str(tmp_path / "gateway.key"), "--listen", gateway.host, *flags]
            with (tmp_path / "second.log").open("wb") as log:
                second = ForkedProgram("cmqd_gateway", arguments, output=log, environment=plain_environment())
                assert second.wait() == 3
            assert "cannot_listen" in (tmp_path / "second.log").read_text()
        assert get(gateway.host, "/healthz")[0] == 200


@process_test
def test_a_refused_key_ends_all_processes_with_its_code(tmp_path: Path) -> None:
    key = tmp_path / "wrong.key"
    key.touch(mode=0o600)
    key.write_text("no-such-id:no-such-secret\n")
    with RunningServer(tmp_path) as server:
        broker = re.sub(r"//.*@", "//", server.url).partition("?")[0]
        arguments = ["--broker", broker, "--key-file", str(key), "--listen", "127.0.0.1:0", *TWO]
        with (tmp_path / "refused.log").open("wb") as log:
            refused = ForkedProgram("cmqd_gateway", arguments, output=log, environment=plain_environment())
            assert refused.wait() == 4


@process_test
def test_sighup_reaches_all_processes(tmp_path: Path) -> None:
    make_certificate(tmp_path, "first")
    files = ("--tls-certificate", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with (
        RunningServer(tmp_path) as server,
        RunningGateway(tmp_path, server, "--listen-https", "127.0.0.1:0", *files, *TWO) as gateway,
    ):
        eventually_elsewhere(lambda: gateway.log.count("broker_connected") == 2)
        second = make_certificate(tmp_path, "second")
        gateway.process.send_signal(signal.SIGHUP)
        eventually_elsewhere(lambda: gateway.log.count("gateway_reloaded") == 2)
        host, _, port = gateway.ready["addresses"][1].rpartition(":")
        assert {shown_certificate(host, int(port)) for _ in range(CONNECTIONS)} == {second}


@process_test
def test_all_processes_name_the_port_of_the_first_for_cmq_tcp(tmp_path: Path) -> None:
    flags = ("--listen-cmq-tcp", "127.0.0.1:0", *TWO)
    with RunningServer(tmp_path) as server, RunningGateway(tmp_path, server, *flags) as gateway:
        routes = {route(gateway) for _ in range(CONNECTIONS)}
    assert [gateway.ready["cmq_tcp_address"] in route for route in routes] == [True] * len(routes)


@process_test
@pytest.mark.parametrize("is_killed", [True, False])
def test_the_end_of_the_broker_ends_the_processes(tmp_path: Path, is_killed: bool) -> None:
    with RunningServer(tmp_path, "--http", "127.0.0.1:0", "--http-processes", "2", "--log-format", "json") as server:
        eventually_elsewhere(lambda: server.log.count("broker_connected") == 2)
        started = pids(server.log)
        if is_killed:
            server.kill()
        else:
            server.stop()
        eventually_elsewhere(lambda: not any(is_alive(pid) for pid in started.values()))
    assert len(started) == 2
    assert server.log.count("gateway_ended") == 2


@process_test
def test_a_successor_has_the_settings_of_the_last_reload(tmp_path: Path) -> None:
    config = tmp_path / "cmqd.toml"
    made: list[bytes] = []

    def use(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        made.append(make_certificate(folder, name))
        config.write_text(f'tls_certificate = "{folder}/certificate.pem"\ntls_key = "{folder}/key.pem"\n')

    use("first")
    flags = ("--http", "127.0.0.1:0", "--http-processes", "2", "--config", str(config), "--log-format", "json")
    with RunningServer(tmp_path, *flags) as server:
        eventually_elsewhere(lambda: server.log.count("broker_connected") == 2)
        use("second")
        server.send_signal(signal.SIGHUP)
        eventually_elsewhere(lambda: server.log.count("gateway_reloaded") == 2)
        os.kill(pids(server.log)[1], signal.SIGKILL)
        eventually_elsewhere(lambda: server.log.count("gateway_reloaded") == 3)
        ready = json.loads(server.ready_file.with_name(f"{server.ready_file.name}.http").read_text())
        shown = {shown_certificate(ready["host"], ready["port"]) for _ in range(CONNECTIONS)}
    assert shown == {made[1]}
