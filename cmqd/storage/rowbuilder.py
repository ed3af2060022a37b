"""Rows in the making, on the loop's side of the log.

What one ``append`` brings always stays in one row, so it is atomic; a row is closed before it would pass about 64 KiB
of bodies or of records (a larger append stands in a row alone). Cheap, because it runs for every request.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from cmqd_segment.published import SetSizes, unpack_set
from cmqd_segment.records import (
    AnyRecord,
    DelaysScheduled,
    DeliveriesDropped,
    DeliveriesFailed,
    LeasesEnded,
    MessagesActivated,
    MessagesDeleted,
    MessagesDelivered,
    MessagesMoved,
    MessagesPublished,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    Subscribed,
    SubscriptionAttributes,
    SubscriptionAttributesSet,
    TransactionsChecked,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
)
from cmqd_segment.rows import NO_QUEUES, encode_queues, encode_records
from cmqd_types.messages import CopyOf, Headers, Labels

ROW_BYTES = 64 * 1024
"""Of data, and of meta. A row is read whole to get at one message of it (29 us), and costs a few hundred bytes."""


class ClosedRow(NamedTuple):
    """A row as bytes, ready to be handed over."""

    time_ms: int
    messages: int
    queues: bytes
    meta: bytes
    data: bytes
    records: int
    cost: int
    """Bytes that it was counted with while pending."""


_RUN = 5
"""Bytes of an integer in runs, about; what counts is that no row grows without bound."""

_CHARACTER = 4
"""Bytes of a character, the most that UTF-8 takes. Most take one, and a row may end early."""

_COSTS: dict[type, Callable[[Any], int]] = {
    MessagesReceived: lambda record: 48 + _RUN * len(record.positions),
    MessagesDeleted: lambda record: 32 + _RUN * (len(record.positions) + len(record.leases)),
    LeasesEnded: lambda record: 16 + _RUN * len(record.leases),
    MessagesReleased: lambda record: 16 + _RUN * len(record.leases),
    VisibilityChanged: lambda record: 24 + _RUN * len(record.leases),
    MessagesActivated: lambda record: 16 + _RUN * len(record.positions),
    MessagesMoved: lambda record: 16 + _RUN * len(record.positions),
    TransactionsEnded: lambda record: 24 + _RUN * len(record.positions),
    TransactionsChecked: lambda record: 24 + _RUN * len(record.positions) + 9 * len(record.next_check_ms),
    TransactionsUndecided: lambda record: 24 + _RUN * len(record.positions),
    DelaysScheduled: lambda record: 16 + _RUN * len(record.positions) + 9 * len(record.visible_ms),
    MessagesDelivered: lambda record: 24 + _RUN * len(record.positions),
    DeliveriesFailed: lambda record: (
        40
        + _RUN * (len(record.positions) + len(record.attempts))
        + 9 * len(record.next_ms)
        + _CHARACTER * len(record.error)
    ),
    DeliveriesDropped: lambda record: 40 + _RUN * len(record.positions),
    Subscribed: lambda record: _OTHER_COST + _subscription_cost(record.attributes),
    SubscriptionAttributesSet: lambda record: _OTHER_COST + _subscription_cost(record.attributes),
}
_ORIGIN = 128
"""A name, three numbers and a word."""
_OTHER_COST = 256
"""Facts of queues and topics: a name, an account and a map of attributes at most."""


def _sent_cost(record: MessagesSent) -> int:
    cost = 48 + 3 * len(record.sizes) + 9 * len(record.numbered)
    if record.headers is not None:
        cost += _headers_cost(record.headers)
    if isinstance(record.visible_ms, list):
        cost += 9 * len(record.visible_ms)
    if record.origins is not None:
        cost += _ORIGIN * len(record.origins)
    if record.copies_of is not None:
        cost += sum(map(_copy_cost, record.copies_of))
    if record.dedup_ids is not None:
        cost += _dedup_cost(record.dedup_ids)
    return cost


def _published_cost(record: MessagesPublished) -> int:
    cost = 64 + 3 * len(record.sizes) + _RUN * (len(record.copies) + len(record.waiting)) + 9 * len(record.numbered)
    if record.headers is not None:
        cost += _headers_cost(record.headers)
    if record.labels is not None:
        cost += sum(map(_labels_cost, record.labels))
    if record.subscriptions:
        # Names are ASCII.
        cost += 2 * len(record.subscriptions) + sum(map(len, record.subscriptions)) + len(record.topic)
    if record.dedup_ids is not None:
        cost += _dedup_cost(record.dedup_ids)
    if record.taken:
        cost += 2 * len(record.taken) + sum(map(len, record.message_sets)) + 2 * len(record.message_sets)
    return cost + _RUN * len(record.message_ids)


def _headers_cost(each: Sequence[Headers | None]) -> int:
    cost = len(each)
    for headers in each:
        if headers:
            cost += sum(map(len, headers)) + sum(map(len, headers.values())) + 6 * len(headers)
    return cost


def _copy_cost(copy_of: CopyOf | None) -> int:
    if copy_of is None:
        return 1
    labels = 0 if copy_of.labels is None else _labels_cost(copy_of.labels)
    return 24 + len(copy_of.topic) + len(copy_of.subscription) + labels


def _labels_cost(labels: Labels) -> int:
    if isinstance(labels, str):
        return 3 + _CHARACTER * len(labels)
    return 1 + sum(3 + _CHARACTER * len(label) for label in labels)


def _dedup_cost(dedup_ids: Sequence[str | None]) -> int:
    return sum(_CHARACTER * len(dedup_id) for dedup_id in dedup_ids if dedup_id) + len(dedup_ids)


def _subscription_cost(attributes: SubscriptionAttributes) -> int:
    return (
        _CHARACTER * len(attributes.endpoint)
        + _labels_cost(attributes.filter_tags)
        + _labels_cost(attributes.binding_keys)
    )


class RowBuilder:
    """The open row."""

    __slots__ = ("_bodies", "_sends", "data_bytes", "messages", "meta_bytes", "records", "time_ms")

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        """Empty if nothing was added yet."""
        self._bodies: list[bytes] = []
        self._sends: dict[int, list[int]] = {}
        """queue or topic id -> [that id, first position, stop position, bytes]"""
        self.messages = 0
        self.data_bytes = 0
        self.meta_bytes = 0
        """Estimated."""
        self.time_ms = 0

    def add(
        self, records: Sequence[AnyRecord], bodies: Sequence[bytes], meta_bytes: int, data_bytes: int, now_ms: int
    ) -> None:
        """Add what belongs together; the two sizes are what the caller found with ``meta_cost`` and by adding up.

        What is published has its bodies once, however many queues get copies, and counts once in ``messages``.
        """
        self.records += records
        self.meta_bytes += meta_bytes
        if now_ms > self.time_ms:
            self.time_ms = now_ms
        if bodies:
            self._bodies += bodies
            self.messages += len(bodies)
            self.data_bytes += data_bytes
            sends = self._sends
            for record in records:
                if type(record) is MessagesSent:
                    size = sum(record.sizes)
                    stop = record.first_position + len(record.sizes)
                    send = sends.get(record.queue_id)
                    if send is None:
                        sends[record.queue_id] = [record.queue_id, record.first_position, stop, size]
                    else:
                        send[2] = stop
                        send[3] += size
                elif type(record) is MessagesPublished:
                    size = sum(record.sizes)
                    count = len(record.sizes)
                    send = sends.get(record.topic_id)
                    if send is None:
                        first = record.first_position
                        sends[record.topic_id] = [record.topic_id, first, first + count, size]
                    else:
                        send[2] = record.first_position + count
                        send[3] += size
                    # Hundreds of queues for each publish: one step each, and nothing is called.
                    copies = iter(record.copies)
                    totals = _copy_totals(record, size)
                    for queue_id, first, (number, own_size) in zip(copies, copies, totals, strict=False):
                        if queue_id in sends:
                            send = sends[queue_id]
                            send[2] = first + number
                            send[3] += own_size
                        else:
                            sends[queue_id] = [queue_id, first, first + number, own_size]

    def close(self) -> ClosedRow:
        """The row as bytes; the builder is empty afterwards."""
        sends = self._sends
        row = ClosedRow(
            self.time_ms,
            self.messages,
            encode_queues(list(sends.values())) if sends else NO_QUEUES,
            encode_records(self.records),
            b"".join(self._bodies),
            len(self.records),
            self.meta_bytes + self.data_bytes,
        )
        self.records.clear()
        self._bodies.clear()
        sends.clear()
        self.messages = self.data_bytes = self.meta_bytes = 0
        return row


def _copy_totals(record: MessagesPublished, size: int) -> Iterable[tuple[int, int]]:
    """Number and bytes of the copies of each queue, at least; ``size``: bytes of all the messages."""
    if not record.taken:
        return repeat((len(record.sizes), size))
    sizes = SetSizes(record.sizes)
    sets = map(unpack_set, record.message_sets)
    totals = [(messages.bit_count(), sizes.of(messages)) for messages in sets]
    return [totals[number] for number in record.taken]


def meta_cost(records: Sequence[AnyRecord]) -> int:
    """About how many bytes records take in a row."""
    cost = 0
    for record in records:
        if type(record) is MessagesSent:
            cost += _sent_cost(record)
        elif type(record) is MessagesPublished:
            cost += _published_cost(record)
        else:
            estimate = _COSTS.get(type(record))
            cost += _OTHER_COST if estimate is None else estimate(record)
    return cost
