"""``/console/events``, the event stream of a page, and ``/console/history``, the last hours for its plots.

    event       when                                  data
    hello       first                                 account, roles, names of the series, seconds of the ranges
    broker      first, and at each change             is_away, since
    figures     every 2 s                             values of all series, newest bucket, counts, server, forecast
    top         every 2 to 10 s                       the queues with the most messages, with rates
    findings    with ``top``                          the present findings
    bye         last                                  the reason: session_ended, key_changed or draining

A comment every 15 s keeps proxies from closing the stream, and with it the session is checked. A key without the role
``read``, or without the pattern ``*``, gets ``hello``, ``broker`` and ``bye`` alone.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from cmqd_client.errors import ClientClosed, CmqError
from cmqd_gateway.broker.broker_connections import TooManyKeysInUse
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.console.history import NAMES, RANGES, Part
from cmqd_gateway.console.sampler import TooManyAccounts, frame_of
from cmqd_gateway.console.sessions import SESSION_SECONDS
from cmqd_gateway.console.streams import Access, Opener, Stream, TooManyStreams
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.rest.authentication import Authenticated, authenticate, keep_session
from cmqd_gateway.rest.problems import CONTENT_TYPE, ProblemError, invalid, of_code, problem_of
from cmqd_protocol.protocol_errors import ErrorCode

HEARTBEAT_SECONDS: Final = 15.0
COMPRESSED_BYTES: Final = 1_024
"""Size from which a thread compresses an answer."""
RETRY_MS: Final = 2_000
"""Time after which a browser connects again."""
_BEAT: Final = b": beat\n\n"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # A proxy that collects an answer before it passes it on would hold the events back.
    "X-Accel-Buffering": "no",
}


class Hello(msgspec.Struct, frozen=True):
    """The first event of a stream."""

    account: str
    is_admin: bool
    reads_figures: bool
    is_kept: bool
    """True if the gateway reads the account also while no page is open, with a key of its own."""
    series: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]
    """By name: the seconds of a range and of its buckets."""
    time: float
    """The gateway's clock, in seconds since 1970."""


def routes(gateway: Gateway) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of the event stream and of the history."""
    events = _Events(gateway)
    # Without HEAD: a stream has no length.
    yield web.get("/console/events", events.stream, allow_head=False)
    yield web.get("/console/history", events.history, allow_head=False)


class _Events:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.heartbeat_seconds = HEARTBEAT_SECONDS

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the session or the gateway ends, or the client has gone."""
        gateway = self._gateway
        try:
            caller = await self._caller(request)
            key, session = caller
            gateway.streams.check_room(key.secret_id)
            access = await read_access(gateway, key)
            # The cookie of this request ends sooner than the cookies of later requests. The browser then opens the
            # stream again with its present cookie, if it has one.
            opener = (
                Opener(key)
                if session is None
                else Opener(key, session.text.nonce, min(session.text.ends, session.text.began + SESSION_SECONDS))
            )
            stream = Stream(opener, access, gateway.now())
            gateway.streams.open(stream)
        except TooManyStreams as full:
            return _refusal(of_code(ErrorCode.TOO_MANY_CONNECTIONS, str(full)))
        except ProblemError as refusal:
            if refusal.problem.status == 401:
                await gateway.pause_refusal(request, refusal)
            return _refusal(refusal)
        feed = None
        try:
            response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
            response.force_close()
            if access.reads_figures:
                try:
                    feed = gateway.sampler.join(access.account, stream)
                except TooManyAccounts:
                    text = "pages of many accounts are open; try again later"
                    return _refusal(of_code(ErrorCode.TOO_MANY_CONNECTIONS, text))
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % RETRY_MS + self._hello(access))
            await self._send(response, stream)
            return response
        finally:
            if feed is not None:
                gateway.sampler.leave(feed, stream)
            gateway.streams.close(stream)

    async def history(self, request: web.Request) -> web.StreamResponse:
        """Answer with a range of the history of the key's account, which may be empty."""
        gateway = self._gateway
        try:
            caller = await self._caller(request)
            name = request.query.get("range", "1h")
            if name not in RANGES:
                text = f"the range is {name[:20]!r}; the ranges are {', '.join(RANGES)}"
                raise invalid("range", text)
            access = await read_access(gateway, caller.key)
            if not access.reads_figures:
                text = "the figures of an account need a key with the role read and the names '*'"
                raise of_code(ErrorCode.PERMISSION_DENIED, text)
        except ProblemError as refusal:
            if refusal.problem.status == 401:
                await gateway.pause_refusal(request, refusal)
            return _refusal(refusal)
        feed = gateway.sampler.find(access.account)
        now = gateway.wall_clock()
        part = Part(0, RANGES[name][1], {}) if feed is None else feed.history.read(name, now)
        # Compressed by a thread: most of a history is empty, and the zeros of an hour are 90 KB.
        response = web.Response(
            body=msgspec.json.encode(part),
            content_type="application/json",
            headers={**_HEADERS, "Vary": "Accept-Encoding"},
            zlib_executor_size=COMPRESSED_BYTES,
        )
        response.enable_compression()
        # A page that shows figures is in use: its session goes on.
        keep_session(gateway, request, response, caller)
        return response

    # ------------------------------------------------------------------ inside

    async def _caller(self, request: web.Request) -> Authenticated:
        """Return the key of a request, and its session.

        Raises:
            ProblemError: the request proves no key, or the key makes too many requests, or the gateway is ending.
        """
        gateway = self._gateway
        if gateway.is_draining:
            raise of_code(ErrorCode.SHUTTING_DOWN, "the gateway is shutting down")
        try:
            return await authenticate(gateway, request)
        except CmqError as error:
            raise _problem(error) from None

    def _hello(self, access: Access) -> bytes:
        gateway = self._gateway
        return frame_of(
            "hello",
            Hello(
                access.account,
                access.is_admin,
                access.reads_figures,
                access.is_admin and gateway.sampler.reads_unwatched,
                NAMES,
                dict(RANGES),
                gateway.wall_clock(),
            ),
        )

    async def _send(self, response: web.StreamResponse, stream: Stream) -> None:
        while True:
            if stream.must_check:
                stream.must_check = False
                await self._check(stream)
            # Frames of before the end, too: they say that the broker is away.
            frames = b"" if stream.ended in ("session_ended", "key_changed") else stream.take()
            if stream.ended is not None:
                await response.write(frames + frame_of("bye", {"reason": stream.ended}))
                return
            if frames:
                # Waits while the client does not read; the guard of the connection ends the wait.
                await response.write(frames)
            stream.wake.clear()
            if stream.ended is not None or stream.must_check or stream.has_unsent:
                # Came while the frames were written.
                continue
            try:
                async with asyncio.timeout(self.heartbeat_seconds):
                    await stream.wake.wait()
            except TimeoutError:
                await response.write(_BEAT)
            if self._is_check_due(stream):
                stream.must_check = True

    def _is_check_due(self, stream: Stream) -> bool:
        now = self._gateway.now()
        if now - stream.checked_at < self.heartbeat_seconds:
            return False
        stream.checked_at = now
        return True

    async def _check(self, stream: Stream) -> None:
        """End a stream whose session has ended, or whose key has other permissions than at the opening."""
        gateway = self._gateway
        expires_at = stream.caller.expires_at
        if expires_at is not None and gateway.wall_clock() >= expires_at:
            stream.end("session_ended")
            return
        # While the broker is away there are no figures to hide. When it is back, all streams are checked.
        with contextlib.suppress(CmqError, TooManyUnknownIds, ProblemError):
            key = await gateway.secrets.find(stream.key.secret_id, None)
            if key is None or not key.enabled or key.secret_key != stream.key.secret_key:
                stream.end("session_ended")
            elif await read_access(gateway, key) != stream.access:
                stream.end("key_changed")


async def read_access(gateway: Gateway, key: KeySecret) -> Access:
    """Ask the broker for the permissions of a key.

    Raises:
        ProblemError: the broker refused or did not answer.
    """
    try:
        async with gateway.connections.client(key) as client:
            own = await client.accounts.own_key()
    except ClientClosed:
        raise of_code(ErrorCode.SHUTTING_DOWN, "the gateway is shutting down") from None
    except TooManyKeysInUse as full:
        raise of_code(ErrorCode.TOO_MANY_CONNECTIONS, str(full)) from None
    except CmqError as error:
        raise _problem(error) from None
    return Access(own.account, own.is_admin, tuple(own.roles), tuple(own.names))


def _problem(error: CmqError) -> ProblemError:
    return ProblemError(problem_of(error.with_traceback(None)))


def _refusal(refusal: ProblemError) -> web.Response:
    problem = refusal.problem
    headers = {**_HEADERS, **refusal.headers}
    if problem.status in (429, 503):
        headers["Retry-After"] = "5"
    return web.Response(
        status=problem.status, body=msgspec.json.encode(problem), content_type=CONTENT_TYPE, headers=headers
    )
