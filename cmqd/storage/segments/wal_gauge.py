"""Measure the used bytes of a WAL by its frames.

The size of the file does not tell: a WAL that was filled ahead (decision 0182) is longer than its frames. A segment
appends frames and begins its WAL again in its seal alone, so the frames are one run from the first, and zeros or the
end of the file follow. The end of the run is found by a few reads of 24 bytes. During a seal, and after a crash in it,
frames of the log before count, which were copied: rather too much room is set aside than too little.

A descriptor of its own on the WAL is harmless beside open connections: SQLite's locks are on the database and on the
WAL-index, which this module does not open.
"""

import os
from struct import Struct
from threading import Lock

_HEADER = Struct(">8xI20x")
"""Page size in the header of a WAL."""
_DATABASE_PAGES = Struct(">4xI16x")
"""Pages of the database after the commit, in the header of the last frame of the commit; 0 in other frames."""
_FRAME_HEADER_BYTES = 24
_NO_FRAME = bytes(_FRAME_HEADER_BYTES)


class WalGauge:
    """Counts the frames of one WAL, in any thread; see the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reading = Lock()
        """Held while the frames are counted."""
        self._descriptor: int | None = None
        self._frame_bytes = 0
        """Size of a frame with its header; 0 until the WAL has a header."""
        self._frames = 0
        """Frames that were counted; later counts begin here."""
        self._growth = 1
        """Frames of the last commit: the next commit often has as many, and then one read is enough."""
        self._head = _NO_FRAME
        """Header of the last frame that was found."""
        self.database_bytes = 0
        """Size of the database as the last commit left it, which the main file has once the WAL is copied; 0 if no
        frame tells it."""

    def used_bytes(self) -> int:
        """Return the bytes of the header and the frames; 0 without a frame, or without a file. Raises OSError.

        During a commit its frames count as far as they are written.
        """
        with self._reading:
            return self._count()

    def close(self) -> None:
        """Close the descriptor, and begin again with the first frame if there is another call of ``used_bytes``."""
        with self._reading:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._frame_bytes = self._frames = 0
            self._growth = 1

    def _count(self) -> int:
        if not self._frame_bytes and not self._find_frame_bytes():
            return 0
        growth = self._growth
        expected = self._frames + growth
        if self._has(expected):
            known, step = expected, 1
            while self._has(known + step):
                known += step
                step *= 2
        else:
            known, step = self._frames, growth
        # Frame ``known`` was written and frame ``known + step`` was not.
        absent = known + step
        while absent - known > 1:
            middle = (known + absent) // 2
            if self._has(middle):
                known = middle
            else:
                absent = middle
        self._growth = max(1, known - self._frames)
        self._frames = known
        # The last frame that was found is frame ``known``, if the WAL has grown.
        (pages,) = _DATABASE_PAGES.unpack(self._head)
        if pages:
            self.database_bytes = pages * (self._frame_bytes - _FRAME_HEADER_BYTES)
        return bytes_of(known, self._frame_bytes - _FRAME_HEADER_BYTES)

    def _find_frame_bytes(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return False
        (page_bytes,) = _HEADER.unpack(header)
        # Zeros, which were filled in before the first commit: SQLite writes the header with the first frame.
        if not page_bytes:
            return False
        self._frame_bytes = _FRAME_HEADER_BYTES + page_bytes
        return True

    def _has(self, number: int) -> bool:
        assert self._descriptor is not None
        offset = _HEADER.size + (number - 1) * self._frame_bytes
        head = os.pread(self._descriptor, _FRAME_HEADER_BYTES, offset)
        if len(head) < _FRAME_HEADER_BYTES or head == _NO_FRAME:
            return False
        self._head = head
        return True


def bytes_of(frames: int, page_bytes: int) -> int:
    """Return the size of the header and of this number of frames; 0 without a frame."""
    return _HEADER.size + frames * (_FRAME_HEADER_BYTES + page_bytes) if frames else 0


def used_bytes(path: str) -> int:
    """Measure a WAL once; see ``WalGauge.used_bytes``."""
    gauge = WalGauge(path)
    try:
        return gauge.used_bytes()
    finally:
        gauge.close()
