"""Headers and body of a post to a subscription's URL, from the message and the time of the attempt alone.

    POST <endpoint>
    Content-Type: text/plain; charset=utf-8
    User-Agent: cmqd/<version>, or the setting push_user_agent
    x-cmq-request-id: <differs with every attempt>
    x-cmq-message-id: Msg-0000000000000001
    x-cmq-message-tag: apple,imac                  of a message with tags
    x-cmq-routing-key: orders.north.new            of a message with a routing key
    x-cmq-body-encoding: base64                    in format json, if the body is not UTF-8
    webhook-id: Msg-0000000000000001
    webhook-timestamp: 1700000000                  seconds, of this attempt
    webhook-signature: v1,<base64> v1,<base64>     per valid secret

    json:        {"TopicOwner":"account","topicName":"t","subscriptionName":"s","msgId":"Msg-0000000000000001",
                  "msgBody":"the body","publishTime":1700000000}
    simplified:  the body, byte for byte as it was published

- Tags and routing key are percent-encoded (UTF-8) where a header cannot carry them: any character that is not printable
  ASCII, the space and ``%`` itself. Split at the commas first (no tag has a comma), then decode each.
- Signatures follow Standard Webhooks 1.0: HMAC-SHA256 of ``{webhook-id}.{webhook-timestamp}.{body}`` with the bytes
  that the secret encodes, ``whsec_`` and base64. While a rotated secret is still valid, both sign.
- ``webhook-timestamp`` and ``publishTime`` are by the wall clock, since receivers compare them with theirs.
- Headers of the publisher are not sent: no text of a publisher may look like a header of the broker.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from cmqd import __version__
from cmqd.core.outcome import Push

SIMPLIFIED: Final = "simplified"
"""The content format of bare bodies; any other is JSON."""

SECRET_PREFIX: Final = "whsec_"

USER_AGENT: Final = f"cmqd/{__version__}"
"""The default of the setting ``push_user_agent``."""
_CONTENT_TYPE: Final = "text/plain; charset=utf-8"

_PLAIN = re.compile(r"[!-$&-~]+", re.ASCII)
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class _Notification(msgspec.Struct, gc=False):
    """The JSON body, in the order of its fields."""

    TopicOwner: str
    topicName: str
    subscriptionName: str
    msgId: str
    msgBody: str
    publishTime: int


_encoder = msgspec.json.Encoder()


def request_of(
    push: Push,
    secrets: Sequence[str],
    now_s: int,
    request_id: str,
    clock_offset_ms: int = 0,
    user_agent: str = USER_AGENT,
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an attempt.

    Args:
        push: the message and its subscription.
        secrets: the valid secrets of the subscription, newest first. Without a secret there is no signature.
        now_s: start of the attempt, in seconds since the epoch, by the wall clock.
        request_id: unique per attempt.
        clock_offset_ms: wall clock less broker time; the time of a message is broker time, ``publishTime`` is not.
        user_agent: the header ``User-Agent``.

    Raises:
        ValueError: a secret is malformed.
    """
    message = push.message
    message_id = f"Msg-{message.message_id:016x}"
    headers = {
        "Content-Type": _CONTENT_TYPE,
        "User-Agent": user_agent,
        "x-cmq-request-id": request_id,
        "x-cmq-message-id": message_id,
    }
    labels = message.labels
    if labels:
        if isinstance(labels, str):
            headers["x-cmq-routing-key"] = encoded(labels)
        else:
            headers["x-cmq-message-tag"] = ",".join(map(encoded, labels))
    body = message.body
    if push.content_format != SIMPLIFIED:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(body).decode()
            headers["x-cmq-body-encoding"] = "base64"
        body = _encoder.encode(
            _Notification(
                push.account,
                push.topic,
                push.subscription,
                message_id,
                text,
                (message.enqueue_ms + clock_offset_ms) // 1000,
            )
        )
    headers["webhook-id"] = message_id
    headers["webhook-timestamp"] = timestamp = str(now_s)
    if secrets:
        signed = b"%b.%b.%b" % (message_id.encode(), timestamp.encode(), body)
        headers["webhook-signature"] = " ".join([signature(secret, signed) for secret in secrets])
    return headers, body


def signature(secret: str, signed: bytes) -> str:
    """``v1,`` and the base64 of the HMAC-SHA256.

    Raises:
        ValueError: the secret is none.
    """
    return "v1," + binascii.b2a_base64(hmac.digest(key_of(secret), signed, "sha256"), newline=False).decode()


@lru_cache(maxsize=1024)
def key_of(secret: str) -> bytes:
    """Return the bytes that a secret encodes.

    Raises:
        ValueError: the text is not ``whsec_`` and base64. The message does not repeat the text.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key or not secret.startswith(SECRET_PREFIX):
        raise ValueError(f"a secret is {SECRET_PREFIX!r} followed by base64")
    return key


def encoded(text: str) -> str:
    """Return a tag or routing key encoded for a header; see the module."""
    return text if _PLAIN.fullmatch(text) is not None else quote(text, safe=_SAFE)
