"""A link between clients and a server that fails to order: a proxy that reads the frames that it passes on.

    link.lose_answer(SendMessages)      the server carries the request out; the connection drops instead of the answer
    link.drop_request(SendMessages)     the connection drops before the request reaches the server
    link.ignore(SendMessages)           the request reaches no server, and gets no answer
    link.refuse(SendMessages, code)     the link answers with an error
    link.answer(kind, function)         the link answers with the result of the function (None: no answer)
    link.hold(), link.let_go()          answers wait in the link
    link.stop(), link.start()           no server in reach, for a while

A fault is for the next request of its kind; all other bytes pass unchanged. Frames are neither signed nor encrypted
after the handshake, so client and server notice no difference.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

import msgspec

from cmqd_protocol import messages as wire
from cmqd_protocol.features import ADDRESSES_FACT, EPOCH_FACT, FEATURES_FACT, SHARD_FACT
from cmqd_protocol.frames import frame
from cmqd_protocol.limits import HEADER_BYTES, PREAMBLE_BYTES
from cmqd_protocol.protocol_errors import ErrorCode
from support.closing_listeners import close_listener
from support.processes.silent_port import reserve_port

_HELLO = 2
"""The second piece of a client; all later pieces but heartbeats are requests."""
_WELCOME = 3
"""The third piece of a server, behind its preamble and its hello: the welcome, or an error in its place."""

Fault: TypeAlias = "Callable[[LinkConnection, Any], wire.AnyReply | None]"
"""Takes the place of passing a request on; returns an answer, or None for no answer."""


class _Cutter:
    """Cuts a direction of a connection into its preamble and its frames."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._has_preamble = False

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the preamble and each frame with its header, as they are complete."""
        self._data += data
        while len(self._data) >= (size := self._size()):
            piece = bytes(self._data[:size])
            del self._data[:size]
            self._has_preamble = True
            yield piece

    def _size(self) -> int:
        if not self._has_preamble:
            return PREAMBLE_BYTES
        if len(self._data) < HEADER_BYTES:
            return HEADER_BYTES
        return HEADER_BYTES + int.from_bytes(self._data[:HEADER_BYTES], "big")


class _Upstream(asyncio.Protocol):
    """The server's end of a connection."""

    def __init__(self, connection: "LinkConnection") -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection.take_from_server(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.server_closed()


class LinkConnection(asyncio.Protocol):
    """A connection through the link, from its client's end."""

    def __init__(self, link: "FaultyLink") -> None:
        self._link = link
        self._from_client = _Cutter()
        self._from_server = _Cutter()
        self._pieces_of_client = 0
        self._pieces_of_server = 0
        self._upstream: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """Pieces that came before the link was connected to the server."""
        self._to_lose: set[int] = set()
        """Requests with an answer to lose."""
        self._connecting: asyncio.Task[None] | None = None
        self.requests: list[wire.Request | wire.Cancel] = []
        self.reads = 0
        """Wake-ups by data from the client."""
        self.is_open = False
        """True once the server's welcome has passed."""
        self.is_mute = False
        """Set by a test: nothing passes to the client any more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._link.connections_made += 1
        self._link.connections.append(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        host, port = self._link.server_address
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: _Upstream(self), host, port)
        self._upstream = transport
        if self.transport.is_closing():
            transport.abort()
        else:
            transport.writelines(self._early)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        for piece in self._from_client.cut(data):
            self._pieces_of_client += 1
            if self._pieces_of_client <= _HELLO or len(piece) == HEADER_BYTES:
                self.to_server(piece)
            else:
                try:
                    request = wire.request_decoder.decode(piece[HEADER_BYTES:])
                except msgspec.ValidationError:
                    # A value that the wire refuses: the server says so.
                    self.to_server(piece)
                    continue
                self.requests.append(request)
                self._link.handle(self, request, piece)

    def pass_on(self, request: wire.Request | wire.Cancel) -> None:
        """Pass a request on to the server."""
        self.to_server(frame(wire.encoder.encode(request)))

    def to_server(self, piece: bytes) -> None:
        """Pass a piece on to the server, or keep it until the link is connected to the server."""
        if self._upstream is None:
            self._early.append(piece)
        else:
            self._upstream.write(piece)

    def take_from_server(self, data: bytes) -> None:
        for piece in self._from_server.cut(data):
            self._pieces_of_server += 1
            if self._pieces_of_server == _WELCOME:
                self.to_client(self._link.changed_welcome(piece))
                self.is_open = True
            elif self._pieces_of_server < _WELCOME or len(piece) == HEADER_BYTES:
                self.to_client(piece)
            elif (request_id := _request_id(piece)) in self._to_lose:
                self.drop()
            elif self._link.is_holding:
                self._link.held.append((self, piece))
            else:
                self.to_client(piece)
                self._link.answered.append(request_id)

    def answer(self, message: wire.AnyReply | wire.Push) -> None:
        """Send a message of the link's own to the client."""
        self.to_client(frame(wire.encoder.encode(message)))

    def to_client(self, piece: bytes) -> None:
        """Pass a piece on to the client."""
        if not self.transport.is_closing() and not self.is_mute:
            self.transport.write(piece)

    def lose_answer(self, request: wire.Request | wire.Cancel) -> None:
        """Pass a request on, and drop the connection at its answer."""
        self._to_lose.add(request.request_id)
        self.pass_on(request)

    def drop(self) -> None:
        """Lose the connection at once, with all that is on its way."""
        self.transport.abort()

    def server_closed(self) -> None:
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._link.connections:
            self._link.connections.remove(self)
        if self._upstream is not None:
            self._upstream.abort()


def _drop(connection: LinkConnection, _: object) -> None:
    connection.drop()


def _ignore(_: LinkConnection, __: object) -> None:
    pass


def _request_id(piece: bytes) -> int:
    message = wire.reply_decoder.decode(piece[HEADER_BYTES:])
    return 0 if isinstance(message, wire.Push) else message.request_id


class FaultyLink:
    """See the module."""

    def __init__(self, server_address: tuple[str, int]) -> None:
        self.server_address = server_address
        # Another program could otherwise get the port between ``stop`` and ``start``.
        self._reservation = reserve_port()
        self.port: int = self._reservation.getsockname()[1]
        """Port of the link, the same at each ``start``."""
        self.features: Iterable[str] | None = None
        """Features named to connections made from now on, as by an older server; None = the server's own."""
        self.addresses: list[str] = []
        """Addresses of the log that the welcome names to connections made from now on."""
        self.epoch = 0
        self.shard = 0
        """Epoch that the welcome names to connections made from now on; 0 = the server's own."""
        self.refusal: wire.Error | None = None
        """Sent in place of a welcome; None = the welcome passes."""
        self.connections: list[LinkConnection] = []
        self.connections_made = 0
        self.handled: list[wire.Request | wire.Cancel] = []
        """Every request of every connection, in order, passed on or not."""
        self.answered: list[int] = []
        """Requests with an answer of the server that passed, in the order of the answers."""
        self.is_holding = False
        self.held: list[tuple[LinkConnection, bytes]] = []
        """Answers that wait for ``let_go``."""
        self._faults: defaultdict[type[Any], deque[Fault]] = defaultdict(deque)
        self._arrived = asyncio.Event()
        self._listener: asyncio.Server | None = None

    @property
    def connection(self) -> LinkConnection:
        """The only connection."""
        (connection,) = self.connections
        return connection

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: LinkConnection(self), "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._listener is not None:
            await close_listener(self._listener)
            for connection in list(self.connections):
                connection.drop()
            await self._listener.wait_closed()
            self._listener = None

    async def close(self) -> None:
        """Stop, for the last time."""
        await self.stop()
        self._reservation.close()

    # ------------------------------------------------------------------ requests that passed

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the requests of a kind, in order."""
        return [request for request in self.handled if type(request) is kind]

    async def wait_handled(self, kind: type[Any], count: int = 1) -> None:
        """Wait until ``count`` requests of a kind have come."""
        while len(self.of(kind)) < count:
            self._arrived.clear()
            await self._arrived.wait()

    # ------------------------------------------------------------------ faults

    def answer(self, kind: type[Any], *faults: Fault) -> None:
        """Handle the next requests of a kind in other ways, a function for each."""
        self._faults[kind].extend(faults)

    def carry_out(self, kind: type[Any], times: int = 1) -> None:
        """Pass the next requests of a kind on, before any later fault."""
        self.answer(kind, *[LinkConnection.pass_on] * times)

    def lose_answer(self, kind: type[Any], times: int = 1) -> None:
        """See the module, as for the other faults."""
        self.answer(kind, *[LinkConnection.lose_answer] * times)

    def drop_request(self, kind: type[Any], times: int = 1) -> None:
        self.answer(kind, *[_drop] * times)

    def ignore(self, kind: type[Any], times: int = 1) -> None:
        self.answer(kind, *[_ignore] * times)

    def refuse(
        self,
        kind: type[Any],
        code: ErrorCode,
        text: str = "refused",
        *,
        times: int = 1,
        retry_after_ms: int | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        def refused(_: LinkConnection, request: wire.Request) -> wire.AnyReply:
            return wire.error(request.request_id, code, text, retry_after_ms=retry_after_ms, details=details)

        self.answer(kind, *[refused] * times)

    def hold(self) -> None:
        """Keep all further answers until ``let_go``."""
        self.is_holding = True

    def let_go(self) -> None:
        self.is_holding = False
        held, self.held = self.held, []
        for connection, piece in held:
            connection.to_client(piece)

    # ------------------------------------------------------------------ called by connections

    def handle(self, connection: LinkConnection, request: wire.Request | wire.Cancel, piece: bytes) -> None:
        self.handled.append(request)
        self._arrived.set()
        faults = self._faults[type(request)]
        if not faults:
            connection.to_server(piece)
        elif (reply := faults.popleft()(connection, request)) is not None:
            connection.answer(reply)

    def changed_welcome(self, piece: bytes) -> bytes:
        """Return the frame that goes in place of a welcome."""
        if self.refusal is not None:
            return frame(wire.encoder.encode(self.refusal))
        message = wire.welcome_decoder.decode(piece[HEADER_BYTES:])
        if isinstance(message, wire.Error) or (self.features is None and not self.addresses and not self.epoch):
            return piece
        # The server's proof does not cover the facts.
        facts = dict(message.facts)
        if self.features is not None:
            facts[FEATURES_FACT] = list(self.features)
        if self.addresses:
            facts[ADDRESSES_FACT] = self.addresses
        if self.epoch:
            facts |= {EPOCH_FACT: self.epoch, SHARD_FACT: self.shard}
        return frame(wire.encoder.encode(msgspec.structs.replace(message, facts=facts)))
