"""``cmqd serve --http``: the gateway as a child process of a real broker, through kills of both."""

import asyncio
import base64
import http.client
import json
import os
import signal
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cmqd_client import connect
from cmqd_client.accounts import AccessKey
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from support.eventually import eventually
from support.gateway.tcp_program import TcpProgram
from support.processes.running_server import NEW_INTERPRETER, RunningServer, ServerFailedError
from support.tls.certificates import make_certificate, shown_certificate, trusting_context

pytestmark = pytest.mark.system

HTTP = ("--http", "127.0.0.1:0")
CERTIFICATE = Path(__file__).parents[1] / "support" / "tls" / "certificate.pem"


def ready_of(server: RunningServer) -> dict[str, Any]:
    """Return the ready file of the running gateway; empty before it listens."""
    file = server.ready_file.with_name(f"{server.ready_file.name}.http")
    return json.loads(file.read_text()) if file.exists() else {}


async def gateway_of(server: RunningServer, *, other_than: int = 0) -> dict[str, Any]:
    await eventually(lambda: ready_of(server).get("pid", other_than) != other_than)
    return ready_of(server)


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if the process ends between open and read
        return False


def connection_to(ready: dict[str, Any], *, tls: bool) -> http.client.HTTPConnection:
    if tls:
        return http.client.HTTPSConnection(ready["host"], ready["port"], timeout=60, context=trusting_context())
    return http.client.HTTPConnection(ready["host"], ready["port"], timeout=60)


def status_of(ready: dict[str, Any], *, tls: bool = False) -> int:
    connection = connection_to(ready, tls=tls)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


async def test_the_gateway_starts_with_the_broker_and_ends_with_it(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *HTTP, program=NEW_INTERPRETER) as server:
        ready = await gateway_of(server)
        assert status_of(ready) > 0
        server.stop()

        assert not is_alive(ready["pid"])
    assert "gateway_ended" in server.log


async def test_no_argument_variable_or_file_has_the_key_and_no_list_shows_it(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *HTTP, program=NEW_INTERPRETER) as server:
        ready = await gateway_of(server)
        async with connect(server.url) as client:
            keys = await client.accounts.keys()
        accounts = json.loads((server.data / "accounts.json").read_text())
        process = Path(f"/proc/{ready['pid']}")
        arguments = process.joinpath("cmdline").read_bytes()
        inspected = [arguments, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())]

        assert b"cmqd_gateway" in arguments
        assert len(keys) == len(accounts["content"]["keys"]) == 1
        assert accounts["version"] == 2
        assert not any(b"gateway" in content for content in inspected if content.startswith(b'{"version"'))
        secret = str(accounts["content"]["keys"][0]["secret_key"]).encode()
        assert secret not in server.log.encode()
        own_ids = {word for content in inspected[:1] for word in content.split(b"\0") if word.startswith(b"AKID")}
        assert own_ids == set()


async def test_a_gateway_that_is_killed_is_started_again_with_another_key(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *HTTP) as server:
        first = await gateway_of(server)
        os.kill(first["pid"], signal.SIGKILL)
        second = await gateway_of(server, other_than=first["pid"])

        assert status_of(second) > 0
        assert "http_gateway_ended" in server.log
        assert "signal 9" in server.log


async def test_the_gateway_of_a_killed_broker_ends(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *HTTP) as server:
        ready = await gateway_of(server)
        # Before that the gateway also ends because its first connection is refused.
        await eventually(lambda: "broker_connected" in server.log)
        server.process.kill()
        server.process.wait()

        await eventually(lambda: not is_alive(ready["pid"]))


async def test_a_gateway_that_cannot_listen_does_not_hold_up_the_broker(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with RunningServer(tmp_path) as other, RunningServer(tmp_path / "b", "--http", f"127.0.0.1:{other.port}") as server:
        async with connect(server.url) as client:
            await client.create_queue("orders")
        await eventually(lambda: "http_gateway_ended" in server.log)


def test_without_the_setting_there_is_no_gateway(tmp_path: Path) -> None:
    with RunningServer(tmp_path, program=NEW_INTERPRETER) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        lines = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]

        assert not any(b"cmqd_gateway" in line for line in lines)
    assert "http_gateway" not in server.log


async def http_send(ready: dict[str, Any], key: AccessKey, secret_key: str | None = None, *, tls: bool = False) -> int:
    """Send a message over HTTP with a key; return the status."""
    return await asyncio.to_thread(_http_send, ready, key, secret_key, tls)


def _http_send(ready: dict[str, Any], key: AccessKey, secret_key: str | None, tls: bool) -> int:
    pair = base64.b64encode(f"{key.secret_id}:{secret_key or key.secret_key}".encode()).decode()
    connection = connection_to(ready, tls=tls)
    try:
        headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/queues/orders/messages", b'{"body": "x"}', headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_requests_over_http_have_the_permissions_of_their_key(tmp_path: Path, tls: bool) -> None:
    """With TLS the certificate of the broker is for another name, and the gateway uses the private port."""
    flags = ("--tls-certificate", str(CERTIFICATE), "--tls-key", str(CERTIFICATE.with_name("key.pem")))
    with RunningServer(tmp_path, *HTTP, *(flags if tls else ())) as server:
        ready = await gateway_of(server)
        context = ssl.create_default_context(cafile=str(CERTIFICATE)) if tls else None
        async with connect(server.url, tls=context) as admin:
            await admin.create_queue("orders")
            key = await admin.accounts.create_key(roles=["send"], names=["orders"])
            imported = await admin.accounts.import_key("AKIDold", "kept-by-a-program-0123456789", roles=["consume"])

            assert await http_send(ready, key, tls=tls) < 300
            assert await http_send(ready, key, "another-secret-0123456789", tls=tls) == 401
            assert await http_send(ready, imported, "kept-by-a-program-0123456789", tls=tls) == 403
            await admin.accounts.set_key_roles(key.secret_id, roles=["consume"])
            assert await http_send(ready, key, tls=tls) == 403
            await admin.accounts.set_key_roles(key.secret_id, roles=["send"])
            assert await http_send(ready, key, tls=tls) < 300
            await admin.accounts.set_key_enabled(key.secret_id, False)
            assert await http_send(ready, key, tls=tls) in (401, 503)
            while await http_send(ready, key, tls=tls) != 401:
                pass
            assert (await admin.queue("orders").attributes()).active == 2
    assert str(key.secret_key) not in server.log
    assert "secret_read" in server.log


async def test_with_tls_the_gateway_speaks_https_and_follows_reloads_of_the_broker(tmp_path: Path) -> None:
    """The reload names different files: the command line of the running child has the names of the start."""
    config = tmp_path / "cmqd.toml"
    shown: list[bytes | None] = []
    made: list[bytes] = []

    def use(name: str, level: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        made.append(make_certificate(folder, name))
        files = f'tls_certificate = "{folder}/certificate.pem"\ntls_key = "{folder}/key.pem"\n'
        config.write_text(f'log_level = "{level}"\n{files}')

    use("first", "info")
    with RunningServer(tmp_path, *HTTP, "--config", str(config), "--log-format", "json") as server:
        ready = await gateway_of(server)
        address = (ready["host"], ready["port"])
        shown.append(await asyncio.to_thread(shown_certificate, *address))
        assert await asyncio.to_thread(status_of, ready) == 400, "plain HTTP is refused"
        assert await asyncio.to_thread(lambda: status_of(ready, tls=True)) == 307, "the way to the console"

        use("second", "debug")
        server.send_signal(signal.SIGHUP)
        await eventually(lambda: '"event": "gateway_reloaded"' in server.log)
        shown.append(await asyncio.to_thread(shown_certificate, *address))
        assert '"log_level": "debug", "tls_files": true, "event": "gateway_reloaded"' in server.log

        os.kill(ready["pid"], signal.SIGKILL)
        ready = await gateway_of(server, other_than=ready["pid"])
        shown.append(await asyncio.to_thread(shown_certificate, ready["host"], ready["port"]))
    assert "needs_restart" not in server.log
    assert shown == [made[0], made[1], made[1]]


async def test_settings_of_the_file_reach_the_gateway(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.toml"
    settings.write_text(
        'public_names = ["mq.example", "mq.example:443"]\nmetrics_listen = "127.0.0.1:0"\nreuse_port = true\n'
        "metrics_top = 7\nkey_idle_seconds = 90.5\n"
    )
    with RunningServer(tmp_path, *HTTP, "--http-config", str(settings), "--log-format", "json") as server:
        ready = await gateway_of(server)
        # The ready file comes before the line.
        await eventually(lambda: '"event": "gateway_ready"' in server.log)
        settings.write_text("nonsense = 1")
        os.kill(ready["pid"], signal.SIGKILL)
        ready = await gateway_of(server, other_than=ready["pid"])
        await eventually(lambda: server.log.count('"event": "gateway_ready"') == 2)

    assert ready["metrics_address"]
    lines = [json.loads(line) for line in server.log.splitlines() if "gateway_ready" in line]
    for line in lines:
        assert line["public_names"] == ["mq.example", "mq.example:443"]
        assert (line["reuse_port"], line["metrics_top"], line["key_idle_seconds"]) == (True, 7, 90.5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("max_conections = 5", "Unknown option: --max-conections. Did you mean --max-connections?"),
        ("max_connections = 0", "Must be >= 1"),
        ("help = true", "Unknown option: --help"),
        ('metrics_listen = "here"', "metrics_listen is 'here'; it must be host:port"),
        ('listen_https = "127.0.0.1:0"', "must be given together"),
        ('metrics_listen = "127.0.0.1:0"\nmetrics_key_file = "absent"', "No such file or directory: 'absent'"),
        ('listen_https = "127.0.0.1:0"\ntls_certificate = "absent"\ntls_key = "absent"', "No such file"),
    ],
)
def test_settings_that_the_gateway_refuses_end_the_start_of_the_broker(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "gateway.toml").write_text(content)

    with pytest.raises(ServerFailedError) as failure:
        RunningServer(tmp_path, *HTTP, "--http-config", str(tmp_path / "gateway.toml")).start()

    assert "it ended with code 2" in str(failure.value)
    assert "gateway.toml' is not allowed: cmqd-gateway: " in str(failure.value)
    assert reason in str(failure.value)
    assert not (tmp_path / "data").exists()


class Served(NamedTuple):
    """CMQ's TCP protocol of a gateway, and a key."""

    tcp_address: tuple[str, int]
    own_key: KeySecret


async def test_cmqs_tcp_protocol_is_served_and_ends_with_its_key(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *HTTP, "--cmq-tcp", "127.0.0.1:0") as server:
        ready = await gateway_of(server)
        host, _, port = ready["cmq_tcp_address"].rpartition(":")
        async with connect(server.url) as admin:
            await admin.create_queue("orders")
            keys = [await admin.accounts.create_key() for _ in range(2)]
            first, second = [
                TcpProgram(Served((host, int(port)), KeySecret(key.secret_id, key.secret_key or ""))) for key in keys
            ]
            async with first, second:
                for program in (first, second):
                    assert (await program.log_in()).result == 0
                    await program.ok(commands.SEND, queueName="orders", msgBody=b"x")
                waiting = first.send(commands.RECEIVE, queueName="none", pollingWaitSeconds=30)
                assert (await first.answer(waiting)).result == 4440

                await admin.accounts.set_key_enabled(keys[0].secret_id, enabled=False)

                await first.ended()
                received = await second.ok(commands.BATCH_RECEIVE, queueName="orders", numOfMsg=2, pollingWaitSeconds=0)
                assert len(received.messages) == 2
                polling = second.send(commands.RECEIVE, queueName="orders", pollingWaitSeconds=30)
                while (await admin.status())["waiting_receives"] != 1:
                    pass
                os.kill(ready["pid"], signal.SIGTERM)
                assert (await second.answer(polling)).result == 10200
                await second.ended()
    assert "listening_without_tls" not in server.log
