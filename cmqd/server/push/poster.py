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
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import aiohttp
import yarl
from aiohttp.client_proto import ResponseHandler

from cmqd.server.push.endpoints import AddressRefused, Allowed, CheckedResolver, Lookup, NameNotFound, refused_literal

DRAIN_BYTES: Final = 65_536
DRAIN_S: Final = 1.0
KEEP_ALIVE_S: Final = 15.0
"""Time that an idle connection is kept: longer than between two pushes of a busy topic, shorter than NATs forget."""

_MAX_URLS: Final = 4_096
_MAX_REPEATS: Final = 2


class Post:
    """A request and its result."""

    __slots__ = ("error", "is_answered", "is_fresh")

    def __init__(self) -> None:
        self.is_answered = False
        """A status came; ``error`` is final."""
        self.error: str | None = None
        """The reason of the failure; None means delivered once ``is_answered`` is set."""
        self.is_fresh = False
        """The connection in use was made for this request."""


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
        self._posts: dict[asyncio.Task[Any], Post] = {}
        """The post of every task; ``_Connector`` finds a post by the current task."""
        resolver = CheckedResolver(loop, allowed, lookup=lookup)
        self._resolver = resolver
        connector = _Connector(
            loop=loop,
            limit=0,
            limit_per_host=0,
            use_dns_cache=False,  # the resolver has a cache
            resolver=cast("Any", resolver),
            keepalive_timeout=KEEP_ALIVE_S,
            ssl=tls if tls is not None else True,
        )
        connector.posts = self._posts
        self._session = aiohttp.ClientSession(
            connector=connector,
            loop=loop,
            cookie_jar=aiohttp.DummyCookieJar(loop=loop),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            auto_decompress=False,
            trust_env=False,
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        )

    async def post(self, url: str, headers: dict[str, str], body: bytes, post: Post) -> None:
        """Post, and note the result in ``post``. Cancelling is safe: an answer that arrived stays noted."""
        target = self._target(url)
        if isinstance(target, str):
            post.error = target
            return
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._posts[task] = post
        try:
            for repeats in range(_MAX_REPEATS + 1):
                # The connector sets it again on making a connection; the last failure counts on any connection.
                post.is_fresh = repeats == _MAX_REPEATS
                try:
                    response = await self._session.post(target, data=body, headers=headers, allow_redirects=False)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as failure:
                    if post.is_fresh or isinstance(failure, aiohttp.ClientConnectorError):
                        raise
                    continue
                break
            else:
                raise AssertionError("the last repeat raises")
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as failure:
            post.error = _explained(failure)
            return
        finally:
            del self._posts[task]
        post.error = _judged(response.status)
        post.is_answered = True
        if not response.content.is_eof():
            await _drain(response)

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


class _Connector(aiohttp.TCPConnector):
    """Notes the requests that had a connection made for them; see ``Post.is_fresh``."""

    posts: dict[asyncio.Task[Any], Post]
    """By task; set after construction."""

    async def _create_connection(self, *arguments: Any, **named: Any) -> ResponseHandler:
        task = asyncio.current_task()
        post = self.posts.get(task) if task is not None else None
        if post is not None:
            post.is_fresh = True
        create = cast("Callable[..., Awaitable[ResponseHandler]]", super()._create_connection)
        return await create(*arguments, **named)


def _judged(status: int) -> str | None:
    if 200 <= status <= 299:
        return None
    if status in (301, 302, 303, 307, 308):
        return f"status {status} (redirects are not followed)"
    return f"status {status}"


async def _drain(response: aiohttp.ClientResponse) -> None:
    content = response.content
    taken = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            while taken <= DRAIN_BYTES and not content.at_eof():
                taken += len(await content.readany())
    except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
        pass
    finally:
        # If the whole body was read, the connection has returned to the pool by now and this call has no effect.
        response.close()


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
