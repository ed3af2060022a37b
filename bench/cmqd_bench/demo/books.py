"""The books of a demo: messages sent, answered, received and deleted, and the check of their sums. Pure.

A message has a *number* (a header that the producer sets) and an *id* (from the broker's answer). The rules, which must
hold across a kill:

- every id that was answered to a producer is received with exactly the body that was sent: else the id is **lost**;
- no message is received that was not sent, and no body is changed: else the message is **foreign**;
- an id with an answered delete is never received again: else the delete was **undone**.

"At least once" permits two cases, which are counted. An id can be received twice: the kill lost the first answer or the
delete, so the visibility timeout expired. A number can be stored twice: the answer to the send was lost, and the
producer stopped repeating the numbered send and made a new send.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balance:
    """The state of a ledger."""

    acknowledged: int
    """Sends that were answered."""
    received: int
    """Distinct numbers received."""
    deliveries: int
    deleted: int
    """Number of distinct ids with an answered delete."""
    lost: int
    foreign: int
    undone: int
    redelivered: int
    """Deliveries of an id beyond its first."""
    stored_twice: int
    """Numbers with two or more ids."""
    unanswered: int
    """Numbers received without an answer to their send: the message was stored, and the answer lost."""

    @property
    def holds(self) -> bool:
        """True if no promise was broken."""
        return not (self.lost or self.foreign or self.undone)


class Ledger:
    """The messages of the demo."""

    def __init__(self, body: Callable[[int], bytes]) -> None:
        self._body = body
        self._attempted: set[int] = set()
        self._acknowledged: dict[str, int] = {}
        """id -> number"""
        self._received: dict[str, int] = {}
        """id -> number of deliveries"""
        self._ids: dict[int, set[str]] = {}
        """number -> ids received"""
        self._deleted: set[str] = set()
        self._unsure: set[str] = set()
        self.deliveries = 0
        self.foreign = 0
        self.undone = 0

    @property
    def acknowledged(self) -> int:
        """Sends answered so far."""
        return len(self._acknowledged)

    @property
    def received(self) -> int:
        """Distinct numbers received so far."""
        return len(self._ids)

    @property
    def deleted(self) -> int:
        """Number of distinct ids with an answered delete so far."""
        return len(self._deleted)

    def attempt(self, numbers: Iterable[int]) -> None:
        """Record a send before it leaves."""
        self._attempted.update(numbers)

    def acknowledge(self, numbers: Iterable[int], ids: Iterable[str]) -> None:
        """Record an answered send."""
        self._acknowledged.update(zip(ids, numbers, strict=True))

    def receive(self, message_id: str, number: int | None, body: bytes) -> None:
        """Record a received message."""
        self.deliveries += 1
        if number is None or number not in self._attempted or body != self._body(number):
            self.foreign += 1
            return
        if message_id in self._deleted and message_id not in self._unsure:
            self.undone += 1
        self._received[message_id] = self._received.get(message_id, 0) + 1
        self._ids.setdefault(number, set()).add(message_id)

    def delete(self, message_ids: Iterable[str], *, sure: bool = True) -> None:
        """Record an answered delete.

        Without ``sure`` the delete was repeated across the kill: the answer to a repeat can also mean that the
        visibility timeout expired.
        """
        for message_id in message_ids:
            self._deleted.add(message_id)
            if not sure:
                self._unsure.add(message_id)

    def balance(self) -> Balance:
        """Return the current balance."""
        answered = set(self._acknowledged.values())
        return Balance(
            acknowledged=len(self._acknowledged),
            received=len(self._ids),
            deliveries=self.deliveries,
            deleted=len(self._deleted),
            lost=sum(message_id not in self._ids.get(number, ()) for message_id, number in self._acknowledged.items()),
            foreign=self.foreign,
            undone=self.undone,
            redelivered=sum(count - 1 for count in self._received.values()),
            stored_twice=sum(len(ids) > 1 for ids in self._ids.values()),
            unanswered=sum(number not in answered for number in self._ids),
        )
