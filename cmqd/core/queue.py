"""One queue: its index, the bodies of it that are in memory, and who waits at it."""

from typing import Any

import msgspec
from pyroaring import BitMap64

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits
from cmqd.core.runtime.waiters import WaitingLine
from cmqd.core.runtime.window import Window
from cmqd_fold.queue_index import QueueIndex


class Redriving(msgspec.Struct):
    """What a redrive under way knows beside what is in the log; a restart begins anew with what is still there."""

    cursor: int = 0
    """Messages below it were looked at."""
    missing_origins: dict[str, int] = {}
    held_up: str = ""
    next_ms: int = 0
    """Not before then."""


class Queue:
    """A queue's state; the rules are in the broker's operations, the facts in ``index``."""

    __slots__ = (
        "_dedup_ids",
        "_limits",
        "_overdue",
        "_unmovable",
        "account",
        "agenda_due_ms",
        "created_ms",
        "dead_letters",
        "expiry_due_ms",
        "has_checkers",
        "index",
        "line",
        "modified_ms",
        "move_reading",
        "name",
        "overflow_reading",
        "queue_id",
        "read_wanted",
        "reading",
        "redriving",
        "slice_lsn",
        "soon_reading",
        "soon_wanted",
        "sources",
        "window",
    )

    def __init__(self, account: str, name: str, created_ms: int, index: QueueIndex, limits: Limits) -> None:
        self.account = account
        self.name = name
        self.queue_id = index.queue_id
        self.created_ms = created_ms
        self.modified_ms = created_ms
        self.index = index
        self.window = Window()
        self.line = WaitingLine()
        self.reading = False
        """A page-in for receives is under way."""
        self.read_wanted = False
        """It stands in the line for a page-in."""
        self.overflow_reading = False
        """A page-in of overflow delays is under way."""
        self.soon_wanted: list[int] = []
        """Delayed positions whose bodies are to be read ahead of their time, in ascending order by second."""
        self.soon_reading = False
        """A page-in of some of them is under way."""
        self.dead_letters: Queue | None = None
        """Its dead-letter queue."""
        self.sources: dict[int, Queue] = {}
        """The queues whose dead-letter queue it is, by id."""
        self._limits = limits
        self._dedup_ids: DedupIds | None = None
        self._overdue: BitMap64 | None = None
        self._unmovable: BitMap64 | None = None
        self.move_reading = False
        """A page-in of messages that are to be moved is under way."""
        self.redriving: Redriving | None = None
        """While a redrive is under way."""
        self.has_checkers = False
        """Somebody answers checks of its half messages."""
        self.agenda_due_ms: int | None = None
        """When it is next looked at for dead letters, its redrive and what can no longer be rewound."""
        self.expiry_due_ms: int | None = None
        """When the floor of retention is next looked at; None = nothing to expire."""
        self.slice_lsn = 0
        """LSN of the checkpoint slice it came from: recovery skips older records."""

    @property
    def dedup_ids(self) -> DedupIds:
        """The dedup ids under which messages were sent."""
        if self._dedup_ids is None:
            self._dedup_ids = DedupIds(self._limits)
        return self._dedup_ids

    @property
    def has_dedup_ids(self) -> bool:
        """Whether any dedup ids are remembered."""
        return self._dedup_ids is not None and len(self._dedup_ids) > 0

    def apply_step(self, now_ms: int) -> None:
        """Broker time stepped back to ``now_ms``."""
        self.index.apply_step(now_ms, self._limits.max_visibility_timeout_ms)
        if self._dedup_ids is not None:
            self._dedup_ids.no_later_than(now_ms)

    @property
    def overdue(self) -> BitMap64:
        """Messages that were received as often as policy 0 allows; those that are active are to be moved."""
        if self._overdue is None:
            self._overdue = BitMap64()
        return self._overdue

    @overdue.setter
    def overdue(self, positions: BitMap64) -> None:
        self._overdue = positions

    @property
    def unmovable(self) -> BitMap64:
        """Dead letters that their queue does not take for their size, or that have expired: not tried again before the
        restart or a change of attributes.
        """
        if self._unmovable is None:
            self._unmovable = BitMap64()
        return self._unmovable

    @unmovable.setter
    def unmovable(self, positions: BitMap64) -> None:
        self._unmovable = positions

    def __repr__(self) -> str:
        index = self.index
        return (
            f"<Queue {self.account}/{self.name} id={self.queue_id} active={index.active_count} "
            f"in_flight={index.in_flight_count} delayed={index.delayed_count + index.overflow_count} "
            f"waiting={len(self.line.waiting)}>"
        )

    def attributes(self) -> dict[str, int | str | bool]:
        """What its owner can set."""
        return msgspec.structs.asdict(self.index.attributes)

    def counts(self) -> dict[str, int]:
        """How many messages are in each state; exact, and O(1) in messages."""
        index = self.index
        return {
            "active": index.active_count + index.moving_count,
            "in_flight": index.in_flight_count,
            "delayed": index.delayed_count + index.overflow_count,
            "half": index.half_count,
            "rewindable": index.rewindable_count,
            "damaged": len(index.damaged),
            "waiting_receives": len(self.line.waiting),
        }

    def facts(self) -> dict[str, Any]:
        """Facts that the owner can only read; times in ms. The time of the oldest unconsumed message is exact to a
        grain (100 ms and up).
        """
        index = self.index
        oldest = index.oldest_unconsumed()
        facts: dict[str, Any] = {
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "oldest_message_ms": None if oldest is None else index.steps.sent_at(oldest),
        }
        if self.sources:
            facts["dead_letter_sources"] = sorted(queue.name for queue in self.sources.values())
        return facts
