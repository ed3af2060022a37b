"""The open row of the log, in the loop process.

An append stays in one row, so an append is atomic. A row is closed before its bodies or its records would exceed
64 KiB; a larger append has a row of its own. Records are encoded at the append, for two reasons: the size of the
records decides where the row ends, and a record that cannot be encoded must fail before the row has changed.

The builder runs for every request. Therefore an append only collects and counts, and ``close`` joins the blobs, once
per row.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

import msgspec

from cmqd_segment.published import SetSizes, unpack_set
from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent
from cmqd_segment.rows import NO_QUEUES, encode_queues, join_records


class ClosedRow(msgspec.Struct, gc=False):
    """A row as bytes, ready to be handed over."""

    time_ms: int
    messages: int
    queues: bytes
    meta: bytes
    data: bytes
    records: int
    size: int
    """Bytes of the appends in the row. The row counts as pending by the sum that was added at the appends, not by the
    length of ``meta``: joining changes that length, and the count would drift."""


class RowBuilder:
    """The open row. ``messages`` and ``queues`` of the finished row are counted here, while the records are objects:
    the storage process would have to decode every record for them.
    """

    __slots__ = ("_bodies", "_metas", "_sends", "data_bytes", "messages", "meta_bytes", "records", "time_ms")

    def __init__(self) -> None:
        self.records = 0
        """Number of records, 0 if the row is empty."""
        self._metas: list[bytes] = []
        """Encoded records, a list for each append."""
        self._bodies: list[bytes] = []
        self._sends: dict[int, list[int]] = {}
        """queue or topic id -> [that id, first position, stop position, bytes]"""
        self.messages = 0
        self.data_bytes = 0
        self.meta_bytes = 0
        self.time_ms = 0

    def add(
        self, records: Sequence[AnyRecord], meta: bytes, bodies: Sequence[bytes], data_bytes: int, now_ms: int
    ) -> None:
        """Add an append: the records, plain and encoded, the bodies and the sum of the sizes.

        The body of a published message is in the row once, however many queues get copies, and the message counts once
        in ``messages``.
        """
        self.records += len(records)
        self._metas.append(meta)
        self.meta_bytes += len(meta)
        # Time of the newest append, and never below the row before.
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
                        # The first position stays: positions ascend within a row, so the range only grows.
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
                    # A publish may go to hundreds of queues: one step for each queue, without a call.
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
        """Return the row as bytes; the builder is empty afterwards. ``time_ms`` stays, so that no row is older than the
        row before.
        """
        sends = self._sends
        row = ClosedRow(
            time_ms=self.time_ms,
            messages=self.messages,
            queues=encode_queues(list(sends.values())) if sends else NO_QUEUES,
            meta=self._metas[0] if len(self._metas) == 1 else join_records(self._metas, self.records),
            data=b"".join(self._bodies),
            records=self.records,
            size=self.meta_bytes + self.data_bytes,
        )
        self._metas.clear()
        self._bodies.clear()
        sends.clear()
        self.records = self.messages = self.data_bytes = self.meta_bytes = 0
        return row


def _copy_totals(record: MessagesPublished, size: int) -> Iterable[tuple[int, int]]:
    """Yield upper bounds of number and bytes of the copies of each queue; ``size``: bytes of all messages.

    Queues share sets of messages, so the sizes of a set are added up once and not for every queue with the set.
    """
    if not record.taken:
        return repeat((len(record.sizes), size))
    sizes = SetSizes(record.sizes)
    sets = map(unpack_set, record.message_sets)
    totals = [(messages.bit_count(), sizes.of(messages)) for messages in sets]
    return [totals[number] for number in record.taken]
