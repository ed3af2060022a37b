"""The open log in the storage process: its rooms joined, and the life of its segments.

    prepared ─► active ─► retired ─► sealed ─► dropping ─► gone

Orders that matter, because a crash may come between any two steps:

- Manifest before file for a new segment: a file that the manifest does not list is moved aside by the next start.
- *Retired* in the manifest before the seal, *sealed* after it: a repeated seal does no harm, but a file that is called
  sealed is read without its WAL, and rows still in the WAL would be missing.
- Manifest *dropping* before unlink, and *dropped* after it: a file that is missing without a word in the manifest is
  damage.
- With an engine, a proof of the lead before the manifest *dropping*: a broker that was fenced unaware decides by an old
  index, and its next lead would trim living rows, by the manifest.
- With an engine, its rows are trimmed between the manifest *dropping* and the unlink. After a crash before the trim
  the next lead of this broker trims them, by the manifest.
- A standby lists a checkpoint of the engine before it drops segments whose rows the engine has trimmed: the next start
  could not begin with an older one.
- Durable deletes before a drop: otherwise the crash takes the deletes back, and live messages have lost their bodies.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from time import monotonic, time

from cmqd.log.values import HeldCheckpoint, RecoveryReport, SegmentReport
from cmqd.storage import ipc
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.folder.data_folder import Disk
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.folder.manifest_freshness import Freshness
from cmqd.storage.outcomes.rounds import Rounds
from cmqd.storage.reading.pager import Pager
from cmqd.storage.recovery.folder_inspection import Recovered
from cmqd.storage.redundancy.following import Tail
from cmqd.storage.redundancy.replication import Replication
from cmqd.storage.segment_drops import SegmentDrops, StartTask, remove_segment
from cmqd.storage.segments.page_size import page_bytes_after
from cmqd.storage.segments.row_inserts import is_disk_full
from cmqd.storage.segments.segment import WritableSegment, create_segment, open_connection
from cmqd.storage.storage_settings import StorageSettings
from cmqd.storage.writing.checkpoint_writer import Checkpoints
from cmqd.storage.writing.commit_socket import CommitSocket
from cmqd.storage.writing.lending import Lending
from cmqd.storage.writing.page_fitting import PageFitting
from cmqd.storage.writing.sealer import Sealer, truncate_wal
from cmqd.storage.writing.side_files import SideFiles
from cmqd.storage.writing.wal_filling import Filling
from cmqd.storage.writing.writer import Writer
from cmqd_segment.manifest import SegmentState, StandingPinEntry, sync_folder
from cmqd_segment.schema import PAGE_BYTES, Origin

PREPARE_RETRY_SECONDS = 1.0
CLOSE_SEAL_SECONDS = 1.0
"""Time that an orderly stop gives to seals. A reader from outside may hold up a seal forever, and the next start seals
the rest. Less than the loop process waits for the whole stop (``CLOSE_LOG_S`` of the daemon)."""


class OpenLog:
    """Runs the rooms of the storage process and moves segments from state to state; see the module."""

    def __init__(
        self,
        catalog: Catalog,
        settings: StorageSettings,
        disk: Disk,
        control: ipc.Channel,
        pages: ipc.Channel,
        start: StartTask,
        replication: Replication | None = None,
    ) -> None:
        """Join the rooms, in the order of their dependencies.

        Args:
            catalog: content of the folder after its inspection.
            settings: of the broker.
            disk: under the folder.
            control: first socket to the loop process.
            pages: second socket.
            start: runs a task; an exception in the task ends the process.
            replication: the log in an engine, None without redundancy.
        """
        self.catalog, self.settings, self.disk = catalog, settings, disk
        self.replication = replication
        self._control, self._start = control, start
        self.durable = DurableLsn(0)
        space = Space(catalog, disk, settings.min_free_bytes, lambda state: control.send(ipc.StateChanged(state)))
        self.space = space
        catalog.on_full = space.found_no_room
        pager = self.pager = Pager(
            catalog,
            durable=self.durable,
            send=pages.send,
            on_damage=self._on_damage,
            cache_bytes=settings.page_cache_bytes,
            open_segments=settings.open_segments,
        )
        sides = self.sides = SideFiles(catalog, lambda: space.is_short, lambda: self.drops.is_stopping)
        self.sealer = Sealer(catalog, pager, sides, self._on_sealed, space.can_seal, control.send, self._is_hurried)
        rounds = self._new_rounds()
        self.drops = SegmentDrops(catalog, pager, self.sealer, self.durable, space, control, replication, start, rounds)
        self.drop_reclaimed = self.drops.drop_reclaimed
        self.checkpoints = Checkpoints(
            catalog,
            kept=settings.checkpoints_kept,
            durable=self.durable,
            on_done=self._on_checkpoint_done,
            on_full=self._on_checkpoint_abandoned,
            is_hurried=self._is_hurried,
            rounds=rounds,
            start=start,
            keep_elsewhere=None if replication is None else replication.keep_checkpoint,
        )
        self.freshness = Freshness(monotonic)
        self.writer: Writer
        """Made by ``take_up``, because a writer needs a segment."""
        self._leftovers: list[WritableSegment] = []
        """Segments that the life before left unsealed; none of the segments that this life has retired, which are in
        the line of the sealer already. With an engine, the copy can retire one before ``begin_upkeep``."""
        self._rolling: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def _new_rounds(self) -> Rounds:
        async def catch_up() -> None:
            await self.lending.catch_up()

        return Rounds(
            self.catalog,
            catch_up,
            is_short=lambda: self.space.is_short,
            is_stopping=lambda: self.drops.is_stopping,
            on_skipped=self._on_round_skipped,
        )

    def _is_hurried(self) -> bool:
        return self.drops.is_hurried()

    # Opening

    async def take_up(
        self,
        recovered: Recovered,
        mode: int,
        commits: CommitSocket,
        on_lost: Callable[[], None],
        tail: Tail | None = None,
    ) -> None:
        """Open unsealed segments, make a fresh active segment and its successor, and write the manifest.

        The commit thread reads ``commits``, and calls ``on_lost`` when the loop process has ended its side. With an
        engine, begin to follow its log behind ``tail``, the last row of the folder.
        """
        catalog = self.catalog
        settings = self.settings
        for leftover in recovered.leftovers:
            # A crash may have come after the sealer made the file read-only and before the manifest said so.
            leftover.path.chmod(mode)
            connection = await open_connection(leftover.path, settings.durability, create=False)
            segment = WritableSegment(leftover.number, leftover.path, connection, SegmentState.RETIRED)
            await segment.load()
            catalog.open[leftover.number] = segment
            self._leftovers.append(segment)
        page_bytes = self._page_bytes_at_start()
        active = await self._prepare(page_bytes)
        active.state = SegmentState.ACTIVE
        self.writer = Writer(
            active,
            commits,
            self.durable,
            self.space,
            settings,
            on_grown=self._on_grown,
            on_retired=self._on_retired,
            on_lost=on_lost,
            ask_switch=lambda number, by_loop: self._control.send(ipc.SwitchWanted(number, by_loop)),
            engine=None if self.replication is None else self.replication.engine,
        )
        self.filling = Filling(catalog, self.space, settings, self.writer)
        self.page_fitting = PageFitting(catalog, self.space, self.writer, self._prepare, self._remove_unused)
        self.lending = Lending(self.writer, self.durable, lambda lsn: self._control.send(ipc.LsnWanted(lsn)))
        self.durable.raise_to(recovered.last_lsn)
        self.freshness.told(recovered.last_lsn, active.number, 0)
        self.writer.prepared = await self._prepare(page_bytes)
        for number in recovered.broken_wals & catalog.open.keys():
            # After an accepted loss the next start must not find the broken WAL again: it would refuse to start. The
            # WAL is emptied only now that the manifest has the loss: with neither of the two, a start would not notice
            # the loss at all.
            await _empty_wal(catalog.open[number])
        # The manifest that was just written does not list these files any more, so a crash here leaves no missing file.
        _remove_forgotten(catalog, recovered)
        # Not before the start's own files are written: the reserves would take the room that the start was given.
        self.space.begin()
        self._start(self.pager.run())
        self._start(self.checkpoints.run())
        if self.replication is None:
            self.writer.start()
        else:
            self.replication.start(self.writer, tail, self)

    def _page_bytes_at_start(self) -> int:
        """Return the page size of the first new segments, by the newest segment of the folder."""
        newest = max(self.catalog.segments(), key=lambda segment: segment.number, default=None)
        if newest is None:
            return page_bytes_after(0, 0)
        if isinstance(newest, SealedFile):
            # The size of the file: little more than its rows, of a size at which pages matter.
            return page_bytes_after(newest.entry.rows, newest.entry.bytes)
        return page_bytes_after(newest.rows, newest.row_bytes)

    async def _prepare(self, page_bytes: int) -> WritableSegment:
        """Create an empty segment: in the manifest before its file exists, and again when the file is whole.

        A full disk is waited for, because the active segment can grow meanwhile, and consumers make room.
        """
        catalog = self.catalog
        number = catalog.next_number
        catalog.next_number += 1
        catalog.preparing = number
        path = catalog.segment_path(number)
        while True:
            await catalog.save()
            try:
                segment = await create_segment(
                    number, path, self.settings.durability, int(time() * 1000), page_bytes, self._origin()
                )
                break
            except sqlite3.Error as error:
                if not is_disk_full(error):
                    raise
                remove_segment(path)
                self.space.found_no_room()
                await asyncio.sleep(PREPARE_RETRY_SECONDS)
        try:
            # The name is made durable before the manifest calls the file whole: the manifest alone, after a loss of
            # power, would list a file that is not there.
            await asyncio.to_thread(sync_folder, self.catalog.folder.segments)
        except BaseException:
            # The segment is not in the catalog, whose segments ``release`` closes, and its thread would stay.
            await segment.close()
            raise
        catalog.preparing = None
        catalog.open[number] = segment
        await catalog.save()
        return segment

    async def _remove_unused(self, segment: WritableSegment) -> None:
        """Close a segment without rows, and remove its files."""
        await self.pager.forget(segment.number)
        await segment.close()
        await asyncio.to_thread(remove_segment, segment.path)

    def _origin(self) -> Origin:
        """Return the log that new segments are of. A broker that meets an empty engine learns the id with its lead."""
        catalog = self.catalog
        if self.replication is None:
            return Origin(catalog.log_id)
        return Origin("" if catalog.cache_of is None else catalog.cache_of.log_id, self.settings.shard)

    def opened(self, recovered: Recovered) -> ipc.Opened:
        """Describe the log to the loop process."""
        report = RecoveryReport(
            created=recovered.created,
            clean=recovered.manifest.clean,
            checkpoint_lsn=recovered.checkpoint_lsn,
            last_lsn=recovered.last_lsn,
            numbers_jump=recovered.lost,
            findings=tuple(recovered.findings),
            log_id=self.catalog.log_id,
            restored=recovered.restored,
        )
        catalog = self.catalog
        return ipc.Opened(report, catalog.droppable_lsn, self.closed_segments())

    def closed_segments(self) -> list[SegmentReport]:
        """Describe the segments that are written no more.

        Those that a crash left unsealed are included: on a full disk they can only be dropped.
        """
        return [
            segment.report()
            for segment in self.catalog.segments()
            if isinstance(segment, SealedFile) or segment.state is SegmentState.RETIRED
        ]

    def begin_upkeep(self) -> None:
        """Begin seals and the regular measurement of the disk: after recovery, which needs the disk more."""
        leftovers, self._leftovers = self._leftovers, []
        for segment in leftovers:
            self.sealer.submit(segment)
        self._start(self.sealer.run())
        self._start(self._upkeep())
        self.sides.begin(self._start)
        self.checkpoints.begin_rounds()
        if leftovers:
            self._control.send(ipc.CheckpointWanted())

    # Events at run time

    def _on_grown(self) -> None:
        self.space.measure()
        self._refresh_manifest()
        self._fit_prepared()

    def _refresh_manifest(self) -> None:
        """Write the last durable row into the manifest, if that is due. No commit waits for the write."""
        lsn, active = self.durable.value, self.writer.active
        if self._refreshing is None and self.freshness.is_due(lsn, active.number, active.wal_bytes):
            self._refreshing = self._start(self._write_fresh_manifest(lsn, active.number, active.wal_bytes))

    async def _write_fresh_manifest(self, lsn: int, number: int, wal_bytes: int) -> None:
        await self.catalog.save()
        # The values from before the write: rows committed meanwhile may not be in the manifest.
        self.freshness.told(lsn, number, wal_bytes)
        self._refreshing = None

    def _on_retired(self, segment: WritableSegment) -> None:
        self.writer.active.state = SegmentState.ACTIVE
        if not segment.rows:
            # It was lent, and taken back before its first row.
            self._rolling = self._start(self._replace_unused(segment))
            return
        segment.state = SegmentState.RETIRED
        # A task, because a commit must not wait for the manifest. Until the manifest is written, a start would read the
        # prepared segment with rows as an active segment, so a crash in between is safe.
        self._rolling = self._start(self._after_roll(segment))
        self._control.send(ipc.SegmentClosed(segment.report(), self.catalog.sealed_upto))
        self._control.send(ipc.CheckpointWanted())

    async def _after_roll(self, retired: WritableSegment) -> None:
        short = self.space.short
        if short:
            # Its WAL gives back the room that the successor may lack.
            await self.catalog.save()
            self.sealer.submit(retired)
        # The successor comes first: without a successor the active segment cannot be retired and grows.
        self.writer.offer(await self._prepare(self._page_bytes_after(retired)))
        if short:
            return
        # A segment that is soon empty is dropped unsealed and its WAL never copied. Kept history is not dropped.
        if self.settings.hold_retired:
            self.sealer.hold(retired)
        else:
            self.sealer.submit(retired)

    def _page_bytes_after(self, retired: WritableSegment) -> int:
        """Return the page size of the next segment; the smallest on a disk that is nearly full, where a small commit
        into large pages would take room that deletes may need.
        """
        return PAGE_BYTES if self.space.is_short else page_bytes_after(retired.rows, retired.row_bytes)

    async def _replace_unused(self, segment: WritableSegment) -> None:
        """Prepare a successor, with which the manifest forgets the segment, and remove the segment."""
        del self.catalog.open[segment.number]
        self.writer.offer(await self._prepare(segment.page_bytes))
        await self._remove_unused(segment)

    def _on_sealed(self, file: SealedFile) -> None:
        self._control.send(ipc.SegmentClosed(file.report(), self.catalog.sealed_upto))
        self.space.measure()

    def _on_checkpoint_done(self, lsn: int) -> None:
        # Without held checkpoints: the loop process holds the segments itself, and ends the holds before a drop.
        self._control.send(ipc.CheckpointDone(lsn, self.checkpoints.droppable_lsn))

    def _on_checkpoint_abandoned(self) -> None:
        """Ask for a new checkpoint if the ballast made room: without checkpoints no segment can be dropped."""
        if self.space.found_no_room():
            self._control.send(ipc.CheckpointWanted())

    def _on_damage(self, _text: str) -> None:
        self.space.damaged_rows += 1
        self.space.measure()

    def _on_round_skipped(self) -> None:
        self.space.rounds_skipped += 1
        self.space.measure()

    async def _upkeep(self) -> None:
        while True:
            await self.lending.catch_up()
            # The measurement first: whether room is short decides about held segments and an early end of the active.
            self.space.measure()
            self._refresh_manifest()
            if self.space.short:
                self.sealer.seal_held()
            self.writer.tick()
            if self.space.short:
                # Behind the switch, which may just have made a filled segment active. Its zeros would hold the room for
                # the seal of the segment before.
                self.writer.drop_zeros()
            self._fit_prepared()
            await asyncio.sleep(self.settings.state_interval_ms / 1000)

    def _fit_prepared(self) -> None:
        """Begin a change of the pages or of the zeros of the prepared segment, if one is due and no switch of segments
        is under way.
        """
        if self._rolling is None or self._rolling.done():
            # As a switch: what needs a successor waits until the writer has it back.
            if self.page_fitting.is_due():
                self._rolling = self._start(self.page_fitting.run())
            elif self.filling.is_due():
                self._rolling = self._start(self.filling.run())

    # Requests of the loop process

    def want_commits(self, *, by_loop: bool, is_full: bool) -> None:
        """Let the loop process commit, or the commit thread, from the next switch on, which comes soon."""
        if is_full:
            self.space.found_no_room()
        self.writer.loop_commits = by_loop
        self.writer.tick()

    async def committed(self) -> None:
        """Take note that the loop process has committed rows."""
        await self.lending.catch_up()
        self._on_grown()
        self.writer.tick()

    async def active_segment(self) -> SegmentReport | None:
        """Describe the active segment, None if it has no rows."""
        await self.lending.catch_up()
        # First: a segment that was just retired would be neither in this answer nor among the closed segments.
        self.writer.note_switch()
        active = self.writer.active
        return active.report() if active.rows else None

    async def begin_segment(self) -> None:
        """Retire the active segment, if it has rows; its successor takes the next row."""
        # Before the roll, because a roll needs a successor, also after a switch that the commit thread has just made;
        # after it, because only a segment that is retired in the manifest may be sealed.
        await self.lending.catch_up()
        self.writer.note_switch()
        await self._rolled()
        await self.writer.roll()
        await self._rolled()

    async def seal_now(self, request_id: int) -> None:
        """Retire and seal the active segment, if it has rows."""
        await self.begin_segment()
        self.sealer.seal_held()
        await self.sealer.drained()
        self._control.send(ipc.Answered(request_id, []))

    def hold_checkpoint(self, request_id: int) -> None:
        """Keep the newest checkpoint of this moment until its release."""
        entry = self.checkpoints.hold()
        self._start(self._tell_held(request_id, None if entry is None else HeldCheckpoint(entry.number, entry.lsn)))

    async def _tell_held(self, request_id: int, held: HeldCheckpoint | None) -> None:
        # The manifest that lists the checkpoint may still be on its way to the disk, and the copy reads the manifest.
        await self.catalog.save()
        self._control.send(ipc.CheckpointHeld(request_id, held))

    def release_checkpoint(self, number: int) -> None:
        """End a hold."""
        if superseded := self.checkpoints.release(number):
            self._start(self.checkpoints.remove_superseded(superseded))

    async def keep_standing_pins(self, request_id: int, pins: list[StandingPinEntry]) -> None:
        """Replace the standing pins. In a folder, a new time alone becomes durable with a later manifest."""
        if self.replication is not None:
            # The next leader has another folder.
            await self.replication.store_standing_pins(pins)
            self._control.send(ipc.Answered(request_id, []))
            return
        catalog = self.catalog
        is_new = {pin.name for pin in pins} != {pin.name for pin in catalog.standing_pins}
        catalog.standing_pins = pins
        if is_new:
            await catalog.save()
        self._control.send(ipc.Answered(request_id, []))

    async def _rolled(self) -> None:
        """Wait until the last switch of segments is in the manifest and the next successor stands ready."""
        while self._rolling is not None and not self._rolling.done():
            await asyncio.shield(self._rolling)

    # The end

    async def close(self, last_lsn: int) -> None:
        """Stop in order: rows up to ``last_lsn`` durable, segments sealed (unless a reader prevents it), manifest
        clean.

        The order is that of the facts: a checkpoint waits for its last row, and the manifest may say *clean* only when
        every segment with rows is sealed. The commit thread ends before the seal of the active segment, whose
        connection it used.
        """
        self.drops.is_stopping = True
        self.filling.stop()
        self.page_fitting.stop()
        # The loop process has closed its connection: this is its last frame.
        await self.lending.end()
        await self.durable.reached(last_lsn)
        await self.writer.stopped()
        await self.checkpoints.drained()
        await self.checkpoints.rounds_ended()
        await self._rolled()
        # A drop writes the manifest, which may belong to the next broker once this close is answered.
        await self.drops.ended()
        await self.sides.ended()
        self.freshness.stop()
        # A tick could otherwise retire the segment that is sealed below, and the sealer would get the segment twice.
        self.writer.prepared = None
        self.sealer.seal_held()
        catalog = self.catalog
        active = self.writer.active
        if active.rows:
            active.state = SegmentState.RETIRED
            await catalog.save()
            self.sealer.submit(active)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.sealer.drained(), CLOSE_SEAL_SECONDS)
        empty = [segment for segment in catalog.open.values() if segment.state is not SegmentState.RETIRED]
        for segment in empty:
            del catalog.open[segment.number]
        catalog.clean = not catalog.open
        await catalog.save()
        # After the manifest, which does not list them any more: see the module.
        for segment in empty:
            await self._remove_unused(segment)
        await asyncio.to_thread(sync_folder, catalog.folder.segments)
        if self.replication is not None:
            # Last: the next leader may be another process that opens nothing of this folder.
            await self.replication.release()

    async def stop(self) -> None:
        """Finish the commit under way and take no other."""
        self.drops.is_stopping = True
        if hasattr(self, "writer"):
            self.filling.stop()
            self.page_fitting.stop()
            await self.writer.stopped()

    def refuse(self) -> None:
        """Take no other commit, without waiting for the commit under way."""
        if hasattr(self, "writer"):
            self.writer.stop()

    async def release(self) -> None:
        """Close every file and thread."""
        await self.stop()
        await self.pager.close()
        for segment in self.catalog.open.values():
            await segment.close()
        if self.replication is not None:
            await self.replication.close()


def _remove_forgotten(catalog: Catalog, recovered: Recovered) -> None:
    """Remove the files of segments without rows, and of segments whose drop the life before began."""
    for number in (*recovered.empty, *(entry.number for entry in recovered.dropping)):
        remove_segment(catalog.segment_path(number))
    for entry in recovered.dropping:
        if entry.outcomes_file:
            (catalog.folder.path / entry.outcomes_file).unlink(missing_ok=True)


async def _empty_wal(segment: WritableSegment) -> None:
    """Copy the WAL into the main file if there is room and no reader in the way; otherwise the sealer will."""

    def empty() -> bool:
        # With any durability setting: the content of the WAL must be on disk before the WAL is emptied.
        segment.connection.raw.execute("PRAGMA synchronous=FULL")
        return truncate_wal(segment)

    try:
        await segment.connection.run(empty)
    except sqlite3.Error as error:
        if not is_disk_full(error):
            raise
