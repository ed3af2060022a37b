"""Paging in the bodies of delayed messages shortly before they are due.

Messages that become active together were sent at any time, so their bodies are scattered over the log: read when they
are due, nearly each of them costs the reading of a whole row, and the reader falls behind. So the bodies of a second or
two are asked for at once, in order of position: a row is read once for all that it holds of that time.
"""

from collections.abc import Sequence

from cmqd.core.outcome import Effects, PageRead
from cmqd.core.queue import Queue
from cmqd.core.receiving import Receiving
from cmqd_segment.records import Runs, StoredMessage, last_of, unpack_runs

PREFETCH_MS = 2000
"""How far ahead bodies are read, half of it at a time: a million messages of 256 bytes due within a minute then cost a
quarter of a row each, not a row, and take 18 MiB of the window."""
PREFETCH_PAGES = 32
"""Most that is asked for at once, so that a million due in one second do not stop the loop; they do not fit the window
anyway."""


class Prefetching(Receiving):
    """The prefetching part of the broker."""

    def _prefetch_due_ms(self) -> int | None:
        """When bodies are to be asked for next: well before those asked for are used up."""
        first_ms = self._delay_buckets.next_due_ms()
        if first_ms is None:
            return None
        return max(first_ms - PREFETCH_MS, self._prefetched_until_ms - PREFETCH_MS // 2)

    def _tick_prefetch(self, effects: Effects, now_ms: int) -> None:
        due_ms = self._prefetch_due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        after_ms = max(self._prefetched_until_ms, now_ms - 1)
        self._prefetched_until_ms = now_ms + PREFETCH_MS
        most = PREFETCH_PAGES * self.limits.page_messages
        for queue_id, positions in self._delay_buckets.between(after_ms, self._prefetched_until_ms, most).items():
            queue = self.queues.get(queue_id)
            if queue is not None:
                queue.soon_wanted += sorted(set(positions))
                self._prefetch(queue, effects)

    def _prefetch(self, queue: Queue, effects: Effects) -> None:
        """Ask for the next page of what is wanted, one at a time for each queue."""
        while queue.soon_wanted and not queue.soon_reading:
            page = queue.soon_wanted[: self.limits.page_messages]
            del queue.soon_wanted[: self.limits.page_messages]
            index, soon = queue.index, queue.window.soon
            # Sorted, since what is wanted may be the end of one second and the beginning of the next.
            page = sorted(position for position in page if position in index.delayed and position not in soon)
            if not page:
                continue
            if not self._budget.has_room(queue.queue_id, self.limits.page_bytes):
                # They are read when they are due, then.
                queue.soon_wanted.clear()
                return
            queue.soon_reading = True
            read = self._page_read(queue, page, self.limits.page_bytes)
            self._prefetches[read.read_id] = read
            effects.reads.append(read)

    def _prefetch_arrived(self, queue: Queue, read: PageRead, messages: Sequence[StoredMessage], missing: Runs) -> None:
        """Keep what came; what is missing is found out, and told, when it is wanted."""
        queue.soon_reading = False
        index, window = queue.index, queue.window
        for message in messages:
            position = message.position
            if position in index.delayed:
                if position not in window.soon:
                    self._budget.keep_soon(queue.queue_id, window, message)
            elif position in index.active and position not in window.messages:
                self._budget.keep(queue.queue_id, window, message)
        settled = max(messages[-1].position if messages else -1, last_of(missing))
        if 0 <= settled < last_of(read.positions):
            queue.soon_wanted[:0] = [position for position in unpack_runs(read.positions) if position > settled]
