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
"""What becomes of a half message: 1 commit, 2 roll back, 3 unknown (yet)."""
COMMIT: Final = 1
ROLL_BACK: Final = 2
UNKNOWN: Final = 3


class SendHalfMessages(Request, frozen=True, tag=112):
    """Store a batch that nobody receives until it is committed, whole or not at all. Answered ``MessagesSent``."""

    queue: str
    bodies: Bodies
    headers: HeadersList | None = None
    first_check_ms: Unsigned | None = None
    """From now to the first check; None = the queue's."""
    session: Unsigned = 0
    sequence: Unsigned = 0
    dedup_ids: DedupIds | None = None


class EndTransactions(Request, frozen=True, tag=113):
    """Decide half messages, one by one. Answered ``TransactionsEnded``."""

    queue: str
    message_ids: MessageIds
    decisions: Annotated[list[Decision], Meta(min_length=1, max_length=MAX_BATCH)]
    """One for each, or one for all."""


class ListHalfMessages(Request, frozen=True, tag=114):
    """Undecided half messages in the order of sending. Answered ``HalfMessages``."""

    queue: str
    start: Unsigned = 0
    """A place in the queue: 0, or ``next_start`` of the reply before."""
    limit: Unsigned = 100


class RegisterChecker(Request, frozen=True, tag=115):
    """This connection answers checks of the queue, from now until it ends or says otherwise. Answered ``Done``."""

    queue: str


class UnregisterChecker(Request, frozen=True, tag=116):
    """No more checks of this queue, please. Answered ``Done``."""

    queue: str


class TransactionFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why the decision of one half message was refused."""

    message_id: int
    code: int
    text: str


class TransactionsEnded(Reply, frozen=True, tag=204):
    """What was refused; the rest is decided as asked."""

    failures: list[TransactionFailure]


class HalfMessages(messages.HalfMessages, WireMessage, frozen=True, tag=205):
    """A page of undecided half messages."""

    request_id: int


class TransactionCheck(WireMessage, frozen=True, tag=224):
    """A push: what became of the transaction of this half message? Answered by ``EndTransactions``, or not."""

    queue: str
    message_id: int
    body: bytes
    headers: Headers | None
    enqueue_ms: int
    age_ms: int
    attempt: int
    """1 for the first check."""
