"""metrics: /metrics of a gateway before a broker with many queues, and the native latency meanwhile.

An open loop sends messages at a fixed rate, first alone, then while a client reads the path repeatedly with a pause of
``PAUSE_SECONDS``, far more often than a monitoring system does.
"""

import asyncio
import base64
import contextlib
import time
from dataclasses import replace
from statistics import median

import cmqd_client
from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.http.caller import HttpCaller
from cmqd_bench.http.servers import HttpServer, gateways
from cmqd_bench.load.pacer import Pacer
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.processes import cpu_seconds
from cmqd_client.address import parse_address

PAUSE_SECONDS = 1.0
"""Pause between two readings: as long as the gateway caches figures, so every reading asks the broker."""
AT_ONCE = 64
"""Sends under way while the queues are filled."""


async def _fill(url: str, names: list[str], body: int) -> None:
    """Send a message to every queue."""
    async with cmqd_client.connect(url) as client:
        rest = iter(names)

        async def send_some() -> None:
            for name in rest:
                await client.queue(name).send(b"x" * body)

        await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))


async def _read(server: HttpServer, path: str, authorization: str, taken: list[tuple[float, int]]) -> None:
    """Read a path until cancelled; record the seconds and the bytes of every answer."""
    caller = HttpCaller(server.host, server.port)
    request = f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: {authorization}\r\n\r\n".encode()
    try:
        while True:
            begun = time.perf_counter()
            answer = await caller.exchange(request)
            taken.append((time.perf_counter() - begun, len(answer)))
            await asyncio.sleep(PAUSE_SECONDS)
    finally:
        caller.close()


async def run(options: Options, broker: Broker) -> Round:
    """Run a round: the two phases of the module, on one broker."""
    async with running(broker) as session:
        names = [f"queue-{number:05}" for number in range(options.queues - 1)]
        await session.create_queues(names)
        await _fill(broker.ready.url, names, options.body)
        address = parse_address(broker.ready.url)
        async with cmqd_client.connect(broker.ready.url) as client:
            own = await client.accounts.create_key(roles=["gateway"])
        pair = f"{address.secret_id}:{address.secret_key}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"

        send = await session.open_loop(options, "latency")
        taken: list[tuple[float, int]] = []
        async with gateways(broker, 1, f"{own.secret_id}:{own.secret_key}") as (server,):
            with Pacer(options.rate, send) as pacer:
                alone = await session.measured(options, lambda tally: tally.received)
                reading = asyncio.create_task(_read(server, options.path, authorization, taken))
                try:
                    gateway_before = cpu_seconds(server.pids)
                    at_once = replace(options, warm_up=0.0)
                    result = await session.measured(at_once, lambda tally: tally.received, pacer.late.clear)
                    late_ms = pacer.late.milliseconds()
                    gateway_seconds = cpu_seconds(server.pids) - gateway_before
                finally:
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading
    if not taken:
        raise TimeoutError(f"{options.path} did not answer within {options.seconds:.0f} s")
    # The broker's CPU beyond the CPU of the load: the load was the same in the first phase.
    broker_seconds = max(0.0, result.server_cpu_seconds - alone.server_cpu_seconds)
    milliseconds = sorted(seconds * 1000 for seconds, _ in taken)
    return result.with_extra(
        {
            "harness_late_ms": late_ms,
            "metrics_p50_ms": round(median(milliseconds), 1),
            "metrics_max_ms": round(milliseconds[-1], 1),
            "metrics_readings": len(taken),
            "metrics_gateway_cpu_ms": round(gateway_seconds * 1000 / len(taken), 1),
            "metrics_broker_cpu_ms": round(broker_seconds * 1000 / len(taken), 1),
            "metrics_bytes": taken[-1][1],
            "alone_p50_ms": round(alone.latency_ms["p50"], 3),
            "alone_p99_ms": round(alone.latency_ms["p99"], 3),
            "queues": options.queues,
        }
    )
