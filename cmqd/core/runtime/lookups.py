"""Look-ups: searches of the log for the position of a message by its id, and the reads under way."""

from typing import Literal, TypeAlias

import msgspec

from cmqd.core.outcome import PublishedRead
from cmqd.core.runtime.pages import Pages

Purpose: TypeAlias = Literal["retry", "drop", "report"]


class Lookup(msgspec.Struct, gc=False):
    """The search for a message of a topic, by halving."""

    waiter_id: int
    purpose: Purpose
    topic: str
    """Name of the topic."""
    topic_id: int
    message_id: int
    low: int
    """Messages below this position have lower ids."""
    high: int
    """Readable messages at or above this position have higher ids."""
    subscription: str = ""
    """Name of the subscription; of a report empty, as is the id."""
    subscription_id: int = 0
    middle: int = 0
    """The position from which on the read searches."""


class Lookups:
    """The look-ups under way, by their reads."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._by_read: dict[int, Lookup] = {}

    def __len__(self) -> int:
        return len(self._by_read)

    def read(self, lookup: Lookup) -> PublishedRead:
        """Return the read of the next message of a look-up, and enter the look-up under the read."""
        read_id = self._pages.next_read_id
        self._pages.next_read_id += 1
        self._by_read[read_id] = lookup
        return PublishedRead(read_id, lookup.topic_id, lookup.middle, lookup.high)

    def take(self, read_id: int) -> Lookup | None:
        """Remove and return the look-up of a read; None after a cancellation."""
        return self._by_read.pop(read_id, None)

    def cancel(self, waiter_id: int) -> bool:
        """Remove the look-up of a request; return False if the request has no look-up."""
        # Rare, so the few look-ups under way are searched.
        for read_id, lookup in self._by_read.items():
            if lookup.waiter_id == waiter_id:
                del self._by_read[read_id]
                return True
        return False
