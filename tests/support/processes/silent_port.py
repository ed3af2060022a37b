"""A port of 127.0.0.1 that refuses connections, and that no other program gets."""

import socket


def reserve_port() -> socket.socket:
    """Bind a free port without listening. On Linux a server can listen on the port beside this socket."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
