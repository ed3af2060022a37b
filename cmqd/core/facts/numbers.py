"""The broker's counters: message ids, leases, queue ids; none is ever used twice.

Numbers are taken from blocks that a record reserves before the first number is used. Recovery starts at the end of the
reserved blocks, so the numbers that a crash (or damage to the log's end) took away stay unused.
"""

from cmqd_segment.records import AnyRecord, NumbersReserved

BLOCK = 1 << 20
"""Numbers reserved at once: a record per million messages, and 2**44 restarts before 64 bits are used up."""
JUMP = 1 << 40
"""Leap of the counters when part of the log was lost: more than any log can hold."""


class Numbers:
    """Counters and the ends of their reserved blocks. Invariant: next <= until, for each."""

    def __init__(self) -> None:
        self.next_message_id = self.message_id_until = 1
        self.next_lease = self.lease_until = 1
        self.next_queue_id = self.queue_id_until = 1

    def reserve(self, message_ids: int = 0, leases: int = 0, queue_ids: int = 0) -> NumbersReserved | None:
        """Return the record to write (and apply) before this many numbers are used, or None if all are reserved."""
        short = (
            self.next_message_id + message_ids > self.message_id_until
            or self.next_lease + leases > self.lease_until
            or self.next_queue_id + queue_ids > self.queue_id_until
        )
        if not short:
            return None
        return NumbersReserved(
            self.next_message_id + BLOCK,
            self.next_lease + BLOCK,
            self.next_queue_id + 1024,
        )

    def ensure(self, records: list[AnyRecord], message_ids: int = 0, leases: int = 0, queue_ids: int = 0) -> None:
        """Reserve numbers that are about to be used, with a record unless they are reserved already."""
        record = self.reserve(message_ids, leases, queue_ids)
        if record is not None:
            self.apply(record)
            records.append(record)

    def take_message_ids(self, count: int, records: list[AnyRecord]) -> int:
        """Take message ids; return the first."""
        first_id = self.next_message_id
        if first_id + count > self.message_id_until:
            self.ensure(records, message_ids=count)
        self.next_message_id = first_id + count
        return first_id

    def take_queue_id(self, records: list[AnyRecord]) -> int:
        """Take an id for a queue, topic or subscription."""
        self.ensure(records, queue_ids=1)
        queue_id = self.next_queue_id
        self.next_queue_id += 1
        return queue_id

    def jump(self) -> NumbersReserved:
        """Return the record that reserves far beyond all numbers that a lost part of the log can have used."""
        return NumbersReserved(self.message_id_until + JUMP, self.lease_until + JUMP, self.queue_id_until + JUMP)

    def apply(self, record: NumbersReserved) -> None:
        """Apply a reservation."""
        self.message_id_until = max(self.message_id_until, record.message_id_until)
        self.lease_until = max(self.lease_until, record.lease_until)
        self.queue_id_until = max(self.queue_id_until, record.queue_id_until)

    def skip_reserved(self) -> None:
        """After recovery: start where the reserved blocks end."""
        self.next_message_id = self.message_id_until
        self.next_lease = self.lease_until
        self.next_queue_id = self.queue_id_until
