"""WALs as a crash or damage leaves them, with and without zeros that were filled in ahead of the frames."""

from pathlib import Path

HEADER_BYTES = 32
FRAME_BYTES = 24 + 4096
ZEROS_AHEAD = 100 * FRAME_BYTES + 1000
"""Zeros that ``fill_ahead`` appends: not a whole number of frames, as after a fill by the MiB."""


def end_of_frames(wal: Path) -> int:
    """Return where the frames end; zeros may follow."""
    content = len(wal.read_bytes().rstrip(b"\0"))
    return HEADER_BYTES + -(-(content - HEADER_BYTES) // FRAME_BYTES) * FRAME_BYTES if content else 0


def fill_ahead(wal: Path, zeros: int = ZEROS_AHEAD) -> None:
    """Append zeros, as a fill before the first frame leaves them behind the last."""
    with wal.open("ab") as file:
        file.write(bytes(zeros))


def cut(wal: Path, end: int) -> None:
    """Take the bytes from ``end`` on away. In a WAL that was filled ahead zeros take their place: the file keeps its
    length, whatever the disk lost.
    """
    size = wal.stat().st_size
    is_filled = size > end_of_frames(wal)
    with wal.open("r+b") as file:
        file.truncate(end)
        if is_filled:
            file.truncate(size)
