"""Pages: reads of message bodies from the log, in a single table for all parts of the core.

A part requests a page through its lane. The lane limits the pages of its kind that are read at once, and keeps waiting
owners in line. The answer of the log goes to the owner of the lane (``Broker.pages_read``).

| lane | reads for | pages at once | beyond them |
| --- | --- | --- | --- |
| ``receives`` | waiting receives, and ahead of receivers | ``max_reads`` | queues wait in line |
| ``ahead`` | delayed messages shortly before they are due | 1 per queue | the next page follows the previous page |
| ``moves`` | dead letters and redrives | 8 | queues wait in line |
| ``rewinds`` | the time of a single message | 1 per rewind | |
| ``overflow`` | due times of messages beyond ``max_delayed`` | 1 per queue | |
| ``commits`` | half messages that are committed | 1 per queue | |
| ``rejections`` | messages that consumers move to the dead-letter queue | 1 per queue | |
| ``checks`` | half messages with a check to send | 1 per queue | |
| ``deliveries`` | messages of topics | 32 | subscriptions wait in line |
| ``peeks`` | browsing | 1 per peek | |
| ``delivery_peeks`` | browsing the messages of a subscription | 1 per peek | |

Lanes have bounds of their own, because the storage reads pages in the order of the requests: a receive that waits for a
page has few pages of moves and deliveries before it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from cmqd.core.limits import Limits
from cmqd.core.outcome import Effects, PageRead
from cmqd.core.runtime.pending import PendingDeliveriesPeek, PendingPeek, PendingRewind
from cmqd_segment.records import Runs, StoredMessage, pack_runs

R = TypeVar("R")

MAX_MOVE_READS = 8
"""Pages of moves that are read at once, of all queues: few, because a receive may have to wait for all of them."""
MAX_DELIVERY_READS = 32
"""Pages for deliveries that are read at once: half of the limit of receives."""


class Lane(Generic[R]):
    """Page reads of one kind. ``R``: the data that the owner attaches to a read until the page arrives."""

    def __init__(self, pages: "Pages", limit: int = 0) -> None:
        """``limit``: pages at once; 0 = no bound."""
        self._pages = pages
        self._limit = limit
        self.count = 0
        """Pages under way."""
        self.busy: set[int] = set()
        """Owners with a page under way. The part removes an owner when it is ready for the owner's next page."""
        self.line: dict[int, None] = {}
        """Owners waiting for a page while ``limit`` pages are under way, in order."""

    @property
    def has_room(self) -> bool:
        """True if a further page may be read now."""
        return not self._limit or self.count < self._limit

    def want(
        self, owner_id: int, source_id: int, positions: list[int], max_bytes: int, request: R, reads: list[PageRead]
    ) -> None:
        """Ask for messages of a queue or topic (``source_id``)."""
        pages = self._pages
        read = PageRead(pages.next_read_id, source_id, pack_runs(positions), max_bytes)
        pages.next_read_id += 1
        pages.under_way[read.read_id] = Reading(self, owner_id, read, request)
        self.count += 1
        self.busy.add(owner_id)
        reads.append(read)

    def next_in_line(self) -> int | None:
        """Remove the first owner in line if there is room for its page."""
        if not self.line or not self.has_room:
            return None
        owner_id = next(iter(self.line))
        del self.line[owner_id]
        return owner_id

    def requests(self) -> Iterator[tuple[int, int, R]]:
        """Yield (read id, owner, request) of each page under way; for rare use, since it examines all lanes."""
        for read_id, reading in self._pages.under_way.items():
            if reading.lane is self:
                yield read_id, reading.owner_id, reading.request


class Reading(Generic[R]):
    """A page that is being read."""

    __slots__ = ("lane", "owner_id", "read", "request")

    def __init__(self, lane: Lane[R], owner_id: int, read: PageRead, request: R) -> None:
        self.lane = lane
        self.owner_id = owner_id
        self.read = read
        self.request = request


class PageOwner(Protocol[R]):
    """A part that requests pages."""

    def on_page(
        self, reading: Reading[R], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Take a page: a prefix of the requested messages, and the unreadable positions. Return the number of messages
        newly found to be damaged.
        """
        ...


class Pages:
    """The table of all pages under way, and the lanes."""

    def __init__(self, limits: Limits) -> None:
        self.next_read_id = 1
        self.under_way: dict[int, Reading[Any]] = {}
        """By read id."""
        self.receives = Lane[None](self, limits.max_reads)
        self.ahead = Lane[None](self)
        self.moves = Lane[None](self, MAX_MOVE_READS)
        self.rewinds = Lane[PendingRewind](self)
        self.overflow = Lane[None](self)
        self.commits = Lane[None](self)
        self.rejections = Lane[None](self)
        self.checks = Lane[None](self)
        self.deliveries = Lane[list[int]](self, MAX_DELIVERY_READS)
        self.peeks = Lane[PendingPeek](self)
        self.delivery_peeks = Lane[PendingDeliveriesPeek](self)

    def take(self, read_id: int) -> Reading[Any] | None:
        """Remove a page from the table: it arrived, or its request was cancelled. None if it is not under way."""
        reading = self.under_way.pop(read_id, None)
        if reading is not None:
            reading.lane.count -= 1
        return reading
