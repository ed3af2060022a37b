"""The way to the lead, in the commit thread: rows of the engine are copied into the segments until this broker leads.

A standby copies the rows of the leader, and asks again and again for the lock of the shard. With the lock the standby
takes the log: the engine's fence ends the row numbers of every earlier leader, and the copy goes on up to the fence.
From then on the commit thread takes batches of the loop process. A leader's start is the same way, without the wait.

Each reading begins with the last row of the folder (``rows_behind``): the log went on from that row if LSN, epoch and
checksum agree. If a leader has reclaimed the row meanwhile, the fences tell: the row is of the log if the leader of its
epoch has written the row with its LSN. Otherwise the folder and the index in memory have rows that never were, or that
a fail-over of the engine without its guards has taken back. The process ends then, and the next start puts the folder
aside (``cache_folder``).

A poll without news writes nothing to the engine and reads no row: a poll compares the engine's newest numbers with the
copy. All copied rows are read behind a barrier. An old primary that lives on, cut off from its standby, has no news for
ever. A barrier notices such a primary: therefore the accounts are read now and then without news.

A row that came while this broker followed is noted with the time of its arrival, by the clock of the boot: the new
leader's broker time goes on from there (``redundancy.takeover_time``). Rows of the first copy and rows behind the
fence's ``take`` do not count: such rows may have been stored long before.

Three events go to the loop before their rows are written, because the manifest must not be behind the rows:

- An epoch: the manifest lists the starts of leaders, and the epoch of the last row is compared at the next start.
- A gap: rows that a leader reclaimed. Such rows are *dropped* in the manifest, and the next row begins a segment. A
  fence alone between two gaps counts as reclaimed: the engine keeps fences for ever, and a file per fence would be
  waste.
- The identity of the log, with the first epoch of an engine that was empty.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, takewhile
from typing import Final, NamedTuple, Protocol

from cmqd.engine.interface import NO_LEADER, Engine, EngineRow, News, StoredAccounts, Taken, checksum_of
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import SeenRow, Takeover
from cmqd.storage.redundancy.proof_clock import proof_clock_s
from cmqd.storage.segments.row_inserts import LogRow
from cmqd_segment.rows import NO_QUEUES, encode_records

POLL_SECONDS: Final = 0.1
"""Pause of a standby between two looks for news and for the lock: a tenth of the time in which a standby must lead."""
ANNOUNCE_POLLS: Final = 10
"""Number of polls between two reports of the last row to the engine."""
UPKEEP_POLLS: Final = 100
"""Polls after which the accounts are read without news, which is a barrier, and reclaimed rows are looked for."""
SEEN_SECONDS: Final = 10.0
"""Time for which a row that came sooner behind its own time is preferred to later rows: clocks drift apart."""
BATCH_ROWS: Final = 512
BATCH_BYTES: Final = 4 * 1024 * 1024
NO_RECORDS: Final = encode_records([])
"""``meta`` of a fence in a segment. The engine keeps no bytes; in a segment every row is a list of records."""


class CacheDisagrees(LogFailed):
    """The last row of the folder is not a row of the log: the folder must be copied anew."""


class Tail(NamedTuple):
    """The last row of a folder, as the engine must have it."""

    lsn: int
    epoch: int
    checksum: int
    time_ms: int

    def agrees_with(self, row: EngineRow) -> bool:
        """Return True if the row of the engine is this row. A fence is compared by its number alone."""
        if (row.lsn, row.epoch) != (self.lsn, self.epoch):
            return False
        return row.is_fence or checksum_of(row) == self.checksum


def rows_behind(engine: Engine, tail: Tail) -> Iterator[EngineRow] | None:
    """Return the rows above the last row of a folder; None if the log did not go on from that row."""
    rows = engine.rows(tail.lsn - 1)
    first = next(rows, None)
    if first is None:
        # The newest row is never trimmed: the log is shorter than the folder.
        return None
    if first.lsn == tail.lsn:
        return rows if tail.agrees_with(first) else None
    return chain((first,), rows) if _was_trimmed(engine, tail) else None


def _was_trimmed(engine: Engine, tail: Tail) -> bool:
    """Return True if the log had this row and a leader has trimmed it.

    Fences stay for ever, so the newest fence up to the row tells the epoch of the leader that wrote it. A leader stores
    an LSN once, so LSN and epoch tell the content. A fence is never trimmed: a missing one is of no row of the log.
    """
    if tail.lsn == tail.epoch or not engine.reclaimed([(tail.lsn, tail.lsn)]):
        return False
    since_fence = engine.rows(tail.epoch - 1, with_data=False)
    epochs = [(row.lsn, row.epoch) for row in takewhile(lambda row: row.lsn <= tail.lsn, since_fence)]
    return epochs[:1] == [(tail.epoch, tail.epoch)] and all(epoch == tail.epoch for _, epoch in epochs)


class Events(Protocol):
    """Steps of the loop, called by the commit thread, which waits for their ends."""

    def accounts_stored(self, accounts: StoredAccounts) -> None:
        """Hand changed accounts on to the loop process."""
        ...

    def copied_all(self, begun_s: float) -> None:
        """Note that all rows are copied that the engine had when a look began, by the clock of proofs."""
        ...

    def follows(self, last_lsn: int) -> None:
        """List this standby, with its last row, in the engine; called about each second."""
        ...

    def epoch_begins(self, epoch: int) -> None:
        """Write an epoch, and the identity of the log, into the manifest; ``NO_LEADER`` is no epoch."""
        ...

    def gap_found(self, first_lsn: int, last_lsn: int) -> None:
        """Write reclaimed rows into the manifest, and begin a segment."""
        ...

    def reclaim(self, below: int) -> None:
        """Begin to drop segments that end below an LSN, and of which the engine has no row any more."""
        ...

    def copied(self, rows: Sequence[LogRow]) -> None:
        """Hand rows on to the loop process."""
        ...


class Following:
    """Copies rows until this broker leads; see the module."""

    def __init__(
        self,
        engine: Engine,
        tail: Tail | None,
        events: Events,
        keep: Callable[[Sequence[LogRow]], bool],
        pause: Callable[[float], bool],
        checkpoint_lsn: int,
        clock_s: Callable[[], float] = proof_clock_s,
    ) -> None:
        """Take the parts.

        Args:
            engine: of the shard.
            tail: the last row of the folder, None if the folder has no rows.
            events: steps of the loop.
            keep: writes rows into the active segment; False if the writer stops.
            pause: waits for seconds; False if the writer stops.
            checkpoint_lsn: LSN of the newest checkpoint of the engine. Rows may be missing up to this LSN.
            clock_s: goes on while the machine is suspended.
        """
        self._engine = engine
        self._tail = tail
        self._events = events
        self._keep = keep
        self._pause = pause
        self._checkpoint_lsn = checkpoint_lsn
        self._clock_s = clock_s
        self._seen: SeenRow | None = None
        """A row that came while this broker followed, among the last ones the one that came soonest."""
        self._time_ms = 0 if tail is None else tail.time_ms
        self.taken: Taken | None = None
        """Set once this broker leads."""
        self.takeover: Takeover | None = None
        """Set once this broker leads; None if the log has no row but fences."""

    def run(self) -> bool:
        """Copy rows until this broker leads; return False if the writer stops before.

        Raises:
            CacheDisagrees: see the module.
            Fenced: a newer leader took the log in the moment between the fence and the end of the copy.
            LogFailed: rows are missing that no checkpoint of this start covers.
        """
        engine = self._engine
        version = 0
        for poll in count():
            is_upkeep = poll % UPKEEP_POLLS == UPKEEP_POLLS - 1
            begun_s = self._clock_s()
            news = engine.news()
            if news.accounts_version != version or is_upkeep:
                accounts = engine.load_accounts()
                if accounts is not None and accounts.version != version:
                    version = accounts.version
                    self._events.accounts_stored(accounts)
            leads = engine.try_lead()
            # Only now: the fence bounds the rows that the copy must reach.
            taken = engine.take() if leads else None
            if taken is not None:
                self.takeover = _takeover(taken, self._seen, self._clock_s())
            if (taken is not None or self._is_news(news)) and not self._copy(is_follower=poll > 0 and not leads):
                return False
            self._events.copied_all(begun_s)
            if taken is not None:
                if self._tail is None or self._tail.lsn != taken.last_lsn:
                    raise LogFailed(f"the engine has no row {taken.last_lsn}, the fence of this broker")
                self.taken = taken
                return True
            if is_upkeep and self._tail is not None:
                # Without the last row: the next start compares it.
                self._events.reclaim(self._tail.lsn)
            if poll % ANNOUNCE_POLLS == 0 and self._tail is not None:
                self._events.follows(self._tail.lsn)
            if not self._pause(POLL_SECONDS):
                return False
        raise AssertionError

    def _is_news(self, news: News) -> bool:
        """Return True if the newest row of the engine is not the last row of the folder."""
        return (news.lsn, news.epoch) != ((0, 0) if self._tail is None else (self._tail.lsn, self._tail.epoch))

    def _copy(self, *, is_follower: bool) -> bool:
        """Copy the rows that the engine has now; False if the writer stops."""
        for batch in self._batches(self._new_rows(), is_follower=is_follower):
            if not self._keep(batch):
                return False
            self._events.copied(batch)
        return True

    def _new_rows(self) -> Iterator[EngineRow]:
        """Read the rows above the last row of the folder, which is read and compared first."""
        tail = self._tail
        if tail is None:
            return self._engine.rows(0)
        rows = rows_behind(self._engine, tail)
        if rows is None:
            raise CacheDisagrees(f"row {tail.lsn} of the data folder is not the row {tail.lsn} of the engine")
        return rows

    def _batches(self, rows: Iterator[EngineRow], *, is_follower: bool) -> Iterator[list[LogRow]]:
        """Yield rows for the segment. A batch ends before a gap and before an epoch, so that the manifest is written
        behind the rows before and ahead of the rows after.
        """
        batch: list[LogRow] = []
        size = 0
        for row in rows:
            lsn, epoch = (0, 0) if self._tail is None else (self._tail.lsn, self._tail.epoch)
            is_behind_gap = row.lsn != lsn + 1
            if is_behind_gap and row.is_fence and row.lsn <= self._checkpoint_lsn:
                continue
            if batch and (is_behind_gap or row.epoch != epoch or len(batch) == BATCH_ROWS or size >= BATCH_BYTES):
                yield batch
                batch, size = [], 0
            if is_behind_gap:
                if row.lsn > self._checkpoint_lsn + 1:
                    # Reclaimed before this broker came to them: the index in memory lacks them, and the next start
                    # begins with a newer checkpoint.
                    raise LogFailed(f"rows {lsn + 1} to {row.lsn - 1} were reclaimed before this standby had read them")
                self._events.gap_found(lsn + 1, row.lsn - 1)
            # The first row also with epoch 0, of an import: an engine that was empty at the start has its identity now.
            if row.epoch != epoch or self._tail is None:
                self._events.epoch_begins(row.epoch)
            self._tail = Tail(row.lsn, row.epoch, checksum_of(row), row.time_ms)
            if is_follower and not row.is_fence:
                self._note_seen(SeenRow(row.epoch, row.time_ms, self._clock_s()))
            batch.append(self._log_row(row))
            size += len(row.meta) + len(row.data)
        if batch:
            yield batch

    def _note_seen(self, row: SeenRow) -> None:
        seen = self._seen
        if seen is not None and seen.epoch == row.epoch:
            age_s = row.seen_s - seen.seen_s
            if age_s < SEEN_SECONDS and row.time_ms < seen.time_ms + age_s * 1000:
                return
        self._seen = row

    def _log_row(self, row: EngineRow) -> LogRow:
        """Return the row as a segment has it: a fence has an empty list of records, and the time of the row before."""
        self._time_ms = max(self._time_ms, row.time_ms)
        if row.is_fence:
            return LogRow(row.lsn, self._time_ms, 0, NO_QUEUES, NO_RECORDS, b"")
        return LogRow(row.lsn, row.time_ms, row.messages, row.queues, row.meta, row.data)


def _takeover(taken: Taken, seen: SeenRow | None, now_s: float) -> Takeover | None:
    """Return the time of the newest row, with what is known of the time since; None without a row but fences."""
    newest = taken.newest
    if newest is None:
        return None
    engine_ms = None
    if taken.stamp_ms is not None and newest.stamp_ms is not None:
        engine_ms = taken.stamp_ms - newest.stamp_ms
    return Takeover(
        time_ms=newest.time_ms,
        is_imported=newest.epoch == NO_LEADER,
        # A row of an earlier leader does not tell the time of a later leader: an operator may have set the clock since.
        seen=seen if seen is not None and seen.epoch == newest.epoch else None,
        engine_ms=engine_ms,
        taken_s=now_s,
        has_stamps=taken.stamp_ms is not None,
    )
