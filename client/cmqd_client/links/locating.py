"""The server of a queue or topic."""

import msgspec

from cmqd_client.errors import UnknownOperation
from cmqd_client.links.channel import Channel
from cmqd_protocol import operations


class Location(msgspec.Struct, frozen=True):
    """The server of a queue or topic at the time of the request."""

    addresses: list[str]
    """``host:port``, in the order in which a client tries them."""
    shard: int
    epoch: int
    """Grows with each new leader of the shard; 0 = the server is alone."""
    request_id: int | None
    """None = the server is older than the operation."""


async def ask_location(channel: Channel, name: str, *, is_topic: bool) -> Location:
    """Return the server of a queue or topic; a server without the operation has every queue and topic itself.

    Raises:
        QueueNotFound, TopicNotFound: the account has no queue or topic of this name (not from an older server).
    """
    try:
        reply = await channel.ask(operations.LOCATE, name, is_topic)
    except UnknownOperation as error:
        asked = [each for each in channel.connections() if each.connection_id == error.connection_id]
        return Location([connection.host for connection in asked], 0, 0, None)
    return Location(reply.addresses, reply.shard, reply.epoch, reply.request_id)
