"""What a connection tells its shell besides messages. Don't subclass these; they are facts, made by the machine."""

from msgspec import Struct

from cmqd_protocol.errors import RemoteProtocolError
from cmqd_protocol.features import ServerFacts
from cmqd_protocol.messages import Error


class Authenticated(Struct, frozen=True, gc=False):
    """Server: the client proved that it holds the secret; requests may follow. Comes once, first."""

    account: str
    secret_id: str
    product: str
    """What the client calls itself; for logs only, as it can say anything."""


class Opened(Struct, frozen=True, gc=False):
    """Client: the server proved that it knows the secret; requests may be sent. Comes once, first."""

    account: str
    connection_id: int
    region: str
    product: str
    max_frame_bytes: int
    heartbeat_ms: int
    facts: ServerFacts


class RequestRefused(Struct, frozen=True, gc=False):
    """Server: a request was answered by the connection itself, since it could not be understood or its number was
    taken. There is nothing to do; for counters and logs.
    """

    reply: Error


class ConnectionEnded(Struct, frozen=True, gc=False):
    """The connection is over: write ``data_to_send()``, then close. Comes once, last."""

    code: int
    """An ``ErrorCode``, or a number that a newer peer sent."""
    name: str
    text: str
    by_peer: bool
    """The peer said so with an Error frame or its preamble; otherwise this side found the peer wrong."""
    retryable: bool = False
    retry_after_ms: int | None = None

    def exception(self) -> RemoteProtocolError:
        """The same as an exception, for shells that raise."""
        return RemoteProtocolError(self.code, self.text)
