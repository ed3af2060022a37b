"""The target of a run, a queue or a topic: look-up, creation, and the check against the counted messages."""

from typing import TYPE_CHECKING

import msgspec

from cmq_cli.exitcodes import CommandFailed
from cmq_cli.replays.order import Order
from cmq_cli.session import Session
from cmqd_client import Client, FilterType
from cmqd_client.errors import QueueNotFound
from cmqd_protocol.limits import MAX_HEADERS
from cmqd_types.attributes import QUEUE

if TYPE_CHECKING:
    from cmqd_log.copy.counting import Count
    from cmqd_log.copy.journal import Journal

DEFAULT_MAX_MESSAGE_BYTES = int(str(QUEUE["max_message_bytes"].default))
MAX_MESSAGE_BYTES = QUEUE["max_message_bytes"].high
MAX_HEADER_BYTES = 16 * 1024
MARK_BYTES = 160
"""Maximum size of the header of --mark: its name, the name of a queue, an id and a time."""


class Target(msgspec.Struct, frozen=True):
    """The present state of a queue or topic."""

    id: int
    """0 = the queue has to be created."""
    max_message_bytes: int
    routing: bool = False
    subscriptions: int | None = None
    """None = a queue."""


async def find_target(session: Session, order: Order) -> Target:
    """Look up the target on the server.

    Raises:
        CmqError: the target does not exist, unless the order creates the queue.
    """
    async with session.client() as client:
        if order.into_topic:
            topic = await client.topic(order.into_topic).attributes()
            is_routing = topic.filter_type is FilterType.ROUTING
            return Target(topic.id, topic.max_message_bytes, is_routing, topic.subscriptions)
        try:
            return await _queue_target(client, order.into or "")
        except QueueNotFound:
            if not order.create:
                raise
            return Target(0, MAX_MESSAGE_BYTES)


async def create_target(session: Session, name: str, count: "Count") -> Target:
    """Create the queue, for bodies as large as the counted bodies.

    Raises:
        CmqError: the server refuses.
    """
    async with session.client() as client:
        await client.create_queue(name, max_message_bytes=max(count.largest, DEFAULT_MAX_MESSAGE_BYTES))
        session.output.remark(f"queue {name!r} created")
        return await _queue_target(client, name)


async def _queue_target(client: Client, name: str) -> Target:
    queue = await client.queue(name).attributes()
    return Target(queue.id, queue.max_message_bytes)


def check_fits(order: Order, count: "Count", target: Target) -> None:
    """Check before the first send that the server accepts all messages.

    Raises:
        CommandFailed: the target would refuse a message.
    """
    name = order.into or order.into_topic
    if count.largest > target.max_message_bytes:
        raise CommandFailed(
            f"the largest message of the replay has {count.largest} bytes, and {name!r} takes at most "
            f"{target.max_message_bytes}; raise its max_message_bytes first"
        )
    if target.routing and count.without_key:
        raise CommandFailed(
            f"{count.without_key:,} of the messages have no routing key, and {name!r} is a routing topic; "
            f"--routing-key '#' leaves them out"
        )
    if order.mark and (count.most_headers >= MAX_HEADERS or count.most_header_bytes > MAX_HEADER_BYTES - MARK_BYTES):
        raise CommandFailed(
            f"the header of --mark does not fit: messages of the replay have up to {count.most_headers} headers with "
            f"up to {count.most_header_bytes} bytes; a message has at most {MAX_HEADERS} headers with "
            f"{MAX_HEADER_BYTES} bytes"
        )


async def check_same_target(session: Session, journal: "Journal") -> None:
    """Check that the target of a resumed run is still the queue or topic of its first part.

    Raises:
        CommandFailed: the target was created anew, or belongs to another server.
        CmqError: the target does not exist.
    """
    async with session.client() as client:
        handle = client.queue(journal.queue) if journal.queue else client.topic(journal.topic)
        info = await handle.attributes()
    if info.id != journal.target_id:
        raise CommandFailed(
            f"{journal.target} is not the target that the run began with: it was deleted and created again, or "
            f"{session.address().host} is another server (the run began with {journal.server})"
        )
