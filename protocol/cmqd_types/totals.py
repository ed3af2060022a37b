"""Running totals of queues, topics and subscriptions: counts of messages and bytes that only grow.

A total counts from the creation of its queue, topic or subscription, and goes on over restarts: the fold of the records
counts (``cmqd_fold``), and checkpoints keep the counts. After a loss in the log all totals begin at 0 again, so a total
is never lower than before, except 0.

The structs are arrays in checkpoints and on the wire. New fields are appended, with default 0.
"""

import msgspec


class QueueTotals(msgspec.Struct, array_like=True, gc=False):
    """Counts of the messages of a queue. Only a record changes them."""

    sent: int = 0
    """Messages of sends, half messages and messages of schedules included; copies and moved messages have counts of
    their own."""
    sent_bytes: int = 0
    """Bytes of the bodies of these messages."""
    half_sent: int = 0
    """Half messages among the messages sent."""
    committed: int = 0
    """Half messages that were committed. A commit counts as no further send."""
    rolled_back: int = 0
    copied: int = 0
    """Copies of published messages."""
    received: int = 0
    """Messages that went in flight, each receive of a message counted."""
    redelivered: int = 0
    """Receives among them of messages that were received before, with a counted receive."""
    deleted: int = 0
    """Messages that consumers deleted."""
    released: int = 0
    """Messages that consumers returned to the queue before the visibility timeout."""
    timed_out: int = 0
    """Visibility timeouts that passed: the message became active again."""
    expired: int = 0
    """Messages that went with the end of their retention, in any state but rewindable."""
    cleared: int = 0
    """Messages that went with a clear of the queue, in any state but rewindable."""
    dead_lettered: int = 0
    """Messages that left for the dead-letter queue."""
    dead_letters: int = 0
    """Messages that came from queues with this dead-letter queue."""
    redriven: int = 0
    """Dead letters that left by a redrive."""
    redriven_here: int = 0
    """Dead letters that came by a redrive."""
    rewound: int = 0
    """Deleted messages that a rewind made active again."""


class TopicTotals(msgspec.Struct, array_like=True, gc=False):
    """Counts of the messages of a topic. Only a record changes them."""

    published: int = 0
    """Published messages that matched a subscription."""
    published_bytes: int = 0
    """Bytes of their bodies, each body counted once."""


class SubscriptionTotals(msgspec.Struct, array_like=True, gc=False):
    """Counts of the messages of a subscription. Only a record changes them."""

    delivered: int = 0
    """Messages that the subscriber took, and copies that the queue got."""
    failed: int = 0
    """Attempts that failed; each attempt for a message counts."""
    dropped: int = 0
    """Messages that the subscriber does not get: retries used up, damaged, dropped by an operator or expired."""


def add_totals(sums: msgspec.Struct, totals: msgspec.Struct) -> None:
    """Add each count of ``totals`` to the count of the same name of ``sums``, which has the same type."""
    for field in totals.__struct_fields__:
        setattr(sums, field, getattr(sums, field) + getattr(totals, field))
