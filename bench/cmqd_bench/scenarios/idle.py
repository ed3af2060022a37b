"""idle: very many connections that all wait in a long poll; random connections are woken at a fixed rate."""

import random
from time import monotonic_ns

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.conditions import need_files
from cmqd_bench.machine.floor import sync_floor_ms
from cmqd_load.consumers import Consumer
from cmqd_load.pacer import Pacer
from cmqd_load.producers import OpenSender
from cmqd_load.wire import SendTemplate

WAITERS_PER_QUEUE = 10
"""Waiting receives per queue: more than one, so that the order of arrival matters; and with 10,000 connections the
number of queues stays well below the limit of an account."""
SENDERS = 8
SPARE_FILES = 200
"""Descriptors beside the connections: log files, pipes, libraries."""
SETTLE_SECONDS = 1.0


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when a woken connection has received the message.

    The memory of a connection is the growth of all server processes from "queues made" to "all wait" or to the end of
    the wake-ups, the larger of both, divided by the connections.
    """
    need_files(options.connections + SENDERS + SPARE_FILES, f"--connections {options.connections}")
    floor_ms = sync_floor_ms(broker.folder)
    async with running(broker) as session:
        queues = [f"idle-{number}" for number in range(max(1, options.connections // WAITERS_PER_QUEUE))]
        await session.create_queues(queues)
        sender = OpenSender(await session.connect(SENDERS), session.tally)
        await session.guard.sleep(SETTLE_SECONDS)
        rss_before = broker.rss_mib()
        for index, connection in enumerate(await session.connect(options.connections)):
            Consumer(connection, queues[index % len(queues)], 1, session.tally, overlap=True).receive()
        await session.guard.sleep(SETTLE_SECONDS)
        rss_waiting = broker.rss_mib()

        templates = [SendTemplate(queue, batch=1, size=options.body) for queue in queues]
        # Seeded: the same connections are woken in every run.
        choice = random.Random(1).randrange
        waiters = options.connections

        def wake(_intended_ns: int) -> None:
            # The queue of a random connection: the first waiting receive in line is served. The latency is the broker's
            # time to wake a connection, so it runs from the send; the send's lateness is reported separately.
            sender.send(templates[choice(waiters) % len(templates)], monotonic_ns())

        with Pacer(options.rate, wake) as pacer:
            result = await session.measured(options, lambda tally: tally.received, pacer.late.clear)
            growth = max(rss_waiting, result.server_rss_mib) - rss_before
            extra = {
                "rss_kib_per_connection": round(growth * 1024 / options.connections, 2),
                "rss_before_mib": round(rss_before, 1),
                "rss_waiting_mib": round(rss_waiting, 1),
                "queues": len(queues),
                "wakeups_per_second": options.rate,
                "disk_floor_ms": floor_ms,
                "harness_late_ms": pacer.late.milliseconds(),
            }
            return result.with_extra(extra)
