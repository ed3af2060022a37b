"""The other end of a connection: its address, and the machines that can read the bytes between."""

import asyncio
import socket
from typing import Any

from cmqd_sockets.listening import is_loopback


def peer_of(transport: asyncio.Transport | None) -> str:
    """Return the address of the client, for logs; ``gone`` after the connection is lost."""
    address: Any = transport.get_extra_info("peername") if transport is not None else None
    if not address:
        return "gone"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(transport: asyncio.Transport | None) -> str:
    """Return the address of the client's machine, without its port; empty if there is none, as of a Unix socket."""
    address: Any = transport.get_extra_info("peername") if transport is not None else None
    # The address of a Unix socket is its path.
    return "" if not address or isinstance(address, str | bytes) else str(address[0])


def uses_tls(transport: asyncio.Transport | None) -> bool:
    """Return True for a connection with TLS that is not lost."""
    return transport is not None and transport.get_extra_info("ssl_object") is not None


def is_private(transport: asyncio.Transport | None) -> bool:
    """Return True if no other machine can read the bytes of the connection: TLS, loopback or a Unix socket."""
    if transport is None:
        return False
    if uses_tls(transport):
        return True
    peer: Any = transport.get_extra_info("peername")
    connected: Any = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        return True
    return bool(peer) and is_loopback(peer[0])
