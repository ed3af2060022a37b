"""latency: an open loop at a fixed rate; from the intended time of a send to the receipt."""

from functools import partial

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.clients import Consumer, OpenSender
from cmqd_bench.load.pacer import Pacer
from cmqd_bench.load.session import running
from cmqd_bench.load.wire import SendTemplate
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.floor import sync_floor_ms


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when the message was received."""
    floor_ms = sync_floor_ms(broker.folder)
    async with running(broker) as session:
        queue = await session.create_queue("latency")
        sender = OpenSender(await session.connect(options.connections), session.tally)
        template = SendTemplate(queue, batch=1, size=options.body)
        # As many consumers as producers, so that a receive always waits.
        for each in await session.connect(options.connections):
            Consumer(each, queue, 1, session.tally, overlap=True).receive()
        with Pacer(options.rate, partial(sender.send, template)) as pacer:
            await session.guard.sleep(options.warm_up)
            meter = session.meter()
            meter.start()
            pacer.late.clear()
            await session.guard.sleep(options.seconds)
            extra = {
                "intended_rate": options.rate,
                "disk_floor_ms": floor_ms,
                "harness_late_ms": pacer.late.milliseconds(),
            }
            return meter.finish(lambda tally: tally.received, extra)
