"""gateway: send, receive and delete over HTTP, with a gateway process and with two.

All servers run for the whole time, and the loads take ``TURNS`` turns, each turn in the opposite order: other programs
and a slow moment of the disk then slow all loads alike.

bench/README.md describes the phases that follow: idle connections, the native cycle beside gateways, and the flood.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import cmqd_client
from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round, own_cpu_seconds
from cmqd_bench.http import waiting
from cmqd_bench.http.caller import HttpCaller
from cmqd_bench.http.cmq_tcp import TcpIdle, TcpRequests
from cmqd_bench.http.flood import flood_memory
from cmqd_bench.http.load import (
    PATH,
    Counts,
    CycleMaker,
    Requests,
    cmq_requests,
    cycling,
    flooding,
    json_requests,
)
from cmqd_bench.http.servers import HttpServer, gateways
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.conditions import need_files
from cmqd_bench.machine.processes import cpu_seconds, machine_busy_seconds, rss_kib
from cmqd_bench.scenarios import cycle
from cmqd_client.address import parse_address
from cmqd_load.connections import CONNECTS_AT_ONCE

QUEUE = "gateway"
TURNS = 3
"""Turns of each load."""
NATIVE_TURNS = 4
NATIVE_CONNECTIONS = 16
SPARE_FILES = 200
"""Descriptors beside the connections: log files, pipes, libraries."""
HEARTBEAT_SECONDS = 3.0
"""Time between two heartbeats of CMQ's TCP SDK over a connection."""
BEATS_IN_STEPS = 30
UNPAUSED = ("--wrong-key-pause-seconds", "0")
"""Flags of a gateway that refuses wrong keys without its pause, so that a flood takes as much CPU as it gets."""
MAIN = "api_2_0"
"""The load of the main figures."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a load, or of all its turns so far."""

    seconds: float = 0.0
    requests: int = 0
    messages: int = 0
    http: float = 0.0
    """CPU seconds of the HTTP servers."""
    broker: float = 0.0
    load: float = 0.0
    machine: float = 0.0
    """CPU seconds of all programs."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))

    @property
    def foreign_cores(self) -> float:
        """Cores used by other programs."""
        return max(0.0, self.machine - self.http - self.broker - self.load) / self.seconds

    def figures(self) -> dict[str, float]:
        """Return a row of the report."""
        per_request = 1e6 / max(self.requests, 1)
        return {
            "requests_per_second": round(self.requests / self.seconds, 1),
            "http_cpu_us": round(self.http * per_request, 1),
            "http_cpu_us_per_message": round(self.http * 1e6 / max(self.messages, 1), 1),
            "broker_cpu_us_per_message": round(self.broker * 1e6 / max(self.messages, 1), 1),
            "broker_cpu_us": round(self.broker * per_request, 1),
            "load_cpu_us": round(self.load * per_request, 1),
            "http_cores": round(self.http / self.seconds, 2),
            "foreign_cores": round(self.foreign_cores, 2),
        }


@dataclass(frozen=True, slots=True)
class Load:
    """A load: the servers, and the requests for each."""

    servers: Sequence[HttpServer]
    make: Callable[[HttpServer], CycleMaker]


async def _measured(session: Session, options: Options, load: Load, counts: Counts) -> Cost:
    """Run a turn of a load."""
    pids = [pid for server in load.servers for pid in server.pids]

    def now() -> Cost:
        return Cost(
            monotonic(), counts.requests, counts.deleted, cpu_seconds(pids), session.broker.cpu_seconds(),
            own_cpu_seconds(), machine_busy_seconds(),
        )  # fmt: skip

    async with cycling(load.servers, options.connections, load.make, counts, session.guard.fail):
        await session.guard.sleep(options.warm_up)
        before = now()
        await session.guard.sleep(options.seconds)
        return now() - before


async def _http(
    session: Session, options: Options, loads: Mapping[str, Load]
) -> tuple[dict[str, Cost], Mapping[str, float]]:
    """Run all turns of all loads; return their costs, and the latencies of the main load."""
    costs = dict.fromkeys(loads, Cost())
    counts = {name: Counts() for name in loads}
    for turn in range(TURNS):
        for name in list(loads)[:: -1 if turn % 2 else 1]:
            costs[name] += await _measured(session, options, loads[name], counts[name])
    return costs, counts[MAIN].latency.milliseconds()


async def _native(session: Session, options: Options, own_key: str, secret_id: str) -> dict[str, float]:
    """Return the broker's CPU per message of the native cycle at batch 1, in us, with and without a gateway."""
    queue = await session.create_queue("native")
    await cycle.load(session, replace(options, batch=1, connections=NATIVE_CONNECTIONS), queue)
    cpu: dict[str, float] = {"alone": 0.0, "idle": 0.0, "flooded": 0.0, "unpaused": 0.0}
    messages: dict[str, int] = dict.fromkeys(cpu, 0)
    gateway_cpu: dict[str, float] = {"flooded": 0.0, "unpaused": 0.0}

    async def measure(which: str) -> None:
        await session.guard.sleep(options.warm_up)
        deleted, before = session.tally.deleted, session.broker.cpu_seconds()
        await session.guard.sleep(options.seconds)
        cpu[which] += session.broker.cpu_seconds() - before
        messages[which] += session.tally.deleted - deleted

    async def flooded(which: str, server: HttpServer) -> None:
        async with flooding(server, options.connections, secret_id):
            before, started = cpu_seconds(server.pids), monotonic()
            await measure(which)
            gateway_cpu[which] += (cpu_seconds(server.pids) - before) / (monotonic() - started)

    for turn in range(NATIVE_TURNS):
        await measure("alone")
        async with gateways(session.broker, 1, own_key) as (server,):
            if turn % 2:
                await flooded("flooded", server)
                await measure("idle")
            else:
                await measure("idle")
                await flooded("flooded", server)
        async with gateways(session.broker, 1, own_key, UNPAUSED) as (server,):
            await flooded("unpaused", server)
        # Again: the cost of a message drifts, because other programs come and go.
        await measure("alone")
    per_message = {which: cpu[which] / max(messages[which], 1) * 1e6 for which in cpu}
    return {
        **{f"native_us_{which}": round(per_message[which], 1) for which in cpu},
        **{f"native_messages_{which}": messages[which] for which in cpu},
        **{f"native_ratio_{which}": round(per_message[which] / per_message["alone"], 3) for which in list(cpu)[1:]},
        **{f"{which}_gateway_cores": round(cores / NATIVE_TURNS, 2) for which, cores in gateway_cpu.items()},
    }


async def _idle(options: Options, server: HttpServer) -> dict[str, Any]:
    """Open connections that stay idle behind their first answer; return the gateway's memory for each."""
    need_files(options.idle + SPARE_FILES, f"--idle {options.idle}")
    request = f"GET {PATH} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()
    callers = [HttpCaller(server.host, server.port) for _ in range(options.idle)]
    before = rss_kib(server.pids)
    growths: list[int] = []
    # The second request over every connection shows that all are still open.
    for _ in range(2):
        for start in range(0, options.idle, CONNECTS_AT_ONCE):
            await asyncio.gather(*(caller.exchange(request) for caller in callers[start : start + CONNECTS_AT_ONCE]))
        growths.append(rss_kib(server.pids) - before)
    growth, again = growths
    reopened = sum(caller.opened - 1 for caller in callers)
    for caller in callers:
        caller.close()
    return {
        "idle_connections": options.idle,
        "idle_connections_lost": reopened,
        "http_rss_kib_per_idle_connection": round(growth / max(options.idle, 1), 1),
        "http_rss_growth_of_more_requests_kib": again - growth,
    }


async def _idle_tcp(options: Options, server: HttpServer, requests: TcpRequests) -> dict[str, Any]:
    """Open connections of CMQ's TCP protocol that send heartbeats alone; return memory and CPU of the gateway."""
    need_files(options.idle + SPARE_FILES, f"--idle {options.idle}")
    connections = [TcpIdle(requests) for _ in range(options.idle)]
    before = rss_kib(server.pids)
    for start in range(0, options.idle, CONNECTS_AT_ONCE):
        await asyncio.gather(*(idle.start(server) for idle in connections[start : start + CONNECTS_AT_ONCE]))
    growth = rss_kib(server.pids) - before
    cpu, began = cpu_seconds(server.pids), monotonic()
    # As many heartbeats as the SDK sends: one in 3 s of each connection, spread over this time.
    steps = round(max(options.seconds, HEARTBEAT_SECONDS) / HEARTBEAT_SECONDS * BEATS_IN_STEPS)
    for step in range(steps):
        for idle in connections[step % BEATS_IN_STEPS :: BEATS_IN_STEPS]:
            idle.beat()
        await asyncio.sleep(max(0.0, began + (step + 1) * HEARTBEAT_SECONDS / BEATS_IN_STEPS - monotonic()))
    cores = (cpu_seconds(server.pids) - cpu) / (monotonic() - began)
    lost = sum(not idle.is_open for idle in connections)
    for idle in connections:
        idle.close()
    return {
        "idle_tcp_connections": options.idle,
        "idle_tcp_connections_lost": lost,
        "tcp_rss_kib_per_idle_connection": round(growth / max(options.idle, 1), 1),
        "tcp_idle_gateway_cores": round(cores, 3),
    }


async def run(options: Options, broker: Broker) -> Round:
    """Run a round: the phases of the module on one broker."""
    async with running(broker) as session:
        await session.create_queue(QUEUE)
        address = parse_address(broker.ready.url)
        async with cmqd_client.connect(broker.ready.url) as client:
            own = await client.accounts.create_key(roles=["gateway"])
        own_key = f"{own.secret_id}:{own.secret_key}"

        def cmq(server: HttpServer) -> Requests:
            return cmq_requests(server, QUEUE, address.secret_id, address.secret_key, options.body)

        def json(server: HttpServer) -> Requests:
            return json_requests(server, QUEUE, address.secret_id, address.secret_key, options.body)

        def tcp(batch: int) -> Callable[[HttpServer], CycleMaker]:
            key = {"secret_id": address.secret_id, "secret_key": address.secret_key}
            return lambda _: TcpRequests(queue=QUEUE, body=options.body, batch=batch, **key)

        async with contextlib.AsyncExitStack() as stack:
            servers = await stack.enter_async_context(gateways(broker, 2, own_key))
            loads = {
                MAIN: Load(servers[:1], cmq),
                "json_api": Load(servers[:1], json),
                "cmq_tcp": Load(servers[:1], tcp(1)),
                "cmq_tcp_16": Load(servers[:1], tcp(16)),
                f"{MAIN}_two_gateways": Load(servers, cmq),
                "json_api_two_gateways": Load(servers, json),
            }
            costs, latency = await _http(session, options, loads)
            http_rss = rss_kib(servers[0].pids)
        extra: dict[str, Any] = {
            "loads": {name: cost.figures() for name, cost in costs.items()},
            "http_rss_mib": round(http_rss / 1024, 1),
        }
        async with gateways(broker, 1, own_key) as servers:
            extra |= await _idle(options, servers[0])
        async with gateways(broker, 1, own_key) as servers:
            requests = TcpRequests(
                queue=QUEUE, secret_id=address.secret_id, secret_key=address.secret_key, body=options.body
            )
            extra |= await _idle_tcp(options, servers[0], requests)
        await session.create_queue(waiting.QUEUE)
        key = address.secret_id, address.secret_key
        tcp_requests = replace(requests, queue=waiting.QUEUE)
        doors: dict[str, waiting.MakeWaiting] = {
            "json_api": lambda server, arrived, fail: waiting.HttpWaiting(
                json_requests(server, waiting.QUEUE, *key, options.body), arrived, fail
            ),
            "cmq_tcp": lambda _, arrived, fail: waiting.TcpWaiting(tcp_requests, arrived, fail),
        }
        extra |= await waiting.measure(session, broker.ready.url, own_key, options, doors)
        extra |= await _native(session, options, own_key, address.secret_id)
        if options.flood:
            async with gateways(broker, 1, own_key, UNPAUSED) as servers:
                extra |= await flood_memory(servers[0], broker.pids, options.flood, address.secret_id)
        main = costs[MAIN]
        return Round(
            messages=main.messages,
            seconds=main.seconds,
            server_cpu_seconds=main.broker,
            client_cpu_seconds=main.load,
            latency_ms=latency,
            server_rss_mib=broker.rss_mib(),
            loop_busy=0.0,
            other_cores=main.foreign_cores,
            extra=extra,
        )
