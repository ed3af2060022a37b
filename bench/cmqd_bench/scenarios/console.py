"""console: the cost of the overview to the server, and the gateway's memory while the overview is open under load.

``TURNS`` times the load runs without a page and with ``PAGES`` pages of the overview: event streams of a gateway, read
as browsers do. The gateway runs all the time, and without a page it reads the broker every 30 s.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import cmqd_client
from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.http.servers import HttpServer, gateways
from cmqd_bench.load.pacer import Pacer
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.processes import cpu_seconds, rss_kib
from cmqd_client.address import parse_address

TURNS = 5
PAGES = 3
EVENT = b"event: figures"


class _Page:
    """An open page: reads its event stream and counts the figures."""

    def __init__(self, server: HttpServer, authorization: str) -> None:
        self._server = server
        self._authorization = authorization
        self.figures = 0
        self.bytes = 0

    async def read(self) -> None:
        """Read until cancelled.

        Raises:
            ConnectionError: the gateway ended the stream.
        """
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
        try:
            head = f"GET /console/events HTTP/1.1\r\nHost: {self._server.host}\r\nAuthorization: "
            writer.write(f"{head}{self._authorization}\r\n\r\n".encode())
            while line := await reader.readline():
                self.bytes += len(line)
                self.figures += line.startswith(EVENT)
            raise ConnectionError("the gateway ended an event stream")
        finally:
            writer.close()


@asynccontextmanager
async def _open_pages(server: HttpServer, authorization: str) -> AsyncGenerator[list[_Page]]:
    """Keep pages open; a page whose stream ends fails the run."""
    pages = [_Page(server, authorization) for _ in range(PAGES)]
    tasks = [asyncio.create_task(page.read()) for page in pages]
    try:
        yield pages
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task


async def run(options: Options, broker: Broker) -> Round:
    """Run the turns of the module, on one broker and one gateway."""
    async with running(broker) as session:
        await session.create_queues([f"queue-{number:05}" for number in range(options.queues - 1)])
        address = parse_address(broker.ready.url)
        async with cmqd_client.connect(broker.ready.url) as client:
            own = await client.accounts.create_key(roles=["gateway", "read"])
        authorization = f"Bearer {address.secret_id}:{address.secret_key}"
        send = await session.open_loop(options, "load")
        closed: list[float] = []
        opened: list[Round] = []
        memory_mib: list[float] = []
        gateway_seconds = {"closed": 0.0, "open": 0.0}
        figures = stream_bytes = 0

        async with gateways(broker, 1, f"{own.secret_id}:{own.secret_key}") as (server,):
            with Pacer(options.rate, send):
                for number in range(TURNS):
                    # In turns the other way round, so that a drift of the machine counts for both sides.
                    for is_open in (False, True) if number % 2 == 0 else (True, False):
                        before = cpu_seconds(server.pids)
                        if is_open:
                            async with _open_pages(server, authorization) as pages:
                                opened.append(await session.measured(options, lambda tally: tally.received))
                                memory_mib.append(round(rss_kib(server.pids) / 1024, 1))
                            figures += sum(page.figures for page in pages)
                            stream_bytes += sum(page.bytes for page in pages)
                        else:
                            closed.append(
                                _us_per_message(await session.measured(options, lambda tally: tally.received))
                            )
                        gateway_seconds["open" if is_open else "closed"] += cpu_seconds(server.pids) - before
    if not figures:
        raise TimeoutError("the overview got no figures")
    costs = [_us_per_message(each) for each in opened]
    seconds = TURNS * (options.warm_up + options.seconds)
    extra: dict[str, Any] = {
        "closed_us_per_message": round(median(closed), 3),
        "open_us_per_message": round(median(costs), 3),
        "open_ratio": round(median(costs) / median(closed), 3),
        "open_ratios": [round(cost / other, 3) for cost, other in zip(costs, closed, strict=True)],
        "figures_per_page_and_second": round(figures / PAGES / seconds, 2),
        "stream_bytes_per_page_and_second": round(stream_bytes / PAGES / seconds),
        "gateway_cores_closed": round(gateway_seconds["closed"] / seconds, 4),
        "gateway_cores_open": round(gateway_seconds["open"] / seconds, 4),
        "gateway_rss_first_mib": memory_mib[0],
        "gateway_rss_last_mib": memory_mib[-1],
        "gateway_rss_mib": memory_mib,
        "queues": options.queues,
    }
    middle = sorted(opened, key=_us_per_message)[TURNS // 2]
    return replace(middle, extra=extra)


def _us_per_message(figures: Round) -> float:
    return figures.server_cpu_seconds / max(1, figures.messages) * 1e6
