"""Tell a torn tail of a WAL from damage.

SQLite takes the longest prefix of a WAL with correct checksums and drops the rest in silence. After a crash this is
right for the commit that was under way. But a flipped bit a tenth into the file drops the other nine tenths as
silently. A WAL may also have been filled with zeros ahead of its frames (decision 0182): a frame header of zeros is no
frame, and the log ends with the last header that is not zero. Two witnesses tell a torn tail from damage.

- Only one commit can have been under way, so at most one commit frame may follow the last valid frame: two or
  more with the current salts are damage (``walk``, ``judge``).
- The WAL-index (``-shm``) of the last writer names the last frame of the last commit that SQLite finished.
  SQLite writes that number after the fsync, so it is a lower bound of the durable frames, and a WAL without one of
  these frames is damage (``read_index``, ``find_lack``). The file lives in the page cache and is never synced, so it
  proves nothing after a boot.

The second witness is lost as soon as any connection opens the database, because the first connection rebuilds the index
from the frames that are left. Therefore ``read_index`` comes before every connection, and ``find_lack`` checks the last
commit alone: damage in an earlier commit leaves two commit frames beyond it, which the next start sees again.

All functions open plain file handles, so none may be used while this process has a connection on the database: closing
a plain handle drops SQLite's POSIX locks. Formats: https://www.sqlite.org/walformat.html
"""

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from cmqd_segment.schema import PAGE_BYTES

_WAL_HEADER = Struct(">IIIIIIII")
"""magic | format | page size | checkpoint number | salt 1 | salt 2 | checksum 1 | checksum 2"""
_FRAME_HEADER = Struct(">IIIIII")
"""page | pages after the commit, else 0 | salt 1 | salt 2 | checksum 1 | checksum 2"""
_NO_FRAME = bytes(_FRAME_HEADER.size)
"""Header of a frame that was never written, in a WAL that was filled ahead. The header of a frame has a page number,
which is never 0."""
_CHECKSUM = Struct(">II")
_MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""Magic number, and the byte order of the checksums."""
_INDEX_HEADER = Struct("=IIIBBHIIIIIIII")
"""version | unused | change counter | valid | big-endian checksums | page size | mxFrame | pages | checksum of the last
frame (2) | salts (2) | checksum of this header (2)"""


class Walk(NamedTuple):
    """Result of reading the headers of a WAL."""

    frames: int
    """Number of the last whole frame with the salts of the file's header, or of the first frame that is not zero when
    that header is broken. Zeros behind it were filled in ahead, and frames with other salts are of the log before."""
    commits: list[int]
    """Numbers (from 1) of the commit frames with these salts."""
    salts: bytes = b""
    """Salts of the file's header; empty if the header is missing or broken."""
    page_size: int = PAGE_BYTES
    order: str = ""
    """Byte order of the checksums, in the notation of ``struct``; empty without a sound header."""


class Index(NamedTuple):
    """The header of a WAL-index."""

    frames: int
    """``mxFrame``: the last frame of the last finished commit; 0 if there is none since the WAL was emptied."""
    salts: bytes
    """Salts of the WAL that the index belongs to."""


class Verdict(NamedTuple):
    """Comparison of a WAL with the frames that SQLite accepted."""

    commits_beyond: int
    """Commit frames with the current salts after the accepted frames."""
    frames_beyond: int

    @property
    def damaged(self) -> bool:
        """True if two or more commits lie beyond the accepted frames: a single unfinished commit cannot explain two."""
        return self.commits_beyond >= 2


def walk(wal: Path) -> Walk:
    """Read the headers of all frames. Raises OSError."""
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
            page_size = _page_size_of(wal.with_name(wal.name.removesuffix("-wal")))
        step = _FRAME_HEADER.size + page_size
        frames = 0
        for number in range(1, (size - _WAL_HEADER.size) // step + 1):
            offset = _WAL_HEADER.size + (number - 1) * step
            head = os.pread(file.fileno(), _FRAME_HEADER.size, offset)
            # Not the end yet: frames may follow a hole of zeros, and two commits behind the hole are damage.
            if head == _NO_FRAME:
                continue
            _, commit, frame_salt_1, frame_salt_2, *_ = _FRAME_HEADER.unpack(head)
            if not intact and not frames:
                salt_1, salt_2 = frame_salt_1, frame_salt_2
            # A seal copies the WAL and begins it again: behind the new frames are those of the log before.
            if (frame_salt_1, frame_salt_2) == (salt_1, salt_2):
                frames = number
                if commit:
                    commits.append(number)
    if not intact:
        return Walk(frames, commits)
    return Walk(frames, commits, header[16:24], page_size, _MAGICS[magic])


def _page_size_of(database: Path) -> int:
    """Return the page size in the header of a database; the smaller of a segment's two if the header tells none."""
    try:
        with database.open("rb") as file:
            page_size = int.from_bytes(file.read(18)[16:], "big")
    except FileNotFoundError:
        return PAGE_BYTES
    # 1 stands for 65536, which two bytes cannot hold.
    page_size = 65536 if page_size == 1 else page_size
    return page_size if page_size >= 512 and not page_size & (page_size - 1) else PAGE_BYTES


def _header_is_intact(header: bytes, magic: int) -> bool:
    order = _MAGICS.get(magic)
    if order is None:
        return False
    return _checksum((0, 0), header[:24], order) == _CHECKSUM.unpack_from(header, 24)


def _checksum(before: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Compute SQLite's checksum of ``data``, chained to the checksum ``before``."""
    first, second = before
    words = Struct(f"{order}{len(data) // 4}I").unpack(data)
    for even, odd in zip(words[0::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def read_index(shm: Path) -> Index | None:
    """Read the WAL-index of the last connection; None if there is no valid index.

    Before any connection opens the database, the index is that of the last writer: a witness of the durable frames.
    After a connection of this process, it names the frames that SQLite accepts.
    """
    try:
        with shm.open("rb") as file:
            copies = file.read(2 * _INDEX_HEADER.size)
    except FileNotFoundError:
        return None
    half = _INDEX_HEADER.size
    if len(copies) < 2 * half or copies[:half] != copies[half:]:
        return None
    fields = _INDEX_HEADER.unpack(copies[:half])
    return Index(fields[6], copies[32:40]) if fields[3] else None


def find_lack(wal: Path, wal_walk: Walk | None, index: Index) -> str | None:
    """Describe the durable frames that a WAL lacks by its index; None if it has all of them.

    Args:
        wal_walk: the result of ``walk``; None if there is no file.
        index: read before any connection opened the database, in the boot of the machine in which it was written.
    """
    durable = index.frames
    if not durable:
        return None
    # SQLite sets the number to 0 before it empties or removes the file, so an empty file needs no comparison of salts.
    if wal_walk is None:
        return f"is missing, but {durable} frames of it were durable"
    if not wal_walk.frames:
        return f"is empty, but {durable} frames of it were durable"
    if wal_walk.salts and wal_walk.salts != index.salts:
        return None  # the index belongs to an earlier use of the file
    if wal_walk.frames < durable:
        return f"ends after frame {wal_walk.frames}, but {durable} frames of it were durable"
    if not _last_commit_is_whole(wal, wal_walk, durable):
        return f"is damaged before frame {durable}, up to which it was durable"
    return None


def _last_commit_is_whole(wal: Path, wal_walk: Walk, durable: int) -> bool:
    """Check the frames of the commit that ends at frame ``durable``, by their checksums."""
    if not wal_walk.order or durable not in wal_walk.commits:
        return False
    index = wal_walk.commits.index(durable)
    number = wal_walk.commits[index - 1] if index else 0
    step = _FRAME_HEADER.size + wal_walk.page_size
    with wal.open("rb", buffering=0) as file:
        if number:
            before = os.pread(file.fileno(), 8, _WAL_HEADER.size + number * step - wal_walk.page_size - 8)
        else:
            before = os.pread(file.fileno(), 8, 24)
        checksum = _CHECKSUM.unpack(before)
        while number < durable:
            frame = os.pread(file.fileno(), step, _WAL_HEADER.size + number * step)
            number += 1
            checksum = _checksum(checksum, frame[:8] + frame[_FRAME_HEADER.size :], wal_walk.order)
            if frame[8:16] != wal_walk.salts or _CHECKSUM.unpack_from(frame, 16) != checksum:
                return False
    return True


def judge(wal_walk: Walk, accepted: int) -> Verdict:
    """Compare the frames of a WAL with the frames that SQLite accepted."""
    return Verdict(sum(1 for number in wal_walk.commits if number > accepted), wal_walk.frames - accepted)
