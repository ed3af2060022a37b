"""Switches of segments that change the process that commits, and commits of the loop process.

``CommitWay`` decides, the storage process asks for the switch, and the loop process makes the switch between two
batches (``storage.writing.lending``). The lock of the folder is held here until no thread of this process can write.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from cmqd.log.log_errors import LogFailed
from cmqd.storage import ipc
from cmqd.storage.loop_side.commit_way import CommitWay
from cmqd.storage.loop_side.group_commit import GroupCommit
from cmqd.storage.loop_side.loop_commits import LoopCommits, Result
from cmqd.storage.storage_settings import StorageSettings
from cmqd_segment.manifest import SegmentEntry, SegmentState


class CommitSwitch:
    """Changes the process that commits; see the module."""

    def __init__(
        self,
        commits: GroupCommit,
        way: CommitWay,
        settings: StorageSettings,
        send: Callable[[ipc.Head], None],
        on_durable: Callable[[int, int], None],
        fail: Callable[[LogFailed], None],
    ) -> None:
        """Join the parts.

        Args:
            commits: the batches.
            way: decides which process commits.
            settings: folder and durability.
            send: sends a control frame to the storage process.
            on_durable: called with the LSN of each commit of this process, and its time in us.
            fail: called with the error after which no commit may follow.
        """
        self._commits = commits
        self._way = way
        self._settings = settings
        self._send = send
        self._on_durable = on_durable
        self._fail = fail
        self.thread: LoopCommits | None = None
        """The commit thread of this process, after the first switch to this process."""
        self.lock: int | None = None
        """A descriptor with the lock of the folder, for as long as this process can commit. None with an engine: the
        loop process never commits then.
        """
        self._changing: bool | None = None
        """Set during a change: True if this process commits after the change."""
        self._is_ending = False
        """The segment does not change any more."""
        commits.on_result = self._on_result
        commits.on_way = self.want
        commits.on_committed = self._tell_of_commits

    def want(self, *, is_full: bool = False) -> None:
        """Tell the storage process which process shall commit."""
        if self.lock is not None:
            self._send(ipc.CommitsWanted(self._way.by_loop, is_full))

    def switch(self, number: int, *, by_loop: bool) -> None:
        """Switch to another segment, and perhaps to commits of the other process, between two batches."""
        if self._is_ending or self._commits.failed is not None:
            return
        thread = self.thread = self.thread or LoopCommits(self._on_late)
        path = Path(self._settings.folder) / SegmentEntry(number, SegmentState.ACTIVE).file

        def change() -> None:
            self._changing = by_loop and self._way.by_loop
            thread.change(path if self._changing else None, self._settings.durability)

        self._commits.hold(change)

    async def end(self, seconds: float) -> None:
        """Close the connection of this process and give up the lock, unless the disk holds up a commit for longer."""
        self._begin_end()
        if self.thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.thread.join, seconds)
        self._give_up_lock()

    def end_within(self, seconds: float) -> None:
        """Do the same, with the loop standing still."""
        self._begin_end()
        if self.thread is not None:
            self.thread.join(seconds)
        self._give_up_lock()

    def _begin_end(self) -> None:
        self._is_ending = True
        if self.thread is not None:
            # The storage process commits the last rows; after a failure the rows are lost.
            self._commits.loop_commits = None
            self.thread.end()

    def failed(self) -> None:
        """Take note that no commit begins any more."""
        if self.thread is None:
            self._give_up_lock()

    def _give_up_lock(self) -> None:
        if self.lock is not None and (self.thread is None or self.thread.has_ended):
            os.close(self.lock)
            self.lock = None

    def _tell_of_commits(self) -> None:
        if self._commits.loop_commits is not None:
            self._send(ipc.Committed())

    def _on_result(self, result: Result) -> None:
        """Take the result of a commit of this process."""
        commits = self._commits
        fsync_us, error = result
        if commits.failed is not None:
            return
        if error is None:
            self._on_durable(commits.sent_lsn, fsync_us)
            return
        # Loaded by the thread before: only a loop process that commits loads SQLite.
        from cmqd.storage.segments.row_inserts import is_disk_full

        if is_disk_full(error):
            # No repetition here: the storage process has the rules for a full disk, and the room. First the way:
            # a switch that has waited for this batch begins when the batch is gone.
            self._way.refuse()
            commits.refused()
            self.want(is_full=True)
        else:
            # A failed fsync may have dropped the pages from the cache, and a second fsync would report success.
            self._fail(LogFailed(f"the disk failed: {type(error).__name__}: {error}"))

    def _on_late(self, result: Result) -> None:
        """Take a late result: of a commit, or of a change."""
        changing, self._changing = self._changing, None
        if changing is None:
            self._on_result(result)
            return
        _, error = result
        if error is not None:
            # The storage process can commit instead.
            self._way.refuse()
            self.want()
        by_loop = changing and error is None and not self._is_ending
        self._send(ipc.Switched(by_loop))
        self._commits.go_on(self.thread if by_loop else None)
