"""cycle: durable send, long-poll receive, durable delete, all at once."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import AcknowledgingConsumer
from cmqd_bench.load.session import Session, running
from cmqd_bench.machine.broker import Broker
from cmqd_load.consumers import Consumer
from cmqd_load.producers import Producer
from cmqd_load.tally import Gate
from cmqd_load.wire import SendTemplate

AHEAD = 16
"""Producers may be ahead by this many requests of all consumers. A producer has one round trip per message and a
consumer two, so without a bound the run would measure the growth of a backlog. With the bound, consumers always find
work, and the latency from send to receipt is the latency of a queue without backlog."""


async def load(session: Session, options: Options, queue: str) -> None:
    """Start C producers and C consumers on ``queue``."""
    gate = Gate(AHEAD * options.connections * options.batch)
    producing = await session.connect(options.connections)
    consuming = await session.connect(options.connections)
    kind = AcknowledgingConsumer if options.acknowledge else Consumer
    consumers = [kind(each, queue, options.batch, session.tally, gate=gate) for each in consuming]
    producers = [
        Producer(each, SendTemplate(queue, batch=options.batch, size=options.body), session.tally, gate)
        for each in producing
    ]
    for consumer in consumers:
        consumer.receive()
    for producer in producers:
        producer.send()


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its delete was answered, by itself or in the reply to a receive."""
    async with running(broker) as session:
        queue = await session.create_queue("cycle")
        await load(session, options, queue)
        return await session.measured(options, lambda tally: tally.deleted)
