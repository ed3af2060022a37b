"""rewind: the time until very many deleted messages are back, and the rate of the second drain."""

import asyncio
import time

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import Session, request, running
from cmqd_bench.load.wire import RECEIVED, receive_frame
from cmqd_bench.machine.broker import Broker
from cmqd_bench.scenarios.drain import SLOWEST_FILL, drain
from cmqd_protocol.messages import Attributes, CreateQueue, RewindQueue, Rewound, reply_decoder

WINDOW_MS = 3_600_000
SETTLE_SECONDS = 1.0
REDELIVERY_SECONDS = 30.0


async def _rewind(session: Session, queue: str) -> tuple[Rewound, float, float]:
    """Rewind the whole window, with a receive waiting: (reply, ms to the reply, ms to the first message)."""
    asking, waiting = await session.connect(2)
    arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_reply(_payload: bytes, opcode: int) -> None:
        assert opcode == RECEIVED
        arrived.set_result(time.monotonic())

    waiting.on_reply = on_reply
    waiting.write(receive_frame(queue, max_messages=1, wait_ms=20_000))
    await session.guard.sleep(0.1)
    started = time.monotonic()
    reply = reply_decoder.decode(await request(asking, RewindQueue(1, queue, 0)))
    answered = time.monotonic()
    assert isinstance(reply, Rewound)
    first = await asyncio.wait_for(arrived, REDELIVERY_SECONDS)
    session.close(asking, waiting)
    return reply, (answered - started) * 1000, (first - started) * 1000


async def run(options: Options, broker: Broker) -> Round:
    """Run a round: fill, drain (fresh), rewind, drain again; the figures at the top belong to the second drain."""
    async with running(broker) as session:
        queue = "rewind"
        # The receive that waits for the rewind gets a message, which must not be delivered again meanwhile.
        attributes: Attributes = {"rewind_ms": WINDOW_MS, "visibility_timeout_ms": WINDOW_MS}
        await session.request(CreateQueue(1, queue, attributes))
        await session.fill(queue, options.messages, options.body, 60 + options.messages / SLOWEST_FILL)
        await session.guard.sleep(SETTLE_SECONDS)
        fresh = await drain(session, options, queue, options.messages)
        await session.guard.sleep(SETTLE_SECONDS)
        rss_before = broker.rss_mib()
        rewound, answer_ms, first_ms = await _rewind(session, queue)
        if rewound.messages != options.messages:
            raise RuntimeError(f"{rewound.messages} of {options.messages} deleted messages came back")
        again = await drain(session, options, queue, options.messages - 1)
    rate = again.messages / again.seconds
    return again.with_extra(
        {
            "answer_ms": round(answer_ms, 3),
            "first_message_ms": round(first_ms, 3),
            "drain_ratio": round(rate / (fresh.messages / fresh.seconds), 3),
            "drain_per_second_fresh": round(fresh.messages / fresh.seconds, 1),
            "rss_growth_mib": round(again.server_rss_mib - rss_before, 1),
        }
    )
