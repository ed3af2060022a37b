"""TLS of a listening port: the context, and accepted sockets before a byte is read.

asyncio's TLS listener does not count handshakes, gives each handshake 60 s, and keeps the context of its start.
Therefore a port accepts plain sockets and begins TLS itself.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

TLS_HANDSHAKE: Final = b"\x16"
"""First byte of a TLS handshake."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server with this certificate.

    Raises:
        OSError, ssl.SSLError: certificate or key cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


class Arrival(asyncio.Protocol):
    """Takes the socket from the transport before a byte is read.

    The socket goes on under another descriptor; the close of the transport closes the transport's descriptor alone.
    """

    def __init__(self, arrived: Callable[[socket.socket], None], failed: Callable[[OSError], None]) -> None:
        """Make the protocol of a connection; ``failed`` is called if no descriptor is left."""
        self._arrived = arrived
        self._failed = failed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the socket on, and end the transport."""
        # Not checked by isinstance: the transports of uvloop are no subclasses.
        accepted = cast("asyncio.Transport", transport)
        descriptor = accepted.get_extra_info("socket").fileno()
        try:
            arrived = socket.socket(fileno=os.dup(descriptor))
        except OSError as failure:
            self._failed(failure)
            accepted.abort()
            return
        accepted.abort()
        arrived.setblocking(False)
        self._arrived(arrived)
