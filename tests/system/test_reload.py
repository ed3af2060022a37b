"""SIGHUP, and a TLS port that is spoken to in plain text."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import connect
from cmqd_client.errors import ConnectionRefused
from cmqd_protocol.frames import encode_preamble
from support.client.raw_client import RawClient
from support.eventually import eventually, eventually_elsewhere
from support.processes.running_server import RunningServer, ServerFailedError
from support.tls.certificates import make_certificate, shown_certificate, trusting_context

pytestmark = pytest.mark.system

TLS = Path(__file__).parents[1] / "support" / "tls"


def lines(server: RunningServer, event: str) -> list[dict[str, Any]]:
    """The log lines of an event so far; the server logs as JSON."""
    parsed = (json.loads(line) for line in server.log.splitlines() if line.endswith("}"))
    return [line for line in parsed if line["event"] == event]


def shown_by(server: RunningServer) -> bytes | None:
    return shown_certificate(server.host, server.port)


def test_sighup_reloads_the_log_level_and_names_settings_that_need_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "cmqd.toml"
    config.write_text('log_level = "info"\nmax_connections = 100\n')
    with RunningServer(tmp_path, "--config", str(config), "--log-format", "json") as server:
        with RawClient(server.url) as client:
            assert lines(server, "connection_authenticated") == []
            config.write_text('log_level = "debug"\nmax_connections = 200\nregion = "north"\n')

            server.send_signal(signal.SIGHUP)
            eventually_elsewhere(lambda: lines(server, "reloaded"))

            (reloaded,) = lines(server, "reloaded")
            assert reloaded["log_level"] == "debug"
            changed = {line["setting"]: (line["in_force"], line["read"]) for line in lines(server, "needs_restart")}
            assert changed == {"max_connections": (100, 200), "region": ("local", "north")}
            with RawClient(server.url):
                eventually_elsewhere(lambda: lines(server, "connection_authenticated"))
            assert client.ended is None, "connections stay"
        assert server.stop() == 0


def test_sighup_with_a_wrong_file_changes_nothing_and_says_so(tmp_path: Path) -> None:
    config = tmp_path / "cmqd.toml"
    config.write_text('log_level = "info"\n')
    with RunningServer(tmp_path, "--config", str(config), "--log-format", "json") as server:
        config.write_text('log_level = "loud"\n')
        server.send_signal(signal.SIGHUP)
        eventually_elsewhere(lambda: lines(server, "reload_refused"))

        assert "log_level" in lines(server, "reload_refused")[0]["reason"]
        assert lines(server, "reloaded") == []
        with RawClient(server.url):
            pass
        assert server.stop() == 0


async def test_sighup_takes_new_tls_files_and_keeps_connections(tmp_path: Path) -> None:
    first = make_certificate(tmp_path, "first")
    flags = ("--tls-certificate", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem"))
    context = trusting_context()
    with RunningServer(tmp_path, *flags, "--log-format", "json") as server:
        async with connect(server.url, tls=context) as client:
            queue = await client.create_queue("jobs")
            assert await asyncio.to_thread(shown_by, server) == first
            second = make_certificate(tmp_path, "second")
            assert await asyncio.to_thread(shown_by, server) == first

            server.send_signal(signal.SIGHUP)
            await eventually(lambda: lines(server, "reloaded"))
            assert await asyncio.to_thread(shown_by, server) == second
            await queue.send(b"on the old connection")

            shutil.copy(TLS / "key.pem", tmp_path / "key.pem")
            server.send_signal(signal.SIGHUP)
            await eventually(lambda: lines(server, "tls_not_reloaded"))
            assert await asyncio.to_thread(shown_by, server) == second, "a wrong pair changes nothing"
        assert server.stop() == 0


async def test_a_plain_client_on_a_tls_port_is_told_by_an_error_of_the_connection(tmp_path: Path) -> None:
    flags = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
    with RunningServer(tmp_path, *flags, "--log-format", "json") as server:
        plain = server.url.replace("?tls=1", "")
        with pytest.raises(ConnectionRefused, match="this port takes TLS"):
            async with connect(plain, patience=10):
                pass
        assert lines(server, "plain_bytes_on_tls_port")[0]["peer"].startswith("127.0.0.1:")


def say_nothing(_sock: socket.socket) -> None:
    """Wait for the other side."""


def begin_a_handshake(sock: socket.socket) -> None:
    sock.sendall(b"\x16")


def speak_plain(sock: socket.socket) -> None:
    sock.sendall(encode_preamble(1, 1))


def flood(sock: socket.socket) -> None:
    sock.sendall(b"x" * 300_000)


def close(sock: socket.socket) -> None:
    sock.close()


@pytest.mark.parametrize("behaviour", [say_nothing, begin_a_handshake, speak_plain, flood, close])
async def test_a_stranger_on_a_tls_port_is_put_out_in_time_and_costs_nothing(
    tmp_path: Path, behaviour: Callable[[socket.socket], None]
) -> None:
    flags = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
    with RunningServer(tmp_path, *flags, "--authentication-timeout-ms", "2000") as server:
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        crowd = [socket.create_connection((server.host, server.port)) for _ in range(60)]
        for sock in crowd:
            with contextlib.suppress(OSError):
                behaviour(sock)
        await eventually(lambda: len(list(descriptors.iterdir())) <= before)
        for sock in crowd:
            sock.close()
        context = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
        async with connect(server.url, tls=context) as client:
            await client.create_queue("jobs")
        assert server.stop() == 0
        assert "loop_exception" not in server.log
        assert server.log.count("plain_bytes_on_tls_port") < len(crowd), "a stranger cannot fill the log"


def test_a_log_that_cannot_be_written_does_not_end_the_broker(tmp_path: Path) -> None:
    """Without a reader of the pipe, as after the end of a terminal or a log collector."""
    read_end, write_end = os.pipe()
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "cmqd", "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=write_end, stdin=subprocess.DEVNULL)
    os.close(write_end)
    try:
        eventually_elsewhere(ready.exists)
        os.close(read_end)
        server = RunningServer(tmp_path)
        server.ready = json.loads(ready.read_text())
        for _ in range(3):
            with RawClient(server.url):
                pass
        process.terminate()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()


def test_variables_of_a_container_platform_are_ignored_with_one_line_and_units_are_taken(tmp_path: Path) -> None:
    environment = {"CMQD_PORT": "tcp://10.0.0.1:5680", "CMQD_SERVICE_HOST": "10.0.0.1", "CMQD_SEGMENT_BYTES": "1GiB"}
    flags = ("--log-format", "json", "--log-level", "debug", "--heartbeat-ms", "20s")
    with RunningServer(tmp_path, *flags, environment=environment) as server:
        (ignored,) = lines(server, "variables_ignored")
        assert ignored["names"] == ["CMQD_PORT", "CMQD_SERVICE_HOST"]
        (settings,) = lines(server, "settings")
        assert (settings["segment_bytes"], settings["heartbeat_ms"]) == (1 << 30, 20_000)
    with pytest.raises(
        ServerFailedError, match=r"(?s)code 2.*CMQD_HEARTBEAT = '...' is not allowed.*did you mean CMQD_HEARTBEAT_MS"
    ):
        RunningServer(tmp_path, environment={"CMQD_HEARTBEAT": "1"}).start()
