"""The three forms of a request, and the proof of its key.

    POST, JSON body, header Authorization     TC3-HMAC-SHA256; action, version and time stamp are headers
    GET, query, header Authorization          the same; the query has the parameters as a form
    POST form or GET query with Signature     the older form; all of the request are parameters

A request has one signature. A part of a request that its signature does not cover is refused: the query of a POST with
TC3, and the body of a GET is not read.
"""

import re
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.api2.form import Form, form_steps
from cmqd_gateway.cmq.api2.signature import SIGNATURE, other_reading
from cmqd_gateway.cmq.api2.signed_forms import possible_hosts, unsigned_of
from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.request_values import form_values, json_steps
from cmqd_gateway.cmq.api3.tc3_signature import (
    ALGORITHM,
    REQUIRED_HEADERS,
    UNSIGNED_PAYLOAD,
    Authorization,
    SignedRequest,
    is_signed,
    payload_hash,
    read_authorization,
    scope_date,
)
from cmqd_gateway.cmq.known_keys import check_enabled, known_key
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.request_bodies import BodyRefused
from cmqd_gateway.http.turns import THREAD_BYTES, at_once, in_turns

VERSION: Final = "2020-02-17"
VALID_SECONDS: Final = 300
"""Largest distance of a time stamp from the gateway's clock, in both directions."""
MAX_SIGNED_HEADERS: Final = 32
ACTION_HEADER: Final = "X-TC-Action"
COMMON_PARAMETERS: Final = frozenset(
    {
        *("Action", "Version", "SecretId", "Nonce", "Timestamp", SIGNATURE, "SignatureMethod"),
        *("Region", "Language", "RequestClient", "Token"),
    }
)
"""Parameters of the older form that belong to no action."""
_SINGLE: Final = frozenset({"authorization", *REQUIRED_HEADERS})
_TIMESTAMP = re.compile(r"[0-9]{1,11}")
_SHOWN: Final = 80


class Request(msgspec.Struct, frozen=True):
    """A request whose key is proved."""

    key: KeySecret
    parameters: dict[str, Any]
    """Values of a JSON body; of a form, bytes and branches."""


class Head(msgspec.Struct, frozen=True):
    """The action and the version of a request."""

    action: str
    version: str


def is_by_header(request: web.Request) -> bool:
    """Return True for a request that is of API 3.0 by its headers."""
    return ACTION_HEADER in request.headers or request.headers.get("Authorization", "").startswith(ALGORITHM)


def head_of(request: web.Request) -> Head | None:
    """Return the head of a request that is signed with TC3; None for the older form, whose parameters have it.

    Raises:
        Fault: a header is given twice.
    """
    headers = request.headers
    if "Authorization" not in headers:
        return None
    _check_headers(request)
    return Head(headers.get(ACTION_HEADER, ""), headers.get("X-TC-Version", ""))


async def read_form(gateway: Gateway, request: web.Request) -> Form:
    """Return the parameters of a request of the older form.

    Raises:
        Fault: the body is refused.
        Refusal: the form is malformed.
    """
    is_form = request.method == "POST" and request.content_type != "application/json"
    body = await _read_body(gateway, request) if is_form else b""
    return await in_turns(form_steps(request.rel_url.raw_query_string.encode(), body))


async def read_tc3(gateway: Gateway, request: web.Request) -> Request:
    """Return a request that is signed with TC3.

    Raises:
        Fault: the request is malformed, too old, or its signature is wrong.
        Refusal: the key is unknown or disabled.
    """
    if request.headers.get("X-TC-Token"):
        raise no_temporary_keys("X-TC-Token")
    authorization = _authorization(gateway, request)
    query = request.rel_url.raw_query_string
    is_post = request.method == "POST"
    if is_post:
        _check_post(request, query)
    body = await _read_body(gateway, request) if is_post else b""
    headers = _signed_headers(request, authorization)
    timestamp = _checked_timestamp(gateway, "X-TC-Timestamp", request.headers.get("X-TC-Timestamp"), authorization)
    # Before the hash: a body of an unknown key is not hashed.
    key = await known_key(gateway, authorization.secret_id, request.remote)
    body_hash = await _payload_hash(gateway, request, body)
    signed = SignedRequest(request.method, "" if is_post else query, headers, body_hash, timestamp)
    if not is_signed(authorization, signed, key.secret_key, possible_hosts(gateway, request)):
        raise Fault(Code.SIGNATURE_FAILURE, "the signature is wrong")
    check_enabled(key)
    if is_post:
        steps = json_steps(body)
        return Request(key, at_once(steps) if len(body) < THREAD_BYTES else await in_turns(steps))
    form = await in_turns(form_steps(query.encode()))
    if SIGNATURE in form:
        raise _two_signatures()
    return Request(key, form_values(form))


async def read_signed_form(gateway: Gateway, request: web.Request, form: Form) -> Request:
    """Return a request of the older form.

    Raises:
        Fault: the request is malformed, too old, or its signature is wrong.
        Refusal: the key is unknown or disabled.
    """
    if form.get("Token"):
        raise no_temporary_keys("Token")
    secret_id = common_text(form, "SecretId")
    if not secret_id:
        raise Fault(Code.MISSING_PARAMETER, "SecretId is missing")
    _checked_timestamp(gateway, "Timestamp", common_text(form, "Timestamp"))
    key = await known_key(gateway, secret_id, request.remote)
    unsigned = await unsigned_of(gateway, request, form, key)
    if unsigned is None or unsigned:
        raise Fault(Code.SIGNATURE_FAILURE, "the signature is wrong")
    name = other_reading(form, body="MsgContent", targets=(b"&QueueName=", b"&TopicName="))
    if name is not None:
        raise Fault(
            Code.SIGNATURE_FAILURE,
            "the signed text can be read in another way, because of '&' or '=' in the name or value of"
            f" {name[:_SHOWN]!r}; {ALGORITHM} has no such limit",
        )
    check_enabled(key)
    parameters = {name: value for name, value in form.items() if name not in COMMON_PARAMETERS}
    return Request(key, form_values(parameters))


def form_head(form: Form) -> Head:
    """Return the head of a request of the older form.

    Raises:
        Fault: the request has no signature, or a value is not UTF-8.
    """
    if not form.get(SIGNATURE):
        raise Fault(
            Code.SIGNATURE_FAILURE,
            f"the request is not signed: it has neither a header Authorization with {ALGORITHM} nor the parameter"
            f" {SIGNATURE}",
        )
    return Head(common_text(form, "Action"), common_text(form, "Version"))


def common_text(form: Form, name: str) -> str:
    """Return a common parameter of the older form; empty without the parameter.

    Raises:
        Fault: the value is not UTF-8.
    """
    try:
        return form.get(name, b"").decode()
    except UnicodeDecodeError:
        raise Fault(Code.INVALID_PARAMETER_VALUE, f"{name} is not UTF-8") from None


def no_temporary_keys(name: str) -> Fault:
    """Return the fault for a request with a temporary key."""
    return Fault(Code.TOKEN_FAILURE, f"temporary keys ({name}) are not supported; sign with a key pair of the broker")


# ------------------------------------------------------------------ inside


async def _read_body(gateway: Gateway, request: web.Request) -> bytes:
    try:
        return await gateway.bodies.read(request)
    except BodyRefused as refused:
        code = Code.REQUEST_LIMIT_EXCEEDED if refused.can_be_repeated else Code.INVALID_PARAMETER
        raise Fault(code, str(refused)) from None


def _check_headers(request: web.Request) -> None:
    """Check that no header of this API is given twice; a proxy may repeat others.

    Raises:
        Fault: a header is given twice.
    """
    headers = request.headers
    names = set(map(str.lower, headers))
    if len(names) == len(headers):
        return
    for name in names:
        if (name.startswith("x-tc-") or name in _SINGLE) and len(headers.getall(name)) > 1:
            raise Fault(Code.INVALID_PARAMETER, f"the header {name[:_SHOWN]} is given twice")


def _authorization(gateway: Gateway, request: web.Request) -> Authorization:
    authorization = read_authorization(request.headers["Authorization"])
    if authorization is None:
        raise Fault(
            Code.SIGNATURE_FAILURE,
            f"the header Authorization must be '{ALGORITHM} Credential=SECRET_ID/DATE/SERVICE/tc3_request,"
            " SignedHeaders=content-type;host, Signature=...'",
        )
    names = authorization.header_names
    missing = next((name for name in REQUIRED_HEADERS if name not in names), None)
    if missing is not None:
        raise Fault(Code.SIGNATURE_FAILURE, f"SignedHeaders of Authorization must have {missing}")
    if len(names) > MAX_SIGNED_HEADERS:
        raise Fault(Code.SIGNATURE_FAILURE, f"SignedHeaders of Authorization has more than {MAX_SIGNED_HEADERS} names")
    if gateway.settings.api3_signed_action and not request.secure and ACTION_HEADER.lower() not in names:
        raise Fault(
            Code.SIGNATURE_FAILURE,
            f"SignedHeaders of Authorization must have {ACTION_HEADER.lower()} over HTTP (api3_signed_action of the"
            " gateway); SDKs, which do not sign the action, need HTTPS here",
        )
    return authorization


def _check_post(request: web.Request, query: str) -> None:
    """Check that a POST with TC3 has its parameters in a JSON body."""
    if request.content_type == "application/x-www-form-urlencoded":
        raise _two_signatures()
    if request.content_type != "application/json":
        raise Fault(
            Code.INVALID_PARAMETER,
            f"the body of the request must be application/json, not {request.content_type[:_SHOWN]}",
        )
    if query:
        raise Fault(
            Code.INVALID_PARAMETER, f"the parameters of a POST with {ALGORITHM} stand in its body, not in the URL"
        )


def _two_signatures() -> Fault:
    return Fault(
        Code.INVALID_PARAMETER,
        f"the request mixes {ALGORITHM} with the older form: a request has a header Authorization and a JSON body or a"
        f" query, or is a form with {SIGNATURE}",
    )


def _signed_headers(request: web.Request, authorization: Authorization) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name in authorization.header_names:
        values = request.headers.getall(name, ())
        if len(values) != 1:
            text = "is missing in the request" if not values else "is given twice"
            raise Fault(Code.SIGNATURE_FAILURE, f"the signed header {name[:_SHOWN]!r} {text}")
        headers[name] = values[0]
    return headers


async def _payload_hash(gateway: Gateway, request: web.Request, body: bytes) -> str:
    if request.headers.get("X-TC-Content-SHA256") == UNSIGNED_PAYLOAD:
        if not request.secure:
            raise Fault(Code.SIGNATURE_FAILURE, f"{UNSIGNED_PAYLOAD} is accepted over HTTPS alone")
        return payload_hash(UNSIGNED_PAYLOAD.encode())
    if len(body) < THREAD_BYTES:
        return payload_hash(body)
    return await gateway.hashes.run(partial(payload_hash, body))


def _checked_timestamp(
    gateway: Gateway, name: str, text: str | None, authorization: Authorization | None = None
) -> str:
    """Return a time stamp that is near the gateway's clock, and whose date the scope has."""
    if not text:
        raise Fault(Code.MISSING_PARAMETER, f"{name} is missing")
    if not _TIMESTAMP.fullmatch(text):
        raise Fault(
            Code.INVALID_PARAMETER_VALUE, f"{name} is {text[:_SHOWN]!r}; it must be a time in seconds since 1970"
        )
    ahead = int(text) - gateway.wall_clock()
    if abs(ahead) > VALID_SECONDS:
        direction = "behind" if ahead < 0 else "ahead of"
        raise Fault(
            Code.SIGNATURE_EXPIRE,
            f"{name} is {abs(ahead):.0f} s {direction} the clock of the gateway; the gateway accepts {VALID_SECONDS} s",
        )
    if authorization is not None and authorization.date != scope_date(int(text)):
        raise Fault(
            Code.SIGNATURE_FAILURE,
            f"the date of the scope is {authorization.date[:_SHOWN]!r}; {name} lies on {scope_date(int(text))}",
        )
    return text
