"""Values of the JSON API: ids, handles, durations and bodies.

Ids and receipt handles are strings in JSON. Many JSON libraries, JavaScript's too, read a number as a
float of 53 bits: the last digits of a 64-bit id would change without an error.
"""

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta

Encoding: TypeAlias = Annotated[
    Literal["utf-8", "base64"],
    Meta(description="`utf-8`: the body is text. `base64`: the body is base64 (RFC 4648 with padding) of bytes."),
]
Body: TypeAlias = Annotated[str, Meta(description="The body, as text or in base64: see `encoding`.")]
MessageIdText: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^Msg-[0-9a-f]{16}$",
        description="Id of a message: `Msg-` and 16 hex digits.",
        examples=["Msg-0000000000000001"],
    ),
]
ReceiptHandleText: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^[0-9]{1,20}$",
        description="Receipt handle of a receive: a decimal number in a string. A later receive makes it invalid.",
        examples=["9223372036854775807"],
    ),
]
IdText: TypeAlias = Annotated[str, Meta(description="Id: a decimal number in a string.", examples=["17"])]
PageStart: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^[0-9]{1,20}$",
        description="Start of a page: `0`, or `next_start` of the page before. A decimal number in a string.",
    ),
]
Seconds: TypeAlias = Annotated[
    float, Meta(ge=0, le=10**9, description="A duration in seconds, exact to the millisecond.")
]
"""The limits keep a value inside its field on the wire. The broker has the limits of each field."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A number of messages or bytes, with the limits of the field on the wire; the broker has the limit of each field."""
DedupId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Headers: TypeAlias = Annotated[
    dict[str, str], Meta(max_length=32, description="At most 32 headers, 16 KiB of names and values in all.")
]
Tag: TypeAlias = Annotated[str, Meta(min_length=1, max_length=16)]
BindingKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Reason: TypeAlias = Annotated[
    str, Meta(max_length=256, description="Text for readers of the dead letters, at most 256 bytes.")
]
MAX_BATCH = 256
"""Entries of a batch. More would take several requests to the broker, with a mixture of results."""
Moment: TypeAlias = Annotated[
    datetime,
    Meta(
        tz=True,
        description="A time with its offset from UTC (RFC 3339), in the years 1970 to 9998.",
        examples=["2027-01-31T09:00:00Z"],
    ),
]
FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_MOMENTS = datetime(9999, 1, 1, tzinfo=UTC)
"""Bounds of a `Moment`, which JSON Schema cannot state; `reading` checks them."""

MAX_HANDLE = 2**64 - 1


class BodyError(ValueError):
    """A body is not in the encoding that the request names."""


class JsonBody(NamedTuple):
    """A body in JSON."""

    text: str
    encoding: Literal["utf-8", "base64"]


def body_bytes(text: str, encoding: Literal["utf-8", "base64"]) -> bytes:
    """Return the bytes of a body.

    Raises:
        BodyError: the text is not base64, although the request says so.
    """
    if encoding == "utf-8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise BodyError(f"the body is not base64 (RFC 4648 with padding): {problem}") from None


def json_body(body: bytes) -> JsonBody:
    """Return a body as text if it is valid UTF-8, else in base64. ``body_bytes`` gives back the same bytes."""
    try:
        return JsonBody(body.decode(), "utf-8")
    except UnicodeDecodeError:
        return JsonBody(base64.b64encode(body).decode("ascii"), "base64")
