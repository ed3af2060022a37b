"""The storage process: three sockets to the loop process, a data folder, and the log that is open in it.

The process lives as long as its sockets. At the end of any, or when its parent dies, it finishes the commit under
way, abandons seals and exits. A crash of the loop process leaves time for no more, and recovery handles the rest. After
an error that must not be retried, the process sends a last frame and exits with status 1.

The steps of a start, in an order that a crash or a refusal between any two leaves safe:

- The lock before any file is read: another broker would change them under the inspection.
- Room on the disk before any database is opened: SQLite needs some for the WAL-index.
- The inspection, which only reads, before any change: a refused start leaves the damage as it was found.
- Losses in the manifest before the damaged files are put aside (``folder_inspection.put_right``): otherwise the next
  start finds a folder that seems whole, and gives the numbers of lost rows to new rows.
- The answer to the loop process last: the log can be read and written from then on.

With an engine (redundancy) the folder is a cache (``cache_folder``), and the recovery stream does not end with the rows
of the folder: it goes on with the rows that the commit thread copies, and ends when this broker leads
(``replication``). A broker that is no leader writes no row, because its loop process appends only behind the end of the
stream.
"""

import asyncio
import os
import signal
import socket
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from msgspec import structs

from cmqd.engine.engine_errors import AccountsConflict, Fenced
from cmqd.engine.interface import Engine, StoredAccounts
from cmqd.log.log_errors import LogError, LogFailed
from cmqd.log.values import Durability
from cmqd.storage import ipc
from cmqd.storage.folder.data_folder import DataFolder, Disk, boot_id, process_name
from cmqd.storage.open_log import OpenLog
from cmqd.storage.outcomes.rounds import Changes
from cmqd.storage.reading.history_reads import HistoryReads
from cmqd.storage.recovery.folder_inspection import inspect, put_right
from cmqd.storage.recovery.recovery_stream import Chunk, recovery_stream
from cmqd.storage.redundancy.cache_folder import inspect_cache, remove_old_caches, take_checkpoint
from cmqd.storage.redundancy.engine_choice import open_engine
from cmqd.storage.redundancy.engine_watch import EngineWatch
from cmqd.storage.redundancy.following import Tail
from cmqd.storage.redundancy.replication import Replication
from cmqd.storage.segments.wal_gauge import used_bytes
from cmqd.storage.standard_error import complain, complain_of_exception
from cmqd.storage.storage_errors import LeadLost
from cmqd.storage.storage_settings import StorageSettings
from cmqd.storage.writing.commit_socket import CommitSocket
from cmqd_segment.folder_lock import LockHolder
from cmqd_segment.newer import NewerFormatError

GOODBYE_SECONDS = 1.0
"""Time for the last frame to leave."""
START_BYTES = 1024 * 1024
"""Free space without which a start is refused: two new segments and a few manifests. WAL-indexes of unsealed segments
come on top."""
WAL_PER_INDEX_BYTE = 500
"""Used bytes of a WAL for each byte of its index (32 KiB for 4,096 frames of 4 KiB)."""


OpenEngine: TypeAlias = Callable[[StorageSettings, Callable[[], bool]], Engine | None]
"""Makes the engine of these settings, None without redundancy; the call ends every wait for the engine when it returns
True."""


class StorageService:
    """Serves the loop process over three sockets; see the module. Tests replace ``disk`` and ``engine``."""

    def __init__(
        self,
        broker_pid: int,
        disk: Callable[[Path, int, int], Disk] = Disk,
        engine: OpenEngine = open_engine,
    ) -> None:
        self._broker_pid = broker_pid
        self._make_disk = disk
        self._open_engine = engine
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the service must end; with the error that ends the service, if there is one."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        """Set when a socket has ended."""
        self._chunks_wanted = asyncio.Semaphore(0)
        self._control: ipc.Channel
        self._pages: ipc.Channel
        self._commits: CommitSocket
        self._folder: DataFolder | None = None
        self._watch: EngineWatch
        """Set with an engine."""
        self.log: OpenLog
        self._histories: HistoryReads
        """Set once the folder has passed the inspection."""

    async def run(self, control: socket.socket, pages: socket.socket, commits: socket.socket) -> int:
        """Serve until the sockets or the parent end, or an error ends the service; return the exit status."""
        self._control = await ipc.attach(control, self._on_control, self._on_lost)
        self._pages = await ipc.attach(pages, self._on_pages, self._on_lost)
        self._commits = CommitSocket(commits)
        status = 0
        try:
            await self._ended
        except Exception as error:
            status = 1
            self._control.send(_last_frame(error))
        if hasattr(self, "log"):
            if status == 0:
                await self.log.stop()
            else:
                # Nothing more may become durable: the loop process has been told that the log stands still. The third
                # socket stays open, because its end could reach the loop process before the last frame.
                self.log.refuse()
        # Without waiting: a thread in the middle of a seal cannot be interrupted, and the next start repeats the seal.
        for task in self._tasks:
            task.cancel()
        self._control.close()
        self._pages.close()
        try:
            # The other end closes when it has read the last frame. An abort before that could drop the frame, and the
            # operator would learn only that the process ended.
            await asyncio.wait_for(self._lost.wait(), GOODBYE_SECONDS)
        except TimeoutError:
            self._control.abort()
        return status

    async def release(self) -> None:
        """Close every file and thread: for a service that is not alone in its process. The process itself just exits,
        since closing a segment would copy its WAL first.
        """
        # Tasks begun since the end are included. A segment that a task is opening is closed by the task; a second
        # cancellation would end that task before the close.
        for task in self._tasks:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "log"):
            await self.log.release()
        self._commits.close()
        if self._folder is not None:
            self._folder.unlock()

    def end(self, error: BaseException | None = None) -> None:
        """Stop serving; after an error, send the error to the loop process and exit with status 1."""
        # The first error is the cause; later errors follow from it, and would hide it from the operator.
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    def _on_lost(self) -> None:
        # Any socket: the loop process closes all, so a single lost socket is a loop process that died or is broken.
        self._lost.set()
        self.end()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task beside the others; an exception in the task ends the process."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        # A task that ended with an error leaves a room without its work: commits would go on, and nothing be sealed.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    # Frames from the loop

    # The order of the frames on this socket is a promise: the names of deleted queues come before the end of the
    # checkpoint that lacks them. Commits have another socket and overtake these frames or fall behind, so a frame that
    # states rows names their LSN: the end of a checkpoint, a drop, and the close.

    def _on_control(self, head: ipc.AnyHead, data: bytes, offset: int) -> None:
        match head:
            case ipc.CheckpointParts(first, end_lsn, size):
                # A copy: parts wait in memory until the disk has taken them, and a view would keep the whole frame.
                self.log.checkpoints.write(first, end_lsn, data[offset : offset + size])
            case ipc.DropSegments():
                self.log.drops.drop(head)
            case ipc.SegmentNames(number, names):
                self.log.sealer.names_told(number, names)
            case ipc.SegmentActors():
                self.log.sealer.actors_told(head)
            case ipc.DeletedNames(names):
                self.log.checkpoints.lacks(names)
            case ipc.SegmentChanges(changed, unwanted, counted):
                self.log.checkpoints.changed(Changes(changed, unwanted, counted))
            case ipc.SealNow(request_id):
                self._start(self.log.seal_now(request_id))
            case ipc.DescribeActive(request_id):
                self._start(self._describe_active(request_id))
            case ipc.FindHistory():
                self._start(self._find_history(head))
            case ipc.FindMessages():
                self._start(self._find_messages(head))
            case ipc.StopHistory(request_id):
                self._histories.stop(request_id)
            case ipc.HoldCheckpoint(request_id):
                self.log.hold_checkpoint(request_id)
            case ipc.ReleaseCheckpoint(number):
                self.log.release_checkpoint(number)
            case ipc.FindRows(request_id, lsn, above):
                self._control.send(ipc.RowsFound(request_id, self.log.catalog.find_rows(lsn, above)))
            case ipc.KeepStandingPins(request_id, pins):
                self._start(self.log.keep_standing_pins(request_id, pins))
            case ipc.CommitsWanted(by_loop, is_full):
                self.log.want_commits(by_loop=by_loop, is_full=is_full)
            case ipc.Committed():
                self._start(self.log.committed())
            case ipc.Switched(by_loop):
                self._start(self.log.lending.switched(by_loop=by_loop))
            case ipc.Announce(address):
                assert self.log.replication is not None
                self.log.replication.announce(address)
            case ipc.LoadAccounts(request_id):
                self._start(self._load_accounts(request_id))
            case ipc.StoreAccounts(request_id, expected_version, size):
                self._start(self._store_accounts(request_id, expected_version, data[offset : offset + size]))
            case ipc.Open(settings):
                # A task: the wait for the lock and the inspection take seconds, and the end of a socket must be seen.
                self._start(self._open(settings))
            case ipc.Close(last_lsn):
                # The last frame of the loop process, so no frame can overtake the task.
                self._start(self._close(last_lsn))
            case _:
                raise AssertionError(head)

    def _on_pages(self, head: ipc.AnyHead, _data: bytes, _offset: int) -> None:
        match head:
            case ipc.ReadPage() | ipc.ReadPublished():
                self.log.pager.request(head)
            case ipc.RecoverNext():
                # Counted, because the loop process asks ahead: the next chunk is read while it decodes the last.
                self._chunks_wanted.release()
            case _:
                raise AssertionError(head)

    # From the lock to the recovery stream

    async def _open(self, settings: StorageSettings) -> None:
        folder = self._folder = DataFolder(Path(settings.folder))
        folder.create()
        await folder.lock(
            settings.lock_wait_ms,
            LockHolder(os.getpid(), self._broker_pid),
            lambda text: self._control.send(ipc.FolderInUse(text, settings.lock_wait_ms)),
        )
        disk = self._make_disk(folder.path, settings.ballast_bytes, settings.start_ballast_bytes)
        _make_room(folder, disk)
        boot = boot_id()
        engine = await asyncio.to_thread(self._open_engine, settings, self._is_ending)
        tail: Tail | None = None
        if engine is not None:
            self._watch = EngineWatch(engine, lambda status: self._control.send(ipc.EngineChanged(status)), monotonic)
            # From here on: the inspection may wait for an engine that does not answer.
            self._start(self._watch.run())
        # In a thread, here and below: the loop must notice the end of a socket during minutes of reading.
        if engine is None:
            recovered = await asyncio.to_thread(
                inspect, folder, accept_loss=settings.accept_loss, durability=settings.durability, boot_id=boot
            )
        else:
            # The rows are durable in the engine, and the segments are not synced.
            settings = structs.replace(settings, durability=Durability.OS)
            recovered, tail = await asyncio.to_thread(inspect_cache, folder, engine, settings.shard, boot)
        mode, kept = folder.file_mode(group_readable=settings.group_readable)
        if kept:
            recovered.find("modes_kept", kept)
        # Before the first file is written. SQLite makes a database with the mask, and its -wal and -shm with the mode
        # of the database, so a reader of the group could open the file and not its WAL.
        os.umask(0o777 & ~mode)
        await asyncio.to_thread(put_right, recovered)
        replication: Replication | None = None
        if engine is not None:
            await asyncio.to_thread(take_checkpoint, recovered, engine)
        catalog = recovered.catalog(settings.durability, boot)
        if engine is not None:
            replication = Replication(
                engine,
                settings.shard,
                catalog,
                recovered.checkpoint_lsn,
                on_accounts=lambda accounts: self._send_accounts(0, accounts),
                watch=self._watch,
                process=process_name(self._broker_pid, boot),
            )
        log = self.log = OpenLog(catalog, settings, disk, self._control, self._pages, self._start, replication)
        await log.take_up(recovered, mode, self._commits, self._on_lost, tail)
        if replication is None:
            # The loop process may commit too, and holds the lock as long as it can.
            self._commits.hand_on(folder.lock_descriptor)
        # A failed fsync may have dropped the pages from the cache, and a second fsync would report success: no retry.
        log.writer.failed.add_done_callback(lambda failed: self.end(failed.exception()))
        self._histories = HistoryReads(catalog, log.pager, log.durable)
        self._start(self._send_recovery(recovery_stream(recovered, catalog), recovered.last_lsn))
        self._control.send(log.opened(recovered))

    def _is_ending(self) -> bool:
        """Return whether the service ends; for the threads that wait for the engine."""
        return self._ended.done()

    async def _send_recovery(self, stream: Iterator[Chunk], last_lsn: int) -> None:
        """Send a chunk for each request of the loop."""
        while True:
            await self._chunks_wanted.acquire()
            chunk = await asyncio.to_thread(next, stream, None)
            if chunk is None:
                break
            head, blobs = chunk
            self._pages.send(head, *blobs)
        # Not earlier: a seal or a drop would take files away that the stream still reads.
        self.log.begin_upkeep()
        catalog, replication = self.log.catalog, self.log.replication
        epoch, takeover, standing_pins = 0, None, catalog.standing_pins
        if replication is not None:
            while (copied := await replication.next_chunk()) is not None:
                head, blobs = copied
                self._pages.send(head, *blobs)
                await self._chunks_wanted.acquire()
            assert replication.taken is not None
            # Behind the fence: no earlier leader changes them any more. Ahead of the end of the recovery, and so of
            # the first drop.
            standing_pins = await replication.load_standing_pins()
            last_lsn, epoch, takeover = replication.taken.last_lsn, replication.taken.epoch, replication.takeover
            self._start(self._watch.run_views(replication.view))
            # A crash may have come between the word of a drop and its trim.
            self._start(replication.trim(catalog.dropped))
            self._start(self._remove_old_caches())
        self._pages.send(ipc.RecoverEnd(last_lsn, catalog.log_id, epoch, takeover, standing_pins))

    async def _remove_old_caches(self) -> None:
        """Remove old caches in ``set-aside/``: the copy of the log is complete."""
        catalog = self.log.catalog
        assert catalog.cache_of is not None
        try:
            removed = await asyncio.to_thread(remove_old_caches, catalog.folder, catalog.cache_of)
        except OSError as error:
            complain(f"an old cache was not removed: {error}")
        else:
            for path in removed:
                complain(f"an old cache was removed: {path}")

    async def _describe_active(self, request_id: int) -> None:
        self._control.send(ipc.ActiveSegment(request_id, await self.log.active_segment()))

    async def _find_history(self, request: ipc.FindHistory) -> None:
        self._control.send(ipc.HistoryFound(request.request_id, await self._histories.answer(request)))

    async def _find_messages(self, request: ipc.FindMessages) -> None:
        self._control.send(ipc.MessagesFound(request.request_id, await self._histories.found(request)))

    async def _load_accounts(self, request_id: int) -> None:
        assert self.log.replication is not None
        self._send_accounts(request_id, await self.log.replication.load_accounts())

    def _send_accounts(self, request_id: int, accounts: StoredAccounts | None) -> None:
        if accounts is None:
            self._control.send(ipc.Accounts(request_id, 0))
        else:
            self._control.send(ipc.Accounts(request_id, accounts.version, len(accounts.data)), accounts.data)

    async def _store_accounts(self, request_id: int, expected_version: int, data: bytes) -> None:
        assert self.log.replication is not None
        try:
            version = await self.log.replication.store_accounts(data, expected_version)
            self._control.send(ipc.Accounts(request_id, version))
        except AccountsConflict as conflict:
            self._control.send(ipc.Accounts(request_id, conflict.version, is_conflict=True))

    async def _close(self, last_lsn: int) -> None:
        # The folder is free before the answer: the next broker may start as soon as this broker has ended.
        await self.log.close(last_lsn)
        # A folder with unsealed segments stays locked until the exit: a seal may still be writing into it.
        if self.log.catalog.clean and self._folder is not None:
            self._folder.unlock()
        self._control.send(ipc.Closed())


def _make_room(folder: DataFolder, disk: Disk) -> None:
    """Give reserves back until the start has room: only consumers can empty a full disk, and they need a broker.

    The reserve of the start goes first: the ballast is for the deletes of the consumers.
    """
    wals = sum(used_bytes(str(path)) for path in folder.segments.glob("*-wal"))
    needed = START_BYTES + wals // WAL_PER_INDEX_BYTE
    for reserve in (disk.start_ballast, disk.ballast):
        if disk.free_bytes() < needed:
            reserve.release()
    free = disk.free_bytes()
    if free < needed:
        raise LogFailed(f"the disk of {folder.path} is full: {free} bytes free, {needed} needed")


def _last_frame(error: Exception) -> ipc.Failed:
    """Return the frame that tells the loop process about an error. ``LogError`` first: its text is for the operator."""
    match error:
        case Fenced():
            return ipc.Failed(LeadLost.__name__, str(error))
        case LogError():
            return ipc.Failed(type(error).__name__, str(error))
        case NewerFormatError():
            # The record is in a row below the checkpoint, which only the read of a page decodes.
            return ipc.Failed("FolderFormatError", str(error))
        case sqlite3.Error() | OSError():
            return ipc.Failed("LogFailed", f"the disk failed: {_describe(error)}")
        case _:
            complain_of_exception()
            return ipc.Failed("LogFailed", f"a defect in storage: {_describe(error)}")


def _describe(error: BaseException) -> str:
    name = getattr(error, "sqlite_errorname", None)
    return f"{type(error).__name__}{f' {name}' if name else ''}: {error}"


def main(arguments: list[str]) -> int:
    """``python -m cmqd.storage CONTROL_FD PAGES_FD COMMITS_FD PARENT_PID``; see ``__main__``."""
    *descriptors, parent = map(int, arguments)
    if os.getppid() != parent:
        # The parent died before ``__main__`` asked for a signal at its death, so no signal would come.
        return 1
    import uvloop

    async def serve() -> int:
        service = StorageService(parent)
        # The parent died (see ``__main__``): as if its sockets had ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, service.end)
        control, pages, commits = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        return await service.run(control, pages, commits)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(serve())
        # Inside the ``with``, because at its end the runner would wait for threads. A thread may be in the middle of a
        # seal, and the next start repeats the seal.
        os._exit(status)
