"""Request bodies, within one budget of memory for all requests and within a time limit for each.

A stranger can send bodies too, because a signature can be checked only after the body was read. Without the budget,
10,000 connections with bodies of 4 MiB would take 40 GiB.

The bytes of a body count until its request ends, not until the body is read: a handler waits with the decoded body, for
the broker's answer about a key or for a thread that hashes. While the broker is away, these waits last for seconds.
"""

import asyncio
from typing import Final

from aiohttp import web

from cmqd_gateway.http.amounts import Amount

TINY_BODY: Final = 4_096
"""Bodies up to here do not count and are never refused: 80 MiB for 20,000 connections. Receives, deletes and most sends
pass also while strangers fill the budget with slow bodies."""
SMALL_BODY: Final = 65_536
"""Bodies up to here may use the whole budget, larger bodies three quarters of it: large bodies of strangers must not
keep out the small requests of others."""
_HELD: Final = web.RequestKey("held_body_bytes", int)


class BodyRefused(Exception):
    """The body is too large, comes too slowly, or finds no memory.

    The rest of the body is read and dropped for some seconds, so that the client finds the answer; then the connection
    closes.
    """

    def __init__(self, text: str, *, can_be_repeated: bool = False) -> None:
        """Make an error with a text for the caller.

        Args:
            text: the reason.
            can_be_repeated: the same request may succeed later.
        """
        super().__init__(text)
        self.can_be_repeated = can_be_repeated


class RequestBodies:
    """Reads bodies; see the module."""

    def __init__(self, max_bytes: int, memory_bytes: int, seconds: float, memory: Amount | None = None) -> None:
        """Make a reader.

        Args:
            max_bytes: largest body.
            memory_bytes: bytes of the bodies of all requests in progress.
            seconds: time for a body.
            memory: bytes of the bodies of all requests in progress.
        """
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._memory = memory or Amount()

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the bodies of all requests in progress."""
        return self._memory.held

    async def read(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request; empty if it has none. The bytes count until :meth:`release`.

        Raises:
            BodyRefused: see the class. The bytes are released.
        """
        if not request.body_exists:
            return b""
        length = request.content_length
        if length is not None and length > self._max_bytes:
            raise BodyRefused(f"the body has {length} bytes; the limit is {self._max_bytes}")
        content = request.content
        if length is not None and length <= SMALL_BODY and content.is_eof():
            # The whole body came with the head, as most do: no timer is needed.
            self._count(request, length)
            return content.read_nowait()
        # Not a list of chunks: a client that sends single bytes would make an object of each.
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in content.iter_any():
                    body += chunk
                    if len(body) > self._max_bytes:
                        raise BodyRefused(f"the body is larger than {self._max_bytes} bytes")
                    self._count(request, len(body))
        except TimeoutError:
            self.release(request)
            raise BodyRefused(f"the body did not arrive within {self._seconds:g} s") from None
        except BaseException:
            self.release(request)
            raise
        return bytes(body)

    def release(self, request: web.BaseRequest) -> None:
        """Stop counting the body of a request; to be called at the end of every request. Harmless when repeated."""
        self.hold(request.pop(_HELD, 0), 0)

    def hold(self, held: int, size: int) -> int:
        """Count ``size`` bytes in place of the ``held`` bytes that this method returned before; return what counts.

        Raises:
            BodyRefused: there is no memory; the bytes held before still count.
        """
        counted = size if size > TINY_BODY else 0
        room = self._memory_bytes if size <= SMALL_BODY else large_bodies(self._memory_bytes)
        if counted <= held:
            self._memory.add(counted - held)
        elif not self._memory.take(counted - held, room):
            raise BodyRefused("the gateway has too many large requests in progress; try again", can_be_repeated=True)
        return counted

    def _count(self, request: web.BaseRequest, size: int) -> None:
        if size > TINY_BODY:
            request[_HELD] = self.hold(request.get(_HELD, 0), size)


def large_bodies(memory_bytes: int) -> int:
    """Return the part of the budget that bodies over 64 KiB may use."""
    return memory_bytes // 4 * 3
