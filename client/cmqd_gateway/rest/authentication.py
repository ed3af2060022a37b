"""The caller of a request of the JSON API: a key in the header ``Authorization``, or the cookie of a session."""

from typing import Final, NamedTuple

from aiohttp import web

from cmqd_gateway.callers.caller import NotAuthenticated, key_of_authorization
from cmqd_gateway.callers.key_secrets import KeySecret, TooManyUnknownIds
from cmqd_gateway.console.sessions import (
    CSRF_HEADER,
    Session,
    SessionEnded,
    session_cookie,
    set_session_cookie,
)
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.rest.problems import gateway_problem, of_code
from cmqd_protocol.protocol_errors import ErrorCode

_READING: Final = ("GET", "HEAD")
"""Methods that change nothing."""


class Authenticated(NamedTuple):
    """The caller of a request."""

    key: KeySecret
    session: Session | None
    """None for a key in the header."""


async def authenticate(gateway: Gateway, request: web.Request) -> Authenticated:
    """Return the caller of a request. A key in the header comes before a cookie.

    Raises:
        ProblemError: the request comes from a page of another site; there is no such key or session; the token of the
            session is missing; or the key makes too many requests.
        CmqError: the broker did not answer.
    """
    check_site(request)
    headers = request.headers.getall("Authorization", [])
    if len(headers) > 1:
        raise gateway_problem("unauthorized", "the header Authorization is given twice", field="Authorization")
    cookie = None if headers else session_cookie(request)
    session = None
    try:
        if cookie is None:
            key = await key_of_authorization(gateway.secrets, headers[0] if headers else None, request.remote)
        else:
            session = await gateway.sessions.find(cookie, request.remote)
            key = session.key
    except SessionEnded as refusal:
        raise gateway_problem("session_ended", str(refusal)) from None
    except NotAuthenticated as refusal:
        raise gateway_problem("unauthorized", str(refusal), field="Authorization") from None
    except TooManyUnknownIds:
        raise too_many_unknown_ids() from None
    if session is not None and request.method not in _READING:
        check_csrf_token(request, session)
    count_request(gateway, key)
    return Authenticated(key, session)


def keep_session(gateway: Gateway, request: web.Request, response: web.StreamResponse, caller: Authenticated) -> None:
    """Add a later end of the caller's session to an answer, unless the cookie is young enough."""
    renewed = None if caller.session is None else gateway.sessions.renewed(caller.session)
    if renewed is not None:
        set_session_cookie(request, response, renewed)


def check_site(request: web.Request) -> None:
    """Refuse a request that a page of another site made a browser send: the browser may add its stored basic auth.

    Raises:
        ProblemError: the request comes from a page of another origin.
    """
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise gateway_problem("cross_site_request", "pages of other sites cannot use this API", field="Sec-Fetch-Site")


def check_csrf_token(request: web.Request, session: Session) -> None:
    """Refuse a request with a cookie that a page of another site can have caused: in a browser without the header
    ``Sec-Fetch-Site``, for example.

    Raises:
        ProblemError: the token is missing or wrong.
    """
    if not session.is_csrf_token(request.headers.get(CSRF_HEADER, "")):
        text = f"a request with the cookie of a session needs the token of the session in the header {CSRF_HEADER}"
        raise gateway_problem("wrong_csrf_token", text, field=CSRF_HEADER)


def count_request(gateway: Gateway, key: KeySecret) -> None:
    """Count a request of a key.

    Raises:
        ProblemError: the key makes too many requests.
    """
    if not gateway.rates.take(key.secret_id):
        raise of_code(ErrorCode.TOO_MANY_REQUESTS, "the key makes more requests per second than the gateway allows")


def too_many_unknown_ids() -> Exception:
    """Return the refusal of an id that the gateway cannot look up now."""
    return of_code(ErrorCode.TOO_MANY_REQUESTS, "the gateway asks the broker for too many unknown keys; try again")
