"""send: durable sends alone, a single request outstanding per connection; ``--saturate`` keeps the loop busy."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.saturate import saturating
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_load.producers import Producer
from cmqd_load.wire import SendTemplate

SATURATING_PROCESSES = 2


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its send was answered."""
    async with running(broker) as session:
        queue = await session.create_queue("send")
        producers = [
            Producer(each, SendTemplate(queue, batch=options.batch, size=options.body), session.tally)
            for each in await session.connect(options.connections)
        ]
        async with saturating(session, SATURATING_PROCESSES if options.saturate else 0) as saturators:
            for producer in producers:
                producer.send()
            await session.guard.sleep(options.warm_up)
            before = await saturators.messages()
            meter = session.meter()
            meter.start()
            await session.guard.sleep(options.seconds)
            others = await saturators.messages() - before
            return meter.finish(lambda tally: tally.sent, others=others)
