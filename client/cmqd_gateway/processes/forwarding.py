"""Requests of the console and of ``/metrics``, which a further process passes on to the first over a Unix socket.

Sign-outs, used sign-in links, event streams, histories and figures so exist once, in the first process. These requests
are few, and a request is passed on as it arrived: the first process checks the key or the cookie, and bounds the body.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp
import yarl
from aiohttp import web

from cmqd_client.errors import ServerUnreachable
from cmqd_gateway.console.sampler import frame_of
from cmqd_gateway.console.sessions import session_cookie
from cmqd_gateway.rest.answers import error_answer
from cmqd_gateway.rest.table import BASE

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

ORIGIN: Final = "X-Cmqd-Origin"
"""Header with address and scheme of the client. The first process reads it on the Unix socket alone."""
_PATHS: Final = frozenset(
    ("/console/session", "/console/events", "/console/history", "/metrics", f"{BASE}/cmq-tcp-clients")
)
_NOT_PASSED: Final = frozenset(
    ("connection", "expect", "keep-alive", "proxy-connection", "trailer", "transfer-encoding", "upgrade")
) | {ORIGIN.lower()}
"""Headers of a connection, not of its requests."""
_EVENTS: Final = "text/event-stream"


class Forwarding:
    """Passes requests on from a further process; see the module."""

    def __init__(self, path: Path) -> None:
        """Make the object; ``path`` is the Unix socket of the first process."""
        self._session = aiohttp.ClientSession(
            # The requests in progress are as many as the connections of this process.
            connector=aiohttp.UnixConnector(str(path), limit=0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._streams: set[aiohttp.ClientResponse] = set()

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass a request on if the path or the cookie is for the first process, else have the request handled here."""
        if not _is_for_first(request):
            return await handler(request)
        headers = [*_passed(request.headers), (ORIGIN, f"{request.remote or ''} {request.scheme}")]
        response = None
        try:
            async with self._session.request(
                request.method,
                yarl.URL(f"http://first{request.rel_url.raw_path_qs}", encoded=True),
                headers=headers,
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(
                    status=answer.status, reason=answer.reason, headers=_passed(answer.headers)
                )
                await self._pass_back(request, answer, response)
                return response
        except (aiohttp.ClientError, OSError) as failure:
            if response is not None and response.prepared:
                raise ConnectionResetError("the answer of the first process ended too early") from failure
            error = ServerUnreachable("the part of the gateway for the console does not answer now; try again")
            return error_answer(request.remote, "forward", error).response()

    async def _pass_back(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        if answer.content_type == _EVENTS:
            response.force_close()
            self._streams.add(answer)
        try:
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
        except aiohttp.ClientError:
            if answer in self._streams:
                raise
            # The gateway ends, and has left the stream.
            await response.write(frame_of("bye", {"reason": "draining"}))
            await response.write_eof()
        finally:
            self._streams.discard(answer)

    def end_streams(self) -> None:
        """End the event streams: the gateway ends."""
        while self._streams:
            self._streams.pop().close()

    async def close(self) -> None:
        """Close the connections to the first process."""
        await self._session.close()


@web.middleware
async def with_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Handle a request that was passed on, with address and scheme of its client."""
    remote, _, scheme = request.headers.get(ORIGIN, "").partition(" ")
    return await handler(request.clone(remote=remote, scheme=scheme or "http"))


def remove_socket(path: Path) -> None:
    """Remove the socket of a first process that has ended."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _is_for_first(request: web.Request) -> bool:
    if request.path in _PATHS:
        return True
    # A session without a key in the header, which would come before the cookie.
    return (
        request.path.startswith(BASE) and "Authorization" not in request.headers and session_cookie(request) is not None
    )


def _passed(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers that are passed on; a header may occur several times.

    A header with bytes that are no text proves no key and no session, and could not be sent.
    """
    return [(name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED and _is_text(value)]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
