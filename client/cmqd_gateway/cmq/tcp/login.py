"""The log-in of CMQ's TCP protocol: a keyed hash of client id and SecretId, without a time and without a nonce.

The same log-in is right for ever, until the secret of the key changes. The signed text is ``client_id`` followed by
``secret_id``, so the client id must not make it a text that is signed elsewhere with the same secret: a request of API
2.0 has ``?``, ``&`` and ``=``, a cookie or a link of the console has NUL.
"""

import base64
import hmac
from collections.abc import Mapping
from typing import Any, Final

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.reasons import Reason, Refusal

MAX_CLIENT_ID_BYTES: Final = 128
_FORBIDDEN: Final = frozenset("?&=")
_ALGORITHMS: Final = {"HmacSHA1": "sha1", "HmacSHA256": "sha256"}


def check_client_id(client_id: str) -> None:
    """Check that no text that is signed elsewhere begins with this client id.

    Raises:
        Refusal: the client id is too long, or has a character that is not allowed.
    """
    if len(client_id.encode()) > MAX_CLIENT_ID_BYTES:
        raise Refusal(Reason.AUTHENTICATION_FAILED, f"client_id has more than {MAX_CLIENT_ID_BYTES} bytes")
    if not client_id.isprintable() or not _FORBIDDEN.isdisjoint(client_id):
        raise Refusal(Reason.AUTHENTICATION_FAILED, "client_id has a control character, '?', '&' or '='")


def check_signature(request: Mapping[str, Any], key: KeySecret) -> None:
    """Check the signature of a log-in. The time tells nothing about the secret or a right signature.

    Args:
        request: the body of the log-in.
        key: the key that the request names.

    Raises:
        Refusal: the signature is wrong, or its method is unknown.
    """
    algorithm = _ALGORITHMS.get(request["signatureMethod"])
    if algorithm is None:
        raise Refusal(Reason.AUTHENTICATION_FAILED, f"signature_method must be one of {', '.join(_ALGORITHMS)}")
    right = sign(request["clientId"], key, algorithm)
    if not hmac.compare_digest(right, request["signature"].encode()):
        raise Refusal(Reason.AUTHENTICATION_FAILED, "the signature is wrong")


def sign(client_id: str, key: KeySecret, algorithm: str = "sha1") -> bytes:
    """Return the signature of a log-in."""
    digest = hmac.digest(key.secret_key.encode(), f"{client_id}{key.secret_id}".encode(), algorithm)
    return base64.b64encode(digest)
