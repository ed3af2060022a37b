"""The lent segment, into which the loop process commits: its switches, and the count of its rows.

The loop process commits with a connection of its own (``loop_side.loop_commits``), while the disk is quick and the
commits are small (``loop_side.commit_way``). The storage process does all the rest: decides when a segment is full,
measures the disk, reads pages, and seals. Its work never delays a commit:

- Its own connection to the lent segment stays open, and reads alone. Two connections that write or checkpoint the same
  WAL can corrupt the WAL. While this connection is open, the close of the loop process is not the last close: the last
  close would copy the WAL and remove the file.
- Rows are counted from the file: once a second, before a switch, and when a caller waits for an LSN above the rows that
  were counted. Then ``LsnWanted`` names the LSN, and ``Committed`` tells that its row is durable.
- A switch is asked for (``SwitchWanted``), and the loop process makes the switch between two batches. With its answer
  (``Switched``) all rows of the segment are in the file, and the loop process has closed its connection.

After a crash in between, a start finds a prepared segment if the segment has no rows, and else an active segment; the
process that wrote the rows makes no difference. A crash of either process can tear the batch under way alone.
"""

import asyncio
from collections.abc import Callable

from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.writing.writer import Writer


class Lending:
    """Counts the rows of the lent segment and makes its switches; see the module."""

    def __init__(self, writer: Writer, durable: DurableLsn, want: Callable[[int], None]) -> None:
        """``want`` asks the loop process to tell of the row with an LSN, once the row is durable."""
        self._writer = writer
        self._durable = durable
        self._want = want
        self._counting = asyncio.Lock()
        """Held while rows are counted: a switch comes behind the counts that were asked for before."""
        durable.on_wait = self._on_wait

    async def catch_up(self) -> None:
        """Count the rows that the loop process has committed, if a segment is lent."""
        if self._writer.lent is not None:
            async with self._counting:
                await self._count()

    async def switched(self, *, by_loop: bool) -> None:
        """Make the switch that the loop process tells of."""
        async with self._counting:
            await self._count()
            self._writer.switched(by_loop=by_loop)
            # A frame on another socket may have named rows of the new segment before the switch was known here.
            await self._count()
        for lsn in self._durable.awaited:
            self._on_wait(lsn)

    async def end(self) -> None:
        """Take the lent segment back at the end of the log."""
        async with self._counting:
            await self._count()
            self._writer.end_lending()

    def _on_wait(self, lsn: int) -> None:
        if self._writer.lent is not None:
            self._want(lsn)

    async def _count(self) -> None:
        lent = self._writer.lent
        if lent is not None and (lsn := await lent.load()) > self._durable.value:
            self._durable.raise_to(lsn)
            self._durable.tell()
