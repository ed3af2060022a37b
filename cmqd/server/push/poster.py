"""A POST request with aiohttp, and its failure as a short line. ``cmqd.server.push.pusher`` alone imports this module,
and only where aiohttp is installed.

- The status of an answer decides, as soon as the headers have arrived. The body is then read for at most ``DRAIN_S``
  and ``DRAIN_BYTES``, so that the connection can be used again; the connection of a longer body is closed.
- Redirects are not followed: the subscriber never agreed to the address behind a redirect. They are failures like any
  other status.
- No proxies, no cookies, no netrc, no decompression: neither the environment nor an earlier answer has influence.
- The endpoint may close a kept connection at the moment of its next use. That failure says little about the endpoint,
  therefore the same request goes out once more on a second connection, within the same time. On a fresh connection
  the failure counts.
- The head of an answer is bounded (8 KiB a line, 128 lines: since aiohttp 3.14), as is the buffered part of a body.
"""

import asyncio
import os
import ssl
from types import SimpleNamespace
from typing import Any, Final, cast

import aiohttp
import yarl

from cmqd.server.push.allowed_addresses import (
    AddressRefused,
    Allowed,
    CheckedResolver,
    Lookup,
    NameNotFound,
    refused_literal,
)

DRAIN_BYTES: Final = 65_536
DRAIN_S: Final = 1.0
KEEP_ALIVE_S: Final = 15.0
"""Time that an idle connection is kept: longer than between two pushes of a busy topic, shorter than NATs forget."""

_MAX_URLS: Final = 4_096
_MAX_REPEATS: Final = 2


class Poster:
    """The HTTP session of a broker, for all endpoints. The caller limits the number of requests in progress."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        allowed: Allowed,
        *,
        lookup: Lookup,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._urls: dict[str, yarl.URL | str] = {}
        """Per URL: its parsed form, or the reason to refuse it."""
        resolver = CheckedResolver(loop, allowed, lookup=lookup)
        self._resolver = resolver
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(_note_fresh)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                loop=loop,
                limit=0,
                limit_per_host=0,
                use_dns_cache=False,  # the resolver has a cache
                resolver=cast("Any", resolver),
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=tls if tls is not None else True,
            ),
            trace_configs=[trace],
            loop=loop,
            cookie_jar=aiohttp.DummyCookieJar(loop=loop),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            auto_decompress=False,
            trust_env=False,
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        )

    async def post(
        self, url: str, headers: dict[str, str], body: bytes
    ) -> tuple[str | None, aiohttp.ClientResponse | None]:
        """Return the reason of the failure, None for a delivery, and the answer if one came; to be drained."""
        target = self._target(url)
        if isinstance(target, str):
            return target, None
        repeats = 0
        while True:
            connection = SimpleNamespace(is_fresh=False)
            try:
                response = await self._session.post(
                    target, data=body, headers=headers, allow_redirects=False, trace_request_ctx=connection
                )
                return _judged(response.status), response
            except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as failure:
                _drop_frames(failure)
                is_stale = (
                    isinstance(failure, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
                    and not isinstance(failure, aiohttp.ClientConnectorError)
                    and not connection.is_fresh
                )
                if not is_stale or repeats == _MAX_REPEATS:
                    return _explained(failure), None
                repeats += 1

    async def drain(self, response: aiohttp.ClientResponse | None) -> None:
        """Read the rest of an answer; see the module."""
        if response is None or response.content.is_eof():
            return
        content = response.content
        size = 0
        try:
            async with asyncio.timeout(DRAIN_S):
                while size <= DRAIN_BYTES and not content.at_eof():
                    size += len(await content.readany())
        except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
            pass
        finally:
            # If the whole body was read, the connection has returned to the pool by now and this call has no effect.
            response.close()

    async def close(self) -> None:
        """Close every connection. No request may be in progress."""
        await self._session.close()
        await self._resolver.close()

    def _target(self, url: str) -> yarl.URL | str:
        target = self._urls.get(url)
        if target is None:
            if len(self._urls) >= _MAX_URLS:
                self._urls.clear()
            try:
                # Unchanged: a URL may be signed, and to normalise a signed URL would break the signature.
                target = yarl.URL(url, encoded=True)
                target = refused_literal(target.raw_host or "", self._allowed) or target
            except ValueError:
                target = "the URL cannot be used"
            self._urls[url] = target
        return target


async def _note_fresh(session: aiohttp.ClientSession, context: SimpleNamespace, created: object) -> None:
    """Note that a connection is being made for a request."""
    context.trace_request_ctx.is_fresh = True


def _judged(status: int) -> str | None:
    if 200 <= status <= 299:
        return None
    if status in (301, 302, 303, 307, 308):
        return f"status {status} (redirects are not followed)"
    return f"status {status}"


def _drop_frames(failure: BaseException) -> None:
    """Take the tracebacks from a failure and from its causes.

    Frames of aiohttp hold the exception that they raise, and the traceback holds these frames and the body of the push:
    a cycle that keeps the body in memory until a garbage collection, for every attempt at an endpoint that is down.
    """
    cause: BaseException | None = failure
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__


def _explained(failure: Exception) -> str:
    """Return a short line for the operator; never any part of headers or body."""
    if isinstance(failure, aiohttp.ClientConnectorCertificateError):
        reason = failure.certificate_error
        detail = getattr(reason, "verify_message", "") or str(reason)
        return f"TLS: certificate refused: {_shortened(detail)}"
    if isinstance(failure, aiohttp.ClientConnectorError):
        return _explained_os_error(failure.os_error)
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer"
    if isinstance(failure, aiohttp.ClientResponseError):
        return "the answer is not valid HTTP, or its head is too large"
    if isinstance(failure, OSError):
        return _explained_os_error(failure)
    if isinstance(failure, aiohttp.InvalidURL):
        return "the URL cannot be used"
    return f"failed: {type(failure).__name__}"


def _explained_os_error(failure: OSError) -> str:
    if isinstance(failure, AddressRefused | NameNotFound):
        return str(failure)
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"TLS: certificate refused: {_shortened(failure.verify_message)}"
    if isinstance(failure, ssl.SSLError):
        return f"TLS: {_shortened((failure.reason or 'failed').replace('_', ' ').lower())}"
    if failure.errno is not None and failure.errno > 0:
        return os.strerror(failure.errno).lower()
    return "connection reset" if isinstance(failure, ConnectionError) else f"failed: {type(failure).__name__}"


def _shortened(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line if len(line) <= 120 else line[:117] + "..."
