"""Is the end of a WAL a torn tail, or damage?

SQLite takes the longest prefix of a WAL whose checksums are right and drops the rest in silence. After a crash that is
what one wants for the commit that was under way; but a flipped bit a tenth into the file drops the other nine tenths
just as silently. Only one commit can have been under way, so at most one commit frame may stand beyond the last valid
frame: two or more with the current salts are damage.

``walk`` reads the frame headers before any connection opens the database; ``accepted_frames`` reads what SQLite made
of it from the WAL-index that a read-only connection left behind. Both open plain file handles, so neither may be used
while this process has a connection on the database. Formats: https://www.sqlite.org/walformat.html
"""

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_WAL_HEADER = Struct(">IIIIIIII")
"""magic | format | page size | checkpoint number | salt 1 | salt 2 | checksum 1 | checksum 2"""
_FRAME_HEADER = Struct(">IIIIII")
"""page | pages after the commit, else 0 | salt 1 | salt 2 | checksum 1 | checksum 2"""
_MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""Magic, and the byte order in which the checksums were computed."""
_INDEX_HEADER = Struct("=IIIBBHIIIIIIII")
"""version | unused | change counter | valid | big-endian checksums | page size | mxFrame | pages | checksum of the last
frame (2) | salts (2) | checksum of this header (2)"""


class Walk(NamedTuple):
    """What the headers of a WAL say."""

    frames: int
    """Whole frames in the file."""
    commits: list[int]
    """Numbers (from 1) of the commit frames with the salts of the file's header, or of its first frame when that
    header is broken."""


class Verdict(NamedTuple):
    """What became of a WAL."""

    accepted: int
    """Frames up to the last commit that SQLite accepted."""
    commits_beyond: int
    """Commit frames with the current salts after it."""
    frames_beyond: int

    @property
    def damaged(self) -> bool:
        """Whether this cannot be the work of one unfinished commit."""
        return self.commits_beyond >= 2


def walk(wal: Path) -> Walk:
    """Reads the headers of all frames. Raises OSError."""
    commits: list[int] = []
    # Unbuffered: only 24 bytes in 4 KiB are wanted.
    with wal.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size < _WAL_HEADER.size + _FRAME_HEADER.size:
            return Walk(0, [])
        file.seek(0)
        header = file.read(_WAL_HEADER.size)
        magic, _, page_size, _, salt_1, salt_2, *_ = _WAL_HEADER.unpack(header)
        intact = _header_is_intact(header, magic)
        if not intact or page_size & (page_size - 1) or not 512 <= page_size <= 65536:
            page_size = 4096
        step = _FRAME_HEADER.size + page_size
        frames = (size - _WAL_HEADER.size) // step
        for number in range(1, frames + 1):
            place = _WAL_HEADER.size + (number - 1) * step
            head = os.pread(file.fileno(), _FRAME_HEADER.size, place)
            _, commit, frame_salt_1, frame_salt_2, *_ = _FRAME_HEADER.unpack(head)
            if not intact and number == 1:
                salt_1, salt_2 = frame_salt_1, frame_salt_2
            if commit and (frame_salt_1, frame_salt_2) == (salt_1, salt_2):
                commits.append(number)
    return Walk(frames, commits)


def _header_is_intact(header: bytes, magic: int) -> bool:
    order = _MAGICS.get(magic)
    if order is None:
        return False
    first = second = 0
    words = Struct(f"{order}6I").unpack_from(header)
    for even, odd in zip(words[0::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == Struct(">II").unpack_from(header, 24)


def accepted_frames(shm: Path) -> int | None:
    """``mxFrame`` of a WAL-index that nobody has open; None if it does not hold a valid one."""
    try:
        with shm.open("rb") as file:
            copies = file.read(2 * _INDEX_HEADER.size)
    except FileNotFoundError:
        return None
    half = _INDEX_HEADER.size
    if len(copies) < 2 * half or copies[:half] != copies[half:]:
        return None
    fields = _INDEX_HEADER.unpack(copies[:half])
    return fields[6] if fields[3] else None


def judge(found: Walk, accepted: int) -> Verdict:
    """Compare what stands in a WAL with what SQLite accepted of it."""
    return Verdict(accepted, sum(1 for number in found.commits if number > accepted), found.frames - accepted)
