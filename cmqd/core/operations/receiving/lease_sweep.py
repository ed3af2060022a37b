"""The sweep of leases: removing stale entries from the buckets of deadlines.

A delete does not search for the entry of its lease: a search for every message would slow down the hot path. Entries
of ended leases stay until their deadline, up to 12 hours, and are swept when there are too many.
"""

from array import array

from cmqd.core.facts.facts import Facts

LEASE_SWEEP_ABOVE = 1_000_000
"""Entries in buckets, at 8 bytes each, above which stale entries are swept."""


class LeaseSweep:
    """Sweeps the buckets of leases."""

    def __init__(self, facts: Facts) -> None:
        self._queues = facts.queues
        self._buckets = facts.queues.leases
        self.sweep_above = LEASE_SWEEP_ABOVE
        """Number of entries above which a step of a sweep is made."""

    def sweep(self, now_ms: int) -> None:
        """Remove some of the stale entries that changed deadlines and quick deletes leave behind."""
        kept = self._buckets.sweep(
            lambda due_ms, queue_id, pairs: pairs if due_ms <= now_ms else self._leases_due(due_ms, queue_id, pairs)
        )
        if kept is not None:
            self.sweep_above = max(LEASE_SWEEP_ABOVE, 2 * kept)

    def _leases_due(self, due_ms: int, queue_id: int, pairs: "array[int]") -> "array[int]":
        """Return the pairs with a lease that ends in this bucket; a changed deadline has an entry in its own bucket."""
        queue = self._queues.by_id.get(queue_id)
        kept = array("Q")
        if queue is not None:
            in_flight = queue.index.leases.by_number
            after_ms = due_ms - self._buckets.width_ms
            for offset in range(0, len(pairs), 2):
                first, count = pairs[offset], pairs[offset + 1]
                for lease in range(first, first + count):
                    in_flight_lease = in_flight.get(lease)
                    if in_flight_lease is not None and after_ms < in_flight_lease.deadline_ms <= due_ms:
                        kept.extend((first, count))
                        break
        return kept
