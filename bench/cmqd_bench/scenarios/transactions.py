"""transactions: half messages and commits, by producers that wait for every answer."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import TransactionalProducer
from cmqd_bench.load.session import request, running
from cmqd_bench.machine.broker import Broker
from cmqd_protocol.messages import CreateQueue


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its commit was answered. The latency begins with the half send."""
    async with running(broker) as session:
        queue = "transactions"
        (connection,) = await session.connect(1)
        await request(connection, CreateQueue(1, queue, {"transactional": True}))
        session.close(connection)
        for each in await session.connect(options.connections):
            TransactionalProducer(each, queue, batch=options.batch, size=options.body, tally=session.tally).send()
        await session.guard.sleep(options.warm_up)
        meter = session.meter()
        meter.start()
        await session.guard.sleep(options.seconds)
        return meter.finish(lambda tally: tally.sent)
