"""Reading of request bodies, for all requests within one budget of memory and each within a time limit.

A stranger can send bodies too, because a signature can be checked only after the body was read. Without the budget,
10,000 connections with slow bodies of 4 MiB would take 40 GiB.
"""

import asyncio
from typing import Final

from aiohttp import web

_SMALL: Final = 65_536
"""Bytes of a body that are not counted: as much as the socket's own buffers may hold."""


class BodyRefused(Exception):
    """The body is too large, comes too slowly, or finds no memory.

    The rest of the body is read and dropped for some seconds, so that the client finds the answer; then the connection
    closes.
    """


class RequestBodies:
    """Reads bodies; see the module."""

    def __init__(self, max_bytes: int, memory_bytes: int, seconds: float) -> None:
        """Make a reader.

        Args:
            max_bytes: largest body.
            memory_bytes: bytes of all bodies that are being read.
            seconds: time for a body.
        """
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self.bytes_in_use: int = 0
        """Bytes of bodies that are being read now."""

    async def read(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request; empty if it has none.

        Raises:
            BodyRefused: see the class.
        """
        if not request.body_exists:
            return b""
        length = request.content_length
        if length is not None and length > self._max_bytes:
            raise BodyRefused(f"the body has {length} bytes; the limit is {self._max_bytes}")
        content = request.content
        if length is not None and length <= _SMALL and content.is_eof():
            # The whole body came with the head, as most do: no timer is needed.
            return content.read_nowait()
        chunks: list[bytes] = []
        size = counted = 0
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in content.iter_any():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise BodyRefused(f"the body is larger than {self._max_bytes} bytes")
                    more = max(size - _SMALL, 0) - counted
                    counted += more
                    self.bytes_in_use += more
                    if self.bytes_in_use > self._memory_bytes:
                        raise BodyRefused("the gateway reads too many large bodies; try again")
        except TimeoutError:
            raise BodyRefused(f"the body did not arrive within {self._seconds:g} s") from None
        finally:
            self.bytes_in_use -= counted
        return b"".join(chunks)
