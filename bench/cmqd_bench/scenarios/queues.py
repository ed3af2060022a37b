"""queues: messages on a single queue beside very many quiet queues: stalls by checkpoints, memory, and starts.

The load is the open loop of the scenario latency. Windows without and with a checkpoint take turns: a seal ends the
active segment, and the storage asks for a checkpoint. The longest latency of each window counts.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.floor import sync_floor_ms
from cmqd_load.histogram import Histogram
from cmqd_load.pacer import Pacer
from cmqd_protocol.messages import SealSegments

CHECKPOINTS: Final = 10
CHECKPOINT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.01
MOST_POLLS: Final = 1000
SETTLE_SECONDS: Final = 1.0


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when the message was received."""
    floor_ms = sync_floor_ms(broker.folder)
    broker.flags = ["--max-queues-per-account", "1000000"]
    base = broker.sibling("base")
    base_start = await _start_costs(base)
    async with running(broker) as session:
        rss_before = broker.rss_mib()
        await session.create_queues([f"quiet-{number:06}" for number in range(options.queues)])
        await session.guard.sleep(SETTLE_SECONDS)
        growth = broker.rss_mib() - rss_before
        stalls: dict[str, list[float]] = {"without": [], "with": []}
        lengths: list[float] = []
        with Pacer(options.rate, await session.open_loop(options, "busy")) as pacer:
            await session.guard.sleep(options.warm_up)
            meter = session.meter()
            meter.start()
            together = Histogram()
            for _ in range(CHECKPOINTS):
                for name, window in (("without", session.guard.sleep(options.seconds)), ("with", _checkpoint(session))):
                    started = time.monotonic()
                    session.tally.latency.clear()
                    await window
                    stalls[name].append(session.tally.latency.maximum / 1000)
                    if name == "with":
                        lengths.append(time.monotonic() - started)
                        together.add(session.tally.latency)
            result = meter.finish(lambda tally: tally.received)
            late = pacer.late.milliseconds()
    start = await _start_costs(broker)
    queues = max(options.queues, 1)
    extra: dict[str, Any] = {
        "queues": options.queues,
        "longest_ms_without": max(stalls["without"]),
        "longest_ms_with_checkpoint": max(stalls["with"]),
        "medians_ms": [median(stalls["without"]), median(stalls["with"])],
        "checkpoint_latency_ms": together.milliseconds(),
        "checkpoint_seconds": round(median(lengths), 2),
        "rss_kib_per_queue": round(growth * 1024 / queues, 2),
        **{
            f"{name}_us_per_queue": round((seconds - base_start[name]) / queues * 1e6, 1)
            for name, seconds in start.items()
        },
        "disk_floor_ms": floor_ms,
        "harness_late_ms": late,
    }
    return result.with_extra(extra)


async def _checkpoint(session: Session) -> None:
    """End the active segment, and wait for the checkpoint that follows."""
    folder = session.broker.data / "checkpoints"
    newest = _newest(folder)
    await session.request(SealSegments(1))
    deadline = time.monotonic() + CHECKPOINT_SECONDS
    while _newest(folder) == newest:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no checkpoint within {CHECKPOINT_SECONDS:.0f} s")
        await session.guard.sleep(POLL_SECONDS)


def _newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("*.ckpt")), default="")


async def _start_costs(broker: Broker) -> dict[str, float]:
    """Return the CPU seconds of a start after kill -9 and after SIGTERM, and with the checkpoint that follows."""
    costs: dict[str, float] = {}
    if not broker.data.exists():
        await broker.start()
    for name, end in (("kill", broker.kill), ("term", broker.stop)):
        end()
        newest = _newest(broker.data / "checkpoints")
        await broker.start()
        costs[f"{name}_start"] = broker.cpu_seconds()
        # After a kill the storage asks for a checkpoint.
        for _ in range(MOST_POLLS):
            await asyncio.sleep(POLL_SECONDS)
            if name == "term" or _newest(broker.data / "checkpoints") != newest:
                break
        await asyncio.sleep(SETTLE_SECONDS)
        costs[f"{name}_start_settled"] = broker.cpu_seconds()
    broker.stop()
    return costs
