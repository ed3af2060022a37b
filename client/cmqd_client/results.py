"""What calls return beside messages: numbers given to sends, outcomes of batches, pages of a peek.

Each carries ``request_id``, the number of the request on its connection, as the server's log has it.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import NewType

import msgspec

from cmqd_client.errors import PartialFailure, ReceiptHandleInvalid, ServerError
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import HandleFailure, Headers

MessageId = NewType("MessageId", str)
"""A message's id as it is printed: ``Msg-`` and 16 hex digits. Unique for ever in a broker."""


def printed_id(number: int) -> MessageId:
    """The printed form of a message id."""
    return MessageId(f"Msg-{number:016x}")


class Sent(msgspec.Struct, frozen=True):
    """The message is stored, and on disk."""

    id: MessageId
    request_id: int


class SentBatch(msgspec.Struct, frozen=True):
    """All messages of the batch are stored, and on disk."""

    ids: list[MessageId]
    """In the order of the messages given."""
    request_id: int


class Failure(msgspec.Struct, frozen=True):
    """One receipt handle of a batch that could not be used; nothing was changed for it."""

    receipt_handle: int
    error: ServerError


class HandleResult(msgspec.Struct, frozen=True):
    """A delete, change of visibility or hand-back was done, durably."""

    request_id: int
    next_visible_time: datetime | None = None
    """When the message becomes visible again; only from ``change_visibility``."""


class BatchResult(msgspec.Struct, frozen=True):
    """Outcome of a batch of deletes, changes of visibility or hand-backs."""

    done: list[int]
    """The receipt handles for which it was done, durably."""
    failures: list[Failure]
    request_id: int
    """Of the last request, if the batch took several."""
    next_visible_time: datetime | None = None
    """When the messages done become visible again; only from ``change_visibility_batch``."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Do nothing if all went well.

        Raises:
            PartialFailure: something failed; its ``failures`` tell what and why.
        """
        if self.failures:
            first = self.failures[0]
            total = len(self.done) + len(self.failures)
            raise PartialFailure(
                f"{len(self.failures)} of {total} failed; the first, handle {first.receipt_handle}: {first.error.text}",
                self.failures,
                request_id=self.request_id,
            )


class Peeked(msgspec.Struct, frozen=True):
    """A message as it was when looked at; it was not received."""

    id: MessageId
    state: str
    """``active``, ``delayed`` or ``in_flight``."""
    body: bytes
    headers: Headers
    enqueue_time: datetime
    visible_time: datetime | None
    """When a delayed message becomes active; None = it is not delayed."""
    receive_count: int


class PeekPage(msgspec.Struct, frozen=True):
    """Some of a queue's messages, in the order of sending."""

    messages: list[Peeked]
    next_start: int | None
    """Give it as ``start`` to see on; None = this is the end."""
    request_id: int

    def __iter__(self) -> Iterator[Peeked]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class QueuePage(msgspec.Struct, frozen=True):
    """Some of an account's queues, by name."""

    names: list[str]
    total: int
    """Queues that match the search, listed here or not."""
    request_id: int

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def failure(failed: HandleFailure, request_id: int, connection_id: int | None) -> Failure:
    """The typed form of one failed handle."""
    cls = ServerError.by_code.get(failed.code, ReceiptHandleInvalid)
    error = cls(
        failed.text,
        request_id=request_id,
        connection_id=connection_id,
        details={"receipt_handle": failed.receipt_handle},
    )
    return Failure(failed.receipt_handle, error)


def is_invalid_handle(failed: HandleFailure) -> bool:
    """Whether the handle was (or is no longer) the valid one of its message."""
    return failed.code == ErrorCode.RECEIPT_HANDLE_INVALID
