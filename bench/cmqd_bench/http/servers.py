"""HTTP servers as child processes for a measurement: gateways before a broker, and moto's SQS server for comparison.

The harness signals only processes that it started.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.processes import family

START_SECONDS = 300.0
STOP_SECONDS = 60.0
MOTO = """
import logging, sys
from moto.server import main
logging.getLogger("werkzeug").setLevel(logging.ERROR)
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""
"""A program that runs moto's server without its log line per request."""


class HttpServerFailed(Exception):
    """An HTTP server did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A running server."""

    host: str
    port: int
    pids: Sequence[int]


@asynccontextmanager
async def gateways(
    broker: Broker, count: int, own_key: str, flags: Sequence[str] = ()
) -> AsyncGenerator[list[HttpServer]]:
    """Run ``count`` gateways before a running broker.

    Args:
        broker: the broker.
        count: number of processes.
        own_key: key with the role ``gateway``, as ``SECRET_ID:SECRET_KEY``.
        flags: further flags of the command line.
    """
    python = [sys.executable] if broker.python is None else [broker.python, "-P"]
    processes: list[subprocess.Popen[bytes]] = []
    servers: list[HttpServer] = []
    try:
        for number in range(count):
            ready_file = broker.folder / f"gateway-{number}.json"
            ready_file.unlink(missing_ok=True)
            log_file = broker.folder / f"gateway-{number}.log"
            reading, writing = os.pipe()
            command = [*python, "-m", "cmqd_gateway", "--broker", f"cmq://{broker.ready.host}:{broker.ready.port}"]
            command += ["--listen", "127.0.0.1:0", "--key-fd", str(reading), "--ready-file", str(ready_file), *flags]
            with log_file.open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[reading]
                )
            processes.append(process)
            os.close(reading)
            os.write(writing, own_key.encode() + b"\n")
            os.close(writing)
            await _wait(process, log_file, ready_file.exists)
            ready = json.loads(ready_file.read_bytes())
            servers.append(HttpServer(ready["host"], ready["port"], [process.pid]))
        yield servers
    finally:
        for process in processes:
            _stop(process)


@asynccontextmanager
async def moto(python: str, folder: Path) -> AsyncGenerator[HttpServer]:
    """Run moto's SQS server with an interpreter that has moto installed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    log_file = folder / "moto.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [python, "-c", MOTO, str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await _wait(process, log_file, lambda: _answers(port))
        yield HttpServer("127.0.0.1", port, [member.pid for member in family(process.pid)])
    finally:
        _stop(process)


async def _wait(process: "subprocess.Popen[bytes]", log_file: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise HttpServerFailed("\n".join(log_file.read_text(errors="replace").splitlines()[-20:]))
        await asyncio.sleep(0.01)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
