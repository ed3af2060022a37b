"""The C library's allocator: large blocks are used again, and after a burst they go back to the system.

A fresh page costs about as much as the copy of 8 KiB (1.9 us on the machine of decision 0188), and a frame of a MiB
with its body needs a thousand of them. So large blocks come from the heap, which keeps its pages between messages. But
a heap that has grown with a burst of large frames rarely shrinks: a small block near the end keeps the whole. Therefore
blocks come from the system, and go back when they are freed, as soon as clients make the broker hold more than
``REUSED_BYTES``.

No effect with other C libraries.
"""

import ctypes
from collections.abc import Callable
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

LARGE_BYTES: Final = 192 * 1024
"""Size from which on a block is large: below the largest read of a socket (256,000 bytes), above a row of the log, so
that only floods and large bodies pay for fresh pages."""

LARGEST_BYTES: Final = 16 * 1024 * 1024
"""Above every block that a frame or a commit needs."""

REUSED_BYTES: Final = 32 * 1024 * 1024
"""Memory held for clients up to which large blocks come from the heap: eight of the largest frames. After a flood of
unfinished frames a broker keeps more than this (decision 0188)."""

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Free bytes at the end of the heap that stay with the process. With fewer, the pages of requests and replies would be
given back and faulted in again for every I/O batch."""


class LargeBlocks:
    """Tells the allocator where large blocks come from; see the module.

    Without a call of ``note_held`` all large blocks come from the heap.
    """

    __slots__ = ("_from_heap", "_set_option")

    def __init__(self, set_option: Callable[[int, int], object] | None = None) -> None:
        """``set_option`` is ``mallopt`` by default."""
        self._set_option = set_option or _mallopt()
        self._from_heap = True
        # Both are fixed: by default glibc raises the two with each large block that is freed, up to 32 and 64 MiB.
        self._set_option(M_TRIM_THRESHOLD, KEPT_BYTES)
        self._set_option(M_MMAP_THRESHOLD, LARGEST_BYTES)

    def note_held(self, held_bytes: int) -> None:
        """Take note of the memory that is held for clients now."""
        # Half the bound on the way back: a load near the bound would switch with every message.
        from_heap = held_bytes <= (REUSED_BYTES if self._from_heap else REUSED_BYTES // 2)
        if from_heap != self._from_heap:
            self._from_heap = from_heap
            self._set_option(M_MMAP_THRESHOLD, LARGEST_BYTES if from_heap else LARGE_BYTES)


def _mallopt() -> Callable[[int, int], object]:
    try:
        return ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return lambda _option, _value: 0
