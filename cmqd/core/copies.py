"""The messages of a publish record shared out among queues, and the copies that follow from the record."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from cmqd.core.facts.deliveries import BACKOFF
from cmqd.core.publishplan import Part
from cmqd.core.queue import Queue
from cmqd.core.topic import Audience, Subscription
from cmqd_segment.published import (
    copy_counts,
    first_of_set,
    message_ids_of,
    pack_set,
    queue_set,
    set_positions,
    waiting_sets,
)
from cmqd_segment.records import MessagesPublished, StoredMessage
from cmqd_types.messages import CopyOf


class Shares:
    """The messages of a part that every queue takes, given the present limits and backlogs of the queues."""

    __slots__ = ("_sets", "_waiting_sets", "copies", "names", "queues", "refused", "total", "waiting")

    def __init__(self, part: Part, audience: Audience) -> None:
        self.queues: Sequence[Queue] = audience.queues
        self.names: list[str] = audience.names
        """Of their subscriptions."""
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
        """``message_sets`` and ``taken`` of the record; empty if every set is all the ``count`` messages."""
        if self._sets is None or self._waiting_sets is None:
            return [], []
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
            index, before = queue.index, ahead.get(queue.queue_id, 0)
            attributes = index.attributes
            taken = wanted
            max_bytes = attributes.max_message_bytes
            if biggest > max_bytes:
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


class PublishedCopies:
    """The copies of a record, as messages of their queues."""

    __slots__ = ("_bodies", "_counts", "_first_ids", "_message_ids", "_record")

    def __init__(self, record: MessagesPublished, bodies: list[bytes]) -> None:
        self._record = record
        self._bodies = bodies
        self._message_ids = message_ids_of(record)
        self._counts: list[int] | None = None
        """Number of copies in every queue; None = all messages."""
        self._first_ids: list[int] = []
        if record.taken:
            self._counts = list(copy_counts(record))
            self._first_ids = list(accumulate(self._counts, initial=record.first_copy_id))

    def first(self, place: int) -> int:
        """The position of the first copy in the queue at ``place``."""
        return self._record.copies[2 * place + 1]

    def count(self, place: int) -> int:
        """Return the number of copies that the queue at ``place`` takes."""
        return len(self._record.sizes) if self._counts is None else self._counts[place]

    def messages(self, place: int) -> list[StoredMessage]:
        """Return the copies in the queue at ``place``."""
        record, bodies, ids = self._record, self._bodies, self._message_ids
        labels, headers = record.labels, record.headers
        position, copy_id = record.copies[2 * place + 1], record.first_copy_id
        numbers: Sequence[int]
        if self._counts is None:
            numbers = range(len(bodies))
            copy_id += place * len(bodies)
        else:
            numbers = set_positions(queue_set(record, place))
            copy_id = self._first_ids[place]
        topic, subscription, enqueue_ms = record.topic, record.subscriptions[place], record.enqueue_ms
        of_each = labels is not None and len(labels) > 1
        of_all = labels[0] if labels is not None and not of_each else None
        messages: list[StoredMessage] = []
        for number in numbers:
            own = of_all if labels is None or not of_each else labels[number]
            copy_of = CopyOf(topic, subscription, ids[number], enqueue_ms, own)
            own_headers = None if headers is None else headers[number]
            messages.append(
                StoredMessage(position, copy_id, enqueue_ms, bodies[number], own_headers, 0, None, None, copy_of)
            )
            position += 1
            copy_id += 1
        return messages

    def message(self, number: int) -> StoredMessage:
        """A message of the topic."""
        record = self._record
        labels = record.labels
        return StoredMessage(
            record.first_position + number,
            self._message_ids[number],
            record.enqueue_ms,
            self._bodies[number],
            record.headers[number] if record.headers else None,
            labels=None if labels is None else labels[0] if len(labels) == 1 else labels[number],
        )

    def waiting_numbers(self) -> list[int]:
        """The messages that wait for any subscription."""
        wanted = 0
        for _, messages in waiting_sets(self._record):
            wanted |= messages
        return set_positions(wanted)


class Unserved(NamedTuple):
    """Copies of a publish in a queue with waiting receives that are not served yet."""

    copies: PublishedCopies
    place: int
