"""push: a topic with a URL subscription per endpoint, publishes at a fixed rate; two phases, see bench/README.md.

The loop is open: ``--rate`` / N publishes leave per second at their intended times, even if pushes fall behind. The
load of the remaining endpoints then holds back the first endpoint in the first phase, and the ratio is meaningless.
"""

from dataclasses import replace

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.http.receiver import MIN_STAMPED, Receivers, receiving, stamped
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker
from cmqd_load.pacer import Pacer
from cmqd_load.producers import OpenSender
from cmqd_load.wire import frame
from cmqd_protocol.messages import CreateTopic, PublishMessages, Subscribe

TOPIC = "push"


class StampedPublish:
    """A publish of a single body with its time as text, encoded anew every time: the rate is a few hundred a second."""

    def __init__(self, size: int) -> None:
        self._size = max(size, MIN_STAMPED)

    def at(self, stamp: int, request_id: int = 1) -> bytes:
        """Return the frame of a publish with this time."""
        return frame(PublishMessages(request_id, TOPIC, [stamped(stamp, self._size)]))


async def _phase(session: Session, receivers: Receivers, options: Options) -> tuple[Round, list[int]]:
    """Measure a phase; return the round, and the answers by endpoint."""
    await session.guard.sleep(options.warm_up)
    await receivers.clear()
    meter = session.meter([receivers.pid])
    meter.start()
    await session.guard.sleep(options.seconds)
    answered, latency_ms = await receivers.read()
    result = meter.finish(lambda _tally: sum(answered))
    published = session.tally.sent
    result = replace(result, latency_ms=latency_ms, extra={"published": published})
    return result, answered


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when a push was answered in the first phase."""
    broker.flags.append("--push-allow-loopback")
    async with receiving(options.endpoints) as receivers, running(broker) as session:
        endpoints = enumerate(receivers.urls)
        await session.request(
            CreateTopic(1, TOPIC, {"filter_type": "tag"}),
            *(Subscribe(1, TOPIC, f"endpoint-{number}", {"endpoint": url}) for number, url in endpoints),
        )
        publish = StampedPublish(options.body)
        sender = OpenSender(await session.connect(options.connections), session.tally)
        with Pacer(options.rate / options.endpoints, lambda intended: sender.send(publish, intended)):
            fast, fast_each = await _phase(session, receivers, options)
            await receivers.hang(1)
            hanging, hanging_each = await _phase(session, receivers, options)
    pushes = fast.messages
    rate = fast_each[0] / fast.seconds
    healthy = hanging_each[0] / hanging.seconds
    offered = fast.extra["published"] * options.endpoints
    return replace(
        fast,
        extra={
            "pushes_per_second": round(pushes / fast.seconds, 1),
            "offered_pushes_per_second": round(offered / fast.seconds, 1),
            "backlog_growth_per_second": round((offered - pushes) / fast.seconds, 1),
            "server_cpu_us_per_push": round(fast.server_cpu_seconds / max(pushes, 1) * 1e6, 1),
            "healthy_ratio": round(healthy / rate, 3) if rate else 0.0,
            "healthy_per_second": round(healthy, 1),
            "healthy_backlog_growth_per_second": round(
                (hanging.extra["published"] - hanging_each[0]) / hanging.seconds, 1
            ),
            "healthy_latency_ms": {name: round(value, 3) for name, value in hanging.latency_ms.items()},
            "hanging_loop_busy": round(hanging.loop_busy, 3),
        },
    )
