"""The protocol of a socket while a large frame arrives: a read brings bytes into the memory of the frame.

A usual read is an object of at most 256,000 bytes, and is then copied into the frame: five reads for a frame of a MiB.
Here a read brings all that has arrived, without a copy.

The loop asks for the memory with each read, so a small read would cost two calls more than usual. Therefore a
connection has this protocol within large frames alone.
"""

import asyncio
from collections.abc import Callable


class FrameFilling(asyncio.BufferedProtocol):
    """Reads into the memory of a frame, and hands all other calls of the transport on to the connection."""

    def __init__(
        self, connection: asyncio.Protocol, space: Callable[[], memoryview], filled: Callable[[int], None]
    ) -> None:
        """``space`` returns the memory of the next bytes; ``filled`` takes the number of bytes that were written."""
        self._connection = connection
        self._space = space
        self._filled = filled

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory of the next bytes."""
        return self._space()

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of bytes in the memory."""
        self._filled(nbytes)

    def eof_received(self) -> bool | None:
        """Hand on that the client has closed its side."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on the end of the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on that the socket's buffer is over its mark."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the client has read."""
        self._connection.resume_writing()
