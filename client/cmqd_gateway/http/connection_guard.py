"""Limits of HTTP connections that aiohttp does not have: slow and large heads, slow readers, the number of connections.

A guard stands between the socket and aiohttp's protocol and passes all events on. The guard records the time from which
a head is incomplete, and the time from which the client does not read an answer. A check once a second over all
connections closes the late connections: no connection has a timer of its own.

The guard also counts the bytes of heads: aiohttp limits each field of a head, but a head of 128 fields may have 2 MiB,
and a client may send such a head behind a request that is being handled. A guard does not parse what aiohttp parses, so
the bytes between requests are known to about 4 KiB.

A direct door answers frequent requests before aiohttp (decision 0238).

    bytes ──► one plain request, and aiohttp owes no answer ──► the door takes it ──► answered, next bytes
                 │ no                                              │ no
                 ▼                                                 ▼
              aiohttp, for good                                 aiohttp, for this request

So at any time either aiohttp or the door has the requests of a connection, and answers keep their order. Bytes that
arrive behind a direct request wait for its end.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from enum import IntEnum
from math import inf
from typing import Any, Final, Protocol, TypeAlias, cast

from aiohttp import StreamReader, web

from cmqd_gateway.http.amounts import Amount

CHECK_SECONDS: Final = 1.0
MAX_HEAD_BYTES: Final = 65_536
"""Largest head of a request, all its fields together."""
HEADS_MEMORY_BYTES: Final = 64 << 20
"""Bytes of unfinished heads, all connections together, from which connections with more than a small head close."""
_SMALL_HEAD: Final = 16_384
_UNCERTAIN: Final = 4_096
"""Bytes between two requests that are not taken for the start of a head: the framing of chunks, blanks in fields."""
_MAX_BEHIND: Final = 65_536
"""Bytes behind a direct request from which a connection is not read from."""


class DoorAnswer(IntEnum):
    """The answer of a direct door to bytes that it does not handle now; other numbers: see ``DirectDoor``."""

    NOT_PLAIN = -1
    """The bytes are not one plain request: aiohttp handles them, and all that follow."""
    WHOLE_BODY = -2
    """The door handles the request once the rest of its body has arrived."""


Handling: TypeAlias = Coroutine[Any, Any, None]
"""Handles a request: ends with :meth:`ConnectionGuard.end_direct`, however it ends."""


class DirectDoor(Protocol):
    """Handles plain requests without aiohttp: see :mod:`cmqd_gateway.http.plain_requests`."""

    def begin(self, connection: "ConnectionGuard", data: bytes, *, may_wait: bool) -> Handling | int:
        """Return the coroutine that handles the request in these bytes.

        A number is a ``DoorAnswer``, or the answer to a plain request for aiohttp: so many bytes of its body have not
        arrived. With ``may_wait`` False, a request without its whole body is one for aiohttp.
        """
        ...

    def drop_unconfirmed(self) -> None:
        """Drop the secrets of keys that are no longer confirmed; to be called about once a second."""
        ...


class ConnectionGuard(asyncio.Protocol):
    """Passes the events of a connection on to aiohttp's protocol; see the module."""

    __slots__ = (
        "_asked_aiohttp",
        "_behind",
        "_body_left",
        "_direct",
        "_door",
        "_drained",
        "_guards",
        "_has_seat",
        "_held",
        "_inner",
        "_is_aiohttps",
        "_is_closed",
        "head_bytes",
        "head_since",
        "idle_since",
        "in_request",
        "payload",
        "stuck_since",
        "transport",
        "write",
    )

    def __init__(
        self, guards: "ConnectionGuards", inner: asyncio.Protocol, door: DirectDoor | None, *, has_seat: bool
    ) -> None:
        self._guards = guards
        self._door = door
        self._inner = inner
        self._has_seat = has_seat
        self._is_closed = False
        """True once the guard has closed the connection. Over TLS bytes still arrive then: a request in them would be
        executed, and its client would get no answer."""
        self.transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], object] = _refuse_write
        """Writes the answer to the direct request. The next request waits for :meth:`drain`."""
        self.head_since: float | None = None
        """Time of the first bytes of an incomplete head, or of the end of the request before it; None = no head has
        begun."""
        self.head_bytes = 0
        """Bytes that arrived for a head, and for the start of its body."""
        self.payload: StreamReader | None = None
        """The body of the last request, unless all of it has arrived."""
        self.stuck_since: float | None = None
        """Time from which the client does not read its answers; None = the socket takes bytes."""
        self.in_request = False
        """True while a handler is at work."""
        self.idle_since = guards.now()
        """Time of the end of the last request."""
        self._is_aiohttps = door is None
        """True once aiohttp has bytes that were not one plain request: where its next request begins is not known."""
        self._asked_aiohttp = False
        """True while aiohttp owes the answer to a plain request."""
        self._body_left = 0
        """Bytes of the body of this request that have not arrived."""
        self._held = b""
        """A plain request without its whole body, which the door handles later."""
        self._behind = b""
        """Bytes behind the direct request."""
        self._direct: asyncio.Task[None] | None = None
        """Handles the direct request."""
        self._drained: asyncio.Future[None] | None = None
        """Resolved when the socket takes bytes again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the asyncio event: a client connected."""
        # Not checked by isinstance: the transports of uvloop are no subclasses.
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write
        if not self._guards.add(self, has_seat=self._has_seat):
            self._is_closed = True
            self.transport.abort()
            return
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Handle the asyncio event: bytes arrived."""
        if self._direct is not None:
            self._wait_behind(data)
        elif not self._is_closed:
            is_held = bool(self._held)
            if is_held:
                data = self._take_held() + data
            if self._is_aiohttps or not self._take(data, is_held):
                self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        payload = self.payload
        if payload is None or payload.is_eof():
            if self._guards.count_head(self, len(data)):
                self._inner.data_received(data)
            return
        # Bytes of a body, and perhaps of the next head behind it.
        body_bytes = payload.total_bytes
        self._inner.data_received(data)
        behind = len(data) - (payload.total_bytes - body_bytes)
        if behind > _UNCERTAIN and payload.is_eof():
            self._guards.count_head(self, behind)

    def eof_received(self) -> bool | None:
        """Handle the asyncio event: the client sends no more bytes."""
        return None if self._is_closed else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Handle the asyncio event: the client does not read, and the buffer is full."""
        self.stuck_since = self._guards.now()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Handle the asyncio event: the buffer has room again."""
        self.stuck_since = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the asyncio event: the connection is closed."""
        if self._guards.remove(self):
            if self._direct is not None:
                self._direct.cancel()
            self._behind = self._held = b""
            self._inner.connection_lost(exc)

    # ------------------------------------------------------------------ direct requests

    async def drain(self) -> None:
        """Wait while the client does not read."""
        if self.stuck_since is not None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def end_direct(self, *, is_open: bool) -> None:
        """Handle the bytes behind the direct request, or with ``is_open`` False close the connection."""
        self._direct = None
        self.in_request = False
        self.idle_since = self._guards.now()
        transport = self.transport
        assert transport is not None
        if not is_open:
            self.close()
        elif self._behind and not transport.is_closing():
            if len(self._behind) > _MAX_BEHIND:
                transport.resume_reading()
            data, self._behind = self._behind, b""
            self._guards.forget_head(self)
            self.data_received(data)

    def close(self) -> None:
        """Close the connection once the client has its answers."""
        self._is_closed = True
        assert self.transport is not None
        self.transport.close()

    def aiohttp_answered(self) -> None:
        """Note that aiohttp's answer is written, and that the connection stays open."""
        self._asked_aiohttp = bool(self._body_left)
        self.idle_since = self._guards.now()

    def pass_held(self) -> None:
        """Pass a held request on to aiohttp, which has the limits of time for a body."""
        if self._held:
            self._asked_aiohttp, self._is_aiohttps = True, True
            self._pass_on(self._take_held())

    @property
    def remote(self) -> str | None:
        """IP address of the client."""
        name = None if self.transport is None else self.transport.get_extra_info("peername")
        return str(name[0]) if name else None

    @property
    def direct(self) -> "asyncio.Task[None] | None":
        """The task that handles a direct request; None without one."""
        return self._direct

    def _take(self, data: bytes, is_held: bool) -> bool:
        """Return True if these bytes are not for aiohttp. ``is_held``: they begin with bytes that were held."""
        if self._asked_aiohttp:
            # The rest of a body, or a request that does not wait for the answer to the former.
            self._body_left -= len(data)
            self._is_aiohttps = self._body_left < 0
            return False
        door = self._door
        assert door is not None
        begun = door.begin(self, data, may_wait=not is_held)
        if not isinstance(begun, int):
            self.in_request = True
            self._direct = asyncio.get_running_loop().create_task(begun)
            return True
        if begun == DoorAnswer.WHOLE_BODY:
            if self._guards.count_head(self, len(data)):
                self._held = data
            return True
        if begun == DoorAnswer.NOT_PLAIN:
            self._is_aiohttps = True
        else:
            self._asked_aiohttp, self._body_left = True, begun
        return False

    def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        self._guards.forget_head(self)
        return held

    def _wait_behind(self, data: bytes) -> None:
        if self._guards.count_head(self, len(data)):
            had_room = len(self._behind) <= _MAX_BEHIND
            self._behind += data
            if had_room and len(self._behind) > _MAX_BEHIND:
                assert self.transport is not None
                self.transport.pause_reading()


class ConnectionGuards:
    """The guards of all connections."""

    def __init__(
        self,
        max_connections: int,
        slow_seconds: float,
        now: Callable[[], float] = time.monotonic,
        idle_seconds: float = inf,
        connections: Amount | None = None,
        heads: Amount | None = None,
    ) -> None:
        """Make the guards.

        Args:
            max_connections: connections at once; further connections are closed at once.
            slow_seconds: time for a head, and for a client that does not read.
            now: the clock, in seconds.
            idle_seconds: time between two requests.
            connections: open connections, those of other protocols and seats included.
            heads: bytes of unfinished heads.
        """
        self._connections = connections or Amount()
        self._heads = heads or Amount()
        self._idle_seconds = idle_seconds
        self._max_connections = max_connections
        self._slow_seconds = slow_seconds
        self.now = now
        self._guards: dict[asyncio.BaseTransport, ConnectionGuard] = {}
        self.refused: int = 0
        """Connections that were closed because there were too many."""
        self.closed_as_slow: int = 0
        self.closed_for_memory: int = 0
        """Connections that were closed because of the memory of unfinished heads."""
        self.arriving: int = 0
        """Seats of sockets in the TLS handshake: they count among the connections."""
        self.other_connections: int = 0
        """Open connections of other protocols than HTTP: they count among the connections too."""

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._guards)

    @property
    def head_bytes(self) -> int:
        """Bytes of unfinished heads, all connections together."""
        return self._heads.held

    def reserve(self) -> bool:
        """Take a seat for a socket before its TLS handshake; False if there are too many connections."""
        if not self._take_seat():
            return False
        self.arriving += 1
        return True

    def release(self) -> None:
        """Give a seat back: the handshake ended."""
        self.arriving -= 1
        self._connections.add(-1)

    def add_other(self) -> bool:
        """Count a connection of another protocol; False if there are too many."""
        if not self._take_seat():
            return False
        self.other_connections += 1
        return True

    def remove_other(self) -> None:
        """Stop counting a connection of :meth:`add_other`."""
        self.other_connections -= 1
        self._connections.add(-1)

    def add(self, guard: ConnectionGuard, *, has_seat: bool) -> bool:
        """Register a connection, in place of its seat if it has one; False if there are too many."""
        if has_seat:
            self.arriving -= 1
        elif not self._take_seat():
            return False
        assert guard.transport is not None
        self._guards[guard.transport] = guard
        return True

    def remove(self, guard: ConnectionGuard) -> bool:
        """Forget a connection that is closed; False if it was refused."""
        assert guard.transport is not None
        self._set_head(guard, 0)
        if self._guards.pop(guard.transport, None) is None:
            return False
        self._connections.add(-1)
        return True

    def count_head(self, guard: ConnectionGuard, size: int) -> bool:
        """Count bytes that are no part of a known body; False if the connection was closed for them."""
        if guard.head_bytes <= _SMALL_HEAD:
            self._heads.add(size)
        elif not self._heads.take(size, HEADS_MEMORY_BYTES):
            self.closed_for_memory += 1
            assert guard.transport is not None
            guard.transport.abort()
            return False
        guard.head_bytes += size
        if guard.head_since is None:
            guard.head_since = self.now()
        return True

    @property
    def connections_in_request(self) -> int:
        """Number of connections with a handler at work."""
        return sum(guard.in_request for guard in self._guards.values())

    @property
    def partial_heads(self) -> int:
        """Number of connections with a part of a head."""
        return sum(guard.head_since is not None for guard in self._guards.values())

    def make(
        self, inner: asyncio.Protocol, door: DirectDoor | None = None, *, has_seat: bool = False
    ) -> ConnectionGuard:
        """Return a guard for a new connection.

        Args:
            inner: aiohttp's protocol.
            door: handles the frequent requests; None = aiohttp handles all.
            has_seat: the connection takes the place of a seat of :meth:`reserve`.
        """
        return ConnectionGuard(self, inner, door, has_seat=has_seat)

    def begin_request(self, request: web.BaseRequest) -> bool:
        """Note that a handler begins: the head is complete. The handler limits the time of the body.

        Returns:
            False if the head is too large.
        """
        guard = self._guard_of(request)
        if guard is None:
            return True
        guard.in_request = True
        payload = request.content
        guard.payload = None if payload.is_eof() else payload
        received = guard.head_bytes
        if received <= _UNCERTAIN:
            self._set_head(guard, 0)
            return True
        head = _head_bytes(request)
        behind = received - head - payload.total_bytes
        # A further head, or a further request, arrived with this request.
        self._set_head(guard, behind if behind > _UNCERTAIN else 0)
        return head <= MAX_HEAD_BYTES

    def end_request(self, request: web.BaseRequest) -> None:
        """Note that a handler ended."""
        guard = self._guard_of(request)
        if guard is not None:
            guard.in_request = False
            guard.idle_since = self.now()
            if guard.payload is not None and guard.payload.is_eof():
                guard.payload = None
            if guard.head_since is not None:
                # The time of the handler is not the client's: the next request waited for its turn.
                guard.head_since = self.now()

    def answered(self, request: web.BaseRequest) -> None:
        """Note that a handler's answer is written, and that the connection stays open."""
        guard = self._guard_of(request)
        if guard is not None:
            guard.aiohttp_answered()

    def forget_head(self, guard: ConnectionGuard) -> None:
        """Count the bytes of a head no more: they are a part of a request."""
        self._set_head(guard, 0)

    async def end_direct(self, seconds: float) -> None:
        """Wait for the direct requests in progress, and cancel those that take longer."""
        if tasks := [guard.direct for guard in self._guards.values() if guard.direct is not None]:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()

    def _take_seat(self) -> bool:
        if not self._connections.take(1, self._max_connections):
            self.refused += 1
            return False
        return True

    def _guard_of(self, request: web.BaseRequest) -> ConnectionGuard | None:
        transport = request.transport
        return None if transport is None else self._guards.get(transport)

    def _set_head(self, guard: ConnectionGuard, size: int) -> None:
        self._heads.add(size - guard.head_bytes)
        guard.head_bytes = size
        guard.head_since = self.now() if size else None

    def close_slow(self) -> None:
        """Close the connections with a late or idle client; to be called about once a second."""
        latest = self.now() - self._slow_seconds
        latest_idle = self.now() - self._idle_seconds
        for guard in list(self._guards.values()):
            if guard.head_since is None and guard.stuck_since is None:
                # Nearly all connections, without a call: 20,000 of them hold up the loop together.
                if guard.idle_since <= latest_idle and not guard.in_request:
                    guard.close()
                continue
            guard.pass_held()
            head_since = None if guard.in_request else guard.head_since
            is_late = any(since is not None and since <= latest for since in (head_since, guard.stuck_since))
            if is_late and guard.transport is not None:
                self.closed_as_slow += 1
                guard.transport.abort()


def _head_bytes(request: web.BaseRequest) -> int:
    """Return the size of the head of a request, without further blanks that the head may have had."""
    line = len(request.method) + len(request.raw_path) + len("  HTTP/1.1\r\n\r\n")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in request.raw_headers)


def _refuse_write(data: bytes) -> object:
    raise ConnectionResetError("the connection is not open")
