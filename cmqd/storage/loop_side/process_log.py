"""The log on disk, as the loop process uses it: the storage process, its sockets, pages and segments.

``GroupCommit`` has the rows from their append to their durability.

Every failure goes through ``_fail``. Calls under way raise the error, and ``on_fatal`` gets the error too, except while
``open`` waits: the caller of ``open`` would otherwise handle one failure twice.

The storage process is started by exec, never by fork, and ends when its sockets end.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import structs

from cmqd.child_python import child_python
from cmqd.engine.engine_errors import AccountsConflict
from cmqd.engine.interface import StoredAccounts
from cmqd.log.interface import ignore
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.log.values import (
    CommitFigures,
    EngineStatus,
    FoundRows,
    HeldCheckpoint,
    HistoryAnswer,
    LogState,
    MessagesAnswer,
    OnPage,
    OnPublished,
    Pending,
    RecoveredBatch,
    RecoveryReport,
    SegmentReport,
    Takeover,
)
from cmqd.storage import ipc, storage_errors
from cmqd.storage.loop_side.checkpoint_chunks import CheckpointChunks
from cmqd.storage.loop_side.commit_switch import CommitSwitch
from cmqd.storage.loop_side.commit_way import CommitWay
from cmqd.storage.loop_side.group_commit import GroupCommit
from cmqd.storage.loop_side.recovered_rows import RecoveredRows
from cmqd.storage.redundancy.proof_clock import proof_clock_s
from cmqd.storage.source_names import SourceNames
from cmqd.storage.storage_settings import StorageSettings
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.manifest import SourceName, StandingPinEntry
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.records import Runs, StoredMessage
from cmqd_segment.rows import Run, Source, stored_messages

EXIT_SECONDS = 30.0
"""Time in which the storage process must end after ``Closed`` or the end of its sockets."""
KILL_SECONDS = 0.2
"""Time to wait for the process after SIGKILL, with the loop standing still. Longer only if the disk holds the
process."""


class ChildProcess(Protocol):
    """The calls that the log makes on the storage process; ``subprocess.Popen`` has them."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


class StorageProcessLog:
    """A log in a storage process; see the module and ``cmqd.log.interface.Log``.

    ``epoch`` is the epoch of this broker in the engine: 0 without an engine, and before this broker leads.
    ``engine_status`` is the engine as the storage process has last reported it.
    """

    standing_pins: Sequence[StandingPinEntry] | None = ()
    """See ``Segments``."""
    _closing = False
    """The end of the sockets is expected."""
    _ended = False
    """The sockets were closed from this side."""
    _actors_wanted: ipc.ActorsWanted | None = None
    """The question of the sealer, which asks for one segment at a time."""
    sealed_upto = 0
    """See ``Log``."""

    def __init__(
        self,
        settings: StorageSettings,
        start: "Callable[[socket.socket, socket.socket, socket.socket], ChildProcess] | None" = None,
        clock_s: Callable[[], float] = proof_clock_s,
        way: CommitWay | None = None,
    ) -> None:
        """Take the settings; ``open`` starts the process.

        Args:
            settings: sent to the storage process in the first frame.
            start: replaces ``start_process`` in tests, and gets the other ends of the three sockets, in their
                order.
            clock_s: replaces the clock of proofs in tests.
            way: replaces the decision which process commits in tests.
        """
        self.on_durable: Callable[[int], None] = ignore
        self.on_page: OnPage = ignore
        self.on_published: OnPublished = ignore
        self.on_fatal: Callable[[LogFailed], None] = ignore
        self.on_state: Callable[[LogState], None] = ignore
        self.on_checkpoint_wanted: Callable[[], None] = ignore
        self.on_checkpoint_done: Callable[[int], None] = ignore
        self.on_folder_in_use: Callable[[str, int], None] = ignore
        """Called with a text that names the holder, and the time in ms for which ``open`` waits at most."""
        self._settings = settings
        self.pages_asked = self.pages_answered = 0
        self.droppable_lsn = 0
        self._log_id = ""
        self._names = SourceNames()
        self.clock_s = clock_s
        way = way or CommitWay(clock_s)
        self._commits = GroupCommit(self._names, clock_s, way)
        self._way = CommitSwitch(self._commits, way, settings, self._send, self._on_durable, self._fail)
        # The calls of each request are those of the group commit itself: no second call per row.
        self.append = self._commits.append
        self.flush = self._commits.flush
        self.close_row = self._commits.close_row
        self.prove = self._commits.prove
        self._checkpoint = CheckpointChunks()
        self._segments: dict[int, SegmentReport] = {}
        """Closed segments by number, ascending, without segments that are being dropped."""
        self._start = start or start_process
        self._process: ChildProcess | None = None
        self._control: ipc.Channel | None = None
        self._pages: ipc.Channel | None = None
        self._commit_channel: ipc.CommitChannel | None = None
        self._opened: asyncio.Future[ipc.Opened] | None = None
        self._closed: asyncio.Future[None] | None = None
        self.accounts: StoredAccounts | None = None
        """Accounts that the leader has stored, as this broker found them while it was a standby; None if it has not."""
        self.epoch = 0
        self.takeover: Takeover | None = None
        """The newest row as this broker took the log; None as ``epoch``, and for a log without a row."""
        self.engine_status = EngineStatus()
        self.on_engine: Callable[[EngineStatus], None] = ignore
        """Called with each report of the engine; for status and logs."""
        self._requests: dict[int, asyncio.Future[Any]] = {}
        """Requests without an answer, by id."""
        self._recovery = RecoveredRows(self._names)

    @property
    def process_id(self) -> int | None:
        """Id of the storage process, None before the start."""
        return None if self._process is None else self._process.pid

    # Opening

    async def open(self) -> RecoveryReport:
        """See ``Log``."""
        control, control_child = socket.socketpair()
        pages, pages_child = socket.socketpair()
        commits, commits_child = socket.socketpair()
        # The other ends are closed here once the process has them: while a copy is open in this process, the end of the
        # storage process would not end the sockets, and would go unnoticed.
        with control_child, pages_child, commits_child:
            self._process = self._start(control_child, pages_child, commits_child)
        # Before the sockets are attached: the process may end in between, and the failure must find the future.
        self._opened = asyncio.get_running_loop().create_future()
        self._control = await ipc.attach(control, self._on_control, self._on_lost)
        self._pages = await ipc.attach(pages, self._on_pages, self._on_lost)
        self._control.send(ipc.Open(self._settings))
        try:
            opened = await self._opened
            self._way.lock = ipc.handed_on(commits)
            self._commit_channel = await ipc.attach_commits(commits, self._on_durable, self._on_lost)
        except BaseException:
            commits.close()
            # A cancelled call too: the process would otherwise wait for the lock of the folder, take the lock and keep
            # it.
            await self._end_process()
            raise
        report = opened.report
        self._commits.begin(self._commit_channel, report.last_lsn)
        self._log_id = report.log_id
        self.droppable_lsn = opened.droppable_lsn
        for segment in opened.segments:
            self._segments[segment.number] = segment
        return report

    async def recover(self) -> AsyncIterator[RecoveredBatch]:
        """See ``Log``."""
        pages = self._pages
        if pages is None or self._commits.failed is not None:
            raise self._commits.failed or LogFailed("the log is not open")
        async for batch in self._recovery.batches(pages):
            yield batch

    # Appending

    @property
    def last_lsn(self) -> int:
        """See ``Log``."""
        return self._commits.last_lsn

    @property
    def durable_lsn(self) -> int:
        """See ``Log``."""
        return self._commits.durable_lsn

    @property
    def pending(self) -> Pending:
        """See ``Log``."""
        return self._commits.pending

    @property
    def proved_s(self) -> float:
        """Time at which, or after which, this broker led the log, by ``clock_s``."""
        return self._commits.proved_s

    @property
    def unanswered_s(self) -> float | None:
        """See ``Led``."""
        return self._commits.unanswered_s

    @property
    def figures(self) -> CommitFigures:
        """See ``Log``."""
        return self._commits.figures

    # Reading

    def read_page(self, read_id: int, queue_id: int, positions: Runs, max_bytes: int, min_lsn: int) -> None:
        """See ``Log``."""
        self.pages_asked += 1
        self._channel(self._pages).send(
            ipc.ReadPage(read_id, queue_id, positions, max_bytes, self._readable_lsn(min_lsn))
        )

    def read_published(self, read_id: int, topic_id: int, start: int, stop: int, min_lsn: int) -> None:
        """See ``Log``."""
        self._channel(self._pages).send(ipc.ReadPublished(read_id, topic_id, start, stop, self._readable_lsn(min_lsn)))

    async def read_history(self, message_id: int, lease: int = 0) -> HistoryAnswer:
        """See ``Log``."""
        answer: HistoryAnswer = await self._read_rows(
            lambda number: ipc.FindHistory(number, message_id, lease, self._readable_lsn())
        )
        return structs.replace(answer, owners=self._owners(answer.owners, answer.sources))

    async def find_messages(self, query: MessageQuery) -> MessagesAnswer:
        """See ``Log``."""
        while True:
            asked = query
            answer: MessagesAnswer = await self._read_rows(
                lambda number: ipc.FindMessages(number, asked, self._readable_lsn())  # noqa: B023
            )
            # The storage process does not know the queues of unsealed rows.
            undecided = answer.found.undecided
            wanted = {each.id for each in self._names.of(undecided) if query.may_be_of(each.account, each.name)}
            if not answer.found.is_full or undecided <= wanted:
                break
            query = structs.replace(query, decided=query.decided | {number: number in wanted for number in undecided})
        sources = {message.source_id for message in answer.found.messages}
        return structs.replace(answer, owners=self._owners(answer.owners, sources))

    async def _read_rows(self, make: Callable[[int], ipc.FindHistory | ipc.FindMessages]) -> Any:
        """Have the storage process read rows until the answer, or until the call is cancelled."""
        request_id = 0

        def find(number: int) -> ipc.FindHistory | ipc.FindMessages:
            nonlocal request_id
            request_id = number
            return make(number)

        try:
            return await self._request(find)
        except asyncio.CancelledError:
            if not self._closing and self._control is not None:
                self._control.send(ipc.StopHistory(request_id))
            raise

    def _owners(self, told: Iterable[SourceName], sources: Iterable[int]) -> list[SourceName]:
        # Here are the names of all queues that exist; the storage process knows those of deleted queues.
        return list({name.id: name for name in (*told, *self._names.of(sources))}.values())

    def _readable_lsn(self, min_lsn: int = 0) -> int:
        """Return the LSN that a read waits for: the storage process may not have counted all durable rows."""
        return max(min_lsn, self._commits.durable_lsn)

    def _on_pages(self, head: ipc.AnyHead, data: bytes, offset: int) -> None:
        match head:
            case ipc.Page(read_id, runs, missing, sources):
                self.pages_answered += 1
                messages: list[StoredMessage] = []
                for run in _runs(runs, sources, offset):
                    messages += stored_messages(run, data)
                self.on_page(read_id, messages, missing)
            case ipc.Published(read_id, message):
                self.on_published(read_id, message)
            case ipc.CheckpointChunk() | ipc.RowsChunk():
                self._on_recovered(head, data, offset)
            case ipc.RecoverEnd(last_lsn, log_id, epoch, takeover, standing_pins):
                self.standing_pins = standing_pins
                if epoch:
                    # The rows that were copied while this broker was a standby.
                    assert self._commit_channel is not None
                    self._commits.begin(self._commit_channel, last_lsn)
                    self._log_id = log_id
                    self.epoch, self.takeover = epoch, takeover
                self._recovery.end(None)
                self._tell_actors()
            case _:
                raise AssertionError(head)

    def _on_recovered(self, head: ipc.CheckpointChunk | ipc.RowsChunk, data: bytes, offset: int) -> None:
        try:
            if isinstance(head, ipc.RowsChunk):
                self._recovery.take_rows(head, data, offset)
            else:
                self._recovery.take_parts(head, data, offset)
            self._tell_actors()
        except NewerFormatError as error:
            # A start inspects the folder first. So this is a row, or a checkpoint, that a leader of a newer version
            # has put into the engine while this broker is a standby.
            self._fail(storage_errors.FolderFormatError(str(error)))

    # Checkpoints and segments

    def write_checkpoint(self, part: AnyPart) -> None:
        """See ``Log``."""
        control = self._channel(self._control)
        if isinstance(part, CheckpointHeader):
            # The core does not know the identity of the log. The next start refuses a checkpoint of another log.
            part = structs.replace(part, log_id=self._log_id)
        # In front of the end: the manifest that lists the checkpoint must have the names that the checkpoint lacks.
        if isinstance(part, CheckpointEnd) and (deleted := self._names.of_deleted()):
            control.send(ipc.DeletedNames(deleted))
        self._names.actors.note_written(part)
        if (chunk := self._checkpoint.take(part)) is not None:
            control.send(*chunk)

    def tell_changes(self, changed: Sequence[int], unwanted: Sequence[int]) -> None:
        """See ``Log``."""
        counted = max(self._segments, default=0)
        self._channel(self._control).send(ipc.SegmentChanges(list(changed), list(unwanted), counted))

    def closed_segments(self) -> list[SegmentReport]:
        """See ``Log``."""
        return list(self._segments.values())

    def _tell_actors(self) -> None:
        """Answer the question for the actors of a segment, once they are known: the copy of a standby seals segments
        while their rows are on their way.
        """
        wanted = self._actors_wanted
        if wanted is not None and self._recovery.noted_lsn >= wanted.last_lsn:
            self._actors_wanted = None
            self._send(ipc.SegmentActors(wanted.number, self._names.actors.of(wanted.numbers)))

    async def active_segment(self) -> SegmentReport | None:
        """See ``Log``."""
        return await self._request(ipc.DescribeActive)

    async def drop_segments(self, numbers: Sequence[int], min_lsn: int) -> list[int]:
        """See ``Log``."""
        known = [number for number in numbers if number in self._segments]
        answer = self._request(lambda request_id: ipc.DropSegments(request_id, known, min_lsn))
        # Out of the table before the wait, so that ``closed_segments`` does not offer them for a second drop. Segments
        # that the storage process keeps come back in their order.
        dropping = {number: self._segments.pop(number) for number in known}
        dropped: list[int] = await answer
        # A seal that ended during the wait has put its segment back.
        for number in dropped:
            self._segments.pop(number, None)
        stay = {number: segment for number, segment in dropping.items() if number not in dropped}
        if stay:
            self._segments = dict(sorted((stay | self._segments).items()))
        return dropped

    async def seal_now(self) -> None:
        """See ``Log``."""
        # A seal covers the rows in the segment, so all rows of the caller must be there before.
        if self._commits.failed is None and self._commits.has_rows:
            await self._commits.drained()
        await self._request(ipc.SealNow)

    @property
    def log_id(self) -> str:
        """See ``Segments``."""
        return self._log_id

    async def find_rows(self, lsn: int, above: int) -> FoundRows:
        """See ``Segments``."""
        return await self._request(lambda request_id: ipc.FindRows(request_id, lsn, above))

    async def hold_checkpoint(self) -> HeldCheckpoint | None:
        """See ``Segments``."""
        return await self._request(ipc.HoldCheckpoint)

    def release_checkpoint(self, number: int) -> None:
        """See ``Segments``. Does nothing after a failure, which ends all holds."""
        if self._control is not None:
            self._control.send(ipc.ReleaseCheckpoint(number))

    async def keep_standing_pins(self, pins: Sequence[StandingPinEntry]) -> None:
        """See ``Segments``."""
        await self._request(lambda request_id: ipc.KeepStandingPins(request_id, list(pins)))

    def _request(self, head: Callable[[int], ipc.AnyHead], *blobs: bytes) -> asyncio.Future[Any]:
        """Send a request to the storage process, by the id that ``head`` gets; return the future of its answer."""
        control = self._channel(self._control)
        request_id = max(self._requests, default=0) + 1
        answer = self._requests[request_id] = asyncio.get_running_loop().create_future()
        control.send(head(request_id), *blobs)
        return answer

    def _answered(self, request_id: int, answer: object) -> None:
        # The log may have been killed or the caller been cancelled meanwhile.
        request = self._requests.pop(request_id, None)
        if request is not None and not request.done():
            request.set_result(answer)

    def _on_durable(self, lsn: int, fsync_us: int) -> None:
        commits = self._commits
        # The failure came through another socket: its callers were told that these rows may or may not be durable.
        if commits.failed is not None:
            return
        # The callback last, when the LSN and the counts of the log agree with its argument.
        commits.became_durable(lsn, fsync_us)
        self.on_durable(lsn)

    def _on_control(self, head: ipc.AnyHead, data: bytes, offset: int) -> None:
        match head:
            case ipc.StateChanged(state):
                self._commits.measured()
                self.on_state(state)
            case ipc.SwitchWanted(number, by_loop):
                self._way.switch(number, by_loop=by_loop)
            case ipc.LsnWanted(lsn):
                self._commits.tell_at(lsn)
            case ipc.EngineChanged(status):
                self.engine_status = status
                self.on_engine(status)
            case ipc.SegmentClosed(segment, sealed_upto):
                self._segments[segment.number] = segment
                self._names.forget_deleted(sealed_upto)
                self.sealed_upto = sealed_upto
            case ipc.SegmentsDropped(numbers):
                for number in numbers:
                    self._segments.pop(number, None)
            case ipc.NamesWanted(number, ids):
                assert self._control is not None
                self._control.send(ipc.SegmentNames(number, self._names.of(ids)))
            case ipc.ActorsWanted():
                self._actors_wanted = head
                self._tell_actors()
            case ipc.CheckpointWanted():
                self.on_checkpoint_wanted()
            case ipc.CheckpointDone(lsn, droppable_lsn):
                # Before the callback, which searches for segments that may be dropped now.
                self.droppable_lsn = droppable_lsn
                self.on_checkpoint_done(lsn)
            case (
                ipc.Answered(request_id, answer)
                | ipc.ActiveSegment(request_id, answer)
                | ipc.CheckpointHeld(request_id, answer)
                | ipc.RowsFound(request_id, answer)
                | ipc.HistoryFound(request_id, answer)
                | ipc.MessagesFound(request_id, answer)
            ):
                self._answered(request_id, answer)
            case ipc.Accounts(request_id, version, size, is_conflict):
                accounts = StoredAccounts(version, data[offset : offset + size])
                if request_id:
                    self._answered(request_id, (accounts, is_conflict))
                else:
                    self.accounts = accounts
            case ipc.FolderInUse(text, waiting_ms):
                self.on_folder_in_use(text, waiting_ms)
            case ipc.Opened():
                assert self._opened is not None
                if not self._opened.done():
                    self._opened.set_result(head)
            case ipc.Closed():
                assert self._closed is not None
                self._closed.set_result(None)
            case ipc.Failed(kind, text):
                self._fail(_error(kind, text))
            case _:
                raise AssertionError(head)

    # Accounts of an engine

    async def load_accounts(self) -> StoredAccounts | None:
        """Read the accounts of the engine; None if it has none. Only between the end of ``recover`` and ``close``.

        Raises LogFailed.
        """
        stored, _ = await self._request(ipc.LoadAccounts)
        return stored if stored.version else None

    async def store_accounts(self, data: bytes, *, expected_version: int) -> int:
        """Replace the accounts of the engine, and return their version once they are durable.

        Args:
            data: the new accounts.
            expected_version: version of the accounts that were changed; 0 = none were stored.

        Raises:
            AccountsConflict: another version is stored. Nothing was changed.
            LogFailed: the log has failed; whether the accounts are stored is unknown.
        """
        stored, is_conflict = await self._request(
            lambda request_id: ipc.StoreAccounts(request_id, expected_version, len(data)), data
        )
        if is_conflict:
            raise AccountsConflict(expected_version, stored.version)
        return stored.version

    def announce(self, address: str) -> None:
        """List this broker in the engine by its address, with its last row, as long as it runs."""
        self._channel(self._control).send(ipc.Announce(address))

    # Ending

    async def close(self, within_s: float | None = None) -> None:
        """See ``Log``."""
        if self._ended:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._close_in_order()
        except (TimeoutError, asyncio.CancelledError):
            # The caller's time is over: recovery does the rest. A kill, because an orderly end may take
            # ``EXIT_SECONDS`` more.
            self._commits.failed = self._commits.failed or LogFailed("the log was not closed in time")
            self._kill_process()
            raise
        if self._commits.failed is not None:
            raise self._commits.failed
        self._commits.failed = LogFailed("the log is closed")
        self._end_requests(self._commits.failed)

    async def _close_in_order(self) -> None:
        # Before the end of recovery no row can have been appended, so there is no commit to wait for.
        if self._commits.failed is None and self._control is not None and self._recovery.is_read:
            # Rows first, because ``Close`` is the last frame to the storage process. The end of the sockets is expected
            # from ``Closed`` on; an earlier end is a failure, because the manifest may not say *clean*.
            # No proof may be under way then: the commit thread ends with ``Close``, and a batch that it does not read
            # is never answered, or looks like the end of the process.
            self._commits.is_closing = True
            await self._commits.drained()
            await self._commits.answered()
            # The storage process seals the segment, and needs the only connection for that.
            await self._way.end(EXIT_SECONDS)
            self._closing = True
            self._closed = asyncio.get_running_loop().create_future()
            self._control.send(ipc.Close(self._commits.sent_lsn))
            try:
                await self._closed
                # Answers have a socket of their own, and the answers to rows of the last moment may be unread.
                await self._commits.answered()
            except LogError:
                await self._end_process()
                raise
            await self._end_process()
        else:
            await self._end_process()

    async def kill(self) -> None:
        """End at once, as by a crash of this process: for tests, and for a broker that must not wait."""
        self._commits.failed = self._commits.failed or LogFailed("the log was killed")
        await self._end_process()
        self._end_requests(self._commits.failed)

    def _end_requests(self, error: LogError) -> None:
        """End the requests that the storage process does not answer any more, such as a history that is being read."""
        for request in self._requests.values():
            if not request.done():
                request.set_exception(error)
                # As in ``_fail``: no warning from asyncio if no caller waits.
                request.exception()
        self._requests.clear()

    def _on_lost(self) -> None:
        """Take note of the end of a socket: expected after ``Closed`` or a kill, a failure at any other time."""
        if not (self._closing and (self._closed is None or self._closed.done())):
            process = self._process
            self._fail(LogFailed("the storage process ended unexpectedly" + _exit_text(process)))

    def _fail(self, error: LogError) -> None:
        # The first failure is the cause. The end of the sockets follows every failure, and would hide the cause.
        if self._commits.failed is not None:
            return
        failed = error if isinstance(error, LogFailed) else LogFailed(str(error))
        self._commits.failed = failed
        opening = self._opened is not None and not self._opened.done()
        for future in (self._opened, self._closed, self._commits.idle, *self._requests.values()):
            if future is not None and not future.done():
                future.set_exception(error)
                # A waiting caller gets the error. Reading it here keeps asyncio from warning when no caller waits.
                future.exception()
        self._requests.clear()
        self._way.failed()
        # Behind the chunks that have arrived: ``recover`` raises when it comes to the gap.
        self._recovery.end(failed)
        if not opening:
            self.on_fatal(failed)

    def _close_channels(self) -> None:
        for channel in (self._control, self._pages, self._commit_channel):
            if channel is not None:
                channel.close()
        # Before the callbacks of the sockets run: this end is not a failure.
        self._closing = self._ended = True

    def _kill_process(self) -> None:
        self._close_channels()
        self._way.end_within(KILL_SECONDS)
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)

    async def _end_process(self) -> None:
        self._close_channels()
        await self._way.end(EXIT_SECONDS)
        process = self._process
        if process is None:
            return
        # The process ends by itself at the end of its sockets, after the commit under way. A thread waits for the end,
        # because the wait would stop the loop.
        try:
            await asyncio.get_running_loop().run_in_executor(None, process.wait, EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, head: ipc.Head) -> None:
        if self._control is not None:
            self._control.send(head)

    def _channel(self, channel: ipc.Channel | None) -> ipc.Channel:
        if self._commits.failed is not None:
            raise self._commits.failed
        if channel is None:
            raise LogFailed("the log is not open")
        return channel


def start_process(control: socket.socket, pages: socket.socket, commits: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the storage process at the other ends of the three sockets. Both processes share a standard error, for
    crash reports.
    """
    descriptors = (control.fileno(), pages.fileno(), commits.fileno())
    # Memory that one thread allocates and another frees would otherwise spread over an arena per thread.
    environment = {"MALLOC_ARENA_MAX": "2", **os.environ}
    return subprocess.Popen(
        # The id of this process: the child compares it with its parent, in case this process dies before the child asks
        # for a signal at that death.
        [*child_python(), "-m", "cmqd.storage", *map(str, descriptors), str(os.getpid())],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


def _error(kind: str, text: str) -> LogError:
    error = getattr(storage_errors, kind, LogFailed)
    assert issubclass(error, LogError)
    return error(text)


def _exit_text(process: ChildProcess | None) -> str:
    """Describe the end of the process, if it is known yet."""
    code = None if process is None else process.poll()
    if code is None:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"


def _runs(columns: Sequence[ipc.Column], sources: Sequence[tuple[int, str, str]], offset: int) -> Iterator[Run]:
    """Yield the runs of a page with bodies that begin at ``offset`` of the frame."""
    topic = subscription = ""
    following = 0
    for number, column in enumerate(columns):
        if following < len(sources) and sources[following][0] == number:
            _, topic, subscription = sources[following]
            following += 1
        position, message_id, enqueue_ms, sizes, headers, visible_ms, origins, labels, original_id, copies_of = column
        source = None if original_id is None else Source(topic, subscription, original_id)
        yield Run(
            first_position=position,
            first_message_id=message_id,
            enqueue_ms=enqueue_ms,
            sizes=sizes,
            headers=headers,
            visible_ms=visible_ms,
            offset=offset,
            origins=origins,
            labels=labels,
            source=source,
            copies_of=copies_of,
        )
        offset += sum(sizes)
