"""Prefetch: reading the bodies of delayed messages shortly before they are due.

Messages that become active together were sent at different times, so their bodies are scattered over the log. Read in
the order of their due times, nearly every body costs the read of a whole row, and reads fall behind. Therefore the
bodies of a second or two are requested together, in order of position: a row is read once for all its messages that are
due in that time.
"""

from collections.abc import Sequence

from cmqd.core.facts.facts import Facts
from cmqd.core.facts.queue import Queue
from cmqd.core.operations.receiving.serving import Serving
from cmqd.core.outcome import Effects, PageRead
from cmqd.core.runtime.agenda import PREFETCH_MS
from cmqd.core.runtime.pages import Reading
from cmqd.core.runtime.runtime import Runtime
from cmqd_segment.records import Runs, StoredMessage, last_of, unpack_runs

PREFETCH_PAGES = 32
"""Largest number of pages requested at once. Without the limit a million messages due in a second would stop the loop;
so many bodies would not fit the window anyway."""


class Prefetch:
    """Reads bodies of delayed messages ahead of their time."""

    def __init__(self, facts: Facts, runtime: Runtime, serving: Serving) -> None:
        self._limits = facts.limits
        self._queues = facts.queues
        self._buckets = facts.queues.delays.near
        self._runtime = runtime.queues
        self._agenda = runtime.agenda
        self._budget = runtime.budget
        self._lane = runtime.pages.ahead
        self._serving = serving

    def tick(self, effects: Effects, now_ms: int) -> None:
        """Request the bodies of the delayed messages that are due within the next seconds."""
        due_ms = self._agenda.prefetch_due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        after_ms = max(self._agenda.prefetched_until_ms, now_ms - 1)
        self._agenda.prefetched_until_ms = now_ms + PREFETCH_MS
        max_positions = PREFETCH_PAGES * self._limits.page_messages
        for queue_id, positions in self._buckets.between(
            after_ms, self._agenda.prefetched_until_ms, max_positions
        ).items():
            queue = self._queues.by_id.get(queue_id)
            if queue is not None:
                self._runtime[queue_id].soon_wanted += sorted(set(positions))
                self._read_next(queue, effects)

    def _read_next(self, queue: Queue, effects: Effects) -> None:
        """Request the next page of a queue, one page at a time."""
        runtime = self._runtime[queue.queue_id]
        index, soon = queue.index, runtime.window.soon
        while runtime.soon_wanted and queue.queue_id not in self._lane.busy:
            page = runtime.soon_wanted[: self._limits.page_messages]
            del runtime.soon_wanted[: self._limits.page_messages]
            # Sorted again, because a page may span the end of a second and the beginning of the next.
            page = sorted(position for position in page if position in index.delays.scheduled and position not in soon)
            if not page:
                continue
            if not self._budget.has_room(queue.queue_id, self._limits.page_bytes):
                # Without room the bodies are read when the messages are due.
                runtime.soon_wanted.clear()
                return
            self._lane.want(queue.queue_id, queue.queue_id, page, self._limits.page_bytes, None, effects.reads)

    def on_page(
        self, reading: Reading[None], messages: Sequence[StoredMessage], missing: Runs, effects: Effects, now_ms: int
    ) -> int:
        """Keep the bodies of a page, and request the next page. A missing body is reported when its message is due."""
        self._lane.busy.discard(reading.owner_id)
        queue = self._queues.by_id.get(reading.owner_id)
        if queue is not None:
            self._keep(queue, reading.read, messages, missing)
            self._read_next(queue, effects)
            self._serving.serve(queue, effects, now_ms)
        return 0

    def _keep(self, queue: Queue, read: PageRead, messages: Sequence[StoredMessage], missing: Runs) -> None:
        """Keep the bodies of a page; missing bodies are reported when a receive needs them."""
        runtime = self._runtime[queue.queue_id]
        index, window = queue.index, runtime.window
        for message in messages:
            position = message.position
            if position in index.delays.scheduled:
                if position not in window.soon:
                    self._budget.keep_soon(queue.queue_id, window, message)
            elif position in index.active and position not in window.messages:
                self._budget.keep(queue.queue_id, window, message)
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        if 0 <= settled < last_of(read.positions):
            runtime.soon_wanted[:0] = [position for position in unpack_runs(read.positions) if position > settled]
