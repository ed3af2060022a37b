"""Memory promised to accounts, with shares: numbered sends and dedup ids until they end, schedules until deleted.

A session or dedup id is never forgotten to save memory, because its producer may still repeat a send. So the memory is
limited where a promise is made: before a send with a new session or a new dedup id gets a record, the account must have
room. Repeats, further sends of a known session and sends without numbers are always accepted.

Recovery applies records without asking for room. The index after a start depends on the records alone, and a start with
a smaller budget only refuses new promises until old promises end.
"""

from collections.abc import Collection
from typing import Final

from cmqd.core.domain_errors import TooManyRemembered
from cmqd.core.facts.dedup import DedupIds
from cmqd.core.facts.sessions import Sessions
from cmqd.core.limits import Limits

SHARES: Final = 4
"""Divisor of the budget: the share of one account."""
ENDED_A_CHECK: Final = 512
"""Ended sessions that one check forgets at most, within half a millisecond; a sweep takes the others."""
LEAST_PAUSE_MS: Final = 1_000
"""Shortest suggested pause, and the time between two searches for the end of an account's oldest dedup id."""


class PromisedMemory:
    """Memory of sessions, dedup ids and schedules by account, in bytes, as their tables estimate it."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._by_account: dict[str, int] = {}
        self._tables: dict[str, dict[DedupIds, int]] = {}
        """Tables of dedup ids by account, with their bytes at the last count; empty tables have no entry."""
        self.total_bytes = 0

    @property
    def share_bytes(self) -> int:
        """Bytes of the share of an account."""
        return self._budget_bytes // SHARES

    def bytes_of(self, account: str) -> int:
        """Return the bytes that an account holds."""
        return self._by_account.get(account, 0)

    def has_room(self, account: str) -> bool:
        """Return whether an account may hold more.

        One share of the budget stays free of promises: unfinished frames and unread replies need it. A second share
        stays free for accounts within their share, because memory that an account borrows beyond its own share cannot
        be taken back before the promises end.
        """
        share_bytes = self.share_bytes
        kept_free_bytes = share_bytes if self.bytes_of(account) < share_bytes else 2 * share_bytes
        return self.total_bytes < self._budget_bytes - kept_free_bytes

    def change(self, account: str, grown_bytes: int) -> None:
        """Note that an account holds more, or less."""
        self.total_bytes += grown_bytes
        held_bytes = self.bytes_of(account) + grown_bytes
        if held_bytes:
            self._by_account[account] = held_bytes
        else:
            self._by_account.pop(account, None)

    def recount(self, account: str, dedup_ids: DedupIds) -> None:
        """Note the size of a table of dedup ids after a change."""
        self._note_table(account, dedup_ids, dedup_ids.size_bytes)

    def drop(self, account: str, dedup_ids: DedupIds) -> None:
        """Note that a table is gone with its queue or topic."""
        self._note_table(account, dedup_ids, 0)

    def _note_table(self, account: str, dedup_ids: DedupIds, size_bytes: int) -> None:
        tables = self._tables.setdefault(account, {})
        self.change(account, size_bytes - tables.pop(dedup_ids, 0))
        if size_bytes:
            tables[dedup_ids] = size_bytes
        elif not tables:
            del self._tables[account]

    def oldest_dedup_ms(self, account: str) -> int | None:
        """Return the time of the oldest dedup id of an account, None if it has none."""
        times_ms = (table.oldest_ms for table in self._tables.get(account, ()))
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


class Promises:
    """Room for new promises; see the module."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ends_ms: dict[str, int] = {}
        """By account, the end of its oldest dedup id at the last search; no older dedup id appears later."""
        self.memory = PromisedMemory(limits.budget_bytes)
        self.sessions = Sessions(limits, self.memory.change)

    def check_session(self, account: str, session: int, planned: Collection[int], now_ms: int) -> bool:
        """Check that a session of an account is known or ``planned``, or that the account has room for a new session.
        Returns whether the session is new.

        ``planned`` has new sessions of requests that are decided in the same call, and not applied yet.

        Raises:
            TooManyRemembered: the account has no room.
        """
        sessions = self.sessions
        if session in planned or sessions.knows(account, session, now_ms):
            return False
        limit = self._limits.max_sessions
        for _ in range(ENDED_A_CHECK):
            is_full = sessions.count_of(account) + len(planned) >= limit
            if not is_full and self.memory.has_room(account):
                return True
            # No sweep may have seen the ended sessions yet.
            if not sessions.forget_ended(account, now_ms):
                break
        else:
            is_full = False
        if not is_full:
            raise self._no_memory(account, now_ms)
        ends_ms = max(self._session_end_ms(account) or 0, now_ms + LEAST_PAUSE_MS)
        raise TooManyRemembered(account, f"{limit} producer sessions", limit, ends_ms, now_ms)

    def check_dedup_ids(self, account: str, now_ms: int) -> None:
        """Check that an account may have more dedup ids.

        Raises:
            TooManyRemembered: it has no room.
        """
        if self.memory.has_room(account):
            return
        raise self._no_memory(account, now_ms)

    def _no_memory(self, account: str, now_ms: int) -> TooManyRemembered:
        """Return the refusal for an account without room."""
        limit = self.memory.share_bytes
        share = f"sessions, dedup ids and schedules of {limit} bytes or more"
        ends = (self._session_end_ms(account), self._dedup_end_ms(account, now_ms))
        ends_ms = min((end_ms for end_ms in ends if end_ms is not None), default=0)
        return TooManyRemembered(account, share, limit, max(ends_ms, now_ms + LEAST_PAUSE_MS), now_ms)

    def _session_end_ms(self, account: str) -> int | None:
        oldest_ms = self.sessions.oldest_use_ms(account)
        return None if oldest_ms is None else oldest_ms + self._limits.session_life_ms

    def _dedup_end_ms(self, account: str, now_ms: int) -> int | None:
        # Refusals come by the thousand, and the search goes through all queues of the account.
        end_ms = self._ends_ms.get(account, 0)
        if end_ms <= now_ms:
            oldest_ms = self.memory.oldest_dedup_ms(account)
            if oldest_ms is None:
                return None
            end_ms = self._ends_ms[account] = max(oldest_ms + self._limits.dedup_life_ms, now_ms + LEAST_PAUSE_MS)
        return end_ms
