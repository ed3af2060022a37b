"""A client without repeats: a blocking socket around the protocol's client machine.

The bundled client reconnects, repeats and re-issues; tests of the server's exact answers use this client.
"""

import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from cmqd_client.address import parse_address
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded, Opened
from cmqd_protocol.messages import AnyReply, Push, Request

R = TypeVar("R")


class RawClient:
    """Connects and authenticates when entered."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        self._last_id = 0
        self.replies: dict[int, AnyReply] = {}
        self.opened: Opened | None = None
        self.ended: ConnectionEnded | None = None

    def __enter__(self) -> Self:
        address = self._address
        self._socket = socket.create_connection((address.host, address.port))
        self._machine = ClientConnection(
            nonce=os.urandom(32), secret_id=address.secret_id, secret_key=address.secret_key, now_ms=0
        )
        self._write()
        self._read_until(lambda: self.opened is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def begin(self, make: Callable[..., Request], *arguments: Any) -> int:
        """Send a request; returns its id."""
        self._last_id += 1
        self._machine.send(make(self._last_id, *arguments))
        self._write()
        return self._last_id

    def reply(self, request_id: int) -> AnyReply:
        """The reply to a request, waited for."""
        self._read_until(lambda: request_id in self.replies)
        return self.replies.pop(request_id)

    def ask(self, kind: type[R], make: Callable[..., Request], *arguments: Any) -> R:
        """Send a request and wait for its reply, of the given type."""
        reply = self.reply(self.begin(make, *arguments))
        assert isinstance(reply, kind), reply
        return reply

    def shut_writing_side(self) -> None:
        """End the stream to the server, and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def read_to_end(self) -> None:
        """Return the events until the server closes."""
        self._read_until(lambda: False)

    def _write(self) -> None:
        if data := b"".join(self._machine.data_to_send(0)):
            self._socket.sendall(data)

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            data = self._socket.recv(65_536)
            if not data:
                return
            self._machine.receive_data(data, 0)
            for event in self._machine.events():
                if isinstance(event, Opened):
                    self.opened = event
                elif isinstance(event, ConnectionEnded):
                    self.ended = event
                elif not isinstance(event, Push):
                    self.replies[event.request_id] = event
            self._write()
