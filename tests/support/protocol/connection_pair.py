"""Client machine and server machine joined in memory, so that a test sees both sides of every step.

Bytes move only when a test says so (``exchange``), whole or in pieces, and time only passes by ``advance``.
"""

from collections.abc import Callable, Iterable
from typing import Any

from cmqd_protocol.client_connection import ClientConnection, ClientEvent
from cmqd_protocol.handshake import AccessKey
from cmqd_protocol.server_connection import ServerConnection, ServerEvent

SECRET_ID = "AKIDexample"
SECRET_KEY = "correct-horse-battery-staple-0123456789"
SERVER_NONCE = bytes(range(32))
CLIENT_NONCE = bytes(range(32, 64))

Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> Iterable[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def find_example_key(secret_id: str) -> AccessKey | None:
    return AccessKey("admin", SECRET_KEY) if secret_id == SECRET_ID else None


def a_server(**changes: Any) -> ServerConnection:
    arguments: dict[str, Any] = {
        "nonce": SERVER_NONCE,
        "find_key": find_example_key,
        "region": "local",
        "connection_id": 7,
        "now_ms": 0,
    }
    return ServerConnection(**(arguments | changes))


def a_client(**changes: Any) -> ClientConnection:
    arguments: dict[str, Any] = {
        "secret_id": SECRET_ID,
        "secret_key": SECRET_KEY,
        "nonce": CLIENT_NONCE,
        "now_ms": 0,
    }
    return ClientConnection(**(arguments | changes))


class ConnectionPair:
    """The two machines with their events so far, and all bytes that the machines have sent."""

    def __init__(
        self, *, server: dict[str, Any] | None = None, client: dict[str, Any] | None = None, cut: Cut = whole
    ) -> None:
        self.server = a_server(**(server or {}))
        self.client = a_client(**(client or {}))
        self.cut = cut
        self.now_ms = 0
        self.server_events: list[ServerEvent] = []
        self.client_events: list[ClientEvent] = []
        self.sent_by_server = bytearray()
        self.sent_by_client = bytearray()

    @classmethod
    def opened(cls, **arguments: Any) -> "ConnectionPair":
        """A pair after a good handshake, without the events of the handshake."""
        pair = cls(**arguments)
        pair.exchange()
        assert pair.server.is_open, pair.server
        assert pair.client.is_open, pair.client
        pair.take_events()
        pair.sent_by_server.clear()
        pair.sent_by_client.clear()
        return pair

    def exchange(self) -> None:
        """Carry bytes both ways until neither side has more to say."""
        while self.carry_to_server() | self.carry_to_client():
            pass

    def carry_to_server(self) -> bool:
        """Carry the bytes that the client has to send; False if there are none."""
        data = b"".join(self.client.data_to_send(self.now_ms))
        self.sent_by_client += data
        self.to_server(data)
        return bool(data)

    def carry_to_client(self) -> bool:
        """Carry the bytes that the server has to send; False if there are none."""
        data = b"".join(self.server.data_to_send(self.now_ms))
        self.sent_by_server += data
        self.to_client(data)
        return bool(data)

    def to_server(self, data: bytes) -> None:
        """Let the server read bytes, of the client or made by the test."""
        for piece in self.cut(data):
            self.server.receive_data(piece, self.now_ms)
        self.server_events += self.server.events()

    def to_client(self, data: bytes) -> None:
        """Let the client read bytes, of the server or made by the test."""
        for piece in self.cut(data):
            self.client.receive_data(piece, self.now_ms)
        self.client_events += self.client.events()

    def advance(self, ms: int) -> None:
        """Let time pass on both sides; no bytes are carried."""
        self.now_ms += ms
        self.server.tick(self.now_ms)
        self.client.tick(self.now_ms)
        self.server_events += self.server.events()
        self.client_events += self.client.events()

    def take_events(self) -> tuple[list[ServerEvent], list[ClientEvent]]:
        """The new events of the server and of the client since the last call."""
        taken = self.server_events, self.client_events
        self.server_events, self.client_events = [], []
        return taken
