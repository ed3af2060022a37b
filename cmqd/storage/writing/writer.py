"""Commits, in a thread of their own: a batch at a time into the active segment, and the switch to the next segment.

The commit thread blocks in the read of its socket, makes the batch durable and writes the answer: no other thread and
no loop stands between a batch and its answer (decision 0181). All other work of the storage process stays with the
loop: a commit that takes seconds delays neither pages nor seals nor the notice of a lost loop process.

A batch is reported durable after SQLite's fsync has returned, never before. On a full disk the batch is kept and
retried, in the next segment if sealing this segment gives its WAL back. Any other error goes to the caller, and the
process must end: a failed fsync may have discarded the pages, and a second fsync would succeed without these pages.

With an engine (redundancy) a batch is durable once the engine has stored the batch: the batch goes to the engine first,
and then into the active segment, which is a cache and not synced. A row in the segment that the engine lacks would be a
row that never was. Before its first batch the commit thread follows the log of the engine until this broker leads
(``following``).

A single batch at a time, because a crash can then tear at most one commit. ``torn_tail`` depends on that: a second
commit frame beyond the valid frames is damage.

The loop process may commit in place of the commit thread, with a connection of its own to the same file. The segment is
*lent* then (``lending``), the connection here only reads, and the commit thread takes no batch. A segment is lent and
given back by a switch, which the loop process makes between two of its batches.

The writing connection of a segment that is not lent is the commit thread's, from the switch that makes the segment
active to the switch that retires it. A switch is made between two commits: by the loop while no commit is under way,
else by the commit thread at the end of its commit. The lock of the writer decides. The commit thread tells the loop of
a switch, and the loop begins with that news (``note_switch``) wherever it asks which segment is active.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread
from time import monotonic, perf_counter

from cmqd.engine.engine_errors import EngineUnavailable
from cmqd.engine.interface import Engine
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.segments.row_inserts import LogRow, is_disk_full
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.storage_settings import StorageSettings
from cmqd.storage.writing.commit_socket import CommitSocket
from cmqd.storage.writing.wal_growth import WalGrowth

RETRY_SECONDS = (0.01, 1.0)
"""First and longest pause before a batch is tried again on a full disk. Short at first, because the first failure
releases the ballast, which may be room enough."""


class Writer:
    """Commits batches and switches segments; see the module. Methods are for the thread of the loop, except in the
    section "Commit thread".
    """

    lent: WritableSegment | None = None
    """The active segment, while the loop process commits into it. With the lock, as the next two."""
    loop_commits = False
    """The loop process shall commit, if it can. Set by the loop."""
    _asked: WritableSegment | None = None
    """The segment to which the loop process was asked to switch."""
    _rolled: asyncio.Future[None] | None = None
    """Set while ``roll`` waits for the switch."""
    _looks = False
    """The loop is about to decide about an early end of the active segment."""

    def __init__(
        self,
        active: WritableSegment,
        commits: CommitSocket,
        durable: DurableLsn,
        space: Space,
        settings: StorageSettings,
        *,
        on_grown: Callable[[], None],
        on_retired: Callable[[WritableSegment], None],
        on_lost: Callable[[], None],
        ask_switch: Callable[[int, bool], None],
        engine: Engine | None = None,
    ) -> None:
        """Take the parts; ``start`` begins.

        Args:
            active: the segment of the first batch.
            commits: source of the batches.
            durable: raised after each commit.
            space: decides about early ends of segments; called in the loop.
            settings: bytes of a WAL, if its zeros do not end before, and age at which a segment is retired.
            on_grown: called in the loop when the WAL has grown by ``space.measure_after_bytes``.
            on_retired: called in the loop with each segment that is no longer active.
            on_lost: called in the loop when the loop process has ended its side of the socket.
            ask_switch: called in the loop to ask the loop process for a switch to the segment of this number, into
                which it commits (True) or the commit thread does. ``switched`` tells the end.
            engine: makes rows durable; None = the segments do.
        """
        self.active = active
        self.prepared: WritableSegment | None = None
        self._commits = commits
        self._durable = durable
        self._space = space
        self._segment_bytes = settings.segment_bytes
        self._segment_age_ms = settings.segment_age_ms
        self._on_grown = on_grown
        self._on_retired = on_retired
        self._on_lost = on_lost
        self._ask_switch = ask_switch
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._thread: Thread | None = None
        self._lock = Lock()
        """Held for the fields down to ``_stopping``, and for ``active`` and ``prepared``."""
        self._changed = Condition(self._lock)
        """Notified by a stop and by a switch, which end the pause of a retry and the wait for a lent segment."""
        self._committing = False
        """The commit thread uses the connection of the active segment."""
        self._roll_wanted = False
        """The commit thread switches segments at the end of its commit."""
        self._retired: WritableSegment | None = None
        """A retired segment that the loop has not taken note of. At most one: the next switch needs a successor, which
        the loop prepares."""
        self._stopping = False
        self._growth = WalGrowth()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Resolved at the end of the commit thread."""
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Gets the error after which no commit may follow."""

    @property
    def is_stopping(self) -> bool:
        """True once ``stop`` was called. For any thread."""
        return self._stopping

    def start(self, first: Callable[[], bool] | None = None) -> None:
        """Start the commit thread. ``first`` runs in the thread before the first batch; False ends the thread."""
        # A daemon, because the process exits without waiting for threads (see ``service.main``).
        self._thread = Thread(target=self._work, args=(first,), name="commits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the commit thread end after the commit under way. A full disk is not waited for: room may never come, the
        parent may be dead, and the batch was never promised.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()

    async def stopped(self) -> None:
        """Stop, and wait for the commit under way and the end of the thread."""
        self.stop()
        if self._thread is not None:
            self._commits.shut()
            await asyncio.shield(self._ended)
            self._thread.join()

    def tick(self) -> None:
        """Retire an old segment, or a segment with a WAL worth having back, without waiting for a commit."""
        self.note_switch()
        active = self.active
        if self.lent is not None and not self._lends():
            self.take_back()
        elif active.rows and (self._is_old(active) or self._rolls(active) or (self.lent is None and self._lends())):
            self._begin_roll(active)

    def take_back(self) -> None:
        """Switch to a segment that is not lent, also if the loop process has committed no row."""
        with self._lock:
            if self.lent is not None and self._asked is None:
                self._roll_wanted = True
                self._switch()

    def switched(self, *, by_loop: bool) -> None:
        """Make the switch that the loop process was asked for, once its rows are counted."""
        with self._changed:
            assert self._asked is not None
            # The commit thread may still count the batch that it has answered: the switch ends nothing of that.
            self._retired, self.active, self._asked = self.active, self._asked, None
            self.lent = self.active if by_loop else None
            self._growth.begin_segment()
            self._roll_wanted = False
            self._changed.notify()
        self.note_switch()

    def end_lending(self) -> None:
        """Take note that the loop process commits no more: the log ends. It has closed its connection."""
        with self._changed:
            self.lent = self._asked = None
            self.loop_commits = False
            self._changed.notify()
        if self._rolled is not None:
            # The loop process makes no switch any more.
            self._rolled.set_result(None)
            self._rolled = None

    def offer(self, prepared: WritableSegment) -> None:
        """Take the prepared segment, and switch to it if a switch was wanted while there was none."""
        with self._lock:
            self.prepared = prepared
            # Its zeros decide where the active segment ends: the next commit measures.
            self._growth.room = 0
            # Otherwise the switch would wait for the end of the next commit, which may never come.
            if self._roll_wanted and not self._committing and (self.active.rows or self.lent is not None):
                self._switch()
        self.note_switch()

    def withdraw(self) -> WritableSegment | None:
        """Take the prepared segment back, so that no commit can begin in it; None if there is none, or if a
        switch to the segment is about to come.
        """
        with self._lock:
            if self._roll_wanted:
                return None
            prepared, self.prepared = self.prepared, None
            return prepared

    def drop_zeros(self) -> None:
        """Give back the zeros that the WAL of the active segment was filled with, if the segment has no rows and no
        commit is under way. Raises OSError.

        With the lock, so that no commit begins meanwhile: zeros of a WAL are cut off in milliseconds.
        """
        with self._changed:
            active = self.active
            if active.filled_bytes and not active.rows and not self._committing and self.lent is None:
                active.drop_zeros()

    def begin_roll(self) -> None:
        """Retire the active segment, if it has rows, after the commit under way, for which the caller does not wait."""
        self.note_switch()
        self._begin_roll(self.active)

    async def roll(self) -> None:
        """Retire the active segment, if it has rows, after the commit under way. A successor must be ready."""
        self.note_switch()
        if not self._begin_roll(self.active):
            if self._rolled is None:
                self._rolled = self._loop.create_future()
            await asyncio.shield(self._rolled)

    def note_switch(self) -> None:
        """Take note of a switch by the commit thread, if there was one; for a caller that asks for its effects."""
        with self._lock:
            retired, self._retired = self._retired, None
        if retired is not None:
            if self._rolled is not None:
                self._rolled.set_result(None)
                self._rolled = None
            self._on_retired(retired)

    def _is_old(self, active: WritableSegment) -> bool:
        return (monotonic() - active.opened_at) * 1000 >= self._segment_age_ms

    def _rolls(self, active: WritableSegment) -> bool:
        used_bytes = active.wal_bytes
        # The commit thread measures the segments into which it commits (``_measure``), and the tick a lent one.
        room = self._segment_bytes - used_bytes if self.lent is None else self._room(used_bytes)
        return room <= 0 or self._space.rolls_early(active)

    def _lends(self) -> bool:
        """Return whether the next segment is to be lent. Not while room is short: only this process knows the room."""
        return self.loop_commits and self._engine is None and not self._space.is_short

    def _begin_roll(self, active: WritableSegment) -> bool:
        """Switch to the prepared segment, unless another segment is active by now. False if a commit is under way, or
        if the loop process takes part: the end of the commit, or the loop process, makes the switch.
        """
        with self._lock:
            if self._committing or self._asked is not None:
                if self.active is active and self._asked is None:
                    self._roll_wanted = True
                return False
            if self.active is active and active.rows and (self.lent is not None or self._lends()):
                self._roll_wanted = True
                self._switch()
                return False
            if self.active is active and active.rows:
                self._switch()
        self.note_switch()
        return True

    def _on_full(self) -> None:
        """React to a commit that met a full disk, while the commit thread pauses.

        The failed commit changed nothing, except as ``may_be_in_file`` says. The retry goes to the segment that is
        active then: the seal of the full segment can give back the room that the retry needs.
        """
        self._space.found_full()
        self._look()

    def _look(self) -> None:
        """Retire the active segment if room is short and its WAL is worth having back."""
        self._looks = False
        self.note_switch()
        active = self.active
        if active.rows and self._space.rolls_early(active):
            self._begin_roll(active)

    def _on_end(self, error: BaseException | None) -> None:
        self._ended.set_result(None)
        if error is not None:
            self.failed.set_exception(error)
        elif not self._stopping:
            self._on_lost()

    # Commit thread

    def _work(self, first: Callable[[], bool] | None) -> None:
        """Commit batches until the loop process ends, the writer stops or a commit fails."""
        failure = None
        try:
            if self._engine is None:
                self._commit_batches()
            elif first is None or first():
                self._replicate_batches(self._engine)
        except EngineUnavailable:
            # The writer stops, and an engine that does not answer is not waited for, as a full disk is not.
            pass
        except BaseException as error:
            failure = error
        self._loop.call_soon_threadsafe(self._on_end, failure)

    def _commit_batches(self) -> None:
        while (rows := self._commits.receive()) is not None:
            fsync_us = self.make_durable(rows)
            if fsync_us is None:
                break
            self._report(rows[-1].lsn, fsync_us)
            # Views of the buffer of the socket, which the next batch overwrites.
            del rows

    def _replicate_batches(self, engine: Engine) -> None:
        while (rows := self._commits.receive()) is not None:
            begun_s = perf_counter()
            if rows:
                # The engine first: see the module.
                engine.append(rows)
                if self.make_durable(rows) is None:
                    break
                self._report(rows[-1].lsn, int((perf_counter() - begun_s) * 1_000_000))
            else:
                # An empty batch asks for a proof that this broker still leads, as each batch with rows is one.
                engine.prove()
                self._commits.answer(self._durable.value, int((perf_counter() - begun_s) * 1_000_000))
            del rows

    def keep(self, rows: Sequence[LogRow]) -> bool:
        """Write rows that the engine has into the active segment, unanswered; False if the writer stops before."""
        if self.make_durable(rows) is None:
            return False
        self._report(rows[-1].lsn, None)
        return True

    def pause(self, seconds: float) -> bool:
        """Wait, in the commit thread; False if the writer stops before."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._stopping, seconds)

    def make_durable(self, rows: Sequence[LogRow]) -> int | None:
        """Make a batch durable, or with an engine copy it into the cache, and count its rows; return the time of its
        transaction in us, None if the writer stops before.

        The only step between a batch and its answer that may take seconds. The loop process times the batch
        (``cmqd.server.log_upkeep.storage_watch``); nothing here does.

        Raises sqlite3.Error, after which no commit may follow. Lack of space is waited for.
        """
        pause, longest = RETRY_SECONDS
        was_full = False
        while (active := self._begin_commit()) is not None:
            try:
                fsync_us = active.insert(rows)
            except sqlite3.Error as error:
                if not is_disk_full(error):
                    raise
                was_full = True
                self._pause(pause, keeps_segment=may_be_in_file(error))
                pause = min(2 * pause, longest)
                continue
            # Before the answer: a reader that is told of the rows asks for them at once.
            self._growth.add_commit(active.committed(rows), len(rows), active.page_bytes)
            if was_full:
                self._loop.call_soon_threadsafe(self._space.found_room)
            return fsync_us
        return None

    def _begin_commit(self) -> WritableSegment | None:
        """Take the connection of the active segment; None if the writer stops."""
        with self._changed:
            # The loop process has switched already: its batch may come before its word, on another socket.
            while self.lent is not None and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return None
            self._committing = True
            return self.active

    def _pause(self, seconds: float, *, keeps_segment: bool) -> None:
        """Wait before the retry on a full disk; a stop or a switch ends the wait. With ``keeps_segment`` there is no
        switch before the retry, as during a commit.
        """
        self._loop.call_soon_threadsafe(self._on_full)
        with self._changed:
            if not keeps_segment:
                self._end_commit(rolls=False)
            if not self._stopping and self._retired is None:
                self._changed.wait(seconds)

    def _report(self, lsn: int, fsync_us: int | None) -> None:
        """Answer a batch (None: a copy, without an answer), wake the loop if it waits for the batch, and switch
        segments if this segment is full.

        The answer comes first, because replies wait for it; the switch comes before the next batch, which goes to the
        next segment.
        """
        self._durable.raise_to(lsn)
        if fsync_us is not None:
            self._commits.answer(lsn, fsync_us)
        self._durable.tell()
        # Against the bound as of now: the loop lowers it when another program fills the disk.
        is_full = self._growth.is_due(self._space.measure_after_bytes) and self._measure()
        with self._lock:
            self._end_commit(rolls=is_full)
        if self._space.short and not self._looks:
            self._looks = True
            self._loop.call_soon_threadsafe(self._look)

    def _measure(self) -> bool:
        """Measure the active WAL, tell the loop if the WALs have grown, and return whether the segment is full.

        A segment is also full where its zeros end, if the prepared segment has more of them: commits behind the zeros
        take longer (``wal_filling``).
        """
        used_bytes = self.active.wal_bytes
        # Beside the timer: a fast writer fills a disk between two ticks.
        if self._growth.measured(used_bytes, self._space.measure_after_bytes):
            self._loop.call_soon_threadsafe(self._on_grown)
        with self._lock:
            room = self._growth.room = self._room(used_bytes)
        return room <= 0

    # Either thread, with the lock

    def _room(self, used_bytes: int) -> int:
        """Return the growth of the active WAL until the segment is full."""
        prepared, filled_bytes = self.prepared, self.active.filled_bytes
        has_more_zeros = prepared is not None and prepared.filled_bytes > filled_bytes
        return (filled_bytes if has_more_zeros else self._segment_bytes) - used_bytes

    def _end_commit(self, *, rolls: bool) -> None:
        """Give the connection back, and switch if the segment is full or the loop wants a switch."""
        self._committing = False
        if (rolls or self._roll_wanted) and self.active.rows:
            self._switch()
            if self._retired is not None:
                self._loop.call_soon_threadsafe(self.note_switch)

    def _switch(self) -> None:
        """Switch to the prepared segment; without a prepared segment the active segment grows on.

        The manifest is written later, so that no commit waits for it. A crash in between is safe: recovery reads a
        prepared segment with rows as an active segment.
        """
        if self.prepared is None:
            # Better a segment above its size than a commit that waits for a new file.
            return
        by_loop = self._lends()
        if self.lent is not None or by_loop:
            # The loop process makes the switch between two of its batches. Until its answer nothing changes here.
            self._asked, self.prepared = self.prepared, None
            self._loop.call_soon_threadsafe(self._ask_switch, self._asked.number, by_loop)
            return
        self._retired = self.active
        self.active = self.prepared
        self._growth.begin_segment()
        # Now, not when the successor is ready: a second switch before that must find no segment to switch to.
        self.prepared = None
        self._roll_wanted = False
        self._changed.notify()


def may_be_in_file(error: sqlite3.Error) -> bool:
    """Return whether the rows of a commit that met a full disk may be in the WAL all the same.

    SQLite enters a commit into the WAL-index after it has synced the frames. If the index cannot grow, the commit fails
    with its frames on the disk, and a start after a crash accepts the frames. The retry overwrites the frames; in the
    next segment the retry would store the rows a second time. The room that a switch needs is enough for the index.
    """
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE
