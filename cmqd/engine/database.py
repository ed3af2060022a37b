r"""The steps of a database: the requests of ``cmqd.engine.fencing`` to a group of servers with the same log.

A step is an exchange with a server, without decisions and without repeats. The group is a primary, a *named standby*,
whose flush every commit waits for, and any number of further servers. A database may lie about its past in the ways
below (decision 0194). The protocol has an answer to every lie; a step hides none.

- A row can be visible on its server and on no other: commits that were waiting for the standby are visible after a
  restart of the server, and after a cancel.
- A cancel of a waiting commit is reported as success with a notice (PostgreSQL: "The transaction has already committed
  locally, but might not have been replicated to the standby").
- ``synchronous_standby_names`` may change at any time, also to a value under which commits wait for no real copy.
- After a promotion the old primary may live on, accept connections and show its rows.

Threads: a session belongs to a single thread; ``primaries`` is called by any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from cmqd.engine.interface import EngineRow, News, Row, StampedRow, StoredAccounts, StoredCheckpoint
from cmqd.log.values import BrokerSeen, CopyLag

ONE_NAMED_STANDBY = r'^\s*((FIRST\s+)?1\s*\(\s*)?("[^"*]+"|[a-z_][a-z0-9_$]*)\s*\)?\s*$'
r"""Pattern, without regard to case, of the values of ``synchronous_standby_names`` under which a commit counts: a
single standby by its name, for Python's ``re`` and for PostgreSQL's ``~*``.

A promotion must find every commit on the standby that is promoted. With a single name there is one standby to promote.
With ``ANY 1 (b, c)`` or a list, an old primary that hangs goes on with ``c`` after ``b`` was promoted. With ``*`` the
stream of a base backup counts as a standby, and with an empty value a commit waits for no standby."""

SILENCE_SECONDS = 1.0
"""Silence of a server before a step asks whether to go on waiting; repeated at this interval."""
CONNECT_SECONDS = 1.0
"""Longest time that ``primaries`` takes."""

SLOW_SECONDS = 0.05
"""Time of a commit in which an administrator, or the manager of the servers, may change the names twice."""

KeepWaiting: TypeAlias = Callable[[int], bool]
"""Takes the timeline of a silent server; returns whether the step waits on."""


class ConnectionLost(Exception):
    """The step was not answered as expected: the connection broke, the wait was given up, or the server reported an
    error. The outcome of all steps since the last answered commit is unknown. The session is of no more use
    and must be killed.
    """


class UniqueViolation(Exception):
    """The server refused an ``insert``: a row with a given LSN is there, or was during the check. The server
    stored no row of the ``insert``. The session goes on; an open transaction must be rolled back.
    """


class Commit(NamedTuple):
    """The answer to a commit."""

    changes: int
    """Rows stored, or barriers written. 0: the statement changed no table, because ``synchronous_standby_names``
    was unsafe at its check."""
    notices: tuple[str, ...] = ()
    """Notices and warnings that came with the answer, in the words of the server. After a notice the commit may exist
    on this server alone."""
    is_safe_behind: bool = True
    """False: ``synchronous_standby_names`` was unsafe after the commit had ended. It may have ended because of that."""
    is_slow: bool = False
    """The answer took more than ``SLOW_SECONDS``: time in which the names may have been unsafe and safe again."""


class Newest(NamedTuple):
    """The newest row."""

    lsn: int
    epoch: int


class Session(Protocol):
    """A connection to a primary; its commits are synchronous (PostgreSQL: ``synchronous_commit = on``).

    Every step raises ``ConnectionLost``. Reads see the visible rows of this server, which may be more or fewer
    than the rows of other servers: only a later ``barrier`` on the same session makes the read rows a truth.

    A step that waits for its server, or for a lock there, asks ``keep_waiting`` every ``SILENCE_SECONDS``. If the
    answer is no, the step kills the session and raises ``ConnectionLost``. No step sends a cancel, and no timeout of
    the server does (PostgreSQL: ``statement_timeout = lock_timeout = 0``): a cancelled commit is reported as a success.
    A session that is silent inside a transaction is ended by the server after a few seconds, because its lock stops
    other sessions (PostgreSQL: ``idle_in_transaction_session_timeout``).
    """

    @property
    def server(self) -> str:
        """Name of the server, for logs."""
        ...

    @property
    def timeline(self) -> int:
        """Timeline of the server when the session began; a promotion raises the timeline."""
        ...

    # Outside of a transaction; a step is a round trip.

    def barrier(self) -> Commit:
        """Commit a mark that changes no table, unless ``synchronous_standby_names`` is unsafe: checked in the same
        statement against ``ONE_NAMED_STANDBY``, and again after the commit has ended, in the same round trip.

        The log of a server is a single stream: the standby that has flushed the mark has all rows that the session
        could see before the step.
        """
        ...

    def append(self, epoch: int, rows: Sequence[Row]) -> Commit:
        """Store rows under an epoch, with stamps, in a single statement with its own commit, all or none, unless
        ``synchronous_standby_names`` is unsafe: checked as by ``barrier``.

        Raises UniqueViolation.
        """
        ...

    def standby_has_all(self) -> bool:
        """Return whether the named standby has flushed all that this server has; False if this role may not know."""
        ...

    def try_lock(self) -> bool:
        """Try to take the advisory lock of the shard for this session; return whether the session has it."""
        ...

    def unlock(self) -> None:
        """Release the advisory lock."""
        ...

    def add_columns(self) -> None:
        """Let the server keep the times at which rows are stored, and standing pins, if it does not and this role may
        change that. Waits a second for each at most, for other shards; a failure is no error.
        """
        ...

    def announce(self, lsn: int, process: str, address: str, wall_ms: int) -> None:
        """Attach the last row, the process and the address of a broker to this session, for ``brokers``, with the lead
        of its wall clock over the server's; without a write. A long address may be cut off.
        """
        ...

    def brokers(self) -> list[BrokerSeen]:
        """Return the brokers of the shard that have announced themselves on a session of this server."""
        ...

    def copies(self) -> list[CopyLag]:
        """Return the servers that copy this server."""
        ...

    # In a transaction or outside; a step is a round trip.

    def newest(self) -> Newest | None:
        """Return the row with the highest LSN; None if there is no row."""
        ...

    def newest_stamped(self) -> StampedRow | None:
        """Return the newest row that is no fence; None if there is no such row."""
        ...

    def news(self) -> News:
        """Return the newest row and the version of the accounts, seen at the same moment."""
        ...

    def empty_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the given ranges of LSNs, both ends included and not above the stored checkpoint, that have no row
        but fences, seen at the same moment.
        """
        ...

    def epochs(self, lsns: Sequence[int]) -> dict[int, int]:
        """Return the epochs of the rows with these LSNs, by LSN, seen at the same moment; absent rows are left out."""
        ...

    def rows(self, above: int, *, with_data: bool) -> list[EngineRow]:
        """Return the next rows above an LSN, ascending: a page of a few MiB, empty only if there is no row."""
        ...

    def checkpoint(self, *, with_data: bool) -> StoredCheckpoint | None:
        """Return the stored checkpoint; without ``with_data`` its data is left empty."""
        ...

    def accounts(self) -> StoredAccounts | None:
        """Return the stored accounts."""
        ...

    def standing_pins(self) -> bytes | None:
        """Return the stored standing pins; empty before the first, None if the server cannot keep any."""
        ...

    def log_id(self) -> str | None:
        """Return the id of the log."""
        ...

    # Changes in a transaction. ``begin`` waits for the lock of the shard's line, which puts these transactions in a
    # line. A later statement sees all that was committed before its begin (PostgreSQL: READ COMMITTED).

    def begin(self) -> None:
        """Begin a transaction and lock the line of the shard; make the line if there is none."""
        ...

    def standby_is_named(self) -> bool:
        """Return whether ``synchronous_standby_names`` is safe: matches ``ONE_NAMED_STANDBY``; and whether commits of
        this session wait for the standby (PostgreSQL: ``synchronous_commit``).
        """
        ...

    def insert_fence(self, lsn: int) -> int | None:
        """Store an empty row with its LSN as epoch; return its stamp, None without stamps. Raises UniqueViolation."""
        ...

    def insert(self, epoch: int, rows: Sequence[Row]) -> None:
        """Store rows under an epoch, without stamps, with the commit of the transaction. Raises UniqueViolation."""
        ...

    def put_log_id(self, log_id: str) -> None:
        """Store the id of the log."""
        ...

    def put_checkpoint(self, lsn: int, data: bytes) -> None:
        """Replace the stored checkpoint."""
        ...

    def put_accounts(self, version: int, data: bytes) -> None:
        """Replace the stored accounts."""
        ...

    def put_standing_pins(self, data: bytes) -> None:
        """Replace the stored standing pins. The server can keep them."""
        ...

    def remove(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove the rows in these ranges of LSNs, both ends included, except fences (rows with ``lsn = epoch``)."""
        ...

    def commit(self) -> Commit:
        """Commit the transaction. ``changes`` is 1. The names are not looked at: a barrier must follow."""
        ...

    def rollback(self) -> None:
        """Undo the transaction."""
        ...

    # The end

    def kill(self) -> None:
        """Close the socket, with no word to the server, without waiting. Never raises; may be repeated.

        The end of a statement under way is unknown: the server may commit much later.
        """
        ...

    def close(self) -> None:
        """End the session in order: the server releases its locks at once. Never raises."""
        ...


class Database(Protocol):
    """A group of servers with the same log."""

    def primaries(self, keep_waiting: KeepWaiting) -> Sequence[Session]:
        """Ask all servers at once, and return the sessions with all servers that answer within ``CONNECT_SECONDS`` and
        take writes, in any order; an empty sequence if there is none. Never raises.
        """
        ...

    @property
    def refusal(self) -> str:
        """The reason for which no server of the group may be used, a connection pooler; empty if there is none."""
        ...

    @property
    def unreached(self) -> Mapping[str, str]:
        """The servers that the last ``primaries`` did not return, with their reasons, for operators. No reason has a
        password.
        """
        ...


def no_primary(database: Database) -> str:
    """Return the text of an empty answer of ``primaries``, with the reasons of the servers."""
    reasons = "; ".join(f"{server}: {reason}" for server, reason in database.unreached.items())
    return "no server takes writes" + (f" ({reasons})" if reasons else "")
