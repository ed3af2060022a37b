"""The audit trail: the administrative operations of the last 90 days, at most 100,000.

Entries are facts: a record makes an entry, and the record is in the append of the change. The trail is bounded by the
records alone, so a replay drops the same entries.

Over the limit the account with the most entries loses its oldest entry. With a line for all accounts, the holder of a
single key could push the entries of every other account out of the trail, in minutes, by changing a queue of its own
again and again.

The entries of one account leave in the middle of the order of all entries. The entries are therefore in short blocks:
in a single list each removal would move up to 100,000 references. The accounts are kept in order of their entries: a
search for the account with the most would take each operation 2 ms with 10,000 accounts.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import msgspec

from cmqd.core.limits import Limits
from cmqd_segment.checkpoint import AuditSlice
from cmqd_segment.records import Administered
from cmqd_types.audit import AuditEntry

BLOCK = 512
"""Most entries of a block."""
EXPIRED_AT_ONCE = 64
"""Entries past their time that a new entry removes: more than come in, and far less than a slice of the loop."""

_shared = lru_cache(maxsize=1024)(str)
"""Returns one object for equal texts: few accounts, keys and operations are in most entries."""


Rank: TypeAlias = tuple[int, int, str]
"""Number of entries of an account, its oldest id negated, and its name. Of accounts with equally many entries the
account with the oldest entry comes last: the order of the table would not do, because a checkpoint does not keep it."""


class AuditTrail:
    """The entries of all accounts; see the module."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.next_id = 1
        """Id of the next entry."""
        self._blocks: list[list[AuditEntry]] = []
        """Blocks in the order of their entries; no block is empty."""
        self._count = 0
        self._by_account: dict[str, deque[int]] = {}
        """Ids of the entries of each account, ascending."""
        self._ranks: list[Rank] | None = None
        """Ranks of all accounts, ascending: the last account is the next to lose an entry. None until ``sort``, so that
        a start from a checkpoint sorts once."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._count

    def __repr__(self) -> str:
        return f"<AuditTrail entries={self._count} accounts={len(self._by_account)} next_id={self.next_id}>"

    def apply(self, record: Administered) -> None:
        """Add the entry of a record, unless a checkpoint had the entry, and drop the entries that it replaces."""
        entry = record.entry
        if entry.entry_id < self.next_id:
            return
        self._add(entry)
        oldest_ms = entry.time_ms - self._limits.audit_ms
        for _ in range(EXPIRED_AT_ONCE):
            # The search ends at the new entry, which is never past its time.
            oldest = self._blocks[0][0]
            if oldest.time_ms >= oldest_ms:
                break
            self._remove_oldest_of(oldest.account)
        if self._count > self._limits.max_audit_entries:
            self._remove_oldest_of(self.sort()[-1][2])

    def blocks(self) -> list[list[AuditEntry]]:
        """Return all entries, oldest first, in blocks: a copy, which later records do not change."""
        return [block[:] for block in self._blocks]

    def older_than(self, entry_id: int, count: int) -> Sequence[AuditEntry]:
        """Return up to ``count`` entries with a lower id, newest first."""
        entries: list[AuditEntry] = []
        # An id that no block has can lie between two blocks, or behind the last entry.
        index = self._place_of(entry_id)
        while index >= 0 and len(entries) < count:
            entries.extend(entry for entry in reversed(self._blocks[index]) if entry.entry_id < entry_id)
            index -= 1
        return entries[:count]

    def sort(self) -> list[Rank]:
        """Sort the accounts by their entries, if that was not done yet; return their ranks. The start calls it, because
        the sort of 10,000 accounts takes 7 ms.
        """
        if self._ranks is None:
            self._ranks = sorted(map(self._rank_of, self._by_account))
        return self._ranks

    def load(self, part: AuditSlice) -> None:
        """Add the entries of a part of a checkpoint; parts come in the order of their writing."""
        self._ranks = None
        for entry in part.entries:
            self._add(entry)
        self.next_id = max(self.next_id, part.next_id)

    def check_invariants(self) -> None:
        """Raise AssertionError if the tables disagree."""
        assert all(0 < len(block) <= BLOCK for block in self._blocks)
        assert all(len(block) + len(behind) > BLOCK for block, behind in pairwise(self._blocks))
        assert self._ranks in (None, sorted(map(self._rank_of, self._by_account)))
        entries = [entry for block in self._blocks for entry in block]
        ids = [entry.entry_id for entry in entries]
        assert ids == sorted(set(ids))
        assert all(entry_id < self.next_id for entry_id in ids)
        assert len(entries) == self._count == sum(map(len, self._by_account.values()))
        for account, own in self._by_account.items():
            assert list(own) == [entry.entry_id for entry in entries if entry.account == account] != []

    def _rank_of(self, account: str) -> Rank:
        ids = self._by_account[account]
        return len(ids), -ids[0], account

    def _take_rank(self, account: str) -> None:
        """Remove the rank of an account, before its entries change."""
        if self._ranks is not None and account in self._by_account:
            del self._ranks[bisect_left(self._ranks, self._rank_of(account))]

    def _give_rank(self, account: str) -> None:
        if self._ranks is not None and account in self._by_account:
            insort(self._ranks, self._rank_of(account))

    def _place_of(self, entry_id: int) -> int:
        """Return the place of the last block that begins at or before an id; -1 = every block begins behind it."""
        return bisect_right(self._blocks, entry_id, key=_first_id) - 1

    def _add(self, entry: AuditEntry) -> None:
        # Decoded entries have texts of their own. Shared, 100,000 entries take a third of the memory.
        entry = msgspec.structs.replace(
            entry,
            account=_shared(entry.account),
            by_account=_shared(entry.by_account),
            secret_id=_shared(entry.secret_id),
            peer=_shared(entry.peer),
            operation=_shared(entry.operation),
            product=_shared(entry.product),
        )
        if not self._blocks or len(self._blocks[-1]) == BLOCK:
            self._blocks.append([])
        self._blocks[-1].append(entry)
        self._count += 1
        self._take_rank(entry.account)
        self._by_account.setdefault(entry.account, deque()).append(entry.entry_id)
        self._give_rank(entry.account)
        self.next_id = entry.entry_id + 1

    def _remove_oldest_of(self, account: str) -> None:
        self._take_rank(account)
        ids = self._by_account[account]
        entry_id = ids.popleft()
        if not ids:
            del self._by_account[account]
        self._give_rank(account)
        index = self._place_of(entry_id)
        blocks = self._blocks
        block = blocks[index]
        del block[bisect_right(block, entry_id, key=_id_of) - 1]
        self._count -= 1
        # Short neighbours are joined, on both sides. Otherwise a single old entry in each block would leave a block for
        # each entry.
        for first in (index, index - 1):
            if 0 <= first < len(blocks) - 1 and len(blocks[first]) + len(blocks[first + 1]) <= BLOCK:
                blocks[first].extend(blocks.pop(first + 1))
        if not self._count:
            blocks.clear()


def _id_of(entry: AuditEntry) -> int:
    return entry.entry_id


def _first_id(block: list[AuditEntry]) -> int:
    return block[0].entry_id
