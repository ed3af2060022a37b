"""Events of a connection, besides messages. The connection makes the events; shells read the fields."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from cmqd_protocol.features import ServerFacts
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import RemoteProtocolError


class Authenticated(Struct, frozen=True, gc=False):
    """First event of a server: the client proved that it knows the secret key. Requests may follow."""

    account: str
    secret_id: str
    product: str
    """Name of the client's software as the client states, without proof; for logs only."""
    features: tuple[str, ...] = ()
    """Words of the client; see ``features.ClientFeature``."""
    name: str = ""
    """Name of the client as the client states, without proof; empty if not stated."""


class Opened(Struct, frozen=True, gc=False):
    """First event of a client: the server proved that it knows the secret key. Requests can be sent."""

    account: str
    connection_id: int
    region: str
    product: str
    max_frame_bytes: int
    heartbeat_ms: int
    facts: ServerFacts


class RequestRefused(Struct, frozen=True, gc=False):
    """Event of a server: the connection refused a request and has queued the reply.

    The request was malformed, reused the number of an outstanding request, or was over the limit of outstanding
    requests. The event is for counters and logs.
    """

    reply: Error


class ConnectionEnded(Struct, frozen=True, gc=False):
    """Last event of a connection: write ``data_to_send()``, then close."""

    code: int
    """An ``ErrorCode``, or a number that a newer peer sent."""
    name: str
    text: str
    by_peer: bool
    """True if the peer ended the connection with an Error frame or its preamble, False if this side ended it."""
    retryable: bool = False
    retry_after_ms: int | None = None
    details: Mapping[str, Any] | None = None
    """Details of the Error frame."""

    def exception(self) -> RemoteProtocolError:
        """Return the event as an exception, for shells that raise."""
        return RemoteProtocolError(self.code, self.text)
