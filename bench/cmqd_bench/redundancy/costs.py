"""The costs of the second copy: CPU of the broker and of both PostgreSQL servers, and the latency of a send.

Three brokers in turns, on one disk: without redundancy (fsync), with redundancy and no standby broker, and with a
standby broker. A sender has one request outstanding, so a batch is a row of the log, and a commit.
"""

import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cmqd_bench.commands.plans import Redundancy
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.processes import cpu_seconds, family
from cmqd_bench.redundancy.pair import Pair, print_measured
from cmqd_client import Queue, connect

BATCH = 256
BODY = b"x" * 256
QUEUE = "orders"
_SINGLES = 200
"""Messages of a turn that are sent alone, for their latency."""
NONE, ALONE, PAIR = "none", "no standby broker", "pair"


@dataclass(slots=True)
class Costs:
    """The costs of a kind of broker, a value per turn: CPU in us per message, latency in ms (p50)."""

    kind: str
    broker: list[float] = field(default_factory=list[float])
    primary: list[float] = field(default_factory=list[float])
    standby: list[float] = field(default_factory=list[float])
    """Of the PostgreSQL server."""
    standby_broker: list[float] = field(default_factory=list[float])
    batch_p50_ms: list[float] = field(default_factory=list[float])
    single_p50_ms: list[float] = field(default_factory=list[float])


async def latencies(queue: Queue, count: int, size: int) -> float:
    """Send batches one after the other, and return the median of their times in ms."""
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        await queue.send_batch([BODY] * size)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _cpu(pid: int) -> float:
    return cpu_seconds(member.pid for member in family(pid))


async def turn(costs: Costs, broker: Broker, messages: int, pair: Pair | None) -> None:
    """Measure a turn of a kind of broker."""
    others = {"broker": broker.ready.pid}
    if pair is not None:
        others |= {"primary": pair.roles.primary.pid, "standby": pair.roles.standby.pid}
        if costs.kind == PAIR:
            others["standby_broker"] = pair.standby.pid
    async with connect(broker.ready.url) as client:
        queue = await client.ensure_queue(QUEUE)
        await queue.clear()
        before = {name: _cpu(pid) for name, pid in others.items()}
        costs.batch_p50_ms.append(await latencies(queue, messages // BATCH, BATCH))
        for name, pid in others.items():
            getattr(costs, name).append((_cpu(pid) - before[name]) / messages * 1e6)
        costs.single_p50_ms.append(await latencies(queue, _SINGLES, 1))


async def measure(plan: Redundancy, pair: Pair, folder: Path) -> list[Costs]:
    """Measure the kinds in turns; the standby broker starts after half of the turns."""
    (folder / "none").mkdir()
    none = Broker(folder / "none")
    await none.start()
    await pair.start(with_standby=False)
    rows = [Costs(NONE), Costs(ALONE), Costs(PAIR)]
    try:
        for row in rows[1:]:
            if row.kind == PAIR:
                await pair.start_standby()
            for _ in range(plan.turns):
                await turn(rows[0], none, plan.messages, None)
                await turn(row, pair.leader, plan.messages, pair)
    finally:
        none.kill()
    return rows


def print_redundancy(plan: Redundancy) -> None:
    """Measure and print the costs of redundancy."""

    def show(rows: list[Costs]) -> None:
        print(
            f"medians of turns of {plan.messages} messages of {len(BODY)} bytes in batches of {BATCH}, one outstanding"
        )
        print(f"{'':20}{'CPU, us a message':>42}{'p50, ms':>18}")
        print(f"{'':20}{'broker':>8}{'primary':>9}{'standby':>9}{'standby broker':>16}{'batch':>10}{'single':>8}")
        for row in rows:
            cells = ((row.broker, 8), (row.primary, 9), (row.standby, 9), (row.standby_broker, 16))
            cells += ((row.batch_p50_ms, 10), (row.single_p50_ms, 8))
            print(f"{row.kind:20}" + "".join(_median(values, width) for values, width in cells))

    print_measured(plan, partial(measure, plan), "costs", show)


def _median(values: list[float], width: int) -> str:
    return f"{statistics.median(values):{width}.2f}" if values else f"{'-':>{width}}"
