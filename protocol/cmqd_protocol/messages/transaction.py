"""Half messages: send, decide, list and check."""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from cmqd_protocol.limits import MAX_BATCH
from cmqd_protocol.messages.base import Reply, Request, WireMessage
from cmqd_protocol.messages.fields import Bodies, DedupIds, HeadersList, MessageIds, Unsigned
from cmqd_types import messages
from cmqd_types.messages import Headers

Decision: TypeAlias = Annotated[int, Meta(ge=1, le=3)]
"""Decision on a half message: 1 commit, 2 roll back, 3 unknown (yet)."""
COMMIT: Final = 1
ROLL_BACK: Final = 2
UNKNOWN: Final = 3


class SendHalfMessages(Request, frozen=True, tag=112):
    """Store a batch of half messages, active only after a commit, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    first_check_ms: Unsigned | None = None
    """Time from now to the first check; None = the setting of the queue."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None


class EndTransactions(Request, frozen=True, tag=113):
    """Commit or roll back half messages. Answered ``TransactionsEnded``."""

    queue: str
    message_ids: MessageIds
    decisions: Annotated[list[Decision], Meta(min_length=1, max_length=MAX_BATCH)]
    """A decision per message, or a single decision for all messages."""


class ListHalfMessages(Request, frozen=True, tag=114):
    """List undecided half messages in the order of sending. Answered ``HalfMessages``."""

    queue: str
    start: Unsigned = 0
    """Position in the queue: 0, or ``next_start`` of the previous reply."""
    limit: Unsigned = 100


class RegisterChecker(Request, frozen=True, tag=115):
    """Register the connection as checker of a queue, until its end or ``UnregisterChecker``. Answered ``Done``."""

    queue: str


class UnregisterChecker(Request, frozen=True, tag=116):
    """Send no further checks of the queue to this connection. Answered ``Done``."""

    queue: str


class TransactionFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Error of the decision on a half message."""

    message_id: int
    code: int
    text: str


class TransactionsEnded(Reply, frozen=True, tag=204):
    """Refused decisions. The other half messages are decided as requested."""

    failures: list[TransactionFailure]


class HalfMessages(messages.HalfMessages, WireMessage, frozen=True, tag=205):
    """A page of undecided half messages."""

    request_id: int


class TransactionCheck(WireMessage, frozen=True, tag=224):
    """Push that asks a checker to decide a half message. The checker may answer with ``EndTransactions``."""

    queue: str
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    age_ms: int
    attempt: int
    """Number of the check, from 1."""
