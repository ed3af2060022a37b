"""Queues, or topics, in the order of account and name, for pages that continue behind a name.

Pages of metrics are read in slices, and other clients are served between two slices. A sort of 10,000 names in each
slice would hold the loop for longer than the slice itself, and a sorted copy for the last reader would be lost when a
second reader asks for another account. This list is sorted once; later entries are inserted.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    """An entry of the order."""

    account: str
    name: str


_N = TypeVar("_N", bound=Named)

_place = attrgetter("account", "name")
_account = attrgetter("account")


class NameOrder(Generic[_N]):
    """The entries of a table in the order of account and name."""

    def __init__(self, by_id: Mapping[int, _N]) -> None:
        """``by_id``: the table, which the caller changes together with this order."""
        self._by_id = by_id
        self._ordered: list[_N] | None = None
        """None until the first sort."""

    def sort(self) -> None:
        """Sort the whole table, once; recovery ends with it.

        Recovery inserts no entry: each insertion moves all later entries, and a checkpoint has the entries in the order
        of their ids.
        """
        self._ordered = sorted(self._by_id.values(), key=_place)

    def add(self, entry: _N) -> None:
        """Put a new entry of the table in its place."""
        if self._ordered is not None:
            insort(self._ordered, entry, key=_place)

    def remove(self, entry: _N) -> None:
        """Remove an entry, which leaves the table."""
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, _place(entry), key=_place)]

    def behind(self, account: str | None, after: tuple[str, str], limit: int) -> list[_N]:
        """Return at most ``limit`` entries behind ``after`` (account, name), of an account or of all accounts (None).

        A shorter list ends with the last entry.
        """
        if self._ordered is None:
            self.sort()
        ordered = self._ordered
        assert ordered is not None
        if account is None:
            start = bisect_right(ordered, after, key=_place)
            return ordered[start : start + limit]
        start = bisect_right(ordered, max(after, (account, "")), key=_place)
        stop = min(start + limit, len(ordered))
        return ordered[start : bisect_right(ordered, account, start, stop, key=_account)]
