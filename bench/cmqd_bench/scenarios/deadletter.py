"""deadletter: very many messages expire at once (policy 1); latency of fresh messages meanwhile."""

import asyncio
import time

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.histogram import Histogram
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import Consumer, Gate, OpenSender
from cmqd_bench.load.pacer import Pacer
from cmqd_bench.load.session import request, running
from cmqd_bench.load.wire import RECEIVED, SendTemplate, decode_deliveries, stamp_of
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.shortened import SHORTEST_MS
from cmqd_bench.scenarios.backlog import CYCLED_BEFORE, SLOWEST_FILL, cycle_before
from cmqd_protocol.messages import (
    Attributes,
    CreateQueue,
    GetQueueAttributes,
    QueueInfo,
    SetQueueAttributes,
    reply_decoder,
)

FRESH_PER_SECOND = 20
POLL_SECONDS = 0.05
SLOWEST_MOVES = 5_000


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when the dead-letter queue has the message."""
    broker.module = "cmqd_bench.machine.shortened"
    async with running(broker) as session:
        await cycle_before(session, options, min(CYCLED_BEFORE, options.messages))
        rss_before = broker.rss_mib()
        (asking,) = await session.connect(1)
        await request(asking, CreateQueue(1, "dead", {}))
        await request(asking, CreateQueue(1, "overdue", {}))
        await session.fill("overdue", options.messages, options.body, 60 + options.messages / SLOWEST_FILL)
        await session.guard.sleep(2 * SHORTEST_MS / 1000)
        rss_filled = broker.rss_mib()

        fresh = Histogram()
        consuming, producing = await session.connect(2)
        template = SendTemplate("overdue", batch=1, size=options.body)
        handles: list[int] = []
        consumer = Consumer(consuming, "overdue", 1, session.tally, gate=Gate(1 << 30))
        take = consuming.on_reply

        def on_received(payload: bytes, opcode: int) -> None:
            if opcode == RECEIVED:
                now = time.monotonic_ns()
                for message in decode_deliveries(payload).messages:
                    stamp = stamp_of(message.body)
                    # The expired messages were sent without a time.
                    if stamp:
                        fresh.record((now - stamp) // 1000)
                        handles.append(message.receipt_handle)
            take(payload, opcode)

        consuming.on_reply = on_received
        sender = OpenSender([producing], session.tally)
        meter = session.meter()
        meter.start()
        policy: Attributes = {"dead_letter_queue": "dead", "dead_letter_after_ms": SHORTEST_MS}
        started = time.monotonic()
        await request(asking, SetQueueAttributes(1, "overdue", policy))
        set_ms = (time.monotonic() - started) * 1000
        consumer.receive()
        peak = rss_filled
        deadline = time.monotonic() + 60 + options.messages / SLOWEST_MOVES
        moved = 0
        with Pacer(FRESH_PER_SECOND, lambda intended: sender.send(template, intended)):
            while moved < options.messages:
                await session.guard.sleep(POLL_SECONDS)
                info = reply_decoder.decode(await request(asking, GetQueueAttributes(1, "dead")))
                assert isinstance(info, QueueInfo)
                moved = info.counts["active"]
                peak = max(peak, broker.rss_mib())
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{moved} of {options.messages} messages were moved in time")
            seconds = time.monotonic() - started
        result = meter.finish(lambda _tally: options.messages)
        await asyncio.sleep(0)
        latency = fresh.milliseconds()
        return result.with_extra(
            {
                "moves_per_second": round(options.messages / seconds, 1),
                "fresh_latency_ms": {name: round(value, 3) for name, value in latency.items()},
                "fresh_messages": len(handles),
                "set_attributes_ms": round(set_ms, 3),
                "rss_growth_mib": round(peak - rss_before, 1),
                "rss_filled_growth_mib": round(rss_filled - rss_before, 1),
            }
        )
