"""Waiting receives at a gateway, over the JSON API and over CMQ's TCP protocol: the way of a message to a receive.

Each connection has a receive that waits. Messages come at a fixed rate over the native protocol, and a body has the
time of its send. A connection deletes its message and waits again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from time import monotonic, monotonic_ns
from typing import Any, Final, TypeAlias

import cmqd_client
from cmqd_bench.commands.options import Options
from cmqd_bench.http.caller import HttpConnection
from cmqd_bench.http.cmq_tcp import TcpCycle, TcpRequests, request
from cmqd_bench.http.load import Counts, Requests, text_after
from cmqd_bench.http.servers import HttpServer, gateways
from cmqd_bench.load.session import Session
from cmqd_bench.machine.processes import cpu_seconds, rss_kib
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import RECEIVED, RECEIVED_BODY
from cmqd_gateway.cmq.tcp.proto2 import Values
from cmqd_load.connections import CONNECTS_AT_ONCE
from cmqd_load.histogram import Histogram

QUEUE: Final = "waiting"
"""The queue of the messages, without other load."""
RATE: Final = 500
"""Messages a second."""
SECONDS: Final = 10.0
"""Time of a turn."""
SLICE_SECONDS: Final = 0.01
SETTLE_SECONDS: Final = 2.0
"""Time between the last connection and the first message, and between the last message and the end."""
TURNS: Final = 2
"""Turns of a door, in alternating order."""


class HttpWaiting:
    """A connection of the JSON API with a receive that waits."""

    def __init__(self, requests: Requests, arrived: Callable[[int], None], on_failed: Callable[[Exception], None]):
        self._requests = requests
        self._arrived = arrived
        self._connection = HttpConnection(self._received, on_failed)

    async def start(self, server: HttpServer) -> None:
        """Connect and wait for messages."""
        await asyncio.get_running_loop().create_connection(lambda: self._connection, server.host, server.port)
        self._wait()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _wait(self, _: bytes = b"") -> None:
        self._connection.on_answer = self._received
        self._connection.write(self._requests.receive())

    def _received(self, answer: bytes) -> None:
        delete = self._requests.delete(answer)
        if delete is None:
            self._wait()
            return
        self._arrived(int(text_after(answer, b'"body":') or 0))
        self._connection.on_answer = self._wait
        self._connection.write(delete)


class TcpWaiting(TcpCycle):
    """A connection of CMQ's TCP protocol with a receive that waits."""

    def __init__(self, requests: TcpRequests, arrived: Callable[[int], None], on_failed: Callable[[Exception], None]):
        super().__init__(requests, Counts(), on_failed)
        self._arrived = arrived
        self._receive = request(commands.RECEIVE, queueName=requests.queue, pollingWaitSeconds=30)

    def _wait(self, header: Values, others: list[tuple[int, bytes]]) -> None:
        self._write(self._receive, self._received)

    _logged_in = _wait

    def _received(self, header: Values, others: list[tuple[int, bytes]]) -> None:
        message = next((RECEIVED.decode(data) for number, data in others if number == RECEIVED_BODY), None)
        if message is None:
            self._wait(header, others)
            return
        self._arrived(int(message["msgBody"]))
        delete = request(commands.DELETE, queueName=self._requests.queue, receiptHandle=message["receiptHandle"])
        self._write(delete, self._wait)


async def _send(session: Session, url: str, body: int, seconds: float) -> None:
    """Send at the rate."""
    async with cmqd_client.connect(url) as client:
        queue = client.queue(QUEUE)
        sends: list[asyncio.Task[Any]] = []
        began = monotonic()
        while (passed := monotonic() - began) < seconds:
            due = round(passed * RATE) - len(sends)
            sends += [asyncio.create_task(queue.send(b"%0*d" % (body, monotonic_ns()))) for _ in range(due)]
            await session.guard.sleep(SLICE_SECONDS)
        await asyncio.gather(*sends)


Arrived: TypeAlias = Callable[[int], None]
"""Takes the time of the send of a message that arrived, in ns of the monotonic clock."""
MakeWaiting: TypeAlias = Callable[[HttpServer, Arrived, Callable[[Exception], None]], HttpWaiting | TcpWaiting]


async def measure(
    session: Session, url: str, own_key: str, options: Options, doors: Mapping[str, MakeWaiting]
) -> dict[str, Any]:
    """Measure the doors in turns, with ``options.idle`` waiting receives; return latency and memory of each door."""
    latencies = {name: Histogram() for name in doors}
    memory: dict[str, float] = {}
    cores = dict.fromkeys(doors, 0.0)
    for turn in range(TURNS):
        for name in list(doors)[:: -1 if turn % 2 else 1]:
            async with AsyncExitStack() as stack:
                (server,) = await stack.enter_async_context(gateways(session.broker, 1, own_key))
                before = rss_kib(server.pids)
                latency = latencies[name]

                def arrived(sent_ns: int, latency: Histogram = latency) -> None:
                    latency.record((monotonic_ns() - sent_ns) // 1000)

                connections = [doors[name](server, arrived, session.guard.fail) for _ in range(options.idle)]
                for connection in connections:
                    stack.callback(connection.close)
                for start in range(0, options.idle, CONNECTS_AT_ONCE):
                    await asyncio.gather(
                        *(each.start(server) for each in connections[start : start + CONNECTS_AT_ONCE])
                    )
                await session.guard.sleep(SETTLE_SECONDS)
                memory[name] = (rss_kib(server.pids) - before) / max(options.idle, 1)
                cpu = cpu_seconds(server.pids)
                await _send(session, url, options.body, SECONDS)
                await session.guard.sleep(SETTLE_SECONDS)
                cores[name] += (cpu_seconds(server.pids) - cpu) / SECONDS / TURNS
    return {
        f"waiting_{name}": {
            "connections": options.idle,
            "messages": latencies[name].count,
            "rss_kib_per_connection": round(memory[name], 1),
            "gateway_cores": round(cores[name], 2),
            "latency_ms": latencies[name].milliseconds(),
        }
        for name in doors
    }
