"""Authentication of a request: the key of its caller. API 2.0 signs requests; the JSON API sends the key pair."""

import base64
import binascii
import hmac
from typing import Final

import msgspec

from cmqd_client import Client
from cmqd_gateway.callers.key_secrets import KeySecret, KeySecrets
from cmqd_types.actors import StatedClient

_BASIC: Final = "basic "
_BEARER: Final = "bearer "


class Caller(msgspec.Struct, frozen=True):
    """An authenticated request: its key, and the client of the broker with this key."""

    key: KeySecret
    client: Client
    stated: StatedClient
    """The client of the gateway that made the request."""


class NotAuthenticated(Exception):
    """The request proves no key. The text has the reason, but for a wrong pair never the wrong half."""


async def key_of_authorization(secrets: KeySecrets, authorization: str | None, address: str | None) -> KeySecret:
    """Return the key of an ``Authorization`` header: ``Basic`` with the key pair, or ``Bearer SECRET_ID:SECRET_KEY``.

    ``address`` is the IP address of the client; see :meth:`KeySecrets.find`.

    Raises:
        NotAuthenticated: the header is missing or malformed, or the pair is wrong, or the key is disabled.
        TooManyUnknownIds, CmqError: see :meth:`KeySecrets.find`.
    """
    pair = None if authorization is None else pair_of_authorization(authorization)
    if pair is None:
        raise NotAuthenticated("the request needs a key: Authorization: Basic, or Bearer SECRET_ID:SECRET_KEY")
    return await key_of_pair(secrets, *pair, address)


async def key_of_pair(secrets: KeySecrets, secret_id: str, secret_key: str, address: str | None) -> KeySecret:
    """Return the key of a key pair; see :func:`key_of_authorization`."""
    key = await secrets.find(secret_id, address)
    # Compared also for an unknown id: the time of the answer must not distinguish unknown ids from wrong secrets.
    expected = "" if key is None else key.secret_key
    # A header may have bytes that are no text; these bytes are surrogates in the string.
    is_equal = hmac.compare_digest(expected.encode(), secret_key.encode(errors="surrogateescape"))
    if key is None or not is_equal:
        raise NotAuthenticated("there is no such key pair")
    if not key.enabled:
        raise NotAuthenticated("the key is disabled")
    return key


def pair_of_authorization(authorization: str) -> tuple[str, str] | None:
    """Return secret id and secret of an ``Authorization`` header; None if it is malformed."""
    scheme = authorization.lower()
    if scheme.startswith(_BASIC):
        try:
            text = base64.b64decode(authorization[len(_BASIC) :].strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
    elif scheme.startswith(_BEARER):
        text = authorization[len(_BEARER) :].strip()
    else:
        return None
    secret_id, colon, secret_key = text.partition(":")
    return (secret_id, secret_key) if colon and secret_id and secret_key else None
