r"""The steps of a database: what ``cmqd.engine.fencing`` asks of a group of servers with one log.

A step is one exchange with one server. It decides nothing and repeats nothing; it says exactly what it knows. The
group is a primary, a *named standby*, to which each commit waits to be flushed, and any number of others. A database
may lie about its past in the ways below (decision 0194). The protocol answers each of them; a step hides none of them.

- A row can be visible on its server and on no other: commits that were waiting for the standby are visible after a
  restart of the server, and after a cancel.
- A cancel of a waiting commit is reported as success with a notice (PostgreSQL: "The transaction has already committed
  locally, but might not have been replicated to the standby").
- ``synchronous_standby_names`` may change at any time, also to a value with which commits wait for no real copy.
- After a promotion the old primary may live on, accept connections and show its rows.

Threads: each session belongs to one thread; ``primaries`` is called by any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from cmqd.engine.interface import EngineRow, News, Row, StoredAccounts, StoredCheckpoint
from cmqd.log.values import BrokerSeen, CopyLag

ONE_NAMED_STANDBY = r'^\s*((FIRST\s+)?1\s*\(\s*)?("[^"*]+"|[a-z_][a-z0-9_$]*)\s*\)?\s*$'
r"""Pattern, without regard to case, of the values of ``synchronous_standby_names`` with which a commit counts: a single
standby by its name, for Python's ``re`` and for PostgreSQL's ``~*``.

A promotion must find each commit on the standby that is promoted. With a single name there is one standby to promote.
With ``ANY 1 (b, c)`` or a list, an old primary that hangs goes on with ``c`` after ``b`` was promoted. With ``*`` the
stream of a base backup counts as a standby, and with an empty value a commit waits for no standby."""

SILENCE_SECONDS = 1.0
"""Silence of a server after which a step asks whether to go on waiting, and then again after the same time."""
CONNECT_SECONDS = 1.0
"""Longest time that ``primaries`` takes."""

KeepWaiting: TypeAlias = Callable[[int], bool]
"""Asked by a step whose server is silent, with the timeline of the session: whether to wait on."""


class ConnectionLost(Exception):
    """The step was not answered as expected: the connection broke, the wait was given up, or the server reported an
    error. The outcome of everything since the last commit that was answered is unknown. The session is of no more use
    and must be killed.
    """


class UniqueViolation(Exception):
    """The server refused an ``insert``: a row with one of the LSNs is there, or was while the server looked. The server
    stored no row of the ``insert``. The session goes on; its transaction, if there is one, must be rolled back.
    """


class Commit(NamedTuple):
    """The answer to a commit."""

    changes: int
    """Rows stored, or barriers written. 0: the statement did nothing, because ``synchronous_standby_names`` was unsafe
    when it looked."""
    notices: tuple[str, ...] = ()
    """Notices and warnings that came with the answer, in the words of the server. With any of them the commit may exist
    on this server alone."""


class Newest(NamedTuple):
    """The newest row."""

    lsn: int
    epoch: int


class Session(Protocol):
    """A connection to one primary; its commits are synchronous (PostgreSQL: ``synchronous_commit = on``).

    Every step raises ``ConnectionLost``. Reads see what is visible on this server, which may be more than another
    server has, or less: only a later ``barrier`` on the same session makes them a truth.

    A step that waits for its server, or for a lock there, asks ``keep_waiting`` each ``SILENCE_SECONDS``. If the answer
    is no, the step kills the session and raises ``ConnectionLost``. No step sends a cancel, and no timeout of the
    server does (PostgreSQL: ``statement_timeout = lock_timeout = 0``): a cancelled commit is reported as a success. A
    session that is silent inside a transaction is ended by the server after a few seconds, because its lock stops
    others (PostgreSQL: ``idle_in_transaction_session_timeout``).
    """

    @property
    def server(self) -> str:
        """Name of the server, for logs."""
        ...

    @property
    def timeline(self) -> int:
        """Timeline of the server when the session began; each promotion raises it."""
        ...

    # Outside of a transaction, each a round trip.

    def barrier(self) -> Commit:
        """Commit a mark that changes no table, unless ``synchronous_standby_names`` is unsafe: checked in the same
        statement against ``ONE_NAMED_STANDBY``.

        The log of a server is one stream, so the standby that has flushed the mark has all that the session could see
        before the step.
        """
        ...

    def append(self, epoch: int, rows: Sequence[Row]) -> Commit:
        """Store rows under an epoch in one statement with its own commit, all or none, unless
        ``synchronous_standby_names`` is unsafe: checked in the same statement.

        Raises UniqueViolation.
        """
        ...

    def try_lock(self) -> bool:
        """Try to take the advisory lock of the shard for this session; return whether the session has it."""
        ...

    def unlock(self) -> None:
        """Release the advisory lock."""
        ...

    def announce(self, lsn: int, process: str, address: str) -> None:
        """Attach the last row, the process and the address of a broker to this session, for ``brokers``; writes
        nothing. A long address may be cut off.
        """
        ...

    def brokers(self) -> list[BrokerSeen]:
        """Return the brokers of the shard that have announced themselves on a session of this server."""
        ...

    def copies(self) -> list[CopyLag]:
        """Return the servers that copy this server."""
        ...

    # In a transaction or outside, each a round trip.

    def newest(self) -> Newest | None:
        """Return the row with the highest LSN; None if there is no row."""
        ...

    def news(self) -> News:
        """Return the newest row and the version of the accounts, seen at one moment."""
        ...

    def empty_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those of the ranges of LSNs, both ends included and not above the stored checkpoint, in which there is
        no row but fences, seen at one moment.
        """
        ...

    def epochs(self, lsns: Sequence[int]) -> dict[int, int]:
        """Return the epochs of the rows with these LSNs, by LSN, seen at one moment; absent rows are left out."""
        ...

    def rows(self, above: int, *, with_data: bool) -> list[EngineRow]:
        """Return the next rows above an LSN, ascending: a page of a few MiB, at least one row if there is one."""
        ...

    def checkpoint(self, *, with_data: bool) -> StoredCheckpoint | None:
        """Return the stored checkpoint; without ``with_data`` its data is left empty."""
        ...

    def accounts(self) -> StoredAccounts | None:
        """Return the stored accounts."""
        ...

    def log_id(self) -> str | None:
        """Return the id of the log."""
        ...

    # Changes in a transaction. ``begin`` waits for the lock of the shard's line, so these transactions follow each
    # other. Later statements see all that was committed before they began (PostgreSQL: READ COMMITTED).

    def begin(self) -> None:
        """Begin a transaction and lock the line of the shard; make the line if there is none."""
        ...

    def standby_is_named(self) -> bool:
        """Return whether ``synchronous_standby_names`` is safe: matches ``ONE_NAMED_STANDBY``."""
        ...

    def insert_fence(self, lsn: int) -> None:
        """Store an empty row with its LSN as epoch. Raises UniqueViolation."""
        ...

    def insert(self, epoch: int, rows: Sequence[Row]) -> None:
        """Store rows under an epoch, with the commit of the transaction. Raises UniqueViolation."""
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

    def remove(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove the rows in these ranges of LSNs, both ends included, except fences (rows with ``lsn = epoch``)."""
        ...

    def commit(self) -> Commit:
        """Commit the transaction. ``changes`` is 1."""
        ...

    def rollback(self) -> None:
        """Undo the transaction."""
        ...

    # The end

    def kill(self) -> None:
        """Close the socket, with no word to the server, and wait for nothing. Never raises; may be repeated.

        What the server does with a statement under way is unknown: it may commit much later.
        """
        ...

    def close(self) -> None:
        """End the session in order, so that the server releases its locks at once. Never raises."""
        ...


class Database(Protocol):
    """A group of servers with one log."""

    def primaries(self, keep_waiting: KeepWaiting) -> Sequence[Session]:
        """Ask all servers at once, and return a session with each server that answers within ``CONNECT_SECONDS`` and
        takes writes, in any order; an empty sequence if there is none. Never raises.
        """
        ...

    @property
    def unreached(self) -> Mapping[str, str]:
        """The servers that the last ``primaries`` did not return, each with the reason, for operators. No reason has a
        password.
        """
        ...


def no_primary(database: Database) -> str:
    """Return the text of an empty answer of ``primaries``, with the reason of each server."""
    reasons = "; ".join(f"{server}: {reason}" for server, reason in database.unreached.items())
    return "no server takes writes" + (f" ({reasons})" if reasons else "")
