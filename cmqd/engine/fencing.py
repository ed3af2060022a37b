"""The fencing protocol: an engine over a ``Database``, and the only place that decides the meaning of its answers.

    try_lead   advisory lock
    take       barrier ─► newest row, fence behind it, commit          a unique violation: from the barrier again
    append     a statement with its own commit
               all rows, no notice, and the standby still named behind the commit: durable
               slow                         durable once the standby has all, or behind one barrier
               no rows                      wait: no named standby
               unique violation             look
               anything else                unknown: close the socket, find the newest primary, look
    look       read, then barrier; my row is there: durable; another epoch: fenced
               absent, the row before is mine: append again; else fenced
    changes    lock the shard's line ─► the newest epoch is mine? ─► change, named standby?, commit
    import     lock the shard's line ─► no row, no log? ─► all rows, fence, named standby?, commit
    retire     lock the shard's line ─► the newest row is this fence? ─► retired, named standby?, commit

A leader is fenced by the primary key: the next row that it appends has the LSN of its successor's fence, and fences
are never removed. Three rules make that a proof. A rule answers a way of a replicated database to tell less than the
truth (decision 0194):

- *Read, then barrier, then believe.* A row that is visible may exist on this server alone. A barrier that was committed
  after the read has carried all that the read saw to the named standby. A barrier before the read would leave out rows
  that became visible in between.
- *A commit is answered, or unknown.* A notice, an error and silence are no answers, nor is an answer behind which no
  standby is named: the names may have been emptied while the commit waited, which ends the wait (decision 0208). An
  unknown commit is never cancelled, because a cancel makes the rows visible without a copy. Its socket is closed, and a
  look decides later.
- *A single append is outstanding.* The look of an append relies on the row before: a second append behind an unknown
  append could land behind a hole.

A silent primary is waited for as long as there is no newer primary: every connection that is given up in the wait for a
standby leaves a backend that waits on, and the retries of minutes would use up all connections of the server. A leader
ends the wait as well when a later leader's row is visible (decision 0208): the silence may be the connection's alone,
and another broker may lead on the same primary. That look has no barrier, because the end of a lead needs no proof.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import TypeVar

from cmqd.engine.database import Commit, ConnectionLost, Database, Newest, Session, UniqueViolation, no_primary
from cmqd.engine.engine_errors import (
    AccountsConflict,
    EngineError,
    EngineUnavailable,
    Fenced,
    LogIdMismatch,
    LogRetired,
    NoPinsColumn,
    NotEmpty,
    PoolerBetween,
    RowsBehind,
)
from cmqd.engine.interface import NO_LEADER, EngineRow, ImportedLog, News, Row, StoredAccounts, StoredCheckpoint, Taken
from cmqd.log.values import EngineView

RETRY_SECONDS = (0.05, 1.0)
"""First and longest pause before an attempt is repeated."""

T = TypeVar("T")


class _NotNow(Exception):
    """No row was stored, and a later attempt may succeed; the text names the reason of the wait."""


class _Timelines:
    """The highest timeline that any session of the engine has found."""

    def __init__(self) -> None:
        self.highest = 0

    def note(self, sessions: Iterable[Session]) -> None:
        self.highest = max([self.highest, *(session.timeline for session in sessions)])


class _Line:
    """The session for a kind of calls, a call at a time: found at the first need, replaced after every failure."""

    def __init__(
        self,
        database: Database,
        timelines: _Timelines,
        check: Callable[[Session], None],
        later_leader: Callable[[Session], Fenced | None],
        sleep: Callable[[float], None],
        stopping: Callable[[], bool],
        wall_ms: Callable[[], int],
    ) -> None:
        self._database = database
        self._timelines = timelines
        self._highest_at_start = 0
        """The highest timeline known before the search for the session. A primary of this timeline that the search did
        not find is gone."""
        self._check = check
        self._later_leader = later_leader
        self._fenced: Fenced | None = None
        """A later leader was seen."""
        self._sleep = sleep
        self._stopping = stopping
        self._wall_ms = wall_ms
        self._session: Session | None = None
        self._lock = Lock()
        """Held by the call that uses the session: answers of two calls must never mix."""
        self.waiting_for = ""
        self.has_lock = False
        """The session has the advisory lock."""
        self.is_new = False
        """No append has looked on this session yet: its server may have fewer rows than the last, or more."""
        self.believed_lsn = 0
        """Rows up to this LSN that the session shows are on the standby as well."""
        self.announcement: tuple[int, str, str] | None = None
        """Last row, process and address of this broker."""
        self.is_announced = False
        """The session has the announcement."""

    def run(self, attempt: Callable[[Session], T]) -> T:
        """Make attempts until one succeeds. Raises EngineUnavailable after a stop, Fenced once a later leader is seen,
        PoolerBetween, and errors of the attempt other than ``ConnectionLost``.
        """
        with self._lock:
            return self._run(attempt)

    def _run(self, attempt: Callable[[Session], T]) -> T:
        pause, longest = RETRY_SECONDS
        try:
            while not self._stopping():
                if self._fenced is not None:
                    raise self._fenced
                try:
                    return attempt(self.session())
                except _NotNow as reason:
                    self.waiting_for = str(reason)
                except ConnectionLost as error:
                    self.drop()
                    self.waiting_for = f"a connection ({error})"
                self._sleep(pause)
                if self._session is not None and self._is_over(self._session.timeline):
                    # An old primary may never get a named standby again.
                    self.drop()
                pause = min(2 * pause, longest)
            raise EngineUnavailable(f"stopped while waiting for {self.waiting_for or 'the engine'}")
        finally:
            self.waiting_for = ""

    def session(self) -> Session:
        """Return the session; find the newest primary if there is none.

        Only the newest: an older primary has lost its standby to the promotion, so a barrier there is never answered.
        """
        if self._session is not None and self._timelines.highest > max(self._session.timeline, self._highest_at_start):
            # The other line has left this primary: to find a second time that the primary hangs would take seconds.
            self.drop()
        if self._session is None:
            self._highest_at_start = self._timelines.highest
            primaries = sorted(self._database.primaries(self._keep_waiting), key=lambda session: session.timeline)
            if self._database.refusal:
                for session in primaries:
                    session.close()
                raise PoolerBetween(self._database.refusal)
            if not primaries:
                raise _NotNow(f"a primary: {no_primary(self._database)}")
            self._timelines.note(primaries)
            self._session = primaries.pop()
            self.is_new = True
            self.believed_lsn = 0
            for older in primaries:
                older.close()
            self._check(self._session)
            self.is_announced = False
        if self.announcement is not None and not self.is_announced:
            # Ahead of the step: an announcement that comes meanwhile is another one.
            self.is_announced = True
            self._session.announce(*self.announcement, self._wall_ms())
        return self._session

    def drop(self) -> None:
        """Close the socket of the session; no word to the server."""
        session, self._session = self._session, None
        self.has_lock = False
        if session is not None:
            session.kill()

    def release(self) -> None:
        """Release the lock, then end the session: the server notices the end of a session a little later."""
        if self._session is not None and self.has_lock:
            try:
                self._session.unlock()
            except ConnectionLost:
                self.drop()
        self.close()

    def close(self) -> None:
        """End the session in order."""
        session, self._session = self._session, None
        self.has_lock = False
        if session is not None:
            session.close()

    def _keep_waiting(self, timeline: int) -> bool:
        self.waiting_for = "an answer of the primary, which waits for its standby or hangs"
        return not self._stopping() and not self._is_over(timeline)

    def _is_over(self, timeline: int) -> bool:
        """Return whether a wait for a primary is of no use: a primary has a higher timeline, or a later leader is seen.

        Asks on connections of its own, because the primary may be well, and the connection with the wait silent.
        """
        primaries = self._database.primaries(lambda _timeline: False)
        self._timelines.note(primaries)
        for session in primaries:
            self._fenced = self._fenced or self._later_leader(session)
            session.close()
        return self._fenced is not None or any(session.timeline > timeline for session in primaries)


class FencedEngine:
    """An ``Engine`` over a database; see the module and ``cmqd.engine.interface``."""

    def __init__(
        self,
        database: Database,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        stopping: Callable[[], bool],
        new_log_id: Callable[[], str],
        wall_ms: Callable[[], int],
    ) -> None:
        """Take the database; the first call connects.

        Args:
            database: the servers.
            monotonic: a clock in seconds that never goes back.
            sleep: pauses between attempts; may return early, for example at a stop.
            stopping: True ends every wait with ``EngineUnavailable``. Called by both threads.
            new_log_id: makes the id of a new log.
            wall_ms: the wall clock of this machine, which is compared with the engine's for the list of brokers.
        """
        self._monotonic = monotonic
        self._new_log_id = new_log_id
        self._timelines = _Timelines()
        self._rows_line, self._changes_line = (
            _Line(database, self._timelines, self._check_log_id, self._later_leader, sleep, stopping, wall_ms)
            for _ in range(2)
        )
        """Of the thread of ``append``, and of the other thread."""
        self._log_id: str | None = None
        self._epoch: int | None = None
        """The epoch of this leader; None before ``take`` and after ``release``."""
        self._ended: EngineError | None = None
        """The error that ended all further changes."""
        self._proved_at = float("-inf")

    @property
    def proved_at(self) -> float:  # noqa: D102  see Engine
        return self._proved_at

    @property
    def waiting_for(self) -> str:  # noqa: D102  see Engine
        return self._rows_line.waiting_for or self._changes_line.waiting_for

    # The thread of appends

    def announce(self, lsn: int, process: str, address: str) -> None:  # noqa: D102  see Engine
        self._rows_line.announcement = (lsn, process, address)
        self._rows_line.is_announced = False

    def try_lead(self) -> bool:  # noqa: D102  see Engine
        try:
            self._relock(self._rows_line.session())
        except _NotNow:
            return False
        except ConnectionLost:
            self._rows_line.drop()
        return self._rows_line.has_lock

    def take(self) -> Taken:  # noqa: D102  see Engine
        began = self._monotonic()
        # A leader that takes again is behind a later one, if there is one, and not fenced by it.
        self._epoch = None
        taken = self._rows_line.run(self._fence)
        self._epoch = taken.epoch
        self._log_id = taken.log_id
        self._proved_at = began
        self._rows_line.is_new = False
        return taken

    def append(self, rows: Sequence[Row]) -> None:  # noqa: D102  see Engine
        epoch = self._own_epoch()
        began = self._monotonic()
        self._run(self._rows_line, lambda session: self._append(session, epoch, rows))
        self._proved_at = began

    def prove(self) -> None:  # noqa: D102  see Engine
        epoch = self._own_epoch()
        began = self._monotonic()
        self._run(self._rows_line, lambda session: self._prove(session, epoch))
        self._proved_at = began

    def release(self) -> None:  # noqa: D102  see Engine
        self._epoch = None
        self._rows_line.release()

    def _relock(self, session: Session) -> None:
        """Try to get the lock, if this session lacks the lock: a lost connection has lost the lock too."""
        if not self._rows_line.has_lock:
            self._rows_line.has_lock = session.try_lock()

    def _fence(self, session: Session) -> Taken:
        # A fence that waits for a missing standby would hold the lock of the line, and fence a healthy leader later.
        self._barrier(session)
        # In a transaction of its own, ahead of the fence: it may fail, and the lead must not fail with it.
        session.add_columns()
        session.begin()
        newest = session.newest()
        fence = 1 if newest is None else newest.lsn + 1
        stamped = session.newest_stamped()
        log_id = session.log_id()
        if log_id is not None and log_id.startswith(RETIRED):
            session.rollback()
            self._barrier(session)
            raise _retired(log_id)
        if log_id is None:
            log_id = self._new_log_id()
            session.put_log_id(log_id)
        try:
            stamp_ms = session.insert_fence(fence)
        except UniqueViolation:
            session.rollback()
            raise _NotNow("the newest row") from None
        self._commit(session)
        return Taken(epoch=fence, last_lsn=fence, log_id=log_id, stamp_ms=stamp_ms, newest=stamped)

    def _append(self, session: Session, epoch: int, rows: Sequence[Row]) -> None:
        self._relock(session)
        if self._rows_line.is_new:
            # An attempt on an earlier session may have stored the rows, or this server may lack the rows before.
            if self._is_stored(session, epoch, rows[0].lsn):
                return
            self._rows_line.is_new = False
        try:
            commit = session.append(epoch, rows)
        except UniqueViolation:
            if self._is_stored(session, epoch, rows[0].lsn):
                return
            raise _NotNow("a row that was there and is not any more") from None
        self._believe_append(session, commit)

    def _believe_append(self, session: Session, commit: Commit) -> None:
        self._require_copy(commit)
        # The names may have been emptied and set again meanwhile. One barrier, and no other if that one is slow too:
        # where every commit takes long, no append would ever be answered.
        if commit.is_slow and not session.standby_has_all():
            self._barrier(session)

    def _is_stored(self, session: Session, epoch: int, lsn: int) -> bool:
        """Look for the first row of an append of this leader.

        An append is stored as a whole: its first row stands for all. Raises Fenced.
        """
        epochs = session.epochs((lsn - 1, lsn))
        self._barrier(session)
        if lsn in epochs:
            self._require_own(epoch, lsn, epochs[lsn])
            return True
        self._require_own(epoch, lsn - 1, epochs.get(lsn - 1))
        return False

    def _prove(self, session: Session, epoch: int) -> None:
        self._relock(session)
        newest = session.newest()
        self._barrier(session)
        self._require_newest(epoch, newest)

    # The other thread

    def rows(self, above: int, *, with_data: bool = True) -> Iterator[EngineRow]:  # noqa: D102  see Engine
        while page := self._changes_line.run(partial(self._page, above=above, with_data=with_data)):
            yield from page
            above = page[-1].lsn

    def news(self) -> News:  # noqa: D102  see Engine
        return self._changes_line.run(lambda session: session.news())

    def reclaimed(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:  # noqa: D102  see Engine
        def attempt(session: Session) -> list[tuple[int, int]]:
            empty = session.empty_ranges(ranges)
            if empty:
                # A trim that is taken back by a promotion has removed no row.
                self._barrier(session)
            return empty

        return self._changes_line.run(attempt)

    def newest_checkpoint(self) -> StoredCheckpoint | None:  # noqa: D102  see Engine
        return self._read(lambda session: session.checkpoint(with_data=True))

    def load_accounts(self) -> StoredAccounts | None:  # noqa: D102  see Engine
        return self._read(lambda session: session.accounts())

    def load_standing_pins(self) -> bytes | None:  # noqa: D102  see Engine
        return self._read(lambda session: session.standing_pins())

    def log_id(self) -> str | None:  # noqa: D102  see Engine
        if self._log_id is None:
            log_id = self._read(lambda session: session.log_id())
            if log_id is not None and log_id.startswith(RETIRED):
                raise _retired(log_id)
            self._log_id = log_id
        return self._log_id

    def view(self) -> EngineView:  # noqa: D102  see Engine
        def look(session: Session) -> EngineView:
            newest = session.newest() or Newest(0, 0)
            return EngineView(newest.lsn, newest.epoch, session.brokers(), session.copies())

        return self._changes_line.run(look)

    def import_log(self, log: ImportedLog) -> None:  # noqa: D102  see Engine
        # The fence fixes the next LSN, also if the last rows were reclaimed, and tells an import without a leader.
        fence = Newest(log.last_lsn + 1, log.last_lsn + 1)

        def attempt(session: Session) -> None:
            # See ``_fence``.
            self._barrier(session)
            session.add_columns()
            session.begin()
            newest, log_id = session.newest(), session.log_id()
            is_repeat = (newest, log_id) == (fence, log.log_id)
            if not is_repeat and (newest is not None or log_id is not None):
                session.rollback()
                self._barrier(session)
                raise NotEmpty(log_id, 0 if newest is None else newest.lsn)
            has_column = session.standing_pins() is not None
            if log.standing_pins and not has_column:
                session.rollback()
                self._barrier(session)
                raise NoPinsColumn
            if not is_repeat:
                self._insert_log(session, log, fence.lsn)
            if has_column:
                # At a repeat too: between the attempts the broker of the folder can have had another backup.
                session.put_standing_pins(log.standing_pins)
            self._commit(session)

        self._changes_line.run(attempt)

    def _insert_log(self, session: Session, log: ImportedLog, fence: int) -> None:
        try:
            for rows in log.batches():
                session.insert(NO_LEADER, rows)
            session.insert_fence(fence)
        except UniqueViolation:
            session.rollback()
            raise _NotNow("the newest row") from None
        except BaseException:
            # The rows could not be read. An open transaction would hold the line of the shard.
            self._changes_line.drop()
            raise
        if log.checkpoint is not None:
            session.put_checkpoint(log.checkpoint.lsn, log.checkpoint.data)
        session.put_accounts(1, log.accounts)
        session.put_log_id(log.log_id)

    def retire(self, last_lsn: int) -> None:  # noqa: D102  see Engine
        def attempt(session: Session) -> None:
            session.begin()
            newest, log_id = session.newest(), session.log_id()
            # A fence: behind a row of a leader, that leader may still append.
            if log_id is None or newest != Newest(last_lsn, last_lsn):
                session.rollback()
                self._barrier(session)
                raise RowsBehind(last_lsn, 0 if newest is None else newest.lsn)
            # Also if an earlier attempt has stored it: this commit carries it to the standby.
            session.put_log_id(RETIRED + log_id.removeprefix(RETIRED))
            self._commit(session)

        self._changes_line.run(attempt)

    def put_checkpoint(self, lsn: int, data: bytes) -> None:  # noqa: D102  see Engine
        def change(session: Session, newest: Newest) -> Exception | None:
            if lsn > newest.lsn:
                return ValueError(f"a checkpoint with LSN {lsn} above the newest row {newest.lsn}")
            stored = session.checkpoint(with_data=False)
            if stored is None or stored.lsn <= lsn:
                session.put_checkpoint(lsn, data)
            return None

        self._change(change)

    def trim(self, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: D102  see Engine
        def change(session: Session, _newest: Newest) -> None:
            checkpoint, stamped = session.checkpoint(with_data=False), session.newest_stamped()
            # The newest row that is no fence stays: the next leader reads broker time from it. Behind it are fences
            # alone, so the newest row stays too, from which the next LSN and the epoch are read.
            limit = 0 if checkpoint is None or stamped is None else min(checkpoint.lsn, stamped.lsn - 1)
            removed = [(first, min(last, limit)) for first, last in ranges if first <= limit]
            if removed:
                session.remove(removed)

        self._change(change)

    def store_accounts(self, data: bytes, *, expected_version: int) -> int:  # noqa: D102  see Engine
        version = expected_version + 1
        is_repeat = False

        def change(session: Session, _newest: Newest) -> Exception | None:
            nonlocal is_repeat
            stored = session.accounts()
            found = 0 if stored is None else stored.version
            is_mine = is_repeat and stored == StoredAccounts(version, data)
            if found != expected_version and not is_mine:
                return AccountsConflict(expected_version, found)
            is_repeat = True
            # Also if an earlier attempt has stored them: this commit carries them to the standby.
            session.put_accounts(version, data)
            return None

        self._change(change)
        return version

    def store_standing_pins(self, data: bytes) -> None:  # noqa: D102  see Engine
        self._change(lambda session, _newest: session.put_standing_pins(data))

    def _page(self, session: Session, *, above: int, with_data: bool) -> list[EngineRow]:
        """Read the next rows. An empty page behind rows that this session has not shown is believed as rows are: an old
        primary lacks rows that the log has. A leader's empty page always is.
        """
        page = session.rows(above, with_data=with_data)
        line = self._changes_line
        last_lsn = page[-1].lsn if page else above
        # Reads of rows that were believed before, as by a standby that has all rows, need no write.
        if self._epoch is not None or last_lsn > line.believed_lsn:
            self._barrier(session)
            line.believed_lsn = page[-1].lsn if page else line.believed_lsn
        return page

    def _read(self, step: Callable[[Session], T]) -> T:
        def attempt(session: Session) -> T:
            found = step(session)
            self._barrier(session)
            return found

        return self._changes_line.run(attempt)

    def _change(self, change: Callable[[Session, Newest], Exception | None]) -> None:
        """Run a change in a transaction. The change returns the error of its refusal, and must be repeatable.

        The lock of the line and the look at the newest epoch stand in this order. A ``take`` locks the same line:
        its fence is either seen here, or waits for the end of this change and reads its result.
        """
        epoch = self._own_epoch()

        def attempt(session: Session) -> None:
            session.begin()
            newest = session.newest()
            refusal: Exception | None
            if newest is None or newest.epoch != epoch:
                refusal = _fenced(epoch, 0 if newest is None else newest.lsn, None if newest is None else newest.epoch)
            else:
                refusal = change(session, newest)
            if refusal is None:
                self._commit(session)
                return
            session.rollback()
            self._barrier(session)
            raise refusal

        self._run(self._changes_line, attempt)

    # Both threads

    def close(self) -> None:  # noqa: D102  see Engine
        self._rows_line.close()
        self._changes_line.close()

    def _own_epoch(self) -> int:
        if self._ended is not None:
            raise self._ended
        if self._epoch is None:
            raise Fenced("fenced: this broker does not lead")
        return self._epoch

    def _run(self, line: _Line, attempt: Callable[[Session], None]) -> None:
        """Run a call of a leader. After an error that ends its lead, or leaves rows unknown, no call may follow."""
        try:
            line.run(attempt)
        except (Fenced, EngineUnavailable, LogIdMismatch) as error:
            self._ended = error
            raise

    def _check_log_id(self, session: Session) -> None:
        """Refuse a server with another log. Raises LogIdMismatch."""
        if self._log_id is not None:
            found = session.log_id()
            if found is None or found.removeprefix(RETIRED) != self._log_id:
                try:
                    # An old primary may be from before the log.
                    self._barrier(session)
                except _NotNow as reason:
                    # The session has not passed this check, so no other attempt may have it.
                    raise ConnectionLost(str(reason)) from None
                raise LogIdMismatch(self._log_id, found, session.server)

    def _later_leader(self, session: Session) -> Fenced | None:
        """Look on a fresh session for a row of a later leader; return the end of this lead, if there is one.

        On the highest timeline alone: an old primary may show a fence that no other server ever had. A row of an
        earlier leader says nothing, because a server may lack rows.
        """
        if self._epoch is None or session.timeline < self._timelines.highest:
            return None
        try:
            newest = session.newest()
        except ConnectionLost:
            return None
        if newest is None or newest.epoch <= self._epoch:
            return None
        return _fenced(self._epoch, newest.lsn, newest.epoch)

    def _barrier(self, session: Session) -> None:
        """Wait until the named standby has all that this session has read."""
        self._require_copy(session.barrier())

    def _commit(self, session: Session) -> None:
        """Commit the transaction of the session, if its commit will wait for a named standby."""
        if not session.standby_is_named():
            session.rollback()
            raise _NotNow(_NO_STANDBY)
        self._require_copy(session.commit())
        # The name may have changed between the check and the commit. A barrier checks and commits in one statement.
        self._barrier(session)

    def _require_copy(self, commit: Commit) -> None:
        """Return if the named standby has the commit."""
        if commit.notices:
            raise ConnectionLost(f"a commit with a notice: {commit.notices[0]}")
        if commit.changes == 0:
            raise _NotNow(_NO_STANDBY)
        if not commit.is_safe_behind:
            raise ConnectionLost("no standby was named any more when the commit ended")

    def _require_newest(self, epoch: int, newest: Newest | None) -> None:
        if newest is None:
            raise _fenced(epoch, 0, None)
        self._require_own(epoch, newest.lsn, newest.epoch)

    def _require_own(self, epoch: int, lsn: int, found: int | None) -> None:
        if found != epoch:
            raise _fenced(epoch, lsn, found)


RETIRED = "retired:"
"""Stands before the id of a log that has left the database. With the id itself: a look for the id alone would
miss the end of the log."""
_NO_STANDBY = "a named standby: synchronous_standby_names does not name exactly one, or synchronous_commit is off"


def _retired(log_id: str) -> LogRetired:
    return LogRetired(log_id.removeprefix(RETIRED))


def _fenced(epoch: int, lsn: int, found: int | None) -> Fenced:
    has = "is missing" if found is None else f"has epoch {found}"
    return Fenced(f"fenced: row {lsn} {has}, mine is {epoch}")
