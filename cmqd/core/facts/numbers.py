"""The broker's counters: message ids, leases, queue ids; none is ever used twice.

Numbers are taken from blocks that a record reserves before the first number is used. Recovery starts at the end of the
reserved blocks, so the numbers that a crash (or damage to the log's end) took away stay unused.

A message id has the shard of its log in its upper 12 bits and a counter in the lower 52, so ids are unique among the
logs of a region. A counter never runs into the bits of the shard: the broker ends before.
"""

from cmqd_segment.records import AnyRecord, NumbersReserved
from cmqd_types.shards import SHARD_SHIFT

BLOCK = 1 << 20
"""Numbers reserved at once: a record per million messages, and 2**44 restarts before 64 bits are used up."""
JUMP = 1 << 40
"""Leap of the counters when part of the log was lost: more than any log can hold."""


class MessageIdsUsedUp(Exception):
    """The counter of message ids has reached the bits of the shard. The broker ends: no later id would be unique."""


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
        return NumbersReserved(
            self._within_shard(self.next_message_id + BLOCK),
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
        return NumbersReserved(
            self._within_shard(self.message_id_until + JUMP), self.lease_until + JUMP, self.queue_id_until + JUMP
        )

    def take_shard(self, shard: int) -> None:
        """After recovery, before the first operation: number messages as those of ``shard``.

        Raises:
            WrongShard: the log has message ids of another shard, or ids of 2^52 and above from before shards.
        """
        if self.message_id_until == 1:
            self.next_message_id = self.message_id_until = (shard << SHARD_SHIFT) + 1
            return
        last_reserved = self.message_id_until - 1
        if last_reserved >> SHARD_SHIFT != shard:
            raise WrongShard(
                f"the message ids of the log reach {last_reserved}, which is shard {last_reserved >> SHARD_SHIFT} (the "
                f"bits above the lower {SHARD_SHIFT}), and the server is shard {shard}: a log keeps its shard, and a "
                f"log with ids of 2^{SHARD_SHIFT} and above from before shards goes on as that shard alone"
            )

    def _within_shard(self, message_id_until: int) -> int:
        shard = (self.message_id_until - 1) >> SHARD_SHIFT
        if (message_id_until - 1) >> SHARD_SHIFT != shard:
            raise MessageIdsUsedUp(
                f"message ids are used up: {message_id_until - 1} is not an id of shard {shard}; "
                "move the messages to a new data folder"
            )
        return message_id_until

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
