"""Closing a listening socket whose connections are just being accepted."""

import asyncio

from cmqd.testing.accepting import finish_accepts


async def close_listener(server: asyncio.Server) -> None:
    """Enter the connections that are being accepted, and close the socket."""
    if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        await finish_accepts(server.sockets)
    server.close()
