"""Looks for the leader beside a connection that does not answer, and reports the connection that it finds.

A leader that is cut off from its log cannot tell whether another server leads, and a client that waited for its
connection to end would wait as long as the cut. The other addresses are tried one at a time, beside the connection,
which stays in use meanwhile: the server may answer again before a standby leads. Only the leader of a log ends a
handshake, so the first handshake that ends with a later epoch is the end of the search. An equal epoch is the same
leader under another name, which a request that takes long must not be aborted for; a server without an epoch is alone.
A leader of another shard, whose address a refusal may have named, has epochs of its own and does not count.

The pauses are random from the first one on: all clients of a server notice its silence at the same moment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import NamedTuple

from cmqd_client.connection import Connection, OnEnded
from cmqd_client.errors import CmqError
from cmqd_client.links.retry import RetryPolicy

PAUSES = RetryPolicy(first_delay=0.4, max_delay=2.0)
"""Pauses between attempts: 0.2 to 0.4 s at first, at most 2 s, so that a new leader is found within 2 s."""


class Beside(NamedTuple):
    """The other addresses of the service of a connection; see ``HostsInTurn``."""

    has_others: Callable[[Connection], bool]
    """Returns True if an address is known beside that of the connection."""
    open: Callable[[Connection, OnEnded], Awaitable[Connection]]
    """Connects to the next address beside that of the connection; raises CmqError."""


class LeaderSearch:
    """A search for the leader, for one connection at a time; see the module."""

    def __init__(self, beside: Beside, on_ended: OnEnded, found: Callable[[Connection, Connection], None]) -> None:
        """Make a searcher.

        Args:
            beside: opens connections to the other addresses.
            on_ended: called when a connection that was found takes no more requests.
            found: called with the connection that does not answer, and with the connection to the leader.
        """
        self._beside = beside
        self._on_ended = on_ended
        self._found = found
        self._task: asyncio.Task[None] | None = None

    def begin(self, connection: Connection) -> None:
        """Search beside a connection to a leader, unless a search is under way or no other address is known."""
        if self._task is None and connection.facts.epoch and self._beside.has_others(connection):
            connection.is_doubted = True
            self._task = asyncio.get_running_loop().create_task(self._look(connection))

    async def stop(self) -> None:
        """End the search."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look(self, connection: Connection) -> None:
        attempt = 0
        try:
            while True:
                attempt += 1
                await asyncio.sleep(PAUSES.delay(attempt, random()))
                if not connection.usable or not connection.is_stalled():
                    connection.is_doubted = False
                    return
                try:
                    found = await self._beside.open(connection, self._on_ended)
                except CmqError:
                    # A standby, or a host out of reach: the next attempt takes the next address.
                    continue
                if found.facts.shard == connection.facts.shard and found.facts.epoch > connection.facts.epoch:
                    break
                found.leave("it is no later leader")
        finally:
            self._task = None
        self._found(connection, found)
