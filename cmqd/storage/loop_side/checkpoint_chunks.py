"""Chunks of a checkpoint: parts of the index, framed for the file and sent to the storage process many at a time.

A quiet queue is a part of some 200 bytes. Sent by itself, each part would cost both processes several times its
encoding: 100,000 queues would hold up commits by their number alone.
"""

from typing import Final

from cmqd.storage import ipc
from cmqd_segment.checkpoint import AnyPart, CheckpointEnd, CheckpointHeader
from cmqd_segment.checkpoint_file import encode_part, frame

CHUNK_BYTES: Final = 32 * 1024


class CheckpointChunks:
    """The frames of a checkpoint that are not sent yet."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        self._is_first = False

    def take(self, part: AnyPart) -> tuple[ipc.CheckpointParts, bytes] | None:
        """Take the next part; return a chunk once it is large enough, or complete. A header begins anew."""
        if isinstance(part, CheckpointHeader):
            self._frames.clear()
            self._size = 0
            self._is_first = True
        framed = frame(encode_part(part))
        self._frames.append(framed)
        self._size += len(framed)
        end_lsn = part.lsn if isinstance(part, CheckpointEnd) else 0
        if self._size < CHUNK_BYTES and not end_lsn:
            return None
        chunk = ipc.CheckpointParts(self._is_first, end_lsn, self._size), b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        self._is_first = False
        return chunk
