"""The C library's allocator: large blocks are used again, and after a burst they go back to the system.

A fresh page costs about as much as the copy of 8 KiB (1.9 us on the machine of decision 0188), and a frame of a MiB
with its body needs a thousand of them. So large blocks come from the heap, which keeps its pages between messages. But
a heap that has grown with a burst of large frames rarely shrinks: a small block near the end keeps the whole. Therefore
blocks come from the system, and go back when they are freed, as soon as clients make the broker hold more than
``REUSED_BYTES``.

Smaller blocks, such as the reads that bring a flood, grow the heap at any time. So the free pages of the heap go back
once the flood is over, wherever the pages are.

No effect with other C libraries.
"""

import ctypes
from collections.abc import Callable
from typing import Final, Protocol

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

LARGE_BYTES: Final = 192 * 1024
"""Size from which on a block is large: below the largest read of a socket (256,000 bytes), above a row of the log, so
that only floods and large bodies pay for fresh pages."""

LARGEST_BYTES: Final = 16 * 1024 * 1024
"""Above every block that a frame or a commit needs."""

REUSED_BYTES: Final = 32 * 1024 * 1024
"""Memory held for clients up to which large blocks come from the heap: eight of the largest frames."""

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Free bytes at the end of the heap that stay with the process. With fewer, the pages of requests and replies would be
given back and faulted in again for every I/O batch."""

QUIET_SECONDS: Final = 1.0
"""Time without a flood after which free pages go back: a load near ``REUSED_BYTES`` would fault them in again."""


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Drop the call."""
        ...


CallLater = Callable[[float, Callable[[], object]], Timer]
"""Plans a call after a number of seconds, as ``loop.call_later``."""


class CLibrary:
    """The functions of the allocator; none has an effect with other C libraries than glibc."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallopt = getattr(library, "mallopt", None)
        self._malloc_trim = getattr(library, "malloc_trim", None)

    def set_option(self, option: int, value: int) -> None:
        """Set an option of ``mallopt``."""
        if self._mallopt is not None:
            self._mallopt(option, value)

    def return_free_pages(self) -> None:
        """Give all free pages back to the system, except ``KEPT_BYTES`` at the end of the heap."""
        if self._malloc_trim is not None:
            self._malloc_trim(ctypes.c_size_t(KEPT_BYTES))


class LargeBlocks:
    """Tells the allocator where large blocks come from, and gives free pages back after a flood; see the module.

    Without a call of ``note_held`` all large blocks come from the heap.
    """

    __slots__ = ("_call_later", "_from_heap", "_library", "_return")

    def __init__(self, call_later: CallLater | None = None, library: CLibrary | None = None) -> None:
        """Set the options for a process without a flood.

        Args:
            call_later: plans the return of free pages; None = they stay.
            library: the C library by default.
        """
        self._call_later = call_later
        self._library = library or CLibrary()
        self._from_heap = True
        self._return: Timer | None = None
        """Set from the end of a flood until its free pages go back."""
        # Both are fixed: by default glibc raises the two with each large block that is freed, up to 32 and 64 MiB.
        self._library.set_option(M_TRIM_THRESHOLD, KEPT_BYTES)
        self._library.set_option(M_MMAP_THRESHOLD, LARGEST_BYTES)

    def note_held(self, held_bytes: int) -> None:
        """Take note of the memory that is held for clients now."""
        # Half the bound on the way back: a load near the bound would switch with every message.
        from_heap = held_bytes <= (REUSED_BYTES if self._from_heap else REUSED_BYTES // 2)
        if from_heap == self._from_heap:
            return
        self._from_heap = from_heap
        self._library.set_option(M_MMAP_THRESHOLD, LARGEST_BYTES if from_heap else LARGE_BYTES)
        if self._return is not None:
            self._return.cancel()
            self._return = None
        if from_heap and self._call_later is not None:
            self._return = self._call_later(QUIET_SECONDS, self._return_free_pages)

    def _return_free_pages(self) -> None:
        self._return = None
        self._library.return_free_pages()
