"""The recovery stream: parts of a checkpoint and rows behind it, decoded in the loop process.

Names of queues and topics are noted here, where records are decoded anyway; the storage process would have to decode
every row a second time.
"""

import asyncio
from collections.abc import AsyncIterator

from cmqd.log.log_errors import LogFailed
from cmqd.log.values import RecoveredBatch
from cmqd.storage import ipc
from cmqd.storage.source_names import SourceNames
from cmqd_segment.checkpoint import CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import decode_part
from cmqd_segment.rows import decode_records

ALL_ROWS = 1 << 63
"""An LSN above all rows: later rows are noted when they are appended."""
RECOVERY_CHUNKS = 4
"""Chunks of the recovery stream that are requested ahead: the storage process reads the next chunk while this process
decodes the last. A bound, because the whole stream would wait in memory otherwise."""


class RecoveredRows:
    """The chunks of a recovery stream, in order."""

    def __init__(self, names: SourceNames) -> None:
        self._names = names
        self._batches: asyncio.Queue[RecoveredBatch | LogFailed | None] = asyncio.Queue()
        """Decoded chunks, then None, or the failure that cut the stream off."""
        self.noted_lsn = 0
        """The names and actors of the rows up to this LSN are noted; of all rows behind the last chunk."""
        self._header_lsn = 0
        self.is_read = False
        """The stream was read to its end, so rows may have been appended since then."""

    async def batches(self, pages: ipc.Channel) -> AsyncIterator[RecoveredBatch]:
        """Request the chunks of the stream, and yield their content. Raises LogFailed."""
        for _ in range(RECOVERY_CHUNKS):
            pages.send(ipc.RecoverNext())
        while (batch := await self._batches.get()) is not None:
            if isinstance(batch, LogFailed):
                raise batch
            # Before the batch is applied, so that the storage process reads meanwhile. Requests beyond the last chunk
            # stay without an answer.
            pages.send(ipc.RecoverNext())
            yield batch
        self.is_read = True

    def take_parts(self, chunk: ipc.CheckpointChunk, data: bytes, offset: int) -> None:
        """Take parts of a checkpoint, which begin at ``offset`` of the frame."""
        view = memoryview(data)
        parts: RecoveredBatch = []
        for size in chunk.sizes:
            part = decode_part(view[offset : offset + size])
            self._names.note_part(part)
            if isinstance(part, CheckpointHeader):
                self._header_lsn = part.lsn
            elif isinstance(part, CheckpointEnd):
                self.noted_lsn = self._header_lsn
            parts.append(part)
            offset += size
        self._batches.put_nowait(parts)

    def take_rows(self, chunk: ipc.RowsChunk, data: bytes, offset: int) -> None:
        """Take rows, which begin at ``offset`` of the frame."""
        view = memoryview(data)
        rows: RecoveredBatch = []
        for lsn, time_ms, size in chunk.rows:
            records = decode_records(view[offset : offset + size])
            self._names.note(records, lsn)
            self.noted_lsn = lsn
            rows.append((lsn, time_ms, records))
            offset += size
        self._batches.put_nowait(rows)

    def end(self, failure: LogFailed | None) -> None:
        """End the stream behind the chunks that have arrived."""
        self.noted_lsn = ALL_ROWS
        self._batches.put_nowait(failure)
