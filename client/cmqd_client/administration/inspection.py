"""The inside of a running server: its connections, waiting receives, consumers and settings.

Nothing here survives the connection, the receive or the start that it describes. A list shows each connection at its
own moment; an entry can move to another page, or be left out, while connections come and go.
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from cmqd_client.links.channel import Channel
from cmqd_client.replies.conversions import converted
from cmqd_client.results import Listing
from cmqd_protocol import operations
from cmqd_types.inspection import ConnectionSort, SettingInfo


class ConnectionInfo(msgspec.Struct, frozen=True):
    """A connection of the server. Figures count from its first byte on."""

    connection_id: int
    """Number of the connection, as in the server's log."""
    account: str
    secret_id: str
    """Id of the key of the connection."""
    peer: str
    """Address of the client as ``host:port``. Behind a gateway or proxy, the address of that process."""
    product: str
    """Software of the client as the client states (``connect(product=)``), without proof; empty if not stated."""
    tls: bool
    since: datetime
    last_request: datetime
    """Time of the last request, exact to 100 ms; ``since`` before the first request."""
    requests: int
    bytes_in: int
    bytes_out: int
    unanswered: int
    """Requests without a reply so far; waiting receives are included."""
    waiting: int
    """Requests that wait for messages, or for messages to be read from the log."""
    unread_bytes: int
    """Bytes of replies that the client has not read, as far as they wait in the server."""
    checked_queues: int
    """Queues for which the connection answers transaction checks."""
    name: str
    """Name of the client as the client states (``connect(name=)``), without proof; empty if not stated."""


class ConnectionPage(msgspec.Struct, frozen=True):
    """A page of connections."""

    connections: list[ConnectionInfo]
    total: int
    """Connections that match the search, listed here or not."""
    time: datetime
    """Broker time of the page."""
    request_id: int

    def __iter__(self) -> Iterator[ConnectionInfo]:
        return iter(self.connections)

    def __len__(self) -> int:
        return len(self.connections)


class WaitingReceive(msgspec.Struct, frozen=True):
    """A receive that waits for messages (a long poll)."""

    account: str
    queue: str
    connection_id: int
    secret_id: str
    peer: str
    product: str
    max_messages: int
    since: datetime
    until: datetime
    """Time at which the receive ends without messages."""
    name: str
    """Name of the client that receives; behind a gateway, of the gateway's caller."""


class WaitingReceivePage(msgspec.Struct, frozen=True):
    """A page of waiting receives, in order of arrival."""

    receives: list[WaitingReceive]
    total: int
    """Waiting receives that match, listed here or not."""
    time: datetime
    request_id: int

    def __iter__(self) -> Iterator[WaitingReceive]:
        return iter(self.receives)

    def __len__(self) -> int:
        return len(self.receives)


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A client that receives from a queue, or did so within the last hour. Figures count since the server's start."""

    account: str
    queue: str
    secret_id: str
    """Id of the key of the client."""
    name: str
    """Name of the client as the client states (``connect(name=)``), without proof; empty if not stated."""
    host: str
    """Address of the client's machine; ``(hidden)`` for keys that may not see hosts."""
    stated_by: str
    """Address of the gateway that stated ``host``; empty if the server saw ``host`` itself."""
    since: datetime
    """Time of the first request for messages."""
    asked: datetime
    """Time of the last request for messages, answered with messages or not."""
    last_receive: datetime | None
    """Time of the last receive with messages; None = there was none."""
    waiting: int | None
    """Receives that wait for messages now; None = not counted, because the queue has very many."""
    in_flight: int | None
    """Messages that the client has received and not settled. None = not counted, because the queue has very many."""
    received: int
    """Messages that the client received, each receive counted."""
    failed: int
    """Messages that the client gave back (counted), rejected, or did not settle within the visibility timeout."""


class ConsumerPage(msgspec.Struct, frozen=True):
    """A page of consumers, in order of queue and name."""

    consumers: list[ConsumerInfo]
    total: int
    """Consumers that match, listed here or not."""
    time: datetime
    """Broker time of the page."""
    request_id: int

    def __iter__(self) -> Iterator[ConsumerInfo]:
        return iter(self.consumers)

    def __len__(self) -> int:
        return len(self.consumers)


class Setting(SettingInfo, frozen=True, array_like=False):
    """A setting of the server, as it is in force."""


async def ask_connections(
    channel: Channel, search: str, sort: ConnectionSort, descending: bool, offset: int, limit: int
) -> ConnectionPage:
    """Ask for a page of connections."""
    reply = await channel.ask(operations.LIST_CONNECTIONS, search, sort, descending, offset, limit)
    return converted(ConnectionPage, reply)


async def ask_waiting_receives(
    channel: Channel, search: str, connection_id: int | None, offset: int, limit: int
) -> WaitingReceivePage:
    """Ask for a page of waiting receives."""
    reply = await channel.ask(operations.LIST_WAITING_RECEIVES, search, connection_id or 0, offset, limit)
    return converted(WaitingReceivePage, reply)


async def ask_consumers(channel: Channel, queue: str, search: str, offset: int, limit: int) -> ConsumerPage:
    """Ask for a page of consumers."""
    reply = await channel.ask(operations.LIST_CONSUMERS, queue, search, offset, limit)
    return converted(ConsumerPage, reply)


async def ask_settings(channel: Channel) -> Listing[Setting]:
    """Ask for the settings in force."""
    reply = await channel.ask(operations.GET_SETTINGS)
    return Listing([converted(Setting, setting) for setting in reply.settings], reply.request_id)
