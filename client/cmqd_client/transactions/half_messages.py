"""Half messages, checks and results: the values that local transactions and checkers take and return."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar, cast

import msgspec

from cmqd_client.errors import PoisonMessage
from cmqd_client.messages.message_ids import MessageId
from cmqd_client.messages.typed_bodies import BodyCodec, BodyT, NotDecodable
from cmqd_client.results import TransactionStatus
from cmqd_types.messages import Headers

B = TypeVar("B")
T = TypeVar("T")


class HalfMessage(msgspec.Struct, Generic[BodyT], frozen=True, kw_only=True):
    """A message that is stored and waits for its decision; the first argument of a local transaction."""

    queue: str
    id: MessageId
    body: BodyT
    """The body as given to the send."""
    headers: Headers


class TransactionCheck(msgspec.Struct, Generic[BodyT], frozen=True, kw_only=True):
    """A question of the server about an undecided half message; the argument of a checker."""

    queue: str
    id: MessageId
    raw_body: bytes
    """The body, byte for byte as sent."""
    headers: Headers
    enqueue_time: datetime
    """Time of the half send (UTC)."""
    age: float
    """Seconds from the half send to the check, by the server's clock."""
    attempt: int
    """Number of the check of this message, from 1."""
    codec: BodyCodec[BodyT] | None = None
    """Decodes the body; None = the body is bytes."""

    @property
    def body(self) -> BodyT:
        """The body; for a producer with a type, the value that the body decodes to.

        The body is decoded at each use and not before: a checker that looks for the message's id can answer although
        the body is of an earlier type.

        Raises:
            PoisonMessage: the body does not decode to the type.
        """
        codec = self.codec
        if codec is None:
            return cast("BodyT", self.raw_body)
        try:
            return codec.decode(self.raw_body, self.headers)
        except NotDecodable as problem:
            text = f"{self.id} of {self.queue!r} does not decode to {codec.type_name}: {problem}"
            raise PoisonMessage(text, self) from problem


class TransactionResult(msgspec.Struct, frozen=True):
    """The result for a message of a transactional send."""

    id: MessageId
    status: TransactionStatus
    """The decision on the server's disk: COMMIT or ROLLBACK; UNKNOWN = this producer has seen no decision, and a check
    decides."""
    request_id: int
    """Number of the request that decided, or of the half send if no decision was answered."""
    error: Exception | None = None
    """The reason for a status that differs from the local transaction's, or for UNKNOWN: an exception of the local
    transaction, or the failure of the decision (``OutcomeUnknown``, ``ServerUnreachable`` ..., ``AlreadyRolledBack``).
    None = the status is the local transaction's."""

    def raise_for_error(self) -> None:
        """Raise ``error`` if the status is not the local transaction's.

        Raises:
            Exception: ``error``.
        """
        if self.error is not None:
            raise self.error


LocalTransaction: TypeAlias = Callable[[HalfMessage[B], T], TransactionStatus | Awaitable[TransactionStatus]]
"""Does the work that belongs to a message, and returns its status."""

LocalBatchTransaction: TypeAlias = Callable[
    [list[HalfMessage[B]], T],
    TransactionStatus | Sequence[TransactionStatus] | Awaitable[TransactionStatus | Sequence[TransactionStatus]],
]
"""Does the work that belongs to a batch; returns a status for all messages, or a status per message."""

Checker: TypeAlias = Callable[[TransactionCheck[BodyT]], TransactionStatus | Awaitable[TransactionStatus]]
"""Finds out how the work that belongs to a message ended."""
