"""backlog: the cost of ten million waiting messages: memory, a restart after kill -9, and the speed of draining."""

import time

from cmqd_bench.commands.options import DRAINS, Options
from cmqd_bench.figures.measure import Round
from cmqd_bench.load.session import Session, request, running
from cmqd_bench.machine.broker import Broker
from cmqd_load.connect import open_connection
from cmqd_load.consumers import Consumer
from cmqd_load.producers import Producer
from cmqd_load.tally import Gate, Quota
from cmqd_load.wire import SendTemplate, decode_handles
from cmqd_protocol.messages import ReceiveMessages

CYCLED_BEFORE = 200_000
"""Messages cycled by a broker before its memory is taken as the base: interpreter, buffers, windows and caches have
then reached their working size, so further growth belongs to the backlog."""
DRAINED = 500_000
"""Messages per drain."""
SLOWEST_FILL = 25_000
SLOWEST_CYCLE = 2_000
SLOWEST_DRAIN = 2_000
POLL_SECONDS = 0.005
SETTLE_SECONDS = 1.0


async def cycle_before(session: Session, options: Options, messages: int) -> None:
    """Warm a broker up, so that its memory afterwards is the base of the comparison."""
    queue = await session.create_queue("before")
    gate = Gate(4 * options.connections * options.batch)
    quota = Quota(messages)
    connections = await session.connect(2 * options.connections)
    for consuming, producing in zip(connections[::2], connections[1::2], strict=True):
        Consumer(consuming, queue, options.batch, session.tally, gate=gate, quota=quota).receive()
        Producer(producing, SendTemplate(queue, batch=options.batch, size=options.body), session.tally, gate).send()
    await session.guard.wait(quota.done, 60 + messages / SLOWEST_CYCLE, "the cycles before the backlog")
    session.close(*connections)
    await session.guard.sleep(SETTLE_SECONDS)


async def _drain(session: Session, options: Options, queue: str, messages: int) -> Round:
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


def _rate(drained: Round) -> float:
    return drained.messages / drained.seconds


async def _drain_small(options: Options, broker: Broker, messages: int, cycled: int) -> Round:
    """Run the drain for comparison: the same number of messages, without a backlog."""
    drains: list[Round] = []
    async with running(broker) as session:
        await cycle_before(session, options, cycled)
        queue = await session.create_queue("backlog")
        for _ in range(DRAINS):
            await session.fill(queue, messages, options.body, 60 + messages / SLOWEST_FILL)
            await session.guard.sleep(SETTLE_SECONDS)
            drains.append(await _drain(session, options, queue, messages))
    return max(drains, key=_rate)


async def _restart(broker: Broker, queue: str) -> float:
    """Restart the killed server; return the seconds from exec to the first receive answered with a message."""
    started = time.monotonic()
    await broker.start(POLL_SECONDS)
    connection = await open_connection(broker.ready.url)
    reply = await request(connection, ReceiveMessages(1, queue, 1, 0))
    seconds = time.monotonic() - started
    connection.close()
    if not decode_handles(reply).messages:
        raise RuntimeError("the backlog was empty after the restart")
    return seconds


async def run(options: Options, broker: Broker) -> Round:
    """Run a round; the figures at the top belong to the drain with the backlog."""
    # All drains leave a part of the backlog behind, beside the messages that their consumers leave in flight or have
    # deleted beyond the drained number when they are closed.
    drained = min(DRAINED, (options.messages - DRAINS * options.held()) // (DRAINS + 1))
    cycled = min(CYCLED_BEFORE, options.messages)
    small = await _drain_small(options, broker.sibling("small"), drained, cycled)

    await broker.start()
    session = Session(broker)
    try:
        await cycle_before(session, options, cycled)
        rss_before = broker.rss_mib()
        queue = await session.create_queue("backlog")
        meter = session.meter()
        meter.start()
        await session.fill(queue, options.messages, options.body, 60 + options.messages / SLOWEST_FILL)
        fill = meter.finish(lambda tally: tally.sent).as_json()
        rss_filled = broker.rss_mib()
    finally:
        session.close_all()
        broker.kill()
    disk_bytes = sum(file.stat().st_size for file in broker.data.rglob("*") if file.is_file())

    restart_seconds = await _restart(broker, queue)
    session = Session(broker)
    try:
        rss_restarted = broker.rss_mib()
        big = max([await _drain(session, options, queue, drained) for _ in range(DRAINS)], key=_rate)
    finally:
        session.close_all()
        broker.kill()
    extra = {
        "rss_growth_mib": round(rss_filled - rss_before, 1),
        "restart_seconds": round(restart_seconds, 3),
        "drain_ratio": round(_rate(big) / _rate(small), 3),
        "rss_before_mib": round(rss_before, 1),
        "rss_filled_mib": round(rss_filled, 1),
        "rss_restarted_mib": round(rss_restarted, 1),
        "drained": drained,
        "drain_per_second_without_backlog": round(_rate(small), 1),
        "fill_per_second": fill["messages_per_second"],
        "fill_seconds": fill["seconds"],
        "fill_server_cpu_us_per_message": fill["server_cpu_us_per_message"],
        "disk_bytes_per_message": round(disk_bytes / options.messages, 1),
    }
    return big.with_extra(extra)
