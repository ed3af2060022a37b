"""Due times of delayed messages: near times in fine buckets, far times in spans.

A fine bucket costs 400 bytes and more beside its positions. Within an hour many messages share a bucket. Due times that
are spread over days would have a bucket each, so a far time is kept in the list of its span (9 minutes) instead: 16
bytes, the exact time and the position. Shortly before a span begins, its entries move to the fine buckets, a bounded
slice at a time.

The width of a span bounds the fine buckets, and so the longest call: the table of buckets is copied whole when it
grows, which takes a millisecond at 22,000 buckets and five at 175,000.
"""

from array import array
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from cmqd.core.facts.deadlines import DeadlineBuckets
from cmqd_fold.timers import TimerEntries

SPAN_MS = 1 << 19
"""Width of a span: 15 days are 2,500 spans, and the fine buckets of a span are 26,000."""
LEAD_MS = 120_000
"""Time before a span begins at which its entries start to move: a million entries move in 2,500 slices."""


class _FarEntries:
    """The list of a span and queue, for entries of the same due time."""

    __slots__ = ("_due_ms", "_pairs")

    def __init__(self, pairs: "array[int]", due_ms: int) -> None:
        self._pairs = pairs
        self._due_ms = due_ms

    def append(self, number: int, /) -> None:
        self._pairs.extend((self._due_ms, number))

    def extend(self, numbers: Iterable[int], /) -> None:
        for number in numbers:
            self.append(number)


class DelayTimers:
    """Positions of delayed messages by due time and queue.

    Invariants: an entry is in ``near`` or in a span, never in both. The heap holds the spans with entries, each span
    once. A queue is in a span exactly if the span is among the spans of the queue.
    """

    def __init__(self, width_ms: int) -> None:
        self.width_ms = width_ms
        self.near = DeadlineBuckets(width_ms)
        self._far: dict[int, dict[int, array[int]]] = {}
        """Pairs of due time and position, by span and queue."""
        self.spans: list[int] = []
        """Heap of the numbers of spans. A span begins at its number times ``SPAN_MS``. Read-only outside: without far
        entries, the usual case, the agenda has nothing to ask."""
        self._spans_of: dict[int, set[int]] = {}
        """By queue. A floor that passes in a queue, and a checkpoint of a queue, examine the queue's spans alone."""
        self._last_near_span = -1
        """New times up to the end of this span go to ``near`` directly."""

    @property
    def size(self) -> int:
        """Count of entries, near and far, stale entries included."""
        return self.near.size

    @size.setter
    def size(self, count: int) -> None:
        self.near.size = count

    def bucket(self, due_ms: int, queue_id: int) -> TimerEntries:
        """Return the entries that come due at ``due_ms``; the caller appends to them and adds to ``size``."""
        span = due_ms // SPAN_MS
        if span <= self._last_near_span:
            return self.near.bucket(due_ms, queue_id)
        queues = self._far.get(span)
        if queues is None:
            queues = self._far[span] = {}
            heappush(self.spans, span)
        pairs = queues.get(queue_id)
        if pairs is None:
            pairs = queues[queue_id] = array("Q")
            self._spans_of.setdefault(queue_id, set()).add(span)
        return _FarEntries(pairs, due_ms)

    def pass_time(self, now_ms: int) -> None:
        """Let new times of this span and the next minutes go to ``near``, unless far entries have to move first."""
        span = (now_ms + LEAD_MS) // SPAN_MS
        if span > self._last_near_span and not (self.spans and self.spans[0] <= span):
            self._last_near_span = span

    def bring_near_due_ms(self) -> int | None:
        """Return the time at which ``bring_near`` has entries to move; None without far entries."""
        return self.spans[0] * SPAN_MS - LEAD_MS if self.spans else None

    def bring_near(self, now_ms: int, most: int) -> None:
        """Move up to ``most`` entries of spans that begin soon, or have begun, to the fine buckets."""
        reached = (now_ms + LEAD_MS) // SPAN_MS
        spans, near = self.spans, self.near
        while spans and spans[0] <= reached:
            if most <= 0:
                return
            span = spans[0]
            queues = self._far[span]
            queue_id, pairs = next(iter(queues.items()))
            # From the end, which is cheap; the order inside a span has no meaning.
            moved = pairs[-2 * most :]
            del pairs[-2 * most :]
            if not pairs:
                self._take(span, queue_id)
            if not queues:
                del self._far[heappop(spans)]
            for place in range(0, len(moved), 2):
                near.bucket(moved[place], queue_id).append(moved[place + 1])
            most -= len(moved) // 2
        self._last_near_span = max(self._last_near_span, reached)

    def _take(self, span: int, queue_id: int) -> "array[int]":
        """Remove the list of a span and queue; an empty span is left to the caller."""
        spans = self._spans_of[queue_id]
        spans.discard(span)
        if not spans:
            del self._spans_of[queue_id]
        return self._far[span].pop(queue_id)

    def far_of_queue(self, queue_id: int) -> "list[array[int]]":
        """Return the pairs of due time and position of a queue, a list per span, stale entries included."""
        return [self._far[span][queue_id] for span in sorted(self._spans_of.get(queue_id, ()))]

    def of_queue(self, queue_id: int) -> "list[tuple[int, array[int]]]":
        """Return (due time in ms, positions) of a queue, stale entries included; a far entry by itself."""
        width_ms = self.width_ms
        far = [
            (-(-pairs[place] // width_ms) * width_ms, pairs[place + 1 : place + 2])
            for pairs in self.far_of_queue(queue_id)
            for place in range(0, len(pairs), 2)
        ]
        return self.near.of_queue(queue_id) + far

    def drop_far(self, queue_id: int) -> None:
        """Forget the far entries of a queue without delayed messages. They would stay for days otherwise."""
        for span in list(self._spans_of.get(queue_id, ())):
            self.near.size -= len(self._take(span, queue_id)) // 2
        self._forget_empty_spans()

    def _forget_empty_spans(self) -> None:
        if not all(self._far.values()):
            self._far = {span: queues for span, queues in self._far.items() if queues}
            self.spans = sorted(self._far)

    def no_later_than(self, latest_ms: Mapping[int, int]) -> None:
        """Make later entries of queues come due at the time given for the queue, because broker time stepped back."""
        queues_by_time: dict[int, set[int]] = {}
        for queue_id, due_ms in latest_ms.items():
            queues_by_time.setdefault(due_ms, set()).add(queue_id)
        # The near span of before may lie far ahead of the new time. The next ``bring_near`` sets it anew.
        self._last_near_span = -1
        for queue_id, due_ms in latest_ms.items():
            taken = [self._take(span, queue_id) for span in list(self._spans_of.get(queue_id, ()))]
            for pairs in taken:
                for place in range(0, len(pairs), 2):
                    self.bucket(min(pairs[place], due_ms), queue_id).append(pairs[place + 1])
        self._forget_empty_spans()
        for due_ms, queue_ids in queues_by_time.items():
            self.near.no_later_than(due_ms, queue_ids)
