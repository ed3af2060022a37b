"""CRC-32, the checksum of the files of the log.

The package isal, of the extra ``server``, computes the same numbers with instructions of the processor: 64 KiB in 1.2
us in place of 15 by zlib, and 100 bytes in 0.07 us in place of 0.18.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import crc32 as crc32
else:
    try:
        from isal.isal_zlib import crc32 as crc32
    except ImportError:
        from zlib import crc32 as crc32
