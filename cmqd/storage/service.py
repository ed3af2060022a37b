"""The storage process: assemble the rooms of this package around the two sockets to the loop process.

The process lives as long as both sockets. At the end of either, or when its parent dies, it finishes the commit under
way, abandons seals and exits. A crash of the loop process leaves time for no more, and recovery handles the rest. After
an error that must not be retried, the process sends a last frame and exits with status 1.

Orders that matter, because a crash may come between any two steps:

- Manifest before file for a new segment: a file that the manifest does not list is moved aside by the next start.
- Manifest *dropping* before unlink, and *dropped* after it: a file that is missing without a word in the manifest is
  damage.
- Durable deletes before a drop: otherwise the crash takes the deletes back, and live messages have lost their bodies.
- Losses in the manifest before the damaged files are put aside: otherwise the next start finds a folder that looks
  whole, and gives the numbers of lost rows to new rows.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from time import monotonic, time
from typing import Any

from cmqd.log.errors import LogError, LogFailed
from cmqd.log.values import RecoveryReport
from cmqd.storage import ipc
from cmqd.storage.catalog import Catalog, OpenSegment, SealedFile
from cmqd.storage.checkpoint_writer import Checkpoints
from cmqd.storage.data_folder import DataFolder, Disk, boot_id
from cmqd.storage.disk_space import Space
from cmqd.storage.freshness import Freshness
from cmqd.storage.identity import new_log_id, new_start_number
from cmqd.storage.inspection import Recovered, checkpoint_chunks, inspect, put_right, row_chunks
from cmqd.storage.pager import Pager
from cmqd.storage.sealer import Sealer, truncate_wal
from cmqd.storage.segment import LogRow, WritableSegment, create_segment, open_connection
from cmqd.storage.settings import StorageSettings
from cmqd.storage.standard_error import complain_of_exception
from cmqd.storage.writer import Writer, is_disk_full
from cmqd_segment.manifest import SegmentEntry, SegmentState, merge_ranges, sync_folder, with_start
from cmqd_segment.newer import NewerFormatError

GOODBYE_SECONDS = 1.0
"""Time for the last frame to leave."""
PREPARE_RETRY_SECONDS = 1.0
CLOSE_SEAL_SECONDS = 1.0
"""Time that an orderly stop gives to seals. A reader from outside may hold up a seal for ever, and the next start seals
the rest. Less than the loop process waits for the whole stop (``CLOSE_LOG_S`` of the daemon)."""
START_BYTES = 1024 * 1024
"""Free space without which a start is refused: two new segments and a few manifests. WAL-indexes of unsealed segments
come on top."""
WAL_PER_INDEX_BYTE = 500
"""Bytes of a WAL for each byte of its index (32 KiB for 4,096 frames of 4 KiB)."""


class StorageService:
    """See the module. ``disk`` is replaced by tests."""

    def __init__(self, broker_pid: int, disk: Callable[[Path, int, int], Disk] = Disk) -> None:
        self._broker_pid = broker_pid
        self._make_disk = disk
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the service must end, with the error that is to blame, if any."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        self._stream: Iterator[tuple[ipc.Head, list[bytes]]] | None = None
        self._chunks_wanted = asyncio.Semaphore(0)
        self._rolling: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._drops: list[ipc.DropSegments] = []
        """Requests that wait until the deletes that emptied the segments are durable."""
        self._mode = 0o600
        """Of new files of the log."""
        self._umask = 0o022
        """Mask before the start, restored at the end."""
        self.control: ipc.Channel
        self.pages: ipc.Channel
        self.folder: DataFolder
        self.settings: StorageSettings
        self.catalog: Catalog
        self.disk: Disk
        self.space: Space
        self.writer: Writer
        self.pager: Pager
        self.sealer: Sealer
        self.checkpoints: Checkpoints
        self.freshness = Freshness(monotonic)

    async def run(self, control: socket.socket, pages: socket.socket) -> int:
        """Serve until the loop process goes away or says goodbye; returns the exit status."""
        self.control = await ipc.attach(control, self._on_control, self._on_lost)
        self.pages = await ipc.attach(pages, self._on_pages, self._on_lost)
        status = 0
        try:
            await self._ended
        except LogError as error:
            self.control.send(ipc.Failed(type(error).__name__, str(error)))
            status = 1
        except NewerFormatError as error:
            # The record is in a row below the checkpoint, which only the read of a page decodes.
            self.control.send(ipc.Failed("FolderFormatError", str(error)))
            status = 1
        except (sqlite3.Error, OSError) as error:
            self.control.send(ipc.Failed("LogFailed", f"the disk failed: {_describe(error)}"))
            status = 1
        except Exception as error:
            complain_of_exception()
            self.control.send(ipc.Failed("LogFailed", f"a defect in storage: {_describe(error)}"))
            status = 1
        if status == 0 and hasattr(self, "writer"):
            self.writer.stop()
            await self.writer.drained()
        for task in self._tasks:
            task.cancel()
        self.control.close()
        self.pages.close()
        try:
            await asyncio.wait_for(self._lost.wait(), GOODBYE_SECONDS)
        except TimeoutError:
            self.control.abort()
        return status

    async def release(self) -> None:
        """Close every file and thread: for a service that is not alone in its process. The process itself just exits,
        since closing a segment would copy its WAL first.
        """
        if not hasattr(self, "catalog"):
            return
        # Tasks begun since the end are included. A segment that a task is opening is closed by the task.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pager.close()
        for entry in self.catalog.open.values():
            await entry.segment.connection.close()
        os.umask(self._umask)
        self.folder.unlock()

    def end(self, error: BaseException | None = None) -> None:
        """Stop serving; with an error, tell the loop and exit with status 1."""
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    def _on_lost(self) -> None:
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
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    # Frames from the loop

    def _on_control(self, head: ipc.AnyHead, data: bytes, offset: int) -> None:
        match head:
            case ipc.Commit(first_lsn, rows):
                view = memoryview(data)
                batch: list[LogRow] = []
                for lsn, (time_ms, messages, queues, meta_size, data_size) in enumerate(rows, first_lsn):
                    body = offset + meta_size
                    end = body + data_size
                    batch.append(LogRow(lsn, time_ms, messages, queues, view[offset:body], view[body:end]))
                    offset = end
                self.writer.submit(batch)
            case ipc.CheckpointPart(first, end_lsn, size):
                self.checkpoints.write(first, end_lsn, data[offset : offset + size])
            case ipc.DropSegments():
                self._drops.append(head)
                self._begin_drops()
            case ipc.SegmentNames(number, names):
                self.sealer.names_told(number, names)
            case ipc.DeletedNames(names):
                self.catalog.note_deleted(names)
            case ipc.SealNow(request_id):
                self._start(self._seal_now(request_id))
            case ipc.Open(settings):
                self._start(self._open(settings))
            case ipc.Close():
                self._start(self._close())
            case _:
                raise AssertionError(head)

    def _on_pages(self, head: ipc.AnyHead, _data: bytes, _offset: int) -> None:
        match head:
            case ipc.ReadPage():
                self.pager.request(head)
            case ipc.RecoverNext():
                self._chunks_wanted.release()
            case _:
                raise AssertionError(head)

    # Opening

    async def _open(self, settings: StorageSettings) -> None:
        self.settings = settings
        self.folder = DataFolder(Path(settings.folder))
        self.folder.create()
        await self.folder.lock(
            settings.lock_wait_ms,
            self._broker_pid,
            lambda text: self.control.send(ipc.FolderInUse(text, settings.lock_wait_ms)),
        )
        self.disk = self._make_disk(self.folder.path, settings.ballast_bytes, settings.start_ballast_bytes)
        # An opened database takes room for its WAL-index, so this comes first.
        self._make_room()
        boot = boot_id()
        recovered = await asyncio.to_thread(
            inspect,
            self.folder,
            accept_loss=settings.accept_loss,
            durability=settings.durability,
            boot_id=boot,
        )
        self._mode, kept = self.folder.file_mode(group_readable=settings.group_readable)
        if kept:
            recovered.find("modes_kept", kept)
        # SQLite makes a database with the mask, and its -wal and -shm with the mode of the database.
        self._umask = os.umask(0o777 & ~self._mode)
        await asyncio.to_thread(put_right, recovered)
        self._assemble(recovered, boot)
        await self._take_up(recovered)
        self._stream = self._recovery_stream(recovered)
        self._start(self._send_recovery())
        self.control.send(self._opened(recovered))

    def _assemble(self, recovered: Recovered, boot: str) -> None:
        settings = self.settings
        catalog = self.catalog = Catalog(self.folder, settings.durability, boot)
        catalog.sealed = {file.number: file for file in recovered.sealed}
        catalog.checkpoints = list(recovered.checkpoints)
        catalog.losses = recovered.losses
        catalog.next_number = recovered.manifest.next_number
        catalog.names = {name.id: name for name in recovered.manifest.names}
        catalog.log_id = recovered.manifest.log_id or new_log_id()
        catalog.former_log_ids = recovered.manifest.former_log_ids
        catalog.starts = with_start(recovered.manifest.starts, new_start_number(), recovered.last_lsn + 1)
        catalog.dropped = merge_ranges(
            (
                *recovered.manifest.dropped,
                *((entry.first_lsn, entry.last_lsn) for entry in recovered.dropping if entry.rows),
            )
        )
        self.space = Space(
            catalog,
            self.disk,
            settings.min_free_bytes,
            lambda state: self.control.send(ipc.StateChanged(state)),
        )
        self.pager = Pager(
            catalog,
            durable_lsn=lambda: self.writer.durable_lsn,
            send=self.pages.send,
            on_damage=self._on_damage,
            cache_bytes=settings.page_cache_bytes,
            open_segments=settings.open_segments,
        )
        catalog.on_full = self.space.found_no_room
        self.sealer = Sealer(catalog, self.pager, self._on_sealed, self.space.can_seal, self.control.send)
        self.checkpoints = Checkpoints(
            catalog,
            kept=settings.checkpoints_kept,
            durable_lsn=lambda: self.writer.durable_lsn,
            on_done=self._on_checkpoint_done,
            on_full=self._on_checkpoint_abandoned,
        )

    def _make_room(self) -> None:
        """Give reserves back until the start has room: only consumers can empty a full disk, and they need a broker."""
        wals = sum(path.stat().st_size for path in self.folder.segments.glob("*-wal"))
        needed = START_BYTES + wals // WAL_PER_INDEX_BYTE
        for reserve in (self.disk.start_ballast, self.disk.ballast):
            if self.disk.free_bytes() < needed:
                reserve.release()
        free = self.disk.free_bytes()
        if free < needed:
            raise LogFailed(f"the disk of {self.folder.path} is full: {free} bytes free, {needed} needed")

    async def _take_up(self, recovered: Recovered) -> None:
        """Open unsealed segments, make a fresh active segment and its successor, and write the manifest."""
        catalog = self.catalog
        durability = self.settings.durability
        for leftover in recovered.leftovers:
            # A crash may have come after the sealer made the file read-only and before the manifest said so.
            leftover.path.chmod(self._mode)
            connection = await open_connection(leftover.path, durability, create=False)
            segment = WritableSegment(leftover.number, leftover.path, connection)
            await segment.load()
            catalog.open[leftover.number] = OpenSegment(segment, SegmentState.RETIRED)
        active = await self._prepare()
        catalog.open[active.number].state = SegmentState.ACTIVE
        self.writer = Writer(
            active,
            self.space,
            segment_bytes=self.settings.segment_bytes,
            segment_age_ms=self.settings.segment_age_ms,
            on_durable=self._on_durable,
            on_retired=self._on_retired,
        )
        self.writer.durable_lsn = recovered.last_lsn
        self.freshness.told(recovered.last_lsn, active.number, 0)
        self.writer.prepared = await self._prepare()
        for number in recovered.broken_wals & catalog.open.keys():
            # After an accepted loss the next start must not find the broken WAL again: it would refuse to start. The
            # WAL is emptied only now that the manifest has the loss: with neither of the two, a start would not notice
            # the loss at all.
            await _empty_wal(catalog.open[number].segment)
        # The manifest that was just written does not list these files any more, so a crash here leaves no missing file.
        for number in (*recovered.empty, *(entry.number for entry in recovered.dropping)):
            _unlink_segment(catalog.segment_path(number))
        self.space.begin()
        self.writer.failed.add_done_callback(lambda failed: self.end(failed.exception()))
        self._start(self.pager.run())
        self._start(self.checkpoints.run())

    async def _prepare(self) -> WritableSegment:
        """Create an empty segment: in the manifest before its file exists, and again when the file is whole."""
        catalog = self.catalog
        number = catalog.next_number
        catalog.next_number += 1
        catalog.preparing = number
        path = catalog.segment_path(number)
        while True:
            await catalog.save()
            try:
                segment = await create_segment(number, path, self.settings.durability, int(time() * 1000))
                break
            except (sqlite3.Error, OSError) as error:
                if not (isinstance(error, sqlite3.Error) and is_disk_full(error)):
                    raise
                _unlink_segment(path)
                self.space.found_no_room()
                await asyncio.sleep(PREPARE_RETRY_SECONDS)
        await asyncio.to_thread(sync_folder, self.folder.segments)
        catalog.preparing = None
        catalog.open[number] = OpenSegment(segment, SegmentState.PREPARED)
        await catalog.save()
        return segment

    def _opened(self, recovered: Recovered) -> ipc.Opened:
        # Segments that a crash left unsealed are included: on a full disk they can only be dropped.
        reports = [
            segment.report() if isinstance(segment, SealedFile) else segment.segment.report()
            for segment in self.catalog.segments()
            if isinstance(segment, SealedFile) or segment.state is SegmentState.RETIRED
        ]
        report = RecoveryReport(
            created=recovered.created,
            clean=recovered.manifest.clean,
            checkpoint_lsn=recovered.checkpoint_lsn,
            last_lsn=recovered.last_lsn,
            numbers_jump=recovered.lost,
            findings=tuple(recovered.findings),
            log_id=self.catalog.log_id,
        )
        return ipc.Opened(report, self.catalog.droppable_lsn, reports)

    def _recovery_stream(self, recovered: Recovered) -> Iterator[tuple[ipc.Head, list[bytes]]]:
        if recovered.checkpoint is not None:
            yield from checkpoint_chunks(self.folder.path / recovered.checkpoint.file)
        above = recovered.checkpoint_lsn
        for segment in list(self.catalog.segments()):
            if segment.last_lsn > above:
                yield from row_chunks(segment.path, sealed=segment.immutable, above=above, skip=recovered.skip_rows)

    async def _send_recovery(self) -> None:
        """Send a chunk for each request of the loop. Seals and the regular look at the disk begin after the last chunk,
        because recovery needs the disk more.
        """
        stream = self._stream
        assert stream is not None
        while True:
            await self._chunks_wanted.acquire()
            chunk = await asyncio.to_thread(next, stream, None)
            if chunk is None:
                break
            head, blobs = chunk
            self.pages.send(head, *blobs)
        self.pages.send(ipc.RecoverEnd())
        self._stream = None
        recovered_rows = False
        for entry in list(self.catalog.open.values()):
            if entry.state is SegmentState.RETIRED:
                recovered_rows = True
                self.sealer.submit(entry.segment)
        self._start(self.sealer.run())
        self._start(self._look())
        if recovered_rows:
            self.control.send(ipc.CheckpointWanted())

    # Events at run time

    def _on_durable(self, lsn: int) -> None:
        self.control.send(ipc.Durable(lsn))
        self.pager.on_durable(lsn)
        self.checkpoints.on_durable(lsn)
        self._refresh_manifest()
        if self._drops:
            self._begin_drops()

    def _refresh_manifest(self) -> None:
        """Write the last durable row into the manifest, if that is due. No commit waits for the write."""
        lsn, active = self.writer.durable_lsn, self.writer.active
        if self._refreshing is None and self.freshness.is_due(lsn, active.number, active.wal_bytes):
            self._refreshing = self._start(self._write_fresh_manifest(lsn, active.number, active.wal_bytes))

    async def _write_fresh_manifest(self, lsn: int, number: int, wal_bytes: int) -> None:
        await self.catalog.save()
        self.freshness.told(lsn, number, wal_bytes)
        self._refreshing = None

    def _on_retired(self, segment: WritableSegment) -> None:
        self.catalog.open[segment.number].state = SegmentState.RETIRED
        self.catalog.open[self.writer.active.number].state = SegmentState.ACTIVE
        self._rolling = self._start(self._after_roll(segment))
        self.control.send(ipc.SegmentClosed(segment.report(), self.catalog.sealed_upto))
        self.control.send(ipc.CheckpointWanted())

    async def _after_roll(self, retired: WritableSegment) -> None:
        short = self.space.short
        if short:
            # Its WAL gives back the room that the successor may lack.
            await self.catalog.save()
            self.sealer.submit(retired)
        # The successor comes first: without a successor the active segment cannot be retired and grows.
        prepared = await self._prepare()
        self.writer.prepared = prepared
        if short:
            return
        if self.settings.hold_retired:
            self.sealer.hold(retired)
        else:
            self.sealer.submit(retired)

    def _on_sealed(self, file: SealedFile) -> None:
        self.control.send(ipc.SegmentClosed(file.report(), self.catalog.sealed_upto))
        self.space.look()

    def _on_checkpoint_done(self, lsn: int) -> None:
        self.control.send(ipc.CheckpointDone(lsn, self.catalog.droppable_lsn))

    def _on_checkpoint_abandoned(self) -> None:
        """Ask for a new checkpoint if the ballast made room: without checkpoints no segment can be dropped."""
        if self.space.found_no_room():
            self.control.send(ipc.CheckpointWanted())

    def _on_damage(self, _text: str) -> None:
        self.space.damaged_rows += 1
        self.space.look()

    async def _look(self) -> None:
        while True:
            self.space.look()
            self._refresh_manifest()
            if self.space.short:
                self.sealer.seal_held()
            self.writer.tick()
            await asyncio.sleep(self.settings.state_interval_ms / 1000)

    def _begin_drops(self) -> None:
        durable_lsn = self.writer.durable_lsn
        waiting = self._drops
        self._drops = [drop for drop in waiting if drop.min_lsn > durable_lsn]
        for drop in waiting:
            if drop.min_lsn <= durable_lsn:
                self._start(self._drop(drop.request_id, drop.numbers))

    async def _drop(self, request_id: int, numbers: list[int]) -> None:
        """Reclaim whole segments: manifest "dropping", unlink, manifest forgets."""
        catalog = self.catalog
        entries: dict[int, SegmentEntry] = {}
        unsealed: dict[int, WritableSegment] = {}
        for number in numbers:
            file = catalog.sealed.get(number)
            if file is not None:
                if file.last_lsn <= catalog.droppable_lsn:
                    entries[number] = catalog.sealed.pop(number).entry
            elif number in catalog.open and catalog.open[number].last_lsn <= catalog.droppable_lsn:
                segment = self.sealer.withdraw(number)
                if segment is not None:
                    unsealed[number] = segment
                    entries[number] = segment.entry(SegmentState.RETIRED)
                    del catalog.open[number]
        if entries:
            catalog.dropping |= entries
            await catalog.save()
            for number in entries:
                await self.pager.forget(number)
                if number in unsealed:
                    await unsealed[number].close_uncopied()
                await asyncio.to_thread(_unlink_segment, catalog.segment_path(number))
            await asyncio.to_thread(sync_folder, self.folder.segments)
            for number in entries:
                del catalog.dropping[number]
            ranges = [(entry.first_lsn, entry.last_lsn) for entry in entries.values()]
            catalog.dropped = merge_ranges((*catalog.dropped, *ranges))
            await catalog.save()
        self.control.send(ipc.Answered(request_id, list(entries)))
        self.space.look()

    async def _seal_now(self, request_id: int) -> None:
        await self._rolled()
        await self.writer.roll()
        await self._rolled()
        self.sealer.seal_held()
        await self.sealer.drained()
        self.control.send(ipc.Answered(request_id, []))

    async def _rolled(self) -> None:
        """Wait until the last switch of segments is in the manifest and the next successor stands ready."""
        while self._rolling is not None and not self._rolling.done():
            await asyncio.shield(self._rolling)

    async def _close(self) -> None:
        """Stop in order: rows durable, segments sealed (unless a reader prevents it), manifest clean."""
        await self.writer.drained()
        await self.checkpoints.drained()
        await self._rolled()
        self.freshness.stop()
        # A tick could otherwise retire the segment that is sealed below, and the sealer would get the segment twice.
        self.writer.prepared = None
        self.sealer.seal_held()
        catalog = self.catalog
        active = self.writer.active
        if active.rows:
            catalog.open[active.number].state = SegmentState.RETIRED
            await catalog.save()
            self.sealer.submit(active)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.sealer.drained(), CLOSE_SEAL_SECONDS)
        empty = [entry for entry in catalog.open.values() if entry.state is not SegmentState.RETIRED]
        for entry in empty:
            del catalog.open[entry.number]
        catalog.clean = not catalog.open
        await catalog.save()
        for entry in empty:
            await self.pager.forget(entry.number)
            await entry.segment.connection.close()
            await asyncio.to_thread(_unlink_segment, entry.path)
        await asyncio.to_thread(sync_folder, self.folder.segments)
        if catalog.clean:
            self.folder.unlock()
        self.control.send(ipc.Closed())


async def _empty_wal(segment: WritableSegment) -> None:
    """Copy the WAL into the main file if there is room and no reader in the way; otherwise the sealer will."""

    def empty() -> bool:
        # With any durability setting: the content of the WAL must be on disk before the WAL is emptied.
        segment.connection.raw.execute("PRAGMA synchronous=FULL")
        return truncate_wal(segment)

    try:
        if await segment.connection.run(empty):
            segment.wal_bytes = 0
    except sqlite3.Error as error:
        if not is_disk_full(error):
            raise


def _unlink_segment(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _describe(error: BaseException) -> str:
    name = getattr(error, "sqlite_errorname", None)
    return f"{type(error).__name__}{f' {name}' if name else ''}: {error}"


def main(arguments: list[str]) -> int:
    """``python -m cmqd.storage CONTROL_FD PAGES_FD PARENT_PID``; see ``__main__``."""
    control_fd, pages_fd, parent = map(int, arguments)
    if os.getppid() != parent:
        return 1
    import uvloop

    async def serve() -> int:
        service = StorageService(parent)
        # The parent died (see ``__main__``): as if its sockets had ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, service.end)
        return await service.run(socket.socket(fileno=control_fd), socket.socket(fileno=pages_fd))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(serve())
        # Threads may be in the middle of a seal. The next start repeats the seal, so the exit does not wait for
        # threads.
        os._exit(status)
