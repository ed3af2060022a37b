"""The cost of outcomes at their worst: ``python -m cmqd_bench.beside_rounds``.

A queue holds a backlog, and a consumer takes it out of order: every tenth message stays in flight. So each segment
stays, the rows of the deletes go, and the storage process keeps the outcomes of the deleted messages beside the
segments. An open loop of single messages runs meanwhile. The program prints the CPU time of the broker, the CPU time of
the children of the storage process, the share of the children, and the latency of the open loop from the intended time
of a send to the receipt.

``--baseline`` names the ``PYTHONPATH`` of a second build. The builds take turns, and each turn begins with the next
build.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

from cmqd_bench.commands.options import Options
from cmqd_bench.load.session import Session, request, running
from cmqd_bench.machine.broker import Broker, broker_folder
from cmqd_bench.machine.conditions import conditions, raise_file_limit, scratch_root
from cmqd_bench.machine.processes import CLOCK_TICKS, cpu_seconds, read_stat
from cmqd_load.pacer import Pacer
from cmqd_protocol.messages import DeleteMessages, MessagesReceived, ReceiveMessages, reply_decoder

FILES: Final = 4096
HELD_MS: Final = 12 * 3_600_000
KEPT_OF: Final = 10
"""A message in ten stays in flight."""


async def eat(session: Session, queue: str, batch: int) -> int:
    """Receive the messages of a queue, and delete them, except every tenth; return the number of deleted messages."""
    (connection,) = await session.connect(1)
    deleted = number = 0
    while True:
        number += 2
        payload = await request(connection, ReceiveMessages(number, queue, batch, 0, HELD_MS))
        reply = reply_decoder.decode(payload)
        assert isinstance(reply, MessagesReceived)
        if not reply.messages:
            session.close(connection)
            return deleted
        handles = [message.receipt_handle for place, message in enumerate(reply.messages) if place % KEPT_OF]
        await request(connection, DeleteMessages(number + 1, queue, handles))
        deleted += len(handles)


def _reaped(broker: Broker) -> float:
    stat = read_stat(broker.ready.storage_pid or 0)
    return 0.0 if stat is None else stat.reaped_ticks / CLOCK_TICKS


async def measure_build(arguments: argparse.Namespace, environment: dict[str, str] | None) -> dict[str, Any]:
    """Measure a fresh broker of a build."""
    options = Options(scenario="latency", rate=arguments.load, connections=arguments.connections)
    with broker_folder(scratch_root(arguments.scratch), durability=arguments.durability) as broker:
        broker.environment = environment
        broker.flags = ["--segment-bytes", str(arguments.segment_bytes)]
        async with running(broker) as session:
            queues = [f"worst-{number}" for number in range(arguments.queues)]
            await session.create_queues(queues)
            for queue in queues:
                await session.fill(queue, arguments.messages // arguments.queues, 256, 3600.0)
            with Pacer(options.rate, await session.open_loop(options, "load")):
                await session.guard.sleep(1.0)
                session.tally.clear()
                cpu, reaped = cpu_seconds(broker.pids), _reaped(broker)
                deleted = sum([await eat(session, queue, arguments.batch) for queue in queues])
                # The rounds of the last checkpoints.
                await session.guard.sleep(2.0)
                cpu, reaped = cpu_seconds(broker.pids) - cpu, _reaped(broker) - reaped
                latency = session.tally.latency
                figures = {f"p{percent}_ms": round(latency.percentile(percent) / 1000, 3) for percent in (50, 99, 99.9)}
            files = list((broker.data / "segments").glob("*.outcomes"))
            return {
                "deleted": deleted,
                "broker_cpu_s": round(cpu, 2),
                "children_cpu_s": round(reaped, 2),
                "children_share": round(reaped / cpu, 4),
                "generations": sum(int(path.name.split(".")[1]) for path in files),
                "files": len(files),
                "outcome_bytes": sum(path.stat().st_size for path in files),
                **figures,
            }


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of the queues")
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="messages of a receive and of its delete")
    parser.add_argument("--segment-bytes", type=int, default=16_777_216)
    parser.add_argument("--load", type=float, default=500.0, help="messages a second of the open loop")
    parser.add_argument("--connections", type=int, default=4, help="producers of the open loop, and as many consumers")
    parser.add_argument("--durability", default="os", choices=("fsync", "os"))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--baseline", help="PYTHONPATH of another build")
    parser.add_argument("--scratch", type=Path, help="folder on the disk of the log")
    arguments = parser.parse_args()
    raise_file_limit(FILES)
    print(json.dumps(conditions(scratch_root(arguments.scratch))), flush=True)
    builds: dict[str, dict[str, str] | None] = {"this": None}
    if arguments.baseline:
        builds["baseline"] = {**os.environ, "PYTHONPATH": arguments.baseline}
    for turn in range(arguments.turns):
        names = list(builds)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            print(name, json.dumps(asyncio.run(measure_build(arguments, builds[name]))), flush=True)


if __name__ == "__main__":
    main()
