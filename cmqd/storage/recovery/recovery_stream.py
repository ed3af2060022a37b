"""The recovery stream: the newest checkpoint and the rows above it, as frames for the loop process.

Rows come without their bodies, which recovery does not need. The loop process requests every chunk, and neither process
holds more than a few chunks in memory.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from cmqd.storage import ipc
from cmqd.storage.folder.catalog import Catalog
from cmqd.storage.recovery.folder_inspection import Recovered
from cmqd_segment.checkpoint_file import read_payloads
from cmqd_segment.schema import open_read_only

CHUNK_BYTES = 1 << 18
"""The loop process decodes a few chunks ahead, and parts of quiet queues take ten times their size then."""
CHUNK_ROWS = 512

Chunk: TypeAlias = tuple[ipc.Head, list[bytes]]
"""A frame of the stream and its blobs."""


def recovery_stream(recovered: Recovered, catalog: Catalog) -> Iterator[Chunk]:
    """Yield the checkpoint, then the rows above its LSN, in the order of their LSNs."""
    if recovered.checkpoint is not None:
        yield from _checkpoint_chunks(catalog.folder.path / recovered.checkpoint.file)
    above = recovered.checkpoint_lsn
    for segment in list(catalog.segments()):
        if segment.last_lsn > above:
            # Up to the last row that the inspection found: newer rows of a standby come by another way.
            lsns = (above, recovered.last_lsn)
            yield from _row_chunks(segment.path, sealed=segment.immutable, lsns=lsns, skip=recovered.skip_rows)
            # Earlier versions stored a commit twice if they switched segments before its retry on a full disk
            # (``writer.may_be_in_file``) and crashed before the seal. The facts of a row must not be counted twice.
            above = segment.last_lsn


def _checkpoint_chunks(path: Path) -> Iterator[Chunk]:
    payloads: list[bytes] = []
    size = 0
    for payload in read_payloads(path):
        payloads.append(payload)
        size += len(payload)
        if size >= CHUNK_BYTES:
            yield ipc.CheckpointChunk(list(map(len, payloads))), payloads
            payloads, size = [], 0
    yield ipc.CheckpointChunk(list(map(len, payloads))), payloads


def _row_chunks(path: Path, *, sealed: bool, lsns: tuple[int, int], skip: set[int]) -> Iterator[Chunk]:
    """Yield the rows of a segment above the first LSN and up to the second, except rows with an accepted loss."""
    with contextlib.closing(open_read_only(path, sealed=sealed)) as raw:
        heads: list[tuple[int, int, int]] = []
        metas: list[bytes] = []
        size = 0
        for lsn, time_ms, meta in raw.execute(
            "SELECT lsn, time_ms, meta FROM log WHERE lsn > ? AND lsn <= ? ORDER BY lsn", lsns
        ):
            if lsn in skip:
                continue
            heads.append((lsn, time_ms, len(meta)))
            metas.append(meta)
            size += len(meta)
            if size >= CHUNK_BYTES or len(heads) >= CHUNK_ROWS:
                yield ipc.RowsChunk(heads), metas
                heads, metas, size = [], [], 0
        yield ipc.RowsChunk(heads), metas
