"""A group of servers in memory, with the ways of a replicated database to lose and to lie, to be ordered by a test.

A server has a log of transactions. A commit on a primary is appended to its log, and waits, invisible, until a standby
that counts has flushed it. Faults of servers are methods of ``MemoryDatabase``: crash, restart, promote, cut, cancel.
Faults of single steps are the answers of ``on_step``: a request that is lost, delivered late, or without its answer.

No step sleeps: a step that must wait calls ``pause`` and then asks whether to go on waiting.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import RLock
from typing import Any, TypeVar

from msgspec import structs

from cmqd.engine.database import ONE_NAMED_STANDBY, Commit, ConnectionLost, KeepWaiting, Newest, UniqueViolation
from cmqd.engine.interface import EngineRow, News, Row, StampedRow, StoredAccounts, StoredCheckpoint
from cmqd.log.values import BrokerSeen, CopyLag

CANCELLED = "canceling wait for synchronous replication due to user request"
PAGE_ROWS = 100
"""Rows of a page."""

T = TypeVar("T")


class Fault(Enum):
    """The fate of a step."""

    NONE = auto()
    LOSE_REQUEST = auto()
    """The server never gets the request, and sees the connection end."""
    LATE_REQUEST = auto()
    """The client sees the connection end; the server gets the request at the next ``deliver_late``."""
    LOSE_ANSWER = auto()
    """The server does as it was asked; the client sees the connection end."""
    SILENCE = auto()
    """The server never gets the request; the client waits, as behind a proxy that hangs."""
    HIDE_NEWEST = auto()
    """For the step ``primaries``: the primary with the highest timeline does not answer in time."""


@dataclass
class _Transaction:
    """The effects of a transaction, as they are in the log."""

    rows: list[EngineRow] = field(default_factory=list[EngineRow])
    stamps: dict[int, int] = field(default_factory=dict[int, int])
    removed: set[int] = field(default_factory=set[int])
    checkpoint: StoredCheckpoint | None = None
    accounts: StoredAccounts | None = None
    standing_pins: bytes | None = None
    log_id: str | None = None
    is_mark: bool = False

    @property
    def is_empty(self) -> bool:
        return self == _Transaction()


class _Tables:
    """The visible content of a server."""

    def __init__(self, transactions: Iterable[_Transaction] = ()) -> None:
        self.rows: dict[int, EngineRow] = {}
        self.stamps: dict[int, int] = {}
        self.checkpoint: StoredCheckpoint | None = None
        self.accounts: StoredAccounts | None = None
        self.standing_pins = b""
        self.log_id: str | None = None
        for transaction in transactions:
            self.apply(transaction)

    def apply(self, transaction: _Transaction) -> None:
        for row in transaction.rows:
            self.rows[row.lsn] = row
        self.stamps |= transaction.stamps
        for lsn in transaction.removed:
            self.rows.pop(lsn, None)
        self.checkpoint = transaction.checkpoint or self.checkpoint
        self.accounts = transaction.accounts or self.accounts
        if transaction.standing_pins is not None:
            self.standing_pins = transaction.standing_pins
        self.log_id = transaction.log_id or self.log_id


@dataclass(eq=False)
class _WaitingCommit:
    """A commit of a primary that waits for its standby."""

    transaction: _Transaction
    end: int
    """Length of the log with the transaction."""
    answer: Commit | None = None


class MemoryServer:
    """A server; its fields are for reading, and change by the methods of ``MemoryDatabase``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.timeline = 1
        self.is_primary = False
        self.runs = True
        self.standby_names = ""
        self.primary: MemoryServer | None = None
        """The server whose log this standby receives."""
        self.is_cut = False
        """The standby receives nothing."""
        self.is_mute = False
        """The standby receives the log, and its confirmations do not arrive."""
        self.clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        """Clock of the stamps."""
        self.log: list[_Transaction] = []
        self.tables = _Tables()
        self.waiting: list[_WaitingCommit] = []
        self.confirmed: dict[str, int] = {}
        """Length of the log that each standby has confirmed."""
        self.starts = 0
        self.line_owner: MemorySession | None = None
        self.lock_owner: MemorySession | None = None
        self.claims: dict[int, MemorySession] = {}
        """LSNs of rows in open transactions."""

    def show(self, commit: _WaitingCommit, answer: Commit) -> None:
        """End the wait of a commit: its transaction becomes visible."""
        self.waiting.remove(commit)
        self.tables.apply(commit.transaction)
        commit.answer = answer

    def drop_sessions(self) -> None:
        """End all sessions, as a crash does."""
        self.starts += 1
        self.line_owner = self.lock_owner = None
        self.claims.clear()
        self.waiting.clear()
        self.confirmed.clear()
        # A restart replays the whole log: commits that were waiting are visible from then on.
        self.tables = _Tables(self.log)


class MemoryDatabase:
    """Three servers in memory: "a" is the primary, "b" its named standby; see the module."""

    def __init__(self, *, pause: Callable[[], None]) -> None:
        """Start the servers. A step that must wait calls ``pause``, without a lock of the database."""
        self.session_class = MemorySession
        self.servers = {name: MemoryServer(name) for name in "abc"}
        self.pause = pause
        self.on_step: Callable[[str, str], Fault] = lambda _server, _step: Fault.NONE
        """Called before each step, with the name of the server and the step; decides about its fate."""
        self.lock = RLock()
        self.late: list[tuple[MemorySession, Callable[[], object]]] = []
        self.sessions: list[MemorySession] = []
        """Sessions whose server side has not ended."""
        self.unreached: dict[str, str] = {}
        """Servers in memory have no reasons."""
        self.refusal = ""
        self.has_stamps = True
        """False: the tables are of a version without stamps."""
        self.keeps_standing_pins = True
        """False: the tables are of a version without standing pins."""
        self.may_add_columns = True
        """False: the role of the brokers may not change the tables."""
        self.may_read_lags = True
        """False: the role of the brokers may not read what standbys have flushed."""
        self.base_backup_of: str | None = None
        """A primary that a base backup is taken from: its stream counts as a standby under ``*``."""
        primary, *standbys = self.servers.values()
        primary.is_primary = True
        primary.standby_names = standbys[0].name
        for standby in standbys:
            standby.primary = primary

    def primaries(self, keep_waiting: KeepWaiting) -> list["MemorySession"]:
        """Return a session with each primary that runs."""
        fault = self.on_step("", "primaries")
        with self.lock:
            if fault not in (Fault.NONE, Fault.HIDE_NEWEST):
                return []
            primaries = [server for server in self.servers.values() if server.runs and server.is_primary]
            if fault is Fault.HIDE_NEWEST and primaries:
                primaries.remove(self.newest_primary())
            sessions = [self.session_class(self, server, keep_waiting) for server in primaries]
            self.sessions += sessions
            return sessions

    def newest_primary(self) -> MemoryServer:
        """Return the running primary with the highest timeline; there must be one."""
        return max((s for s in self.servers.values() if s.runs and s.is_primary), key=lambda server: server.timeline)

    # Faults of servers

    def crash(self, name: str) -> None:
        """End a server."""
        with self.lock:
            self.servers[name].runs = False
            self.servers[name].drop_sessions()
            self.settle()

    def restart(self, name: str) -> None:
        """Start a server again in its former role. Commits that were waiting for a standby are visible then."""
        with self.lock:
            self.servers[name].drop_sessions()
            self.servers[name].runs = True
            self.settle()

    def promote(self, name: str, standby_names: str = "") -> None:
        """Make a standby a primary with a timeline of its own. The old primary is not told."""
        with self.lock:
            server = self.servers[name]
            server.timeline = 1 + max(other.timeline for other in self.servers.values())
            server.is_primary = True
            server.primary = None
            server.standby_names = standby_names
            self.settle()

    def follow(self, name: str, primary: str) -> None:
        """Start a server as the standby of a primary; the part of its log that the primary lacks is cut off."""
        with self.lock:
            server = self.servers[name]
            server.drop_sessions()
            server.runs = True
            server.is_primary = False
            server.is_cut = server.is_mute = False
            server.primary = self.servers[primary]
            server.timeline = server.primary.timeline
            server.log = server.log[: _common_length(server.log, server.primary.log)]
            server.tables = _Tables(server.log)
            self.settle()

    def link(self, name: str, *, is_cut: bool = False, is_mute: bool = False) -> None:
        """Set the state of the connection between a standby and its primary."""
        with self.lock:
            self.servers[name].is_cut = is_cut
            self.servers[name].is_mute = is_mute
            self.settle()

    def name_standby(self, name: str, standby_names: str) -> None:
        """Set ``synchronous_standby_names`` of a server."""
        with self.lock:
            self.servers[name].standby_names = standby_names
            self.settle()

    def cancel(self, name: str) -> None:
        """Cancel the commits of a server that wait for its standby: each is visible, and answered with a notice."""
        with self.lock:
            server = self.servers[name]
            for commit in list(server.waiting):
                server.show(commit, Commit(max(1, len(commit.transaction.rows)), (CANCELLED,)))
            self.settle()

    def end_idle(self) -> None:
        """End the sessions that are silent inside a transaction."""
        with self.lock:
            for session in list(self.sessions):
                if session.is_idle_in_transaction:
                    session.end_at_server()
            self.settle()

    def deliver_late(self) -> None:
        """Execute the requests that were late, in their order."""
        with self.lock:
            late, self.late = self.late, []
            for session, execute in late:
                if session in self.sessions and session.starts == session.memory_server.starts:
                    try:
                        session.note(execute())
                    except _Blocked:
                        self.late.append((session, execute))
                        continue
                    except UniqueViolation:
                        pass
                session.is_late = False
            self.settle()

    def settle(self) -> None:
        """Send logs to the standbys, answer commits, and end the server side of sessions without a client."""
        for standby in self.servers.values():
            primary = standby.primary
            if primary is None or not primary.runs or not standby.runs or standby.is_cut or not primary.is_primary:
                continue
            if _common_length(standby.log, primary.log) == len(standby.log):
                for transaction in primary.log[len(standby.log) :]:
                    standby.log.append(transaction)
                    standby.tables.apply(transaction)
                if not standby.is_mute:
                    primary.confirmed[standby.name] = len(standby.log)
        for server in self.servers.values():
            for commit in list(server.waiting):
                if self._is_copied(server, commit.end):
                    server.show(commit, Commit(max(1, len(commit.transaction.rows))))
        for session in list(self.sessions):
            if session.is_killed and not session.is_late and not session.is_committing:
                session.end_at_server()

    def _is_copied(self, server: MemoryServer, end: int) -> bool:
        names = server.standby_names
        if "*" in names:
            return self.base_backup_of == server.name or any(length >= end for length in server.confirmed.values())
        return not names or any(server.confirmed.get(name, 0) >= end for name in re.findall(r"\w+", names))


class _Blocked(Exception):
    """The step waits for a lock; nothing was done."""


class MemorySession:
    """A session with a server in memory."""

    def __init__(self, database: MemoryDatabase, server: MemoryServer, keep_waiting: KeepWaiting) -> None:
        self.memory_server = server
        self.server = server.name
        self.timeline = server.timeline
        self.starts = server.starts
        self.is_killed = False
        self.is_late = False
        """A request is on its way although the client has given up."""
        self.in_step = False
        self.announced: BrokerSeen | None = None
        self._database = database
        self._keep_waiting = keep_waiting
        self._has_waited = False
        """The last request was not answered at once."""
        self._transaction: _Transaction | None = None
        self._commit: _WaitingCommit | None = None

    @property
    def is_committing(self) -> bool:
        """A commit of this session waits for the standby; so long its locks stay, whatever the client does."""
        return self._commit is not None and self._commit in self.memory_server.waiting

    @property
    def is_idle_in_transaction(self) -> bool:
        """The server waits for the client, or for a late request, inside a transaction."""
        return self._transaction is not None and not self.in_step

    # Steps

    def barrier(self) -> Commit:
        return self._looked_behind(self._answered("barrier", lambda: self._commit_if_named(_Transaction(is_mark=True))))

    def append(self, epoch: int, rows: Sequence[Row]) -> Commit:
        columns = _columns(epoch, rows)

        def execute() -> "Commit | _WaitingCommit":
            if self.is_named(self.memory_server.standby_names):
                for row in columns:
                    self._require_free(row.lsn)
            return self._commit_if_named(_Transaction(rows=columns, stamps=self._stamps_of(columns)))

        return self._looked_behind(self._answered("append", execute))

    def standby_has_all(self) -> bool:
        def execute() -> bool:
            server = self.memory_server
            names = re.findall(r"\w+", server.standby_names)
            return self._database.may_read_lags and any(
                server.confirmed.get(name, 0) == len(server.log) for name in names
            )

        return self._step("standby_has_all", execute)

    def add_columns(self) -> None:
        def execute() -> None:
            database = self._database
            database.has_stamps = database.has_stamps or database.may_add_columns
            database.keeps_standing_pins = database.keeps_standing_pins or database.may_add_columns

        self._step("add_columns", execute)

    def try_lock(self) -> bool:
        def execute() -> bool:
            server = self.memory_server
            server.lock_owner = server.lock_owner or self
            return server.lock_owner is self

        return self._step("try_lock", execute)

    def unlock(self) -> None:
        self._step("unlock", lambda: self._release("lock_owner"))

    def announce(self, lsn: int, process: str, address: str, wall_ms: int) -> None:
        def execute() -> None:
            offset_ms = round(wall_ms - self.memory_server.clock_ms(), -2)
            self.announced = BrokerSeen(address, process, lsn, leads=False, clock_offset_ms=offset_ms)

        self._step("announce", execute)

    def brokers(self) -> list[BrokerSeen]:
        def execute() -> list[BrokerSeen]:
            server = self.memory_server
            return [
                structs.replace(session.announced, leads=session is server.lock_owner)
                for session in self._database.sessions
                if session.memory_server is server and session.announced is not None
            ]

        return self._step("brokers", execute)

    def copies(self) -> list[CopyLag]:
        def execute() -> list[CopyLag]:
            server = self.memory_server
            standbys = [other for other in self._database.servers.values() if other.primary is server and other.runs]
            return [
                CopyLag(
                    standby.name,
                    standby.name in re.findall(r"\w+", server.standby_names),
                    len(server.log) - server.confirmed.get(standby.name, 0),
                    0,
                )
                for standby in standbys
            ]

        return self._step("copies", execute)

    def newest(self) -> Newest | None:
        def execute() -> Newest | None:
            rows = self.memory_server.tables.rows
            return Newest(max(rows), rows[max(rows)].epoch) if rows else None

        return self._step("newest", execute)

    def newest_stamped(self) -> StampedRow | None:
        def execute() -> StampedRow | None:
            tables = self.memory_server.tables
            row = max((row for row in tables.rows.values() if not row.is_fence), default=None)
            return None if row is None else StampedRow(row.lsn, row.epoch, row.time_ms, tables.stamps.get(row.lsn))

        return self._step("newest_stamped", execute)

    def news(self) -> News:
        def execute() -> News:
            tables = self.memory_server.tables
            newest = max(tables.rows.values(), default=EngineRow(0, 0, 0, 0, b"", b"", b""))
            return News(newest.lsn, newest.epoch, 0 if tables.accounts is None else tables.accounts.version)

        return self._step("news", execute)

    def empty_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        def execute() -> list[tuple[int, int]]:
            tables = self.memory_server.tables
            limit = 0 if tables.checkpoint is None else tables.checkpoint.lsn
            rows = [row.lsn for row in tables.rows.values() if not row.is_fence]
            return [
                (first, last)
                for first, last in ranges
                if last <= limit and not any(first <= lsn <= last for lsn in rows)
            ]

        return self._step("empty_ranges", execute)

    def epochs(self, lsns: Sequence[int]) -> dict[int, int]:
        def execute() -> dict[int, int]:
            rows = self.memory_server.tables.rows
            return {lsn: rows[lsn].epoch for lsn in lsns if lsn in rows}

        return self._step("epochs", execute)

    def rows(self, above: int, *, with_data: bool) -> list[EngineRow]:
        def execute() -> list[EngineRow]:
            rows = self.memory_server.tables.rows
            page = [rows[lsn] for lsn in sorted(lsn for lsn in rows if lsn > above)[:PAGE_ROWS]]
            return page if with_data else [row._replace(data=b"") for row in page]

        return self._step("rows", execute)

    def checkpoint(self, *, with_data: bool) -> StoredCheckpoint | None:
        def execute() -> StoredCheckpoint | None:
            stored = self.memory_server.tables.checkpoint
            return stored if with_data or stored is None else StoredCheckpoint(stored.lsn, b"")

        return self._step("checkpoint", execute)

    def accounts(self) -> StoredAccounts | None:
        return self._step("accounts", lambda: self.memory_server.tables.accounts)

    def standing_pins(self) -> bytes | None:
        def execute() -> bytes | None:
            return self.memory_server.tables.standing_pins if self._database.keeps_standing_pins else None

        return self._step("standing_pins", execute)

    def log_id(self) -> str | None:
        return self._step("log_id", lambda: self.memory_server.tables.log_id)

    def begin(self) -> None:
        def execute() -> None:
            server = self.memory_server
            if server.line_owner not in (None, self):
                raise _Blocked
            server.line_owner = self
            self._transaction = _Transaction()

        self._step("begin", execute)

    def standby_is_named(self) -> bool:
        return self._step("standby_is_named", lambda: self.is_named(self.memory_server.standby_names))

    def insert_fence(self, lsn: int) -> int | None:
        def execute() -> int | None:
            self._require_free(lsn)
            self.memory_server.claims[lsn] = self
            fence = EngineRow(lsn, lsn, 0, 0, b"", b"", b"")
            transaction = self._opened()
            transaction.rows.append(fence)
            transaction.stamps |= self._stamps_of([fence])
            return transaction.stamps.get(lsn)

        return self._step("insert_fence", execute)

    def insert(self, epoch: int, rows: Sequence[Row]) -> None:
        columns = _columns(epoch, rows)

        def execute() -> None:
            for row in columns:
                self._require_free(row.lsn)
            self.memory_server.claims.update({row.lsn: self for row in columns})
            self._opened().rows += columns

        self._step("insert", execute)

    def put_log_id(self, log_id: str) -> None:
        self._step("put_log_id", lambda: setattr(self._opened(), "log_id", log_id))

    def put_checkpoint(self, lsn: int, data: bytes) -> None:
        self._step("put_checkpoint", lambda: setattr(self._opened(), "checkpoint", StoredCheckpoint(lsn, data)))

    def put_accounts(self, version: int, data: bytes) -> None:
        self._step("put_accounts", lambda: setattr(self._opened(), "accounts", StoredAccounts(version, data)))

    def put_standing_pins(self, data: bytes) -> None:
        self._step("put_standing_pins", lambda: setattr(self._opened(), "standing_pins", data))

    def remove(self, ranges: Sequence[tuple[int, int]]) -> None:
        def execute() -> None:
            self._opened().removed.update(
                row.lsn
                for row in self.memory_server.tables.rows.values()
                if not self.is_kept(row) and any(first <= row.lsn <= last for first, last in ranges)
            )

        self._step("remove", execute)

    def commit(self) -> Commit:
        def execute() -> "Commit | _WaitingCommit":
            transaction = self._opened()
            self._transaction = None
            return Commit(1) if transaction.is_empty else self._write(transaction)

        commit = self._answered("commit", execute)
        return commit._replace(changes=1)

    def rollback(self) -> None:
        self._step("rollback", self._end_transaction)

    def kill(self) -> None:
        with self._database.lock:
            self.is_killed = True
            self._database.settle()

    def close(self) -> None:
        self.kill()

    # Guards that are the database's, so that a test can remove them

    def is_named_behind(self, standby_names: str) -> bool:
        """Return whether a commit counts that has ended with this value."""
        return self.is_named(standby_names)

    def is_named(self, standby_names: str) -> bool:
        """Return whether commits count with this value of ``synchronous_standby_names``."""
        return re.match(ONE_NAMED_STANDBY, standby_names, re.IGNORECASE) is not None

    def is_kept(self, row: EngineRow) -> bool:
        """Return whether the row is never removed."""
        return row.is_fence

    # The server side

    def end_at_server(self) -> None:
        """End the backend of this session: its open transaction is undone, its locks are free."""
        self.is_killed = True
        self._end_transaction()
        self._release("lock_owner")
        if self in self._database.sessions:
            self._database.sessions.remove(self)

    def note(self, outcome: object) -> None:
        """Note the commit that an executed request has begun."""
        if isinstance(outcome, _WaitingCommit):
            self._commit = outcome

    def _answered(self, step: str, execute: "Callable[[], Commit | _WaitingCommit]") -> Commit:
        """Make a step with a commit, and wait for its answer; the locks of its transaction end with the answer."""
        commit = self._step(step, execute)
        with self._database.lock:
            self._end_transaction()
        return commit

    def _looked_behind(self, commit: Commit) -> Commit:
        """Look at the names behind a commit, as the server does in the same round trip."""
        is_slow = self._has_waited
        is_safe = self._step("look_behind", lambda: self.is_named_behind(self.memory_server.standby_names))
        return commit._replace(is_safe_behind=is_safe, is_slow=is_slow)

    def _step(self, step: str, execute: Callable[[], T]) -> Any:
        database = self._database
        self._require_client()
        fault = database.on_step(self.server, step)
        with database.lock:
            self._require_client()
            if fault is Fault.LOSE_REQUEST:
                self.end_at_server()
                raise ConnectionLost("the connection ended")
            if fault is Fault.LATE_REQUEST:
                self.is_late = True
                self.is_killed = True
                database.late.append((self, execute))
                raise ConnectionLost("the connection ended")
        # From here on the server has the request; before, the session is idle for it.
        self.in_step = True
        try:
            return self._executed(execute, fault)
        finally:
            self.in_step = False

    def _executed(self, execute: Callable[[], T], fault: Fault) -> Any:
        """Execute a request as soon as no lock stops it, and wait for its answer."""
        database = self._database
        outcome: object = _NOT_YET
        self._has_waited = False
        while True:
            with database.lock:
                self._require_client()
                try:
                    if fault is Fault.SILENCE:
                        raise _Blocked
                    outcome = execute() if outcome is _NOT_YET else outcome
                except _Blocked:
                    pass
                else:
                    self.note(outcome)
                    database.settle()
                    answer = outcome.answer if isinstance(outcome, _WaitingCommit) else outcome
                    if fault is Fault.LOSE_ANSWER:
                        self.kill()
                        raise ConnectionLost("the connection ended")
                    if not isinstance(outcome, _WaitingCommit) or answer is not None:
                        return answer
            self._has_waited = True
            database.pause()
            if not self._keep_waiting(self.timeline):
                self.kill()
                raise ConnectionLost("given up")

    def _require_client(self) -> None:
        server = self.memory_server
        if self.is_killed or not server.runs or server.starts != self.starts:
            raise ConnectionLost("the connection ended")

    def _opened(self) -> _Transaction:
        assert self._transaction is not None, "no transaction"
        return self._transaction

    def _stamps_of(self, rows: Sequence[EngineRow]) -> dict[int, int]:
        return {row.lsn: self.memory_server.clock_ms() for row in rows} if self._database.has_stamps else {}

    def _require_free(self, lsn: int) -> None:
        """Raise UniqueViolation if the row is there, or wait for the transaction that is about to store it."""
        server = self.memory_server
        if lsn in server.tables.rows:
            raise UniqueViolation
        if server.claims.get(lsn, self) is not self:
            raise _Blocked
        if any(row.lsn == lsn for commit in server.waiting for row in commit.transaction.rows):
            raise _Blocked

    def _commit_if_named(self, transaction: _Transaction) -> "Commit | _WaitingCommit":
        return self._write(transaction) if self.is_named(self.memory_server.standby_names) else Commit(0)

    def _write(self, transaction: _Transaction) -> _WaitingCommit:
        server = self.memory_server
        server.log.append(transaction)
        commit = _WaitingCommit(transaction, len(server.log))
        server.waiting.append(commit)
        return commit

    def _end_transaction(self) -> None:
        self._transaction = None
        self._release("line_owner")
        server = self.memory_server
        server.claims = {lsn: session for lsn, session in server.claims.items() if session is not self}

    def _release(self, lock: str) -> None:
        if getattr(self.memory_server, lock) is self:
            setattr(self.memory_server, lock, None)


_NOT_YET = object()


def _columns(epoch: int, rows: Sequence[Row]) -> list[EngineRow]:
    return [
        EngineRow(row.lsn, epoch, row.time_ms, row.messages, bytes(row.queues), bytes(row.meta), bytes(row.data))
        for row in rows
    ]


def _common_length(log: list[_Transaction], other: list[_Transaction]) -> int:
    """Return the length of the beginning that two logs share."""
    for index, (own, others) in enumerate(zip(log, other, strict=False)):
        if own is not others:
            return index
    return min(len(log), len(other))
