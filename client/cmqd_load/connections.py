"""The connections of a load: opened together, kept alive by heartbeats, closed together."""

import asyncio
from collections.abc import Callable, Sequence

from cmqd_client.address import Address
from cmqd_load.connect import CONNECT_SECONDS, open_connection
from cmqd_load.wire import HEARTBEAT, LoadConnection

CONNECTS_AT_ONCE = 128
"""Concurrent handshakes: below usual accept backlogs."""
BEAT_SLICES = 2500
"""Slices of a heartbeat period. Heartbeats of independent clients are spread out: with 50 slices, ten thousand
connections sent bursts of 200 heartbeats, and even bursts of 10 cost a millisecond on the server's core."""


class Connections:
    """Open connections. ``on_lost`` gets a lost connection and the reason of its loss."""

    def __init__(self, on_lost: Callable[[LoadConnection, BaseException], object]) -> None:
        self._on_lost = on_lost
        self._open: list[LoadConnection] = []
        self._period_ms = 30_000
        """Shortest negotiated heartbeat."""
        self._beats: asyncio.TimerHandle | None = None

    async def open(self, address: Address | str, count: int) -> list[LoadConnection]:
        """Open ``count`` more connections to a server."""
        return await self.open_each([[address]] * count)

    async def open_each(
        self, servers: Sequence[Sequence[Address | str]], seconds: float = CONNECT_SECONDS
    ) -> list[LoadConnection]:
        """Open a connection for each list of addresses, to the first address that accepts within ``seconds``.

        Raises:
            OSError: no address of a list accepts; the error of the last address.
        """
        opened: list[LoadConnection] = []
        for start in range(0, len(servers), CONNECTS_AT_ONCE):
            opening = (self._open_one(addresses, seconds) for addresses in servers[start : start + CONNECTS_AT_ONCE])
            for result in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                opened.append(result)
        return opened

    async def _open_one(self, addresses: Sequence[Address | str], seconds: float) -> LoadConnection:
        for number, address in enumerate(addresses, 1):
            try:
                connection = await open_connection(address, seconds)
            except OSError:
                if number == len(addresses):
                    raise
            else:
                self._add(connection)
                return connection
        raise ConnectionError("there is no address to connect to")

    def _add(self, connection: LoadConnection) -> None:
        connection.on_lost = lambda error: self._lose(connection, error)
        self._open.append(connection)
        self._period_ms = min(self._period_ms, connection.heartbeat_ms or self._period_ms)
        if self._beats is None:
            self._beat()

    def _lose(self, connection: LoadConnection, error: BaseException) -> None:
        self._open.remove(connection)
        self._on_lost(connection, error)

    def close(self, *connections: LoadConnection) -> None:
        """Close connections, without a call of ``on_lost``."""
        for connection in connections:
            connection.on_lost = None
            connection.close()
        closed = set(connections)
        self._open = [connection for connection in self._open if connection not in closed]

    def close_all(self) -> None:
        """Close all connections."""
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None
        self.close(*self._open)

    def _beat(self, step: int = 0) -> None:
        # A connection in a long poll is silent: every connection gets a heartbeat in a third of the shortest
        # negotiated period, a slice of the connections at a time.
        for connection in self._open[step::BEAT_SLICES]:
            connection.write(HEARTBEAT)
        interval = self._period_ms / 3000 / BEAT_SLICES
        self._beats = asyncio.get_running_loop().call_later(interval, self._beat, (step + 1) % BEAT_SLICES)
