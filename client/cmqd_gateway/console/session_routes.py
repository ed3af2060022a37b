"""The routes of sessions: sign in, the session with its key, sign out.

    POST   /console/session   {"secret_id": .., "secret_key": ..} or {"token": ..}: sets the cookie
    GET    /console/session   the key of the session with its roles, and the token against forged requests
    DELETE /console/session   ends the session

Refusals are problems, as those of the JSON API.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

import msgspec
from aiohttp import web

from cmqd_gateway.broker.broker_connections import TooManyKeysInUse
from cmqd_gateway.callers.caller import NotAuthenticated, key_of_pair
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.console.sessions import (
    SESSION_SECONDS,
    Session,
    SessionEnded,
    delete_session_cookie,
    session_cookie,
    set_session_cookie,
)
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.request_bodies import BodyRefused
from cmqd_gateway.rest.answers import answer_of_error, json_response
from cmqd_gateway.rest.authentication import (
    check_csrf_token,
    check_site,
    count_request,
    too_many_unknown_ids,
)
from cmqd_gateway.rest.problems import gateway_problem, invalid, of_code
from cmqd_gateway.rest.reading import read_body
from cmqd_gateway.rest.replies import OwnKey
from cmqd_gateway.rest.types import Request
from cmqd_gateway.rest.views import Reply
from cmqd_protocol.protocol_errors import ErrorCode

PATH: Final = "/console/session"
MAX_BODY_BYTES: Final = 4_096


class SignIn(Request, frozen=True, kw_only=True):
    """A key pair, or the token of a sign-in link."""

    secret_id: str = ""
    secret_key: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"SignIn({self.secret_id!r})"


class BrokerAddress(Reply, frozen=True, kw_only=True):
    """The address at which programs reach the broker over the native protocol."""

    address: str
    """``host:port``."""
    tls: bool
    """Programs need TLS."""


class SessionInfo(Reply, frozen=True, kw_only=True):
    """The session of a browser."""

    signed_in: bool
    version: str
    """Version of the gateway."""
    key: OwnKey | None = None
    broker: BrokerAddress | None = None
    csrf_token: str | None = None
    """For the header ``X-CSRF-Token`` of all requests but GET."""
    ends: datetime | None = None
    """The latest end of the session; without requests it ends earlier."""


def routes(gateway: Gateway) -> Iterable[web.AbstractRouteDef]:
    """Return the routes of sessions."""
    sessions = _SessionRoutes(gateway)
    for method, run in (("POST", sessions.sign_in), ("GET", sessions.show), ("DELETE", sessions.sign_out)):
        yield web.route(method, PATH, _answered(gateway, run))


def _answered(
    gateway: Gateway, run: Callable[[web.Request], Awaitable[web.Response]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            check_site(request)
            return await run(request)
        except Exception as error:
            return await answer_of_error(gateway, request, "console_session", error)

    return handle


class _SessionRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def sign_in(self, request: web.Request) -> web.Response:
        gateway = self._gateway
        given = await self._body(request)
        try:
            if given.token:
                key = await gateway.sessions.find_by_link(given.token, request.remote)
            else:
                key = await key_of_pair(gateway.secrets, given.secret_id, given.secret_key, request.remote)
        except NotAuthenticated as refusal:
            field = "token" if given.token else "secret_key"
            raise gateway_problem("unauthorized", str(refusal), field=field) from None
        except TooManyUnknownIds:
            raise too_many_unknown_ids() from None
        count_request(gateway, key)
        session = gateway.sessions.begin(key)
        response = await self._info(session)
        set_session_cookie(request, response, session)
        return response

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the session. A browser without a session is no error: the page asks before the sign-in."""
        gateway = self._gateway
        session = await self._session(request)
        if session is None:
            response = _info_response(SessionInfo(signed_in=False, version=version("cmqd")))
            if session_cookie(request) is not None:
                delete_session_cookie(request, response)
            return response
        count_request(gateway, session.key)
        response = await self._info(session)
        renewed = gateway.sessions.renewed(session)
        if renewed is not None:
            set_session_cookie(request, response, renewed)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the session. Without a session the answer is the same."""
        session = await self._session(request)
        if session is not None:
            check_csrf_token(request, session)
            self._gateway.sessions.end(session)
            self._gateway.streams.session_ended(session.text.nonce)
        response = _info_response(SessionInfo(signed_in=False, version=version("cmqd")))
        delete_session_cookie(request, response)
        return response

    async def _session(self, request: web.Request) -> Session | None:
        cookie = session_cookie(request)
        if cookie is None:
            return None
        try:
            return await self._gateway.sessions.find(cookie, request.remote)
        except SessionEnded as refusal:
            # A forged cookie waits as a wrong key does.
            await self._gateway.pause_refusal(request, refusal)
            return None
        except TooManyUnknownIds:
            raise too_many_unknown_ids() from None

    async def _info(self, session: Session) -> web.Response:
        key, broker = await self._key_and_broker(session.key)
        return _info_response(
            SessionInfo(
                signed_in=True,
                version=version("cmqd"),
                key=key,
                broker=broker,
                csrf_token=session.csrf_token,
                ends=datetime.fromtimestamp(session.text.began + SESSION_SECONDS, UTC),
            )
        )

    async def _key_and_broker(self, key: KeySecret) -> tuple[OwnKey, BrokerAddress]:
        try:
            async with self._gateway.connections.client(key) as client:
                own_key, status = await client.accounts.own_key(), await client.status()
                # A broker older than the field is at the address of the gateway's own connection, as far as is known.
                reached = client.address
                broker = BrokerAddress(
                    address=status.get("address", f"{reached.host}:{reached.port}"), tls=status.get("tls", reached.tls)
                )
                return OwnKey.of(own_key), broker
        except TooManyKeysInUse as full:
            raise of_code(ErrorCode.TOO_MANY_CONNECTIONS, str(full)) from None

    async def _body(self, request: web.Request) -> SignIn:
        length = request.content_length
        if length is None or length > MAX_BODY_BYTES:
            raise gateway_problem("request_too_large", f"a sign-in has a body of at most {MAX_BODY_BYTES} bytes")
        try:
            raw = await self._gateway.bodies.read(request)
        except BodyRefused as refusal:
            raise gateway_problem("request_too_large", str(refusal)) from None
        # Pages of other sites can send forms, but not this media type.
        given = read_body(request.content_type, request.charset, raw, SignIn)
        if bool(given.token) == bool(given.secret_id and given.secret_key):
            raise invalid(None, "a sign-in has the fields secret_id and secret_key, or the field token")
        return given


def _info_response(info: SessionInfo) -> web.Response:
    return json_response(200, msgspec.json.encode(info), "application/json", {})
