"""The loads of the curves: a load prepares a step on a running broker, starts, and says which messages are completed.

All steps of a curve run on the same broker, in rising order: the broker of a step with 10,000 queues has the queues of
the steps before. The connections of a step are closed after the step.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

from cmqd_bench.curves.rotation import Rotation, Stop
from cmqd_bench.load import Consumer, OpenSender, Producer, Tally
from cmqd_bench.options import MAX_BATCH_BYTES
from cmqd_bench.pacer import Pacer
from cmqd_bench.scenarios.fanout import PUBLISHED_TAG, subscribe_queues
from cmqd_bench.session import Session
from cmqd_bench.wire import PublishTemplate, SendTemplate

BODY = 256
MANY = 64
FEW = 16
"""Connections of a curve about anything else: many for single messages, few for batches and large bodies."""
BACKLOG_BATCH = 16
SLOWEST_FILL = 10_000
"""Messages a second, below which filling a queue fails."""
WAITERS_PER_QUEUE = 10

Count = Callable[[Tally], int]


class Site:
    """A running broker, and what earlier steps of the curve made there."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stack = ExitStack()
        """Closed at the end of a step."""
        self._queues: set[str] = set()
        self._filled = 0

    async def queues(self, names: Sequence[str]) -> None:
        """Create the queues that do not exist."""
        if missing := [name for name in names if name not in self._queues]:
            await self.session.create_queues(missing, {"max_message_bytes": MAX_BATCH_BYTES})
            self._queues.update(missing)

    async def fill(self, queue: str, messages: int) -> None:
        """Send messages until ``messages`` were sent by this method."""
        if (missing := messages - self._filled) > 0:
            await self.session.fill(queue, missing, BODY, 60 + missing / SLOWEST_FILL)
            # The kernel writes gigabytes of dirty pages for seconds after a fill. Commits beside that wait for the disk
            # and hold fewer messages each: a cliff that belongs to the fill, not to the backlog.
            await asyncio.to_thread(os.sync)
            self._filled = messages

    async def rotate(self, names: Sequence[str], connections: int, *, batch: int = 1, size: int = BODY) -> Count:
        """Let connections walk through queues; a message is completed when its delete is answered.

        Each connection has queues of its own, as long as there are enough.
        """
        await self.queues(names)
        stops = [Stop(name, batch, size) for name in names]
        for index, connection in enumerate(await self.session.connect(connections)):
            own = stops[index::connections] or [stops[index % len(stops)]]
            Rotation(connection, own, self.session.tally, batch).send()
        return lambda tally: tally.deleted


Load = Callable[[Site, int], Awaitable[Count]]


async def queues(site: Site, step: int) -> Count:
    """Walk through ``step`` queues."""
    return await site.rotate([f"queue-{number}" for number in range(step)], MANY)


async def connections(site: Site, step: int) -> Count:
    """Send on ``step`` connections; a message is completed when its send is answered."""
    await site.queues(["queue"])
    template = SendTemplate("queue", batch=1, size=BODY)
    for connection in await site.session.connect(step):
        Producer(connection, template, site.session.tally).send()
    return lambda tally: tally.sent


async def waiting(site: Site, step: int) -> Count:
    """Walk through a queue while ``step`` connections wait at other queues, which get no message."""
    silent = [f"silent-{number}" for number in range(-(-step // WAITERS_PER_QUEUE))]
    await site.queues(silent)
    # A tally of their own: waits that end without a message are no messages of the load.
    idle = Tally()
    for index, connection in enumerate(await site.session.connect(step)):
        Consumer(connection, silent[index % len(silent)], 1, idle).receive()
    return await site.rotate(["queue"], MANY)


async def backlog(site: Site, step: int) -> Count:
    """Send to the end of a queue that holds ``step`` messages, and receive from its head."""
    await site.queues(["queue"])
    await site.fill("queue", step)
    return await site.rotate(["queue"], FEW, batch=BACKLOG_BATCH)


async def subscribers(site: Site, step: int) -> Count:
    """Publish to a topic with ``step`` subscribed queues; each copy counts."""
    topic = f"topic-{step}"
    names = [f"{topic}-{number}" for number in range(step)]
    await site.queues(names)
    (connection,) = await site.session.connect(1)
    await subscribe_queues(connection, names, topic=topic, unmatched=False)
    template = PublishTemplate(topic, batch=1, size=BODY, tags=[PUBLISHED_TAG])
    for each in await site.session.connect(FEW):
        Producer(each, template, site.session.tally).send()
    return lambda tally: tally.sent * step


async def body(site: Site, step: int) -> Count:
    """Walk with bodies of ``step`` bytes."""
    return await site.rotate(["queue"], FEW, size=step)


async def batch(site: Site, step: int) -> Count:
    """Walk with ``step`` messages per request."""
    return await site.rotate([f"queue-{step}"], FEW, batch=step)


async def rate(site: Site, step: int) -> Count:
    """Send ``step`` single messages a second in an open loop to waiting receives; a received message is completed."""
    # A queue of its own: a rate above the capacity of the machine leaves a backlog behind.
    queue = f"rate-{step}"
    await site.queues([queue])
    session = site.session
    sender = OpenSender(await session.connect(FEW), session.tally)
    for connection in await session.connect(FEW):
        Consumer(connection, queue, 1, session.tally, overlap=True).receive()
    act = partial(sender.send, SendTemplate(queue, batch=1, size=BODY))
    site.stack.enter_context(Pacer(float(step), act))
    return lambda tally: tally.received
