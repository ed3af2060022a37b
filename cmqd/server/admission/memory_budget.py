"""The memory that clients can make the broker hold, as one budget with shares of accounts.

Two kinds of holdings count. *Promised* holdings (sessions, dedup ids) are never dropped: the core decides by the size
of the budget (``core.facts.promised_memory``), before a record is written, whether an account may have more, and leaves
a quarter of the budget free. *Droppable* holdings belong to a connection: a frame that has not arrived whole, deferred
input, parked requests, replies that the client has not read. When all holdings together exceed the budget, connections
are dropped until the rest fits: of the account with the largest holdings, the connection with the largest. So an
account within a quarter of the budget keeps its connections as long as an account over its quarter has any, and a
single account may use the memory that other accounts leave.

Holdings under ``LEAST_BYTES`` are not counted: they belong to the cost of a connection.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from cmqd.server.broker_logger import get_logger
from cmqd.settings import LEAST_MEMORY_BUDGET_BYTES, Settings

_log = get_logger()

LEAST_BYTES: Final = 64 * 1024

CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of a container, in versions 2 and 1."""


def default_budget_bytes() -> int:
    """Return a quarter of the memory of this machine or container, at least ``LEAST_MEMORY_BUDGET_BYTES``."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_LIMITS:
        try:
            memory = min(memory, int(path.read_text()))
        except (OSError, ValueError):
            continue  # another version of cgroups, or no limit ("max")
    return max(LEAST_MEMORY_BUDGET_BYTES, memory // 4)


def budget_bytes(settings: Settings) -> int:
    """Return the budget that the settings name."""
    return settings.memory_budget_bytes or default_budget_bytes()


class Holder(Protocol):
    """A connection with droppable memory."""

    account: str

    def drop(self, text: str) -> None:
        """Close the connection and free its memory; ``text`` tells why."""
        ...


class MemoryBudget:
    """Holdings of all connections; see the module.

    Invariant: ``held_bytes`` is the sum of the holdings of all accounts; a connection has holdings in one account.
    """

    __slots__ = ("_account_of", "_accounts", "_kept_bytes", "_note_held", "dropped", "held_bytes", "total_bytes")

    def __init__(
        self,
        total_bytes: int,
        kept_bytes: Callable[[], int] = lambda: 0,
        note_held: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Make a budget without holdings.

        Args:
            total_bytes: bound of all holdings.
            kept_bytes: returns the memory of promised holdings.
            note_held: called with ``held_bytes`` after each change.
        """
        self.total_bytes = total_bytes
        self.held_bytes = 0
        """Droppable memory of all connections."""
        self.dropped = 0
        """Connections dropped since the start."""
        self._kept_bytes = kept_bytes
        self._note_held = note_held
        self._accounts: dict[str, dict[Holder, int]] = {}
        """Holdings by account and connection."""
        self._account_of: dict[Holder, str] = {}
        """A connection's account when it was noted last: authentication changes it."""

    def __repr__(self) -> str:
        return f"<MemoryBudget held={self.held_bytes} kept={self._kept_bytes()} of {self.total_bytes}>"

    def hold(self, holder: Holder, size: int) -> None:
        """Note the droppable memory of a connection, and drop the largest holders if the budget is exceeded."""
        before = self._release(holder)
        if size:
            self._account_of[holder] = holder.account
            self._accounts.setdefault(holder.account, {})[holder] = size
            self.held_bytes += size
        if size > before:
            self._drop_largest()
        self._note_held(self.held_bytes)

    def _release(self, holder: Holder) -> int:
        """Forget the holding of a connection; returns its size."""
        account = self._account_of.pop(holder, None)
        if account is None:
            return 0
        holdings = self._accounts[account]
        size = holdings.pop(holder)
        if not holdings:
            del self._accounts[account]
        self.held_bytes -= size
        return size

    def _drop_largest(self) -> None:
        limit = self.total_bytes - self._kept_bytes()
        while self.held_bytes > limit and self._accounts:
            account = max(self._accounts, key=lambda name: sum(self._accounts[name].values()))
            holdings = self._accounts[account]
            holder = max(holdings, key=holdings.__getitem__)
            size = self._release(holder)
            self.dropped += 1
            _log.warning("connection_dropped_for_memory", account=account, bytes=size, budget_bytes=self.total_bytes)
            holder.drop(
                f"the server's memory for unfinished requests and unread replies ({self.total_bytes} bytes) is used "
                f"up, and this connection held the most ({size} bytes)"
            )

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert {name: set(holdings) for name, holdings in self._accounts.items()} == {
            name: {holder for holder, account in self._account_of.items() if account == name}
            for name in self._account_of.values()
        }
        held = [size for holdings in self._accounts.values() for size in holdings.values()]
        assert sum(held) == self.held_bytes, (sum(held), self.held_bytes)
        assert all(size > 0 for size in held)
        assert all(self._accounts.values())
