"""The parts of a consumer, for tests that put a consumer together by hand, and its dead-letter queue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from cmqd_client import Client, ConsumedMessage, Consumer
from cmqd_client.consumers.consumer import Handler
from cmqd_client.consumers.consumption import ConsumptionLimits
from cmqd_client.consumers.intake import Source
from cmqd_client.consumers.options import ConsumerOptions
from cmqd_client.links.retry import RetryPolicy
from cmqd_client.queue import Queue
from support.client.local_server import LocalServer
from support.client.turned_clock import TurnedClock

PAUSES = RetryPolicy(first_delay=1.0, max_delay=600.0)


def options(clock: TurnedClock | None = None, patience: float = inf, **limits: Any) -> ConsumerOptions:
    """Return options with receives of 30 s and the limits of a consumption."""
    return ConsumerOptions(
        limits=ConsumptionLimits(**limits), retry_pauses=PAUSES, wait_ms=30_000, patience=patience, clock=clock
    )


def source(client: Client) -> Source[ConsumedMessage]:
    """Return the queue ``orders`` from the view of a consumer."""
    queue = client.queue("orders")
    return Source(
        channel=queue.channel,
        name=queue.name,
        poison=None,
        message=lambda intake, lease: ConsumedMessage(queue, intake, lease),
    )


@asynccontextmanager
async def running(
    client: Client, handler: Handler[Any], clock: TurnedClock | None = None, **limits: Any
) -> AsyncGenerator[Consumer, None]:
    """Run a consumer of ``orders`` during the block; stopped at its end."""
    consumer = Consumer(source(client), handler, options(clock, **limits))
    task = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)
    try:
        yield consumer
    except BaseException:
        task.cancel()  # a failed test must not wait for its handlers
        raise
    consumer.stop()
    await task


async def with_dead_letters(server: LocalServer, **attributes: Any) -> Queue:
    """Give ``orders`` the dead-letter queue ``dead`` with these attributes."""
    dead = await server.admin.create_queue("dead", **attributes)
    await server.admin.queue("orders").set_attributes(dead_letter_queue="dead", dead_letter_max_receives=100)
    return dead
