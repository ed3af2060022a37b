"""HTTP of a standby: its health and its metrics, at the address of the gateway, which a leader alone runs.

    /healthz   200: the loop turns
    /readyz    200 if the standby could take over, else 503; the role is in the body; 503 for ?role=leader
    /metrics   figures of this standby, without a key: they name no account and no queue

Every other request is answered 503. A connection carries one request: probes and scrapes come seconds apart. The
gateway takes the address over when this broker leads; for the second between the two, connections are refused.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

from cmqd.server.binary.listener import BACKLOG
from cmqd.server.process.listening import tls_context_of
from cmqd.server.process.readiness import Readiness
from cmqd.settings import DEFAULT_HTTP_PORT, Settings, parse_address

MAX_CONNECTIONS: Final = 200
"""Connections at once; more are closed unanswered."""
MAX_HEAD_BYTES: Final = 8 * 1024
HEAD_WITHIN_S: Final = 5.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class StandbyHttp:
    """Answers requests about this standby; see the module."""

    def __init__(self, settings: Settings, readiness: Callable[[], Readiness], metrics: Callable[[], str]) -> None:
        """Take the settings, and the functions that return readiness and metrics as of now."""
        self._settings = settings
        self.readiness = readiness
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self.address: tuple[str, int] = ("", 0)
        """Host and port, once it listens."""

    async def start(self) -> None:
        """Listen. Raises OSError, ssl.SSLError."""
        host, port = parse_address(self._settings.http, DEFAULT_HTTP_PORT)
        tls = tls_context_of(self._settings)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self),
            host,
            port,
            backlog=BACKLOG,
            reuse_address=True,
            ssl=tls,
            # A connection counts from the end of its handshake on: 60 s, the default, would keep many more open.
            ssl_handshake_timeout=None if tls is None else HEAD_WITHIN_S,
        )
        self.address = self._server.sockets[0].getsockname()[:2]

    def stop(self) -> None:
        """Free the address."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()

    def made(self, connection: "_Connection") -> bool:
        """Count a connection; False if there are too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            return False
        self._open.add(connection)
        return True

    def lost(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._open.discard(connection)

    def answer(self, head: bytes) -> bytes:
        """Return the response to the head of a request."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        try:
            parts = urlsplit(target)
        except ValueError:
            return _response(400, "the target of the request is malformed")
        if method not in ("GET", "HEAD"):
            status, text, kind = 503, "this broker is a standby and serves no requests", "text/plain"
        elif parts.path == "/healthz":
            status, text, kind = 200, "ok", "text/plain"
        elif parts.path == "/readyz":
            status, text = _ready(self.readiness(), parse_qs(parts.query).get("role", []))
            kind = "text/plain"
        elif parts.path == "/metrics":
            status, text, kind = 200, self._metrics(), METRICS_TYPE
        else:
            status, text, kind = 503, "this broker is a standby and serves no requests", "text/plain"
        return _response(status, text, kind, with_body=method != "HEAD")


def _ready(readiness: Readiness, wanted_roles: list[str]) -> tuple[int, str]:
    reason = readiness.reason
    if not reason and any(wanted != readiness.role for wanted in wanted_roles):
        reason = f"the broker is a {readiness.role}"
    return 503 if reason else 200, f"{reason or 'ready'}\nrole: {readiness.role}"


_REASONS: Final = {200: "OK", 400: "Bad Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def _response(status: int, text: str, kind: str = "text/plain", *, with_body: bool = True) -> bytes:
    body = f"{text}\n".encode()
    if kind == "text/plain":
        kind = "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


class _Connection(asyncio.Protocol):
    """A connection, for one request."""

    def __init__(self, http: StandbyHttp) -> None:
        self._http = http
        self._transport: asyncio.Transport
        self._timeout: asyncio.TimerHandle | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an asyncio.Transport by inheritance: uvloop's transports are classes of their own.
        self._transport = cast("asyncio.Transport", transport)
        if self._http.made(self):
            self._timeout = asyncio.get_running_loop().call_later(HEAD_WITHIN_S, self._transport.abort)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if end:
            self._transport.write(self._http.answer(head))
        elif len(self._head) > MAX_HEAD_BYTES:
            self._transport.write(_response(431, "the head of the request is too long"))
        else:
            return
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.lost(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
