"""latency: an open loop at a fixed rate; from the intended time of a send to the receipt."""

from cmqd_bench.commands.options import Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import running
from cmqd_bench.machine.broker import Broker
from cmqd_bench.machine.floor import sync_floor_ms
from cmqd_load.pacer import Pacer


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; a message is completed when the message was received."""
    floor_ms = sync_floor_ms(broker.folder)
    async with running(broker) as session:
        with Pacer(options.rate, await session.open_loop(options, "latency")) as pacer:
            result = await session.measured(options, lambda tally: tally.received, pacer.late.clear)
            extra = {
                "intended_rate": options.rate,
                "disk_floor_ms": floor_ms,
                "harness_late_ms": pacer.late.milliseconds(),
            }
            return result.with_extra(extra)
