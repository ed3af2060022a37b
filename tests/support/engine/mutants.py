"""Engines and databases that lack one guard each: the tests must tell them from the real ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cmqd.engine.database import Commit, ConnectionLost, Database, KeepWaiting, Newest, Session, UniqueViolation
from cmqd.engine.engine_errors import Fenced
from cmqd.engine.fencing import FencedEngine
from cmqd.engine.interface import EngineRow, Row, Taken
from support.engine.memory_engine import MemorySession


class BelievesWhatIsVisible(FencedEngine):
    """H1: no barrier after a read."""

    def _barrier(self, session: Session) -> None:
        pass


class BarrierBeforeLook(FencedEngine):
    """The barrier of a look comes before its read."""

    def _is_stored(self, session: Session, epoch: int, lsn: int) -> bool:
        self._barrier(session)
        epochs = session.epochs((lsn - 1, lsn))
        if lsn in epochs:
            self._require_own(epoch, lsn, epochs[lsn])
            return True
        self._require_own(epoch, lsn - 1, epochs.get(lsn - 1))
        return False


class BelievesNotices(FencedEngine):
    """H2: a commit with a notice is a success."""

    def _require_copy(self, commit: Commit) -> None:
        super()._require_copy(commit._replace(notices=()))


class ViolationIsSuccess(FencedEngine):
    """H5: a unique violation is taken for the own earlier attempt."""

    def _require_own(self, epoch: int, lsn: int, found: int | None) -> None:
        pass


class AppendsBehindOthers(FencedEngine):
    """H5: an absent row is appended again, whatever the row before is."""

    def _is_stored(self, session: Session, epoch: int, lsn: int) -> bool:
        epochs = session.epochs((lsn,))
        self._barrier(session)
        if lsn in epochs:
            self._require_own(epoch, lsn, epochs[lsn])
        return lsn in epochs


class ChangesWithoutEpoch(FencedEngine):
    """Changes beside the rows do not look for the newest epoch."""

    def _change(self, change: Callable[[Session, Newest], Exception | None]) -> None:
        def attempt(session: Session) -> None:
            session.begin()
            refusal = change(session, session.newest() or Newest(0, 0))
            if refusal is None:
                self._commit(session)
                return
            session.rollback()
            self._barrier(session)
            raise refusal

        self._run(self._changes_line, attempt)


class ProvedAtTheEnd(FencedEngine):
    """The proof counts from the end of a call."""

    def append(self, rows: Sequence[Row]) -> None:
        super().append(rows)
        self._proved_at = self._monotonic()

    def prove(self) -> None:
        super().prove()
        self._proved_at = self._monotonic()


class CommitsWithoutStandbyName(FencedEngine):
    """H3 in changes: the names are not looked at before the commit."""

    def _commit(self, session: Session) -> None:
        self._require_copy(session.commit())


class CommitsWithoutBarrier(FencedEngine):
    """H3 in changes: the names are looked at before the commit alone."""

    def _commit(self, session: Session) -> None:
        if session.standby_is_named():
            self._require_copy(session.commit())


class BelievesAnEmptyPage(FencedEngine):
    """A leader believes that there are no more rows."""

    def _page(self, session: Session, *, above: int, with_data: bool) -> list[EngineRow]:
        page = session.rows(above, with_data=with_data)
        if page:
            self._barrier(session)
        return page


class LowersTheCheckpoint(FencedEngine):
    def put_checkpoint(self, lsn: int, data: bytes) -> None:
        self._change(lambda session, _newest: session.put_checkpoint(lsn, data))


class TrimsAboveTheCheckpoint(FencedEngine):
    def trim(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._change(
            lambda session, newest: session.remove([(first, min(last, newest.lsn - 1)) for first, last in ranges])
        )


class TrimsTheNewestRow(FencedEngine):
    def trim(self, ranges: Sequence[tuple[int, int]]) -> None:
        def change(session: Session, _newest: Newest) -> None:
            checkpoint = session.checkpoint(with_data=False)
            limit = 0 if checkpoint is None else checkpoint.lsn
            session.remove([(first, min(last, limit)) for first, last in ranges])

        self._change(change)


class FencesWithoutTheLine(FencedEngine):
    """``take`` does not lock the line: its fence is one statement."""

    def _fence(self, session: Session) -> Taken:
        self._barrier(session)
        newest = session.newest()
        fence = 1 if newest is None else newest.lsn + 1
        if session.log_id() is None:
            return super()._fence(session)
        try:
            self._require_copy(session.append(fence, [EngineRow(fence, fence, 0, 0, b"", b"", b"")]))
        except UniqueViolation:
            raise ConnectionLost("again") from None
        return Taken(epoch=fence, last_lsn=fence, log_id=session.log_id() or "")


class FencesWithoutBarrier(FencedEngine):
    """A fence is stored before it is known that commits are answered."""

    def _fence(self, session: Session) -> Taken:
        barrier, self._barrier = self._barrier, lambda _session: None  # type: ignore[method-assign]
        try:
            return super()._fence(session)
        finally:
            self._barrier = barrier  # type: ignore[method-assign]


class AppendsUnseen(FencedEngine):
    """The first append on a new session does not look."""

    def _append(self, session: Session, epoch: int, rows: Sequence[Row]) -> None:
        self._rows_line.is_new = False
        super()._append(session, epoch, rows)


class _OldPrimaries:
    """Shows the first primary alone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def primaries(self, keep_waiting: KeepWaiting) -> Sequence[Session]:
        sessions = self._database.primaries(keep_waiting)
        for session in sessions[1:]:
            session.close()
        return sessions[:1]

    @property
    def refusal(self) -> str:
        return self._database.refusal

    @property
    def unreached(self) -> Mapping[str, str]:
        return self._database.unreached


class TakesTheOldestPrimary(FencedEngine):
    """H6: the first primary that answers."""

    def __init__(self, database: Database, **parts: Any) -> None:
        super().__init__(_OldPrimaries(database), **parts)


class LooksForNoNewerPrimary(FencedEngine):
    """H6: a silent primary is waited for, whatever happens."""

    def __init__(self, database: Database, **parts: Any) -> None:
        super().__init__(database, **parts)
        for line in (self._rows_line, self._changes_line):
            line._keep_waiting = lambda _timeline: True  # type: ignore[method-assign]


class LooksNotBehind(FencedEngine):
    """The names behind a commit do not count."""

    def _require_copy(self, commit: Commit) -> None:
        super()._require_copy(commit._replace(is_safe_behind=True))


class LooksAheadAlone(FencedEngine):
    """An append counts by the names of its statement."""

    def _believe_append(self, session: Session, commit: Commit) -> None:
        self._require_copy(commit._replace(is_safe_behind=True))


class BelievesSlowAppends(FencedEngine):
    """No barrier behind an append that was slow."""

    def _believe_append(self, session: Session, commit: Commit) -> None:
        self._require_copy(commit)


class LooksForNoLaterLeader(FencedEngine):
    """A silent primary is waited for, whoever leads."""

    def _later_leader(self, session: Session) -> Fenced | None:
        return None


class BelievesOldPrimaries(FencedEngine):
    """A later leader is looked for on old primaries too."""

    def _later_leader(self, session: Session) -> Fenced | None:
        self._timelines.highest, highest = session.timeline, self._timelines.highest
        try:
            return super()._later_leader(session)
        finally:
            self._timelines.highest = highest


class EndsByAnyOtherEpoch(FencedEngine):
    """Rows of any other leader, on any primary, end the lead."""

    def _later_leader(self, session: Session) -> Fenced | None:
        newest = session.newest()
        return None if newest is None or newest.epoch == self._epoch else Fenced("fenced")


class AcceptsAnyNames(MemorySession):
    """H3: ``synchronous_standby_names`` is not looked at."""

    def is_named(self, standby_names: str) -> bool:
        return True


class AcceptsLists(MemorySession):
    """H4: any standby of a list counts."""

    def is_named(self, standby_names: str) -> bool:
        return standby_names not in ("", "*")


class AcceptsAllButNone(MemorySession):
    """H3: a stream of any kind counts."""

    def is_named(self, standby_names: str) -> bool:
        return standby_names != ""


class RemovesFences(MemorySession):
    """A trim removes fences."""

    def is_kept(self, row: EngineRow) -> bool:
        return False


class HasNoKey(MemorySession):
    """H5: rows have no primary key; the last one stays."""

    def _require_free(self, lsn: int) -> None:
        pass


class LocksNoLine(MemorySession):
    """Transactions do not follow each other."""

    def begin(self) -> None:
        super().begin()
        with self._database.lock:
            self.memory_server.line_owner = None


ENGINES: list[type[FencedEngine]] = [
    BelievesWhatIsVisible,
    BarrierBeforeLook,
    BelievesNotices,
    ViolationIsSuccess,
    AppendsBehindOthers,
    ChangesWithoutEpoch,
    ProvedAtTheEnd,
    CommitsWithoutStandbyName,
    CommitsWithoutBarrier,
    BelievesAnEmptyPage,
    LowersTheCheckpoint,
    TrimsAboveTheCheckpoint,
    TrimsTheNewestRow,
    FencesWithoutTheLine,
    FencesWithoutBarrier,
    AppendsUnseen,
    TakesTheOldestPrimary,
    LooksForNoNewerPrimary,
    LooksNotBehind,
    LooksAheadAlone,
    BelievesSlowAppends,
    LooksForNoLaterLeader,
    BelievesOldPrimaries,
    EndsByAnyOtherEpoch,
]
SESSIONS: list[type[MemorySession]] = [
    AcceptsAnyNames,
    AcceptsAllButNone,
    AcceptsLists,
    RemovesFences,
    HasNoKey,
    LocksNoLine,
]
