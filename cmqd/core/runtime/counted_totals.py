"""Sums of the totals of present queues, topics and subscriptions by account, as they were last counted.

The totals of an account for monitoring are these sums and the totals of its deleted queues, which are facts. A deleted
queue leaves the sums in the call that makes its totals a fact: otherwise the totals would count the queue twice until
the next round, and sink then. Taking all deleted queues out at the next reading instead would compare all ids in one
call.
"""

from typing import TypeAlias

from msgspec.structs import astuple

from cmqd.core.facts.gone_totals import AccountTotals
from cmqd_types.totals import QueueTotals, SubscriptionTotals, TopicTotals

AnyTotals: TypeAlias = QueueTotals | TopicTotals | SubscriptionTotals
_Values: TypeAlias = tuple[int, ...]

_KINDS = (QueueTotals, TopicTotals, SubscriptionTotals)


class CountedTotals:
    """The totals that were counted, and their sums; see the module."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[str, type[AnyTotals], _Values]] = {}
        """Account, kind and values by id of the queue, topic or subscription."""
        self._sums: dict[str, dict[type[AnyTotals], list[int]]] = {}
        """By account and kind."""
        self._present: dict[str, int] = {}
        """Counted queues, topics and subscriptions by account. The sums of an account end with the last of these:
        accounts come and go."""

    def count(self, number: int, account: str, totals: AnyTotals) -> None:
        """Count the totals of a queue, topic or subscription anew."""
        counted = self._counted.get(number)
        values: _Values = astuple(totals)
        if counted is not None and counted[2] == values:
            return
        kind = type(totals)
        sums = self._sums.get(account)
        if sums is None:
            sums = self._sums[account] = {each: [0] * len(each.__struct_fields__) for each in _KINDS}
        target = sums[kind]
        if counted is None:
            self._present[account] = self._present.get(account, 0) + 1
        before = (0,) * len(values) if counted is None else counted[2]
        for place, (value, earlier) in enumerate(zip(values, before, strict=True)):
            if value != earlier:
                target[place] += value - earlier
        self._counted[number] = (account, kind, values)

    def forget(self, number: int) -> None:
        """Take a queue, topic or subscription out of the sums: it is deleted, and its totals are facts now."""
        counted = self._counted.pop(number, None)
        if counted is not None:
            account, kind, values = counted
            self._present[account] -= 1
            if not self._present[account]:
                # Without this entry all sums of the account are 0.
                del self._present[account], self._sums[account]
                return
            target = self._sums[account][kind]
            for place, value in enumerate(values):
                target[place] -= value

    def accounts(self) -> set[str]:
        """Return the accounts with sums."""
        return set(self._sums)

    def sums(self, account: str) -> AccountTotals | None:
        """Return the sums of an account; None if nothing of the account was counted."""
        sums = self._sums.get(account)
        if sums is None:
            return None
        return AccountTotals(
            QueueTotals(*sums[QueueTotals]),
            TopicTotals(*sums[TopicTotals]),
            SubscriptionTotals(*sums[SubscriptionTotals]),
        )
