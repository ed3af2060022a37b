"""One connection of the fake server."""

import asyncio
import os
from typing import TYPE_CHECKING, cast

from cmqd_protocol import messages as wire
from cmqd_protocol.connection import ServerConnection
from cmqd_protocol.events import Authenticated, ConnectionEnded, RequestRefused
from support.fake_server.state import now_ms

if TYPE_CHECKING:
    from support.fake_server.listener import Listener


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "Listener") -> None:
        self.server = server
        self.number = server.connections_made + 1
        self.requests: list[wire.Request | wire.Cancel] = []
        self.reads = 0
        self.wire = ServerConnection(
            nonce=os.urandom(32),
            find_key=server.find_key,
            region=server.region,
            connection_id=self.number,
            now_ms=now_ms(),
            product="fake/1",
            heartbeat_ms=server.heartbeat_ms,
            features=server.features,
            count_refusal=lambda _account: server.count_refusal,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.connections_made += 1
        self.server.peers.append(self)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.wire.receive_data(data, now_ms())
        for event in self.wire.events():
            if isinstance(event, ConnectionEnded):
                self.flush()
                self.transport.close()
                return
            if isinstance(event, (Authenticated, RequestRefused)):
                continue
            self.requests.append(event)
            self.server.handle(self, event)
        self.flush()

    def answer(self, reply: wire.AnyReply) -> None:
        if self.wire.is_open:
            self.wire.send(reply)
            self.flush()

    def flush(self) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(self.wire.data_to_send(now_ms()))

    def drop(self) -> None:
        """Lose the connection at once, with what was not written."""
        self.wire.closed()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire.closed()
        if self in self.server.peers:
            self.server.peers.remove(self)
        for queue in self.server.queues.values():
            queue.waiting = [(peer, request) for peer, request in queue.waiting if peer is not self]
            if self in queue.checkers:
                queue.checkers.remove(self)
