"""Is the end of a WAL a torn tail, or damage?

SQLite takes the longest prefix of a WAL whose checksums are right and drops the rest in silence. After a crash that is
right for the commit that was under way; but a flipped bit a tenth into the file drops the other nine tenths just as
silently. Two witnesses tell the difference.

- Only one commit can have been under way, so at most one commit frame may stand beyond the last valid frame: two or
  more with the current salts are damage (``walk``, ``judge``).
- The WAL-index (``-shm``) that the writer left behind names the last frame of the last commit that SQLite finished.
  SQLite writes that number after the fsync, so it is a lower bound of the durable frames, and a WAL that lacks one of
  them is damage (``read_index``, ``find_lack``). The file lives in the page cache and is never synced: it says nothing
  after a boot.

The second witness is lost as soon as any connection opens the database, because the first connection builds the index
anew from what is left of the WAL. Therefore ``read_index`` comes before that, and ``find_lack`` checks the last commit
by itself: damage in an earlier commit leaves two commit frames beyond it, which the next start sees again.

All functions open plain file handles, so none may be used while this process has a connection on the database.
Formats: https://www.sqlite.org/walformat.html
"""

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_WAL_HEADER = Struct(">IIIIIIII")
"""magic | format | page size | checkpoint number | salt 1 | salt 2 | checksum 1 | checksum 2"""
_FRAME_HEADER = Struct(">IIIIII")
"""page | pages after the commit, else 0 | salt 1 | salt 2 | checksum 1 | checksum 2"""
_CHECKSUM = Struct(">II")
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
    salts: bytes = b""
    """As in the header of the file; empty if there is no header, or a broken one."""
    page_size: int = 4096
    order: str = ""
    """Byte order of the checksums, as ``struct`` names it; empty without a sound header."""


class Index(NamedTuple):
    """The header of a WAL-index."""

    frames: int
    """``mxFrame``: the last frame of the last finished commit; 0 if there is none since the WAL was emptied."""
    salts: bytes
    """Of the WAL that the index belongs to."""


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
    if not intact:
        return Walk(frames, commits)
    return Walk(frames, commits, header[16:24], page_size, _MAGICS[magic])


def _header_is_intact(header: bytes, magic: int) -> bool:
    order = _MAGICS.get(magic)
    if order is None:
        return False
    return _checksum((0, 0), header[:24], order) == _CHECKSUM.unpack_from(header, 24)


def _checksum(before: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """SQLite's checksum of ``data``, chained to the one of what stands before it."""
    first, second = before
    words = Struct(f"{order}{len(data) // 4}I").unpack(data)
    for even, odd in zip(words[0::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def read_index(shm: Path) -> Index | None:
    """The WAL-index that the last connection left behind; None if there is no valid one.

    To be called before any connection opens the database, if it is to tell of what was there before.
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


def accepted_frames(shm: Path) -> int | None:
    """How many frames SQLite accepted, by the index that a connection of ours left behind; None if that is unknown."""
    index = read_index(shm)
    return None if index is None else index.frames


def find_lack(wal: Path, found: Walk | None, index: Index) -> str | None:
    """Say how a WAL falls short of the frames that were durable by its index; None if it does not.

    Args:
        found: what ``walk`` found; None if there is no file.
        index: read before any connection opened the database, in the boot of the machine in which it was written.
    """
    durable = index.frames
    if not durable:
        return None
    # SQLite sets the number to 0 before it empties or removes the file, so without frames no salts are needed.
    if found is None:
        return f"is missing, but {durable} frames of it were durable"
    if not found.frames:
        return f"is empty, but {durable} frames of it were durable"
    if found.salts and found.salts != index.salts:
        return None  # the index of another use of the file
    if found.frames < durable:
        return f"ends after frame {found.frames}, but {durable} frames of it were durable"
    if not _last_commit_is_whole(wal, found, durable):
        return f"is damaged before frame {durable}, up to which it was durable"
    return None


def _last_commit_is_whole(wal: Path, found: Walk, durable: int) -> bool:
    """Whether the commit that ends at a frame is there, by its checksums."""
    if not found.order or durable not in found.commits:
        return False
    place = found.commits.index(durable)
    number = found.commits[place - 1] if place else 0
    step = _FRAME_HEADER.size + found.page_size
    with wal.open("rb", buffering=0) as file:
        if number:
            before = os.pread(file.fileno(), 8, _WAL_HEADER.size + number * step - found.page_size - 8)
        else:
            before = os.pread(file.fileno(), 8, 24)
        checksum = _CHECKSUM.unpack(before)
        while number < durable:
            frame = os.pread(file.fileno(), step, _WAL_HEADER.size + number * step)
            number += 1
            checksum = _checksum(checksum, frame[:8] + frame[_FRAME_HEADER.size :], found.order)
            if frame[8:16] != found.salts or _CHECKSUM.unpack_from(frame, 16) != checksum:
                return False
    return True


def judge(found: Walk, accepted: int) -> Verdict:
    """Compare what stands in a WAL with what SQLite accepted of it."""
    return Verdict(accepted, sum(1 for number in found.commits if number > accepted), found.frames - accepted)
