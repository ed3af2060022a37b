"""A queue: its name, its dates, its index of messages, and its dead-letter queue and sources."""

from typing import Any

import msgspec

from cmqd.core.facts.dedup import DedupIds
from cmqd.core.limits import Limits
from cmqd_fold.queue_index import QueueIndex


class Queue:
    """The facts of a queue; ``runtime.queue`` has the state that a restart forgets."""

    __slots__ = (
        "_dedup_ids",
        "_limits",
        "account",
        "created_ms",
        "dead_letters",
        "index",
        "modified_ms",
        "name",
        "queue_id",
        "slice_lsn",
        "sources",
    )

    def __init__(self, account: str, name: str, created_ms: int, index: QueueIndex, limits: Limits) -> None:
        self.account = account
        self.name = name
        self.queue_id = index.queue_id
        self.created_ms = created_ms
        self.modified_ms = created_ms
        self.index = index
        self._limits = limits
        self._dedup_ids: DedupIds | None = None
        self.dead_letters: Queue | None = None
        """Its dead-letter queue."""
        self.sources: dict[int, Queue] = {}
        """The queues that send their dead letters here, by id."""
        self.slice_lsn = 0
        """LSN of its checkpoint slice: recovery skips older records."""

    @property
    def dedup_ids(self) -> DedupIds:
        """The dedup ids under which messages were sent; most queues have none, so the table is made at first use."""
        if self._dedup_ids is None:
            self._dedup_ids = DedupIds(self._limits)
        return self._dedup_ids

    @property
    def has_dedup_ids(self) -> bool:
        """True if dedup ids are remembered."""
        return self._dedup_ids is not None and len(self._dedup_ids) > 0

    def apply_step(self, now_ms: int) -> None:
        """Bring down the times that lie too far in the future: broker time stepped back to ``now_ms``."""
        self.index.apply_step(now_ms, self._limits.max_visibility_timeout_ms)
        if self._dedup_ids is not None:
            self._dedup_ids.no_later_than(now_ms)

    def __repr__(self) -> str:
        index = self.index
        return (
            f"<Queue {self.account}/{self.name} id={self.queue_id} active={index.active_count} "
            f"in_flight={index.in_flight_count} delayed={index.delays.scheduled_count + index.delays.overflow_count}>"
        )

    def attributes(self) -> dict[str, int | str | bool]:
        """Return the attributes that the owner can set."""
        return msgspec.structs.asdict(self.index.attributes)

    def counts(self, waiting_receives: int) -> dict[str, int]:
        """Return the number of messages in each state; exact, and O(1) in messages."""
        index = self.index
        return {
            "active": index.active_count + index.moving_count,
            "in_flight": index.readable_in_flight_count,
            "delayed": index.delays.scheduled_count + index.delays.overflow_count,
            "half": index.half_count,
            "rewindable": index.rewindable_count,
            "damaged": index.damaged_count,
            "waiting_receives": waiting_receives,
        }

    def facts(self) -> dict[str, Any]:
        """Return facts that the owner can only read; times in ms. The time of the oldest unconsumed message is exact to
        a grain (100 ms and up).
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
