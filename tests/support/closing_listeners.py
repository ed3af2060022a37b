"""Closing a listening socket whose connections are just being accepted."""

import asyncio

TURNS = 4
"""Turns of the loop from the accept of a connection to the call of ``connection_made``, at most."""


async def close_listener(server: asyncio.Server) -> None:
    """Enter the connections that are being accepted, and close the socket.

    A loop of asyncio would forget a connection that it accepts as its server closes: the socket would stay open until
    the garbage collector finds it, in a later test.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    server.close()
