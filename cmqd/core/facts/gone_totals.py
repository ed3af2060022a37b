"""Totals of deleted queues, topics and subscriptions, added up for each account.

The sum of the totals of an account's queues alone would sink with each deleted queue, and a monitoring system would
take the lower value for a new beginning. With the totals of the deleted queues the sum only grows.

As for every table, records alone change it, and the slice of an account in the checkpoint has an LSN: a replay adds the
totals of a queue only if its deletion is newer than the slice.
"""

import msgspec

from cmqd_segment.checkpoint import GoneTotalsSlice
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals, add_totals


class AccountTotals(msgspec.Struct):
    """Totals of queues, topics and subscriptions of an account."""

    queues: QueueTotals
    topics: TopicTotals
    subscriptions: SubscriptionTotals
    slice_lsn: int = 0
    """LSN of the slice in the checkpoint: deletions up to it are in the slice."""


def no_totals() -> AccountTotals:
    """Return totals of 0."""
    return AccountTotals(QueueTotals(), TopicTotals(), SubscriptionTotals())


class GoneTotals:
    """The totals of deleted queues, topics and subscriptions by account; see the module."""

    def __init__(self) -> None:
        self.by_account: dict[str, AccountTotals] = {}

    def add(self, account: str, lsn: int, totals: QueueTotals | TopicTotals | SubscriptionTotals) -> None:
        """Add the totals of a queue, topic or subscription that is deleted by the record at ``lsn``; 0 = now."""
        sums = self.by_account.get(account)
        if sums is None:
            sums = self.by_account[account] = no_totals()
        elif lsn and lsn <= sums.slice_lsn:
            return
        match totals:
            case QueueTotals():
                add_totals(sums.queues, totals)
            case TopicTotals():
                add_totals(sums.topics, totals)
            case SubscriptionTotals():
                add_totals(sums.subscriptions, totals)

    def reset(self, lsn: int) -> None:
        """Begin at 0 again; ``lsn``: of the record in recovery, else 0."""
        for account, sums in list(self.by_account.items()):
            if not lsn or lsn > sums.slice_lsn:
                del self.by_account[account]

    def slice(self, accounts: list[str], lsn: int) -> GoneTotalsSlice:
        """Return the part of a checkpoint with the totals of accounts."""
        # Copies: the memory log keeps the part, and later deletions add to these totals in place.
        copy = msgspec.structs.replace
        chosen = [(account, self.by_account[account]) for account in accounts if account in self.by_account]
        return GoneTotalsSlice(
            lsn, [(account, copy(one.queues), copy(one.topics), copy(one.subscriptions)) for account, one in chosen]
        )

    def load(self, part: GoneTotalsSlice) -> None:
        """Take the totals of a part of a checkpoint."""
        copy = msgspec.structs.replace
        for account, queues, topics, subscriptions in part.accounts:
            self.by_account[account] = AccountTotals(copy(queues), copy(topics), copy(subscriptions), part.lsn)
