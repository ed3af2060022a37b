"""The structs from which all messages of the wire derive."""

import msgspec

from cmqd_protocol.messages.fields import RequestId


class WireMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's content; see the module."""


class Request(WireMessage, frozen=True):
    """What a client asks; exactly one reply with the same ``request_id`` (1 .. 2**32-1) follows, in any order."""

    request_id: RequestId


class Reply(WireMessage, frozen=True):
    """The answer to the request of the same number."""

    request_id: int
