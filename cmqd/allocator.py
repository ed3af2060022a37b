"""The C library's allocator, told to give large blocks back to the system."""

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

LARGE_BYTES: Final = 192 * 1024
"""Below the largest read of a socket (256,000 bytes), above a row of the log, so that only floods and large bodies pay
for fresh pages."""

KEPT_BYTES: Final = 4 * 1024 * 1024
"""Free bytes at the end of the heap that stay with the process. The requests and replies of an I/O batch take about a
MiB, and with ``LARGE_BYTES`` here their pages would be given back and faulted in again for every batch: 0.2 page faults
for each request of 16 messages."""


def return_large_blocks() -> None:
    """Give blocks of ``LARGE_BYTES`` and more back to the system as soon as they are freed.

    By default glibc raises that threshold with each large block that is freed, up to 32 MiB. After a burst of large
    frames the process then keeps the memory of the burst forever. No effect with other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
