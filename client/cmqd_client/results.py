"""Results of calls: ids of sent messages, results of batches, pages of a peek.

A result has ``request_id``, the number of the request on its connection, as in the server's log.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from cmqd_client.errors import (
    CmqError,
    DecisionFailure,
    Failure,
    PartialFailure,
    ReceiptHandleInvalid,
    ServerError,
    UnknownServerError,
)
from cmqd_client.messages.message_ids import MessageId, printed_id
from cmqd_client.replies.conversions import converted
from cmqd_protocol import messages as wire
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import Headers

EntryT = TypeVar("EntryT")
ListedT = TypeVar("ListedT", covariant=True)
FailureT = TypeVar("FailureT", Failure, DecisionFailure)


class TransactionStatus(Enum):
    """The decision about a half message."""

    COMMIT = wire.COMMIT
    """The message becomes active."""
    ROLLBACK = wire.ROLL_BACK
    """The message is dropped."""
    UNKNOWN = wire.UNKNOWN
    """Not decided yet: the server sends a check to a producer with a checker."""


class Origin(msgspec.Struct, frozen=True):
    """Queue, id and counts of a message before it was moved, and the reason of the move."""

    queue: str
    id: MessageId
    """Id of the message in that queue."""
    enqueue_time: datetime
    receive_count: int
    """Number of receives in that queue."""
    reason: str
    """``receives``, ``age`` or ``rejected``: became a dead letter; ``redrive``: came back from a dead-letter queue."""
    rejection: str = ""
    """The reason that the consumer gave to ``reject``; empty unless ``reason`` is ``rejected``."""


class CopyOf(msgspec.Struct, frozen=True):
    """The published message that a message in a queue is a copy of, and its subscription."""

    topic: str
    subscription: str
    id: MessageId
    """Id of the published message, as in ``Published``; the copy has an id of its own."""
    publish_time: datetime
    tags: list[str]
    """Empty without tags, and on a routing topic."""
    routing_key: str | None
    """None on a tag topic."""


class Sent(msgspec.Struct, frozen=True):
    """The message is stored, and on disk."""

    id: MessageId
    request_id: int


class SentBatch(msgspec.Struct, frozen=True):
    """All messages of the batch are stored, and on disk."""

    ids: list[MessageId]
    """In the order of the messages given."""
    request_id: int
    """Number of the last request, if the batch was split; 0 = the batch was empty, and no request was made."""
    request_ids: tuple[int, ...] = ()
    """Numbers of all requests, in their order."""


class Done(msgspec.Struct, frozen=True):
    """A change without further result was made, durably."""

    request_id: int


class SegmentsSealed(msgspec.Struct, frozen=True):
    """All rows of the log up to now are in sealed segments."""

    last_lsn: int
    """Number of the last sealed row."""
    request_id: int


class HandleResult(msgspec.Struct, frozen=True):
    """A delete, change of visibility, release or move to the dead-letter queue was done, durably."""

    request_id: int
    next_visible_time: datetime | None = None
    """Time at which the message becomes active again; None after a delete, and after a move."""


class PartialResult(msgspec.Struct, Generic[EntryT, FailureT], frozen=True):
    """Result of a batch with entries that succeed or fail independently."""

    done: list[EntryT]
    """The successful entries, durable."""
    failures: list[FailureT]
    request_id: int
    """Number of the last answered request, if the batch took several; 0 = none was answered."""
    request_ids: tuple[int, ...]
    """Numbers of all answered requests, in their order."""

    @property
    def ok(self) -> bool:
        """True if no entry failed."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Raise an exception if an entry failed.

        Raises:
            PartialFailure: an entry failed; the text names the first failure, ``failures`` has all, and ``done`` the
                successes.
        """
        if self.failures:
            count, total = len(self.failures), len(self.done) + len(self.failures)
            text = f"{count} of {total} failed; the first, {self.failures[0]}"
            raise PartialFailure(text, self.failures, done=self.done, request_id=self.request_id)


class BatchResult(PartialResult[int, Failure], frozen=True):
    """Result of a batch of deletes, changes of visibility, releases or moves to the dead-letter queue; ``done`` has
    receipt handles."""

    next_visible_time: datetime | None = None
    """Time at which the first of the messages becomes active again; None after a delete, and after a move."""


class DecisionResult(PartialResult[MessageId, DecisionFailure], frozen=True):
    """Result of ``end_transactions``; ``done`` has the messages that are decided as requested."""


class Peeked(msgspec.Struct, frozen=True):
    """A message at the time of the peek; a peek is not a receive."""

    id: MessageId
    state: str
    """``active``, ``delayed``, ``in_flight``, ``half`` or ``rewindable``."""
    body: bytes
    headers: Headers
    enqueue_time: datetime
    visible_time: datetime | None
    """Time at which a delayed message becomes active; None = not delayed."""
    receive_count: int
    origin: Origin | None = None
    """Queue, id and reason if the message was moved from another queue; None = never moved."""
    copy_of: CopyOf | None = None
    """The published message that this message is a copy of; None = sent directly to a queue."""


class MessagePage(msgspec.Struct, Generic[EntryT], frozen=True):
    """A page of a queue's messages, in the order of sending."""

    messages: list[EntryT]
    next_start: int | None
    """``start`` of the next page; None = this is the last page."""
    request_id: int

    def __iter__(self) -> Iterator[EntryT]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class PeekPage(MessagePage[Peeked], frozen=True):
    """A page of :meth:`Queue.peek`."""


class NamePage(msgspec.Struct, frozen=True):
    """A page of an account's queues or topics, by name."""

    names: list[str]
    total: int
    """Names that match the search, listed here or not."""
    request_id: int
    ids: list[int] = []
    """Ids of the queues or topics, in the order of the names."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class QueuePage(NamePage, frozen=True):
    """A page of :meth:`Client.queues`."""


class Listing(Sequence[ListedT]):
    """All entries of a list that the server sends whole, without pages.

    The sequence does not change, and equals a list or tuple with the same entries.
    """

    __slots__ = ("_entries", "_request_id")

    def __init__(self, entries: Sequence[ListedT], request_id: int) -> None:
        self._entries = tuple(entries)
        self._request_id = request_id

    @property
    def request_id(self) -> int:
        """Number of the request."""
        return self._request_id

    @overload
    def __getitem__(self, index: int) -> ListedT: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ListedT, ...]: ...

    def __getitem__(self, index: int | slice) -> ListedT | tuple[ListedT, ...]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Listing, list, tuple)):
            entries: tuple[object, ...] = tuple(cast("Sequence[object]", other))
            return self._entries == entries
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return f"Listing({list(self._entries)!r}, request_id={self._request_id})"


class ServerStatus(Mapping[str, Any]):
    """The status of the server at the time of the request: a mapping that does not change.

    ``dict(status)`` is a copy that changes and that ``json`` takes.
    """

    __slots__ = ("_facts", "_request_id")

    def __init__(self, facts: Mapping[str, Any], request_id: int) -> None:
        self._facts = dict(facts)
        self._request_id = request_id

    @property
    def request_id(self) -> int:
        """Number of the request."""
        return self._request_id

    def __getitem__(self, name: str) -> Any:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __repr__(self) -> str:
        return f"ServerStatus({self._facts!r}, request_id={self._request_id})"


class Rewound(msgspec.Struct, frozen=True):
    """The queue is rewound, durably."""

    messages: int
    """Number of messages that are active again."""
    time: datetime
    """Start of the rewind: the requested time, or the nearest possible time."""
    clamped: bool
    """True if the requested time lies before the rewind window, so the nearest possible time was used."""
    request_id: int


class RewindPreview(msgspec.Struct, frozen=True):
    """The result that a rewind would have at the time of the request."""

    messages: int
    """Number of messages that would be active again."""
    time: datetime
    """Start of the rewind: the requested time, or the nearest possible time."""
    clamped: bool
    """True if the requested time lies before the rewind window, so the nearest possible time was used."""
    earliest: datetime
    """Start of the rewind window."""
    latest: datetime
    """Latest possible time: the send of the oldest message that is active or in flight, or now."""
    oldest: datetime | None
    """Time at or shortly before the send of the oldest message that can come back; None = no message can."""
    request_id: int


class Redrive(msgspec.Struct, frozen=True):
    """A redrive at the time of the request: messages of a dead-letter queue on their way back."""

    queue: str
    """The dead-letter queue."""
    target: str | None
    """The queue that gets the messages; None = the origin of the message."""
    max_per_second: int | None
    """None = unlimited."""
    start_time: datetime
    end_time: datetime | None
    """None = the redrive continues, also when the server restarts."""
    reason: str
    """``done`` or ``cancelled`` after the end; before that empty, or the reason of a pause (``target full: NAME``)."""
    moved: int
    remaining: int
    """Messages that the redrive has not examined yet."""
    missing_origins: dict[str, int]
    """Messages that stay because their origin does not exist or refuses them, by the origin's name;
    ``(no origin)`` counts messages sent directly to this queue."""
    request_id: int

    @property
    def running(self) -> bool:
        """True while the redrive is in progress."""
        return self.end_time is None


class Undecided(msgspec.Struct, frozen=True):
    """A half message that is neither committed nor rolled back."""

    id: MessageId
    enqueue_time: datetime
    checks: int
    """Number of checks sent to producers."""
    last_check_time: datetime | None
    """None = never."""
    last_answer: str
    """``unknown``, or empty if no answer has come (yet)."""
    next_check_time: datetime | None
    """None = no further check is sent; the message stays until a decision or until its retention ends."""


class UndecidedPage(MessagePage[Undecided], frozen=True):
    """A page of :meth:`Queue.half_messages`."""


def redrive(status: wire.RedriveStatus) -> Redrive:
    """Convert the reply about a redrive."""
    return converted(Redrive, status, target=status.target or None, max_per_second=status.max_per_second or None)


def decision_failure(failed: wire.TransactionFailure, request_id: int, connection_id: int | None) -> DecisionFailure:
    """Return the typed form of a refused decision."""
    message_id = printed_id(failed.message_id)
    cls = ServerError.by_code.get(failed.code, UnknownServerError)
    details = {"message_id": message_id}
    return DecisionFailure(
        message_id, cls(failed.text, request_id=request_id, connection_id=connection_id, details=details)
    )


def failure(failed: wire.HandleFailure, request_id: int, connection_id: int | None) -> Failure:
    """Return the typed form of a failed handle."""
    handle = failed.receipt_handle
    cls = ServerError.by_code.get(failed.code, ReceiptHandleInvalid)
    details: dict[str, object] = {"receipt_handle": handle}
    if failed.gone is not None and cls is ReceiptHandleInvalid:
        details["gone"] = failed.gone
    return Failure(handle, cls(failed.text, request_id=request_id, connection_id=connection_id, details=details))


def was_done_before(failed: wire.HandleFailure, gone: int) -> bool:
    """True if an attempt without an answer, of a request that was repeated, has settled the message.

    ``gone``: how a lease ends with this request, as in :class:`~cmqd_protocol.messages.HandleFailure`; 0 = the message
    is active again. From an older server any invalid handle may be so: the attempt is the likely reason.
    """
    return failed.code == ErrorCode.RECEIPT_HANDLE_INVALID and failed.gone in (None, gone)


def may_be_done_before(error: CmqError, gone: int) -> bool:
    """Do the same as :func:`was_done_before` for an error."""
    return isinstance(error, ReceiptHandleInvalid) and error.details.get("gone") in (None, gone)
