"""The messages of a stretch of the log that are still needed, and the queues and topics that need most of them.

The log reclaims a segment when no message in it is needed. The core knows no segments: a caller names the positions
that a segment has of each queue and topic.

The work is done in steps, because a segment may have messages of very many queues. Messages are consumed between two
steps, so the counts show each queue at its own moment.
"""

from collections.abc import Generator, Iterable
from heapq import nlargest
from typing import NamedTuple

from cmqd.core.facts.facts import Facts
from cmqd_types.segments import SegmentHolder

COUNTED_A_STEP = 500
"""Queues and subscriptions of a step: about 0.6 ms. A topic is never divided."""
STRETCH = 10
"""Cost of a stretch itself, in queues."""
MAX_HOLDERS = 5
"""Queues and topics that are named; a thousand segments with five names take about a millisecond to encode."""


class Held(NamedTuple):
    """Messages of a stretch of the log that are needed."""

    live: int
    """Messages of queues that are not consumed."""
    rewindable: int
    undelivered: int
    """Deliveries of published messages that wait for a subscription."""
    largest: list[SegmentHolder]
    """The queues and topics that need most messages, in descending order."""
    holders: int
    """Number of all queues and topics that need messages."""
    examined: int
    """Queues and subscriptions that were counted."""
    since_step: int
    """Of these, and of the stretch before, those that were counted since the last step."""


class Holders:
    """Counts needed messages; see the module."""

    def __init__(self, facts: Facts) -> None:
        self._queues = facts.queues
        self._topics = facts.topics

    def of_ranges(self, ranges: Iterable[tuple[int, int, int]], since_step: int = 0) -> Generator[None, None, Held]:
        """Count the messages at positions that are needed, in steps.

        Args:
            ranges: (id of a queue or topic, first position, stop position). Deleted queues need no message.
            since_step: ``Held.since_step`` of the stretch before, if a slice of the caller has several stretches.
        """
        live = rewindable = undelivered = examined = count = 0
        since_step += STRETCH
        if since_step >= COUNTED_A_STEP:
            # Before the ranges: a stretch may have none, and a thousand such stretches in a row take 4 ms.
            since_step = 0
            yield
        largest: list[SegmentHolder] = []
        for number, first, stop in ranges:
            holder = None
            topic = self._topics.by_id.get(number)
            if topic is not None:
                weight = max(1, len(topic.subscriptions))
                waiting = topic.live_in(first, stop)
                if waiting:
                    undelivered += waiting
                    holder = SegmentHolder(topic.account, topic.name, True, waiting, 0)
            else:
                weight = 1
                queue = self._queues.by_id.get(number)
                if queue is not None:
                    index = queue.index
                    unconsumed = index.live_to_read().range_cardinality(first, stop) if index.live_count else 0
                    back = index.rewindable.range_cardinality(first, stop) if index.rewindable_count else 0
                    if unconsumed or back:
                        live += unconsumed
                        rewindable += back
                        holder = SegmentHolder(queue.account, queue.name, False, unconsumed, back)
            if holder is not None:
                count += 1
                largest.append(holder)
            examined += weight
            since_step += weight
            if since_step >= COUNTED_A_STEP:
                since_step = 0
                largest = nlargest(MAX_HOLDERS, largest, key=_needed)
                yield
        largest = nlargest(MAX_HOLDERS, largest, key=_needed)
        return Held(live, rewindable, undelivered, largest, count, examined, since_step)


def _needed(holder: SegmentHolder) -> int:
    return holder.live + holder.rewindable
