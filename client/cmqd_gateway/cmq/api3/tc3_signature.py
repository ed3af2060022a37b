"""The signature ``TC3-HMAC-SHA256``: a keyed hash over method, query, some headers and the hash of the body.

    POST                                       TC3-HMAC-SHA256
    /                                          1700000000
    (the query of a GET)               ─►      2023-11-14/tdmq/tc3_request             ─►  hex of an HMAC with a key
    content-type:application/json              hex of the SHA-256 of the left text         of date and service
    host:mq.example
                                               Authorization: TC3-HMAC-SHA256 Credential=ID/2023-11-14/tdmq/tc3_request,
    content-type;host                              SignedHeaders=content-type;host, Signature=...
    hex of the SHA-256 of the body

The request names its signed headers. SDKs of Tencent Cloud sign ``content-type`` and ``host`` alone, so the action,
a header too, is not covered: a captured body can be executed as another action with the same parameters. The signature
has no nonce: a captured request can be executed again while its time stamp is valid.

The service of the scope is the text of the client. It is signed, and names nothing here.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

ALGORITHM: Final = "TC3-HMAC-SHA256"
UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
REQUIRED_HEADERS: Final = ("content-type", "host")
_PARTS: Final = ("Credential", "SignedHeaders", "Signature")


class Authorization(msgspec.Struct, frozen=True):
    """The header ``Authorization`` of a request."""

    secret_id: str
    date: str
    service: str
    signed_headers: str
    """Names in lower case, with ``;`` in between, as in the request: this text is signed."""
    signature: str
    header_names: Sequence[str]
    """The names of the signed headers, in the order of the signed text."""


class SignedRequest(msgspec.Struct, frozen=True):
    """The parts of a request that the signature covers."""

    method: str
    query: str
    """The query as in the URL for GET, empty for POST."""
    headers: Mapping[str, str]
    """The signed headers by their names in lower case, but for ``host``."""
    payload_hash: str
    timestamp: str


def read_authorization(header: str) -> Authorization | None:
    """Return the parts of a header ``Authorization``; None if the header has another form."""
    algorithm, _, rest = header.partition(" ")
    parts = rest.split(",")
    if algorithm != ALGORITHM or len(parts) != len(_PARTS):
        return None
    values: list[str] = []
    for name, part in zip(_PARTS, parts, strict=True):
        found, equals, value = part.strip(" ").partition("=")
        if found != name or not equals:
            return None
        values.append(value)
    # The id of a key may have slashes.
    scope = values[0].rsplit("/", 3)
    if len(scope) != 4 or scope[3] != "tc3_request":
        return None
    return Authorization(scope[0], scope[1], scope[2], values[1], values[2], values[1].split(";"))


def payload_hash(payload: bytes) -> str:
    """Return the hash of a body, or of the text ``UNSIGNED-PAYLOAD``."""
    return hashlib.sha256(payload).hexdigest()


def scope_date(timestamp: int) -> str:
    """Return the date that the scope of a request with this time stamp must have."""
    return _date_of_day(timestamp // 86_400)


@lru_cache(maxsize=4)
def _date_of_day(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def is_signed(authorization: Authorization, request: SignedRequest, secret_key: str, hosts: Iterable[str]) -> bool:
    """Return True if the signature is right for any of the hosts.

    The time tells nothing about the secret or a right signature: all wrong signatures take the same time.

    Args:
        authorization: the header; its names must all be in ``request.headers``, or ``host``.
        request: the request.
        secret_key: secret part of the key that the header names.
        hosts: names of the gateway that the client may have signed.
    """
    given = _bytes(authorization.signature)
    scope = f"{authorization.date}/{authorization.service}/tc3_request"
    key = _signing_key(secret_key, authorization.date, authorization.service)
    start = f"{ALGORITHM}\n{request.timestamp}\n{scope}\n"

    def is_right(values: Iterable[str]) -> bool:
        digest = hashlib.sha256(_canonical(authorization, request, values)).hexdigest()
        expected = hmac.digest(key, _bytes(start + digest), "sha256").hex()
        return hmac.compare_digest(expected.encode(), given)

    names = authorization.header_names
    for host in hosts:
        values = [host if name == "host" else request.headers[name] for name in names]
        # The SDKs sign the values as they are, and the documents ask for values in lower case.
        if is_right(values) or ((lower := [value.lower() for value in values]) != values and is_right(lower)):
            return True
    return False


@lru_cache(maxsize=128)
def _signing_key(secret_key: str, date: str, service: str) -> bytes:
    """Return the key of the last step. Remembered: it takes three of the four keyed hashes, and holds for a day."""
    key = _bytes(f"TC3{secret_key}")
    for part in (date, service, "tc3_request"):
        key = hmac.digest(key, _bytes(part), "sha256")
    return key


def _canonical(authorization: Authorization, request: SignedRequest, values: Iterable[str]) -> bytes:
    headers = [f"{name}:{value}" for name, value in zip(authorization.header_names, values, strict=True)]
    lines = [request.method, "/", request.query, *headers, "", authorization.signed_headers, request.payload_hash]
    return _bytes("\n".join(lines))


def _bytes(text: str) -> bytes:
    # A header may have bytes that are no text; these bytes are surrogates in the string.
    return text.encode(errors="surrogateescape")
