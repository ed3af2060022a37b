"""Ends the accepts of listening sockets before the sockets close."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Final

ACCEPT_TURNS: Final = 4
"""Turns of the loop from the accept of a connection to the call of ``connection_made``, at most."""


async def finish_accepts(listening: Iterable[socket.socket]) -> None:
    """Accept no more connections, and enter those that are being accepted.

    A loop of asyncio would forget a connection that it accepts as its server closes: the socket would stay open until
    the garbage collector finds it.
    """
    loop = asyncio.get_running_loop()
    for each in listening:
        loop.remove_reader(each)
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
