"""Shares: the messages of a publish that every queue of its subscriptions takes.

The shares are decided when the plan is applied, and not while the plan is made: other clients are served between two
slices of a plan, and a queue can fill up meanwhile. A refused message is not lost. It waits for its subscription, and
its delivery is tried again.

The record has the shares. A replay cannot decide them again: the slice of a queue in the checkpoint may be newer than
the publish, and then the backlog of that moment is not known any more.
"""

from collections.abc import Sequence

from cmqd.core.facts.queue import Queue
from cmqd.core.facts.retry_schedule import BACKOFF
from cmqd.core.facts.topic import Subscription
from cmqd.core.operations.topics.publish_plan import Part
from cmqd.core.runtime.topic import Audience
from cmqd_segment.published import (
    first_of_set,
    pack_set,
)


class Shares:
    """The messages of a part that every queue takes, given the present limits and backlogs of the queues."""

    __slots__ = ("_sets", "_waiting_sets", "copies", "names", "queues", "refused", "total", "waiting")

    def __init__(self, part: Part, audience: Audience) -> None:
        self.queues: Sequence[Queue] = audience.queues
        self.names: list[str] = audience.names
        """Names of the subscriptions of ``queues``, in the same order."""
        self.copies: list[int] = []
        """Queue id and first position of every queue, as in the record."""
        self.total = 0
        """Copies in all queues."""
        self.waiting: Sequence[Subscription] = audience.waiting
        """Subscriptions for which messages wait, in the order of the record: last come subscriptions in ``refused``."""
        self.refused: list[tuple[Subscription, int]] = []
        """Subscriptions with a queue that refuses messages, and the refused sets."""
        self._sets: list[int] | None = None
        """The messages that every queue takes; None = every queue takes all messages."""
        self._waiting_sets: list[int] | None = None
        """The messages that wait for every subscription; None = all messages."""
        # Not with a queue that two subscriptions deliver to: its second share begins behind the first, which the short
        # way does not see.
        if part.is_alike and not audience.repeats and self._all_take_all(part):
            return
        self.queues, self.names, self.copies, self._sets = [], [], [], []
        self._share_out(part, audience)
        self.total = sum([messages.bit_count() for messages in self._sets])
        everything = (1 << len(part.sizes)) - 1
        self._waiting_sets = [
            everything if part.is_alike else part.message_sets[subscription.subscription_id]
            for subscription in audience.waiting
        ]
        if self.refused:
            self.waiting = [*audience.waiting, *(subscription for subscription, _ in self.refused)]
            self._waiting_sets += [messages for _, messages in self.refused]

    def numbered_sets(self, count: int) -> tuple[list[bytes], list[int]]:
        """Return ``message_sets`` and ``taken`` of the record; empty if every set is all the ``count`` messages."""
        if self._sets is None or self._waiting_sets is None:
            return [], []
        # Each set once, and a number per queue: with five hundred queues a set for every queue would be most of the
        # record, and nearly all queues take the same messages.
        numbers: dict[int, int] = {}
        taken = [numbers.setdefault(messages, len(numbers)) for messages in self._sets + self._waiting_sets]
        if len(numbers) == 1 and (1 << count) - 1 in numbers:
            return [], []
        return [pack_set(messages) for messages in numbers], taken

    def _all_take_all(self, part: Part) -> bool:
        """Fill ``copies`` and return True if every queue takes all messages: the usual case, and a step per queue."""
        count, biggest = len(part.sizes), max(part.sizes)
        copies: list[int] = []
        for queue in self.queues:
            index = queue.index
            attributes = index.attributes
            if biggest > attributes.max_message_bytes or index.live_count + count > attributes.max_backlog:
                return False
            copies.append(index.queue_id)
            copies.append(index.next_position)
        self.copies = copies
        self.total = count * len(self.queues)
        return True

    def _share_out(self, part: Part, audience: Audience) -> None:
        """Let every queue take the messages that the queue has room for, in order.

        Under backoff a queue takes no message behind the first refused message, because order counts there.
        """
        queues, names, copies, sets = list[Queue](), list[str](), list[int](), list[int]()
        everything = (1 << len(part.sizes)) - 1
        biggest = max(part.sizes)
        too_large: dict[int, int] = {}
        """Sets of messages above a size, by size."""
        ahead: dict[int, int] = {}
        """Copies for the same queue by earlier subscriptions."""
        for subscription, queue in zip(audience.subscriptions, audience.queues, strict=True):
            wanted = everything if part.is_alike else part.message_sets[subscription.subscription_id]
            # No copy is in the index before the record is applied. Copies of the same publish for the same queue are
            # counted beside it, or the queue would be overfilled and two copies would share a position.
            index, before = queue.index, ahead.get(queue.queue_id, 0)
            attributes = index.attributes
            taken = wanted
            max_bytes = attributes.max_message_bytes
            if biggest > max_bytes:
                # Most queues have the same limit, so the set is made once for all of them.
                if max_bytes not in too_large:
                    too_large[max_bytes] = sum([1 << at for at, size in enumerate(part.sizes) if size > max_bytes])
                taken &= ~too_large[max_bytes]
                if taken != wanted and subscription.deliveries.strategy == BACKOFF:
                    first_refused = wanted & ~taken
                    taken &= (first_refused & -first_refused) - 1
            count = taken.bit_count()
            room = attributes.max_backlog - index.live_count - before
            if count > room:
                count = max(room, 0)
                # The first messages that fit and not the smallest: copies keep the order of the topic.
                taken = first_of_set(taken, count)
            if count:
                ahead[queue.queue_id] = before + count
                queues.append(queue)
                names.append(subscription.name)
                copies += (queue.queue_id, index.next_position + before)
                sets.append(taken)
            if taken != wanted:
                self.refused.append((subscription, wanted & ~taken))
        self.queues, self.names, self.copies, self._sets = queues, names, copies, sets
