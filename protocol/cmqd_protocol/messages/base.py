"""Base structs of the messages of the wire."""

import msgspec

from cmqd_protocol.messages.fields import RequestId


class WireMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Content of a frame."""


class Request(WireMessage, frozen=True):
    """Request of a client. The server sends exactly one reply with the same ``request_id``, in any order."""

    request_id: RequestId


class Reply(WireMessage, frozen=True):
    """Reply to the request with the same number."""

    request_id: int
