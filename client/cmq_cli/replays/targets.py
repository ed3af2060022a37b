"""The target of a run, a queue or topic: look it up, create it, check that it accepts the counted messages."""

from typing import TYPE_CHECKING

import msgspec

from cmq_cli.exitcodes import CommandFailed
from cmq_cli.replays.order import Order
from cmq_cli.session import Session
from cmqd_client import Client, FilterType
from cmqd_client.errors import QueueNotFound
from cmqd_protocol.limits import MAX_HEADERS

if TYPE_CHECKING:
    from pyspark_cmqd.replay_count import Count
    from pyspark_cmqd.replay_journal import Journal

DEFAULT_MAX_MESSAGE_BYTES = 65_536
MAX_MESSAGE_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 * 1024
MARK_BYTES = 160
"""Of the mark's header, at most: its name, a queue's name, an id and a time."""


class Target(msgspec.Struct, frozen=True):
    """The queue or topic as it is."""

    id: int
    """0 = it is to be made."""
    max_message_bytes: int
    routing: bool = False
    subscriptions: int | None = None
    """None = a queue."""


async def find_target(session: Session, order: Order) -> Target:
    """Ask the server. Raises CmqError; not if a queue is missing that is to be made."""
    async with session.client() as client:
        if order.into_topic:
            topic = await client.topic(order.into_topic).attributes()
            routing = topic.filter_type is FilterType.ROUTING
            return Target(topic.id, topic.max_message_bytes, routing, topic.subscriptions)
        try:
            return await _queue_target(client, order.into)
        except QueueNotFound:
            if not order.create:
                raise
            return Target(0, MAX_MESSAGE_BYTES)


async def create_target(session: Session, order: Order, count: "Count") -> Target:
    """Make the queue, for bodies as large as those counted. Raises CmqError."""
    async with session.client() as client:
        largest = max(count.largest, DEFAULT_MAX_MESSAGE_BYTES)
        await client.create_queue(order.into, max_message_bytes=largest)
        session.output.remark(f"made the queue {order.into!r}")
        return await _queue_target(client, order.into)


async def _queue_target(client: Client, name: str) -> Target:
    queue = await client.queue(name).attributes()
    return Target(queue.id, queue.max_message_bytes)


def check_fits(order: Order, count: "Count", target: Target) -> None:
    """Raises CommandFailed for what the server would refuse in the middle."""
    name = order.into or order.into_topic
    if count.largest > target.max_message_bytes:
        raise CommandFailed(
            f"{name!r} takes messages of at most {target.max_message_bytes} bytes, and one to be replayed has "
            f"{count.largest}; set it higher first"
        )
    if target.routing and count.without_key:
        raise CommandFailed(
            f"{count.without_key:,} of the messages have no routing key, and {name!r} is a routing topic; "
            f"--routing-key '#' leaves them out"
        )
    if order.mark and (count.most_headers >= MAX_HEADERS or count.most_header_bytes > MAX_HEADER_BYTES - MARK_BYTES):
        raise CommandFailed(
            f"some messages have no room for the header of --mark: {count.most_headers} headers, or "
            f"{count.most_header_bytes} bytes of them ({MAX_HEADERS} and {MAX_HEADER_BYTES} are allowed)"
        )


async def check_same_target(session: Session, journal: "Journal") -> None:
    """Raises CommandFailed if the run began with another queue or topic, CmqError if there is none."""
    async with session.client() as client:
        if journal.queue:
            found = (await client.queue(journal.queue).attributes()).id
        else:
            found = (await client.topic(journal.topic).attributes()).id
    if found != journal.target_id:
        raise CommandFailed(
            f"{journal.target} is another one than when the run began: it was made anew, or this is another server "
            f"({session.address().host}; the run began with {journal.server})"
        )
