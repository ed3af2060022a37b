"""Leases: their stale entries in the buckets of deadlines."""

from array import array

from cmqd.core.facts.facts import Facts

LEASE_SWEEP_ABOVE = 1_000_000
"""Entries of leases, at 8 bytes, beyond which stale ones are looked for."""


class Leases:
    """Sweeps the buckets of leases."""

    __slots__ = ("_buckets", "_queues", "sweep_above")

    def __init__(self, facts: Facts) -> None:
        self._queues = facts.queues
        self._buckets = facts.queues.leases
        self.sweep_above = LEASE_SWEEP_ABOVE
        """Entries beyond which a step of a sweep is made."""

    def sweep(self, now_ms: int) -> None:
        """Remove some of the stale entries that long visibility timeouts, moved ones and quick deletes leave behind."""
        kept = self._buckets.sweep(
            lambda due_ms, queue_id, pairs: pairs if due_ms <= now_ms else self._leases_due(due_ms, queue_id, pairs)
        )
        if kept is not None:
            self.sweep_above = max(LEASE_SWEEP_ABOVE, 2 * kept)

    def _leases_due(self, due_ms: int, queue_id: int, pairs: "array[int]") -> "array[int]":
        """Those of ``pairs`` with a lease that ends in this bucket; one that was moved has an entry in another."""
        queue = self._queues.by_id.get(queue_id)
        kept = array("Q")
        if queue is not None:
            in_flight = queue.index.in_flight
            after_ms = due_ms - self._buckets.width_ms
            for at in range(0, len(pairs), 2):
                first, count = pairs[at], pairs[at + 1]
                for lease in range(first, first + count):
                    held = in_flight.get(lease)
                    if held is not None and after_ms < held.deadline_ms <= due_ms:
                        kept.extend((first, count))
                        break
        return kept
