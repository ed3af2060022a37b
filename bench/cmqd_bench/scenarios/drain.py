"""drain: the rate of consumers that empty a full queue, without sends meanwhile."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import Consumer, Quota
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker

SLOWEST_FILL = 10_000
SLOWEST_DRAIN = 2_000
"""Slowest accepted rate in messages a second; a slower run fails."""


async def drain(session: Session, options: Options, queue: str, messages: int) -> Round:
    """Receive and delete ``messages`` of ``queue`` with C consumers.

    The latency is the latency of a receive that finds messages, from request to reply.
    """
    quota = Quota(messages)
    connections = await session.connect(options.connections)
    consumers = [Consumer(each, queue, options.batch, session.tally, quota=quota, timed=True) for each in connections]
    meter = session.meter()
    meter.start()
    for consumer in consumers:
        consumer.receive()
    await session.guard.wait(quota.done, 60 + messages / SLOWEST_DRAIN, f"draining {messages} messages")
    result = meter.finish(lambda tally: tally.deleted)
    # Otherwise the waiting receives would take messages that are sent later.
    session.close(*connections)
    return result


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its delete was answered."""
    async with running(broker) as session:
        queue = await session.create_queue("drain")
        await session.fill(queue, options.backlog, options.body, 60 + options.backlog / SLOWEST_FILL)
        return await drain(session, options, queue, options.backlog)
