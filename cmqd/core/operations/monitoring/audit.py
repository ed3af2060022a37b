"""The entries of the audit trail: the record of an administrative operation, and pages of entries."""

from collections.abc import Generator
from typing import NamedTuple

from cmqd.core.facts.facts import Facts
from cmqd.core.limits import check_range
from cmqd_segment.records import Administered
from cmqd_types.audit import AuditEntry, AuditQuery

EXAMINED_A_STEP = 1000
"""Entries that a step compares: about 0.8 ms with a search."""
FOLDED_OF_AN_ENTRY = 64
"""Characters of a text beyond ASCII that cost a search as much time as a further entry, because of their two cases:
about 8 ns each."""


class AuditAction(NamedTuple):
    """An administrative operation: an entry without its id and time."""

    account: str
    by_account: str
    secret_id: str
    peer: str
    operation: str
    name: str
    changes: str
    product: str = ""


class AuditPage(NamedTuple):
    """Entries, newest first."""

    entries: list[AuditEntry]
    next_before: int
    """``before`` of the next page; 0 = there are no older entries."""


class Audit:
    """Adds entries to the trail, and reads entries."""

    def __init__(self, facts: Facts) -> None:
        self._trail = facts.audit_trail
        self._limits = facts.limits

    def record(self, action: AuditAction, now_ms: int) -> Administered:
        """Add an entry; return the record, for the append of the operation's own records."""
        record = Administered(AuditEntry(self._trail.next_id, now_ms, *action))
        self._trail.apply(record)
        return record

    def check_limit(self, limit: int) -> None:
        """Check the number of entries of a page.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        check_range("limit", limit, 1, self._limits.max_list)

    def entries(
        self, account: str | None, query: AuditQuery, limit: int, now_ms: int
    ) -> Generator[None, None, AuditPage]:
        """Find the entries of an account, or of all accounts (None), in steps, newest first.

        Entries that come in between two steps are not found; entries that leave in between may be.

        Args:
            account: the account; None = all accounts.
            query: the entries that are wanted.
            limit: most entries of the page.
            now_ms: broker time. Entries past their time are not shown, even if no newer entry has removed them.
        """
        page: list[AuditEntry] = []
        since_ms = max(query.since_ms, now_ms - self._limits.audit_ms)
        until_ms, operation, search = query.until_ms, query.operation, query.search.casefold()
        before = query.before or self._trail.next_id
        while entries := self._trail.older_than(before, EXAMINED_A_STEP):
            room = EXAMINED_A_STEP
            for entry in entries:
                if room <= 0:
                    # The rest is read again, because entries may leave before the next step.
                    break
                # Times ascend with the ids, unless broker time stepped back: an older entry may have a later time.
                if entry.entry_id <= query.after:
                    return AuditPage(page, 0)
                before = entry.entry_id
                room -= 1
                if entry.time_ms < since_ms or (until_ms is not None and entry.time_ms >= until_ms):
                    continue
                if account is not None and entry.account != account:
                    continue
                if operation and entry.operation != operation:
                    continue
                if search:
                    text = _text(entry)
                    if not text.isascii():
                        room -= len(text) // FOLDED_OF_AN_ENTRY
                    if search not in text.casefold():
                        continue
                if len(page) == limit:
                    # The page is full, and an older entry is known to exist.
                    return AuditPage(page, page[-1].entry_id)
                page.append(entry)
            yield
        return AuditPage(page, 0)


def _text(entry: AuditEntry) -> str:
    parts = (entry.account, entry.secret_id, entry.peer, entry.operation, entry.name, entry.changes, entry.product)
    return "\n".join(parts)
