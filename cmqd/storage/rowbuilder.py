"""Rows in the making, on the loop's side of the log.

What one ``append`` brings always stays in one row, so it is atomic; a row is closed before it would pass about 64 KiB
of bodies or of records (a larger append stands in a row alone). Cheap, because it runs for every request.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cmqd_segment.records import (
    AnyRecord,
    DelaysScheduled,
    LeasesEnded,
    MessagesActivated,
    MessagesDeleted,
    MessagesMoved,
    MessagesReceived,
    MessagesReleased,
    MessagesSent,
    TransactionsChecked,
    TransactionsEnded,
    TransactionsUndecided,
    VisibilityChanged,
)
from cmqd_segment.rows import NO_QUEUES, encode_queues, encode_records

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
}
_ORIGIN = 128
"""A name, three numbers and a word."""
_OTHER_COST = 256
"""Queue facts: a name, an account and a map of attributes at most."""


def _sent_cost(record: MessagesSent) -> int:
    cost = 48 + 3 * len(record.sizes)
    if record.headers is not None:
        for headers in record.headers:
            if headers:
                # Four bytes a character is the most that UTF-8 takes; most take one, and a row may end early.
                cost += sum(map(len, headers)) + sum(map(len, headers.values())) + 6 * len(headers)
    if isinstance(record.visible_ms, list):
        cost += 9 * len(record.visible_ms)
    if record.origins is not None:
        cost += _ORIGIN * len(record.origins)
    if record.dedup_ids is not None:
        cost += sum(len(dedup_id) * 4 for dedup_id in record.dedup_ids if dedup_id) + len(record.dedup_ids)
    return cost


class RowBuilder:
    """The open row."""

    __slots__ = ("_bodies", "_sends", "data_bytes", "messages", "meta_bytes", "records", "time_ms")

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        """Empty if nothing was added yet."""
        self._bodies: list[bytes] = []
        self._sends: dict[int, list[int]] = {}
        """queue id -> [first position, stop position, bytes]"""
        self.messages = 0
        self.data_bytes = 0
        self.meta_bytes = 0
        """Estimated."""
        self.time_ms = 0

    def add(
        self, records: Sequence[AnyRecord], bodies: Sequence[bytes], meta_bytes: int, data_bytes: int, now_ms: int
    ) -> None:
        """Add what belongs together; the two sizes are what the caller found with ``meta_cost`` and by adding up."""
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
                        sends[record.queue_id] = [record.first_position, stop, size]
                    else:
                        send[1] = stop
                        send[2] += size

    def close(self) -> ClosedRow:
        """The row as bytes; the builder is empty afterwards."""
        sends = self._sends
        row = ClosedRow(
            self.time_ms,
            self.messages,
            encode_queues([[queue_id, *send] for queue_id, send in sends.items()]) if sends else NO_QUEUES,
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


def meta_cost(records: Sequence[AnyRecord]) -> int:
    """About how many bytes records take in a row."""
    cost = 0
    for record in records:
        if type(record) is MessagesSent:
            cost += _sent_cost(record)
        else:
            estimate = _COSTS.get(type(record))
            cost += _OTHER_COST if estimate is None else estimate(record)
    return cost
