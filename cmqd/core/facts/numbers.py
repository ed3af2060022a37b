"""The broker's counters: message ids, leases, queue ids; none is ever used twice.

Numbers are taken from blocks that a record reserves before the first number is used. Recovery starts at the end of the
reserved blocks, so the numbers that a crash (or damage to the log's end) took away stay unused.

Message ids and leases have the shard of their log in the upper 12 bits and a counter in the lower 52, so that they are
unique among the logs of a region. A counter never runs into the bits of the shard: the broker ends before. Versions
before format 4 of the folder counted leases from 1 in every shard. Such a lease keeps its number, and its handle stays
valid.
"""

from cmqd_segment.records import AnyRecord, NumbersReserved
from cmqd_types.shards import SHARD_SHIFT

BLOCK = 1 << 20
"""Numbers reserved at once: a record per million messages, and 2**32 restarts before 52 bits are used up."""
JUMP = 1 << 40
"""Leap of the counters when part of the log was lost: more than any log can hold."""


class NumbersUsedUp(Exception):
    """A counter has reached the bits of the shard. The broker ends: no later number would be unique."""


class WrongShard(Exception):
    """The message ids of the log are of another shard than the server."""


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
        return self._reservation(self.next_message_id + BLOCK, self.next_lease + BLOCK, self.next_queue_id + 1024)

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
        return self._reservation(self.message_id_until + JUMP, self.lease_until + JUMP, self.queue_id_until + JUMP)

    def take_shard(self, shard: int) -> None:
        """After recovery, before the first operation: number messages and leases as those of ``shard``.

        Raises:
            WrongShard: the log has message ids of another shard, or ids of 2^52 and above from before shards.
        """
        first = (shard << SHARD_SHIFT) + 1
        if self.message_id_until == 1:
            self.next_message_id = self.message_id_until = first
        last_reserved = self.message_id_until - 1
        if last_reserved >> SHARD_SHIFT != shard:
            raise WrongShard(
                f"the message ids of the log reach {last_reserved}, which is shard {last_reserved >> SHARD_SHIFT} (the "
                f"bits above the lower {SHARD_SHIFT}), and the server is shard {shard}: a log keeps its shard, and a "
                f"log with ids of 2^{SHARD_SHIFT} and above from before shards goes on as that shard alone"
            )
        if self.lease_until < first:
            # A new log, or the first start on a log from before leases had a shard. Until a lease is reserved, every
            # start comes to the same number.
            self.next_lease = self.lease_until = first

    def _reservation(self, message_id_until: int, lease_until: int, queue_id_until: int) -> NumbersReserved:
        """Return the record of a reservation. Raises NumbersUsedUp."""
        _check_shard("message id", self.message_id_until, message_id_until)
        _check_shard("lease", self.lease_until, lease_until)
        return NumbersReserved(message_id_until, lease_until, queue_id_until)

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


def _check_shard(kind: str, reserved_until: int, until: int) -> None:
    shard = (reserved_until - 1) >> SHARD_SHIFT
    if (until - 1) >> SHARD_SHIFT != shard:
        raise NumbersUsedUp(
            f"{kind}s are used up: {until - 1} is not a {kind} of shard {shard}; move the messages to a new data folder"
        )
