"""Gateways before a broker, as child processes for a measurement."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.servers import Server


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A running server."""

    host: str
    port: int
    pids: Sequence[int]
    cmq_tcp_port: int = 0
    """Port of CMQ's TCP protocol; 0 = it is not served."""


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
    processes: list[Server] = []
    servers: list[HttpServer] = []
    try:
        for number in range(count):
            ready_file = broker.folder / f"gateway-{number}.json"
            ready_file.unlink(missing_ok=True)
            reading, writing = os.pipe()
            command = [*python, "-m", "cmqd_gateway", "--broker", f"cmq://{broker.ready.host}:{broker.ready.port}"]
            command += [
                "--listen",
                "127.0.0.1:0",
                "--listen-cmq-tcp",
                "127.0.0.1:0",
                "--key-fd",
                str(reading),
                "--ready-file",
                str(ready_file),
                *flags,
            ]
            server = Server(command, broker.folder / f"gateway-{number}.log", descriptors=[reading])
            processes.append(server)
            os.close(reading)
            os.write(writing, own_key.encode() + b"\n")
            os.close(writing)
            await asyncio.to_thread(server.wait_until, ready_file.exists, "the gateway")
            ready = json.loads(ready_file.read_bytes())
            cmq_tcp_port = int(ready["cmq_tcp_address"].rpartition(":")[2])
            servers.append(HttpServer(ready["host"], ready["port"], [server.process.pid], cmq_tcp_port))
        yield servers
    finally:
        for process in processes:
            process.stop()
