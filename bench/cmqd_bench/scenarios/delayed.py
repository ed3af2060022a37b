"""delayed: very many messages that become due in random order, and their latency from due to receipt."""

import os
import random
import time

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import PeakMemory, Round
from cmqd_bench.load.clients import DelayConsumer
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_load.limits import MIN_BODY
from cmqd_load.tally import Quota
from cmqd_load.wire import MARK, STAMP, frame
from cmqd_protocol.messages import SendMessages

FILL_RATE = 50_000
"""Assumed rate of the fill, in messages a second: the first message becomes due after the fill."""
LEAD_SECONDS = 2.0
SLOWEST_FILL = 8_000
AFTER_SECONDS = 120.0
"""Time limit after the last due time."""


class RandomDelays:
    """Frames of sends of messages that become due at random times of a window; a body contains its delay."""

    def __init__(self, queue: str, size: int, window_starts: float, spread: float) -> None:
        self._queue = queue
        self._tail = os.urandom(size - MIN_BODY)
        self._window_starts = window_starts
        self._spread_ms = spread * 1000
        self._random = random.Random(1).random

    def make_frame(self, request_id: int, count: int) -> bytes:
        """Return a send of ``count`` messages; a message that is already due (the fill was slow) has no delay."""
        lead_ms = (self._window_starts - time.monotonic()) * 1000
        spread_ms, draw, pack, tail = self._spread_ms, self._random, STAMP.pack, self._tail
        delays = [max(0, int(lead_ms + draw() * spread_ms)) for _ in range(count)]
        bodies = [b"%b%b%b" % (MARK, pack(delay), tail) for delay in delays]
        return frame(SendMessages(request_id, self._queue, bodies, None, delays))


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its delete was answered.

    Latency: from due (the broker's enqueue time plus the delay) to receipt. CPU: from the first due time to the last
    delete. Memory: the peak since before the first send.
    """
    async with running(broker) as session:
        queue = await session.create_queue("delayed")
        consuming = await session.connect(options.connections)
        rss_before = broker.rss_mib()
        peak = PeakMemory(broker)
        window_starts = time.monotonic() + LEAD_SECONDS + options.messages / FILL_RATE
        filling_from, slowest = time.monotonic(), 60 + options.messages / SLOWEST_FILL
        delays = RandomDelays(queue, options.body, window_starts, options.spread)
        await session.send_all(delays.make_frame, options.messages, options.body, slowest, connections=2)
        fill_seconds = time.monotonic() - filling_from
        filled_before = time.monotonic() < window_starts
        rss_filled = broker.rss_mib()

        quota = Quota(options.messages)
        meter = session.meter()
        meter.start()
        for each in consuming:
            DelayConsumer(each, queue, options.batch, session.tally, quota=quota, overlap=True).receive()
        if filled_before:
            await session.guard.sleep(window_starts - time.monotonic())
            # No message was due so far; the wait is not part of the measured time.
            meter.start()
        active_from = time.monotonic()
        await session.guard.wait(quota.done, options.spread + AFTER_SECONDS, "receiving the delayed messages")
        active_seconds = time.monotonic() - active_from
        extra = {
            "rss_growth_mib": round(peak.stop() - rss_before, 1),
            "rss_filled_growth_mib": round(rss_filled - rss_before, 1),
            "fill_seconds": round(fill_seconds, 2),
            "filled_before_first_due": filled_before,
            "due_seconds": options.spread,
            "active_seconds": round(active_seconds, 2),
        }
        return meter.finish(lambda tally: tally.deleted, extra)
