"""A log in an engine, as the loop of the storage process sees it.

The commit thread appends rows and follows the log; it waits for three steps of the loop (``following.Events``). All
else that the engine is asked for, checkpoints, trims and accounts, is done by a thread of its own, so that no commit
waits for such a call: the engine has a second session for these.

A call waits for an engine that does not answer. The loop process sees the wait as a commit, or a checkpoint, that takes
long; no reply is sent meanwhile. While the commit thread follows the log, it reads rows through the second session,
and the thread of the housekeeping must rest.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from cmqd.engine.engine_errors import EngineUnavailable
from cmqd.engine.interface import NO_LEADER, Engine, StoredAccounts, Taken
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import EngineView, SegmentReport, Takeover
from cmqd.storage import ipc
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.redundancy.cache_folder import copy_checkpoint
from cmqd.storage.redundancy.engine_watch import EngineWatch
from cmqd.storage.redundancy.following import Following, Tail
from cmqd.storage.redundancy.standing_pins import decode_standing_pins, encode_standing_pins
from cmqd.storage.segments.row_inserts import LogRow
from cmqd.storage.writing.writer import Writer
from cmqd_segment.manifest import CacheOf, CheckpointEntry, StandingPinEntry, merge_ranges, with_start

T = TypeVar("T")

CHUNKS_AHEAD: Final = 4
"""Batches of copied rows that wait for the loop process; the copy waits then."""
STOP_POLL_SECONDS: Final = 0.1
"""Longest time in which the commit thread, waiting for the loop, notices that the writer stops."""


class Segments(Protocol):
    """Calls to the segments of the log (``OpenLog``), in the loop."""

    def closed_segments(self) -> list[SegmentReport]:
        """Describe the segments that are written no more."""
        ...

    async def begin_segment(self) -> None:
        """Retire the active segment and return when a successor stands ready."""
        ...

    async def drop_reclaimed(self, numbers: Sequence[int], checkpoint: CheckpointEntry | None) -> None:
        """Begin to drop segments of which the engine has no row. A checkpoint takes the place of all others before."""
        ...


class Stopped(Exception):
    """The writer stops, and the commit thread waits for the loop no longer."""


class Replication:
    """Joins an engine to the log; see the module."""

    def __init__(
        self,
        engine: Engine,
        shard: int,
        catalog: Catalog,
        checkpoint_lsn: int,
        on_accounts: Callable[[StoredAccounts], None],
        watch: EngineWatch,
        process: str,
    ) -> None:
        """Take the parts.

        Args:
            engine: of the shard.
            shard: number of the shard.
            catalog: of the folder, which is a cache of the engine's log.
            checkpoint_lsn: LSN of the checkpoint that the recovery stream began with; later rows are passed on.
            on_accounts: called with the accounts that a leader has stored, while this broker is a standby.
            watch: of the engine.
            process: of the broker, for the list of brokers in the engine.
        """
        self.engine = engine
        self.taken: Taken | None = None
        """Set once this broker leads."""
        self.takeover: Takeover | None = None
        """Set with ``taken``; None if the log has no row but fences."""
        self._shard = shard
        self._catalog = catalog
        self._checkpoint_lsn = checkpoint_lsn
        self._on_accounts = on_accounts
        self._watch = watch
        self._process = process
        self._address = ""
        """Address of this broker, once it listens."""
        self._loop = asyncio.get_running_loop()
        self._housekeeping = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._copied: asyncio.Queue[Sequence[LogRow] | None] = asyncio.Queue(CHUNKS_AHEAD)
        """Copied rows for the loop process, then None once this broker leads."""
        self._is_streamed = False
        """The rows of the folder are with the loop process: no file of the folder is read for it any more."""
        self._writer: Writer
        self._segments: Segments

    def start(self, writer: Writer, tail: Tail | None, segments: "Segments") -> None:
        """Start the writer, which first follows the log.

        Args:
            writer: of the log.
            tail: the last row of the folder.
            segments: of the log.
        """
        self._writer = writer
        self._segments = segments
        following = Following(self.engine, tail, self, writer.keep, writer.pause, self._checkpoint_lsn)

        def lead() -> bool:
            try:
                if not following.run():
                    return False
                assert following.taken is not None
                self._in_loop(self._lead(following.taken, following.takeover))
            except (Stopped, EngineUnavailable):
                return False
            return True

        writer.start(lead)

    async def next_chunk(self) -> tuple[ipc.RowsChunk, list[bytes]] | None:
        """Wait for copied rows and return them as a frame of the recovery stream; None once this broker leads.

        To be called behind the chunks of the folder's own rows.
        """
        self._is_streamed = True
        rows = await self._copied.get()
        if rows is None:
            return None
        return ipc.RowsChunk([(row.lsn, row.time_ms, len(row.meta)) for row in rows]), [bytes(row.meta) for row in rows]

    async def keep_checkpoint(self, lsn: int, path: Path) -> None:
        """Store a checkpoint file in the engine and read it back.

        Raises:
            Fenced: a newer leader exists.
            LogFailed: the engine returned other bytes.
        """

        def keep() -> None:
            data = path.read_bytes()
            self.engine.put_checkpoint(lsn, data)
            stored = self.engine.newest_checkpoint()
            if stored is None or stored.lsn < lsn or (stored.lsn == lsn and stored.data != data):
                raise LogFailed(f"the engine did not keep the checkpoint of row {lsn}")

        await self._do(keep)

    async def prove(self) -> None:
        """Prove that this broker leads, beside the commits. Raises Fenced."""
        await self.trim(())

    async def trim(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove rows from the engine that this broker has reclaimed. Raises Fenced."""
        await self._do(lambda: self.engine.trim(ranges))

    async def load_accounts(self) -> StoredAccounts | None:
        """Return the accounts of the engine, None if it has none."""
        return await self._do(self.engine.load_accounts)

    async def store_accounts(self, data: bytes, expected_version: int) -> int:
        """Store accounts in place of a version (0: none) and return their version. Raises AccountsConflict, Fenced."""
        return await self._do(lambda: self.engine.store_accounts(data, expected_version=expected_version))

    async def load_standing_pins(self) -> list[StandingPinEntry] | None:
        """Return the standing pins of the engine; None if the engine cannot keep any."""
        data = await self._do(self.engine.load_standing_pins)
        return None if data is None else decode_standing_pins(data)

    async def store_standing_pins(self, pins: Sequence[StandingPinEntry]) -> None:
        """Replace the standing pins of the engine, by which the next leader holds rows. Raises Fenced."""
        data = encode_standing_pins(pins)
        await self._do(lambda: self.engine.store_standing_pins(data))

    def announce(self, address: str) -> None:
        """List this broker in the engine by its address, with its last row."""
        self._address = address
        self._announce_lead()

    def _announce_lead(self) -> None:
        """Announce a leader that listens. The two come in either order."""
        if self.taken is not None and self._address:
            self.engine.announce(self.taken.last_lsn, self._process, self._address)

    async def view(self) -> EngineView:
        """Return the engine's view of the log; for a leader, which tells the engine its clock too."""
        self._announce_lead()
        return await self._do(self.engine.view)

    async def release(self) -> None:
        """Give the lead up, after the end of the commit thread."""
        self._watch.stop()
        if self.taken is not None:
            await self._do(self.engine.release)

    async def close(self) -> None:
        """Close the engine, after the end of the commit thread."""
        await self._do(self.engine.close)
        self._housekeeping.shutdown(wait=False)

    async def _do(self, step: Callable[[], T]) -> T:
        """Do a step in the thread of the housekeeping, in its turn."""
        return await self._loop.run_in_executor(self._housekeeping, step)

    # Steps of the loop, called by the commit thread (``following.Events``)

    def copied_all(self, begun_s: float) -> None:
        """See ``Events``."""
        # Whole seconds: the loop process gets a report for each change.
        self._watch.copied_s = int(begun_s)

    def follows(self, last_lsn: int) -> None:
        """See ``Events``."""
        if self._address:
            self.engine.announce(last_lsn, self._process, self._address)

    def accounts_stored(self, accounts: StoredAccounts) -> None:
        """See ``Events``."""
        self._loop.call_soon_threadsafe(self._on_accounts, accounts)

    def epoch_begins(self, epoch: int) -> None:
        """See ``Events``."""
        log_id = self.engine.log_id()
        assert log_id is not None
        self._in_loop(self._note_epoch(epoch, log_id))

    async def _note_epoch(self, epoch: int, log_id: str) -> None:
        catalog = self._catalog
        catalog.log_id = log_id
        catalog.cache_of = CacheOf(log_id, self._shard)
        if epoch != NO_LEADER:
            catalog.starts = with_start(catalog.starts, f"{epoch:016x}", epoch)
        await catalog.save()

    def gap_found(self, first_lsn: int, last_lsn: int) -> None:
        """See ``Events``."""
        self._in_loop(self._note_gap(first_lsn, last_lsn))

    async def _note_gap(self, first_lsn: int, last_lsn: int) -> None:
        await self._segments.begin_segment()
        catalog = self._catalog
        catalog.dropped = merge_ranges((*catalog.dropped, (first_lsn, last_lsn)))
        await catalog.save()

    def reclaim(self, below: int) -> None:
        """See ``Events``. No segment is dropped while the recovery stream reads the folder."""
        if not self._is_streamed:
            return
        closed = self._in_loop(self._closed(below))
        gone = set(self.engine.reclaimed(list(closed.values()))) if closed else set[tuple[int, int]]()
        numbers = [number for number, ends in closed.items() if ends in gone]
        if numbers:
            catalog = self._catalog
            checkpoint: CheckpointEntry | None = None
            if max(last for _, last in gone) > catalog.droppable_lsn:
                # The newest checkpoint of the engine covers all rows that it has trimmed; an old one of the folder does
                # not, and the next start could not begin with it.
                try:
                    copied = copy_checkpoint(self.engine, catalog.folder, catalog.checkpoints)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    # The segments stay until a later look finds room.
                    return
                checkpoint = copied or catalog.checkpoints[-1]
            self._in_loop(self._segments.drop_reclaimed(numbers, checkpoint))

    async def _closed(self, below: int) -> dict[int, tuple[int, int]]:
        closed = self._segments.closed_segments()
        return {segment.number: (segment.first_lsn, segment.last_lsn) for segment in closed if segment.last_lsn < below}

    def copied(self, rows: Sequence[LogRow]) -> None:
        """See ``Events``."""
        newer = [row for row in rows if row.lsn > self._checkpoint_lsn]
        if newer:
            self._in_loop(self._copied.put(newer))

    async def _lead(self, taken: Taken, takeover: Takeover | None) -> None:
        self.taken, self.takeover = taken, takeover
        self._announce_lead()
        await self._copied.put(None)

    def _in_loop(self, step: Coroutine[Any, Any, T]) -> T:
        """Let the loop do a step, and wait for its end. Raises Stopped if the writer stops meanwhile."""
        doing = asyncio.run_coroutine_threadsafe(step, self._loop)
        while True:
            try:
                return doing.result(STOP_POLL_SECONDS)
            except TimeoutError:
                if self._writer.is_stopping:
                    doing.cancel()
                    raise Stopped from None
