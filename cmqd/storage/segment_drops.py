"""Drops of whole segments, of which no message is needed any more; see ``open_log`` for the orders that matter."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from cmqd.storage import ipc
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.folder.disk_space import Space
from cmqd.storage.folder.freed_blocks import remove
from cmqd.storage.outcomes.rounds import Rounds
from cmqd.storage.reading.pager import Pager
from cmqd.storage.redundancy.replication import Replication
from cmqd.storage.segments.segment import WritableSegment
from cmqd.storage.writing.sealer import Sealer
from cmqd_segment.manifest import SIDE_SUFFIX, CheckpointEntry, SegmentEntry, merge_ranges, sync_folder

StartTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class SegmentDrops:
    """Takes segments out of the log and removes their files."""

    def __init__(
        self,
        catalog: Catalog,
        pager: Pager,
        sealer: Sealer,
        durable: DurableLsn,
        space: Space,
        control: ipc.Channel,
        replication: Replication | None,
        start: StartTask,
        rounds: Rounds,
    ) -> None:
        self._catalog = catalog
        self._pager = pager
        self._sealer = sealer
        self._durable = durable
        self._space = space
        self._control = control
        self._replication = replication
        self._start = start
        self._rounds = rounds
        self._one_checkpoint = asyncio.Lock()
        self._drops: set[asyncio.Task[None]] = set()
        self._removing = asyncio.Lock()
        """Held while a dropped file gives its blocks back. Many segments can be dropped together, and side by side they
        would hold up commits by a step each, and keep all threads from manifests and checkpoints."""
        self.is_stopping = False

    def is_hurried(self) -> bool:
        """Return whether files give their blocks back at once: room is short, or the broker stops."""
        return self._space.is_short or self.is_stopping

    async def ended(self) -> None:
        """Wait for the end of all drops."""
        if self._drops:
            await asyncio.wait(self._drops)

    def drop(self, request: ipc.DropSegments) -> None:
        """Reclaim segments once row ``min_lsn`` is durable."""
        self._start_drop(self._drop(request.request_id, request.numbers, request.min_lsn))

    async def drop_reclaimed(self, numbers: Sequence[int], checkpoint: CheckpointEntry | None) -> None:
        """Begin to drop segments of a standby of which the engine has no row any more.

        Args:
            numbers: of the segments.
            checkpoint: a checkpoint of the engine in the folder, which covers the segments; None if all checkpoints of
                the folder do. It replaces the others: the next start could not begin with one that does not.
        """
        # Not awaited: many files give their blocks back for minutes, and the commit thread, which would wait for them,
        # neither copies rows nor asks for the lock meanwhile.
        self._start_drop(self._drop_reclaimed(numbers, checkpoint))

    async def _drop_reclaimed(self, numbers: Sequence[int], checkpoint: CheckpointEntry | None) -> None:
        if checkpoint is not None:
            async with self._one_checkpoint:
                if not await self._replace_checkpoints(checkpoint):
                    return
        dropped = await self._reclaim(numbers, None)
        if dropped:
            self._control.send(ipc.SegmentsDropped(dropped))
            self._space.measure()

    async def _replace_checkpoints(self, checkpoint: CheckpointEntry) -> bool:
        """Replace the checkpoints of a standby, behind a round; return False if the broker stops.

        No loop process counts here: a standby has a round for each of its checkpoints.
        """
        catalog = self._catalog
        superseded = [older for older in catalog.checkpoints if older != checkpoint]
        if catalog.outcomes_upto != checkpoint and not await self._rounds.run(catalog.outcomes_upto, checkpoint):
            return False
        catalog.checkpoints = [checkpoint]
        replaced = self._rounds.take_replaced()
        await catalog.save()
        for old in superseded:
            await asyncio.to_thread((catalog.folder.path / old.file).unlink, missing_ok=True)
        await self._rounds.remove(replaced)
        return True

    def _start_drop(self, drop: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._start(drop)
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)
        return task

    async def _drop(self, request_id: int, numbers: list[int], min_lsn: int) -> None:
        """Reclaim whole segments once their deletes are durable, in the engine too."""
        # Durable deletes first: see the module.
        await self._durable.reached(min_lsn)
        if self._replication is not None:
            await self._replication.prove()
        dropped = await self._reclaim(numbers, None if self._replication is None else self._replication.trim)
        if dropped is not None:
            # Also those whose drop this broker began as a standby: the leader would ask for them again and again.
            known = self._catalog.sealed.keys() | self._catalog.open.keys()
            self._control.send(ipc.Answered(request_id, [number for number in numbers if number not in known]))
            self._space.measure()

    async def _reclaim(
        self, numbers: Sequence[int], trim: Callable[[Sequence[tuple[int, int]]], Coroutine[Any, Any, None]] | None
    ) -> list[int] | None:
        """Reclaim whole segments: manifest "dropping", trim, unlink, manifest forgets.

        Returns the numbers of the segments; None if the log was closed meanwhile.
        """
        entries: dict[int, SegmentEntry] = {}
        unsealed: dict[int, WritableSegment] = {}
        if self.is_stopping:
            return None
        for number in numbers:
            self._take_out(number, entries, unsealed)
        if entries:
            catalog = self._catalog
            catalog.dropping |= entries
            await catalog.save()
            ranges = [(entry.first_lsn, entry.last_lsn) for entry in entries.values()]
            if trim is not None:
                await trim(ranges)
            for number in entries:
                # Connections first: a page that is being read ends before its file goes.
                await self._pager.forget(number)
                if number in unsealed:
                    await unsealed[number].close_uncopied()
                async with self._removing:
                    if self.is_stopping:
                        # The close does not wait for all these files. The next start removes them, by the manifest.
                        return None
                    await asyncio.to_thread(remove_segment, catalog.segment_path(number), self.is_hurried)
                    if file := entries[number].outcomes_file:
                        await asyncio.to_thread((catalog.folder.path / file).unlink, missing_ok=True)
            await asyncio.to_thread(sync_folder, catalog.folder.segments)
            for number in entries:
                del catalog.dropping[number]
            catalog.dropped = merge_ranges((*catalog.dropped, *ranges))
            await catalog.save()
        return list(entries)

    def _take_out(self, number: int, entries: dict[int, SegmentEntry], unsealed: dict[int, WritableSegment]) -> None:
        """Take a segment out of the catalog, unless a checkpoint still needs it or its seal is under way.

        Without an ``await``: between the check of a segment and its removal the sealer must not begin with it.
        """
        catalog = self._catalog
        segment = catalog.sealed.get(number) or catalog.open.get(number)
        if segment is None or segment.last_lsn > catalog.droppable_lsn:
            return
        if isinstance(segment, SealedFile):
            entry = catalog.sealed.pop(number).entry
        elif self._sealer.withdraw(number) is not None:
            unsealed[number] = catalog.open.pop(number)
            entry = segment.entry()
        else:
            return
        entries[number] = structs.replace(entry, outcomes=catalog.outcomes.pop(number, None))


def remove_segment(path: Path, is_hurried: Callable[[], bool] = lambda: True) -> None:
    """Remove the files of a segment."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        remove(path.with_name(path.name + suffix), is_hurried)
    remove(path.with_suffix(SIDE_SUFFIX), is_hurried)
