"""Messages of a queue: send, receive, delete, change visibility, release, peek."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import Bodies, DedupId, DedupIds, Delays, Handles, HeadersList, ShortText, Unsigned
from cmqd_types import messages
from cmqd_types.messages import ReceivedMessage


class SendMessages(Request, frozen=True, tag=16):
    """Store a batch, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    delay_ms: Unsigned | Delays | None = None
    session: Unsigned = 0
    sequence: Unsigned = 0
    """Number of this send in the producer session, from 1; 0 = not numbered."""
    dedup_ids: DedupIds | None = None
    """A dedup id or null per body. A message with an id that the queue remembers is not stored again."""
    after: DedupId | None = None
    """Stored only if the queue remembers this dedup id; see ``features.Feature.ORDERED_SENDS``."""


class ReceiveMessages(Request, frozen=True, tag=17):
    """Receive up to ``max_messages``, waiting while the queue has no active message. Answered ``MessagesReceived``."""

    queue: str
    max_messages: Unsigned = 1
    wait_ms: Unsigned | None = None
    visibility_timeout_ms: Unsigned | None = None


class DeleteMessages(Request, frozen=True, tag=18):
    """Delete received messages. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles


class ChangeVisibility(Request, frozen=True, tag=19):
    """Hide received messages until ``visibility_timeout_ms`` from now. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    visibility_timeout_ms: Unsigned


class ReleaseMessages(Request, frozen=True, tag=20):
    """Make received messages active at once. Answered ``HandlesDone``."""

    queue: str
    receipt_handles: Handles
    count_receive: bool = True


class PeekMessages(Request, frozen=True, tag=21):
    """Read messages of ``states`` without receiving, in position order from ``start``. Answered ``MessagesPeeked``."""

    queue: str
    max_messages: Unsigned = 16
    start: Unsigned = 0
    """Position in the queue: 0, or ``next_start`` of the previous reply."""
    states: Annotated[list[ShortText], Meta(max_length=8)] | None = None
    """Some of ``active``, ``in_flight``, ``delayed``, ``half``, ``rewindable``; null = all but ``rewindable``."""


class MessagesSent(Reply, frozen=True, tag=193):
    """Message ids of a batch, in its order. A repeated numbered send gets the ids of the first send."""

    message_ids: list[int]


class MessagesReceived(Reply, frozen=True, tag=194):
    """Received messages; empty if no message arrived during the wait."""

    messages: list[ReceivedMessage]


class HandleFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Error of a receipt handle in a batch."""

    receipt_handle: int
    code: int
    text: str


class HandlesDone(Reply, frozen=True, tag=195):
    """Refused receipt handles of a delete, visibility change or release. The other handles are done."""

    failures: list[HandleFailure]
    next_visible_ms: int = 0


class MessagesPeeked(messages.MessagesPeeked, WireMessage, frozen=True, tag=196):
    """A page of a peek."""

    request_id: int
