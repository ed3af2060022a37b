"""transactions: half messages and commits, by producers that wait for every answer."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import TransactionalProducer
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_protocol.messages import CreateQueue


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when its commit was answered. The latency begins with the half send."""
    async with running(broker) as session:
        queue = "transactions"
        await session.request(CreateQueue(1, queue, {"transactional": True}))
        for each in await session.connect(options.connections):
            TransactionalProducer(each, queue, batch=options.batch, size=options.body, tally=session.tally).send()
        return await session.measured(options, lambda tally: tally.sent)
