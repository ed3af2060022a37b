"""The handshake, the cancellation of a request, and the replies of every theme: ``done`` and ``error``."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from cmqd_protocol.errors import RETRYABLE, ErrorCode
from cmqd_protocol.limits import MAX_SECRET_ID_BYTES
from cmqd_protocol.messages.base import Reply, WireMessage
from cmqd_protocol.messages.fields import U32, Nonce, Proof, RequestId, ShortText, Unsigned


class ServerHello(WireMessage, frozen=True, tag=1):
    """First frame of the server."""

    product: ShortText
    region: ShortText
    nonce: Nonce
    max_frame_bytes: U32
    heartbeat_ms: U32


class ClientHello(WireMessage, frozen=True, tag=2):
    """First frame of the client: secret id, proof, and proposed limits."""

    secret_id: Annotated[str, Meta(max_length=MAX_SECRET_ID_BYTES)]
    nonce: Nonce
    proof: Proof
    max_frame_bytes: U32
    heartbeat_ms: U32
    region: ShortText | None = None
    product: ShortText = ""


class Welcome(WireMessage, frozen=True, tag=3):
    """Proof of the server and negotiated limits. Requests may follow."""

    proof: Proof
    account: ShortText
    max_frame_bytes: U32
    heartbeat_ms: U32
    connection_id: Unsigned
    facts: dict[str, Any] = {}  # noqa: RUF012  (msgspec copies it)
    """Further facts of the server, by name; see ``features``. The proof does not cover the facts."""


class Cancel(WireMessage, frozen=True, tag=4):
    """Cancel a request. A cancel has no reply. The reply to the cancelled request is the error ``cancelled``, or the
    usual reply if the server had already sent the reply.
    """

    request_id: RequestId


class Done(Reply, frozen=True, tag=192):
    """Reply without fields: the request succeeded."""


class Error(Reply, frozen=True, tag=255):
    """Error of a request. ``request_id`` 0 = error of the connection, which the server then closes."""

    code: int
    name: str
    text: str
    retryable: bool = False
    retry_after_ms: int | None = None
    details: dict[str, Any] | None = None
    """Details by name for programs: ``field``, ``value``, ``limit``, ``difference`` ..."""


def error(
    request_id: int,
    code: ErrorCode,
    text: str,
    *,
    retry_after_ms: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> Error:
    """Return an Error with the name and ``retryable`` of its code. ``request_id`` 0 = error of the connection."""
    return Error(
        request_id=request_id,
        code=int(code),
        name=code.wire_name,
        text=text,
        retryable=code in RETRYABLE,
        retry_after_ms=retry_after_ms,
        details=None if details is None else dict(details),
    )
