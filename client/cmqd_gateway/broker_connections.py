"""Connections to the broker: a client of the native protocol per key, with that key.

    client(key) ──► open ──► the client           all requests of a key share its connection, pipelined
                ├─► none ──► a new client, opened once for all requests of the key
                └─► full ──► the client that is idle for longest makes room; if all are in use, a refusal

A client without requests is closed after a minute. After a change of a key's secret the client of the key is replaced;
requests in progress finish over the former client.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import TypeAlias

from cmqd_client import Client
from cmqd_gateway.key_secrets import KeySecret


class TooManyKeysInUse(Exception):
    """Every connection to the broker is in use by other keys."""


MakeClient: TypeAlias = Callable[[KeySecret], Client]
"""Makes a client that is not open yet."""


class _KeyClient:
    """The client of a key, and the requests that use it."""

    __slots__ = ("client", "idle_since", "key", "opening", "uses")

    def __init__(self, key: KeySecret, client: Client) -> None:
        self.key = key
        self.client = client
        self.uses = 0
        self.idle_since = 0.0
        self.opening: asyncio.Task[None] | None = None


class BrokerConnections:
    """The clients of the keys; see the module."""

    def __init__(
        self,
        make_client: MakeClient,
        limit: int,
        idle_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the pool.

        Args:
            make_client: makes the client of a key.
            limit: connections over all keys.
            idle_seconds: time without requests after which a client is closed.
            now: the clock, in seconds.
        """
        self._make_client = make_client
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._now = now
        self._clients: dict[str, _KeyClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys with a client."""
        return len(self._clients)

    @contextlib.asynccontextmanager
    async def client(self, key: KeySecret) -> AsyncGenerator[Client]:
        """Return the open client of a key for the length of a request.

        Raises:
            TooManyKeysInUse: there is no room for another key.
            CmqError: the broker cannot be reached, or refuses the key.
        """
        entry = self._clients.get(key.secret_id)
        if entry is None or entry.key.secret_key != key.secret_key:
            entry = self._add(key)
        entry.uses += 1
        try:
            if entry.opening is not None:
                await self._opened(entry)
            yield entry.client
        finally:
            entry.uses -= 1
            if not entry.uses:
                entry.idle_since = self._now()
                if self._clients.get(key.secret_id) is not entry:
                    self._close(entry)

    def close_idle(self) -> None:
        """Close the clients without requests for the set time; to be called about once a second."""
        latest = self._now() - self._idle_seconds
        for entry in [entry for entry in self._clients.values() if not entry.uses and entry.idle_since <= latest]:
            self._remove(entry)

    async def close(self) -> None:
        """Close all clients: waiting receives end, other requests have a second to finish."""
        self._closed = True
        for entry in list(self._clients.values()):
            self._remove(entry, also_used=True)
        while self._closing:
            await asyncio.wait(self._closing)

    # ------------------------------------------------------------------ inside

    def _add(self, key: KeySecret) -> _KeyClient:
        former = self._clients.get(key.secret_id)
        if former is not None:
            self._remove(former)
        elif len(self._clients) >= self._limit:
            idle = [entry for entry in self._clients.values() if not entry.uses]
            if not idle:
                raise TooManyKeysInUse
            self._remove(min(idle, key=lambda entry: entry.idle_since))
        entry = _KeyClient(key, self._make_client(key))
        self._clients[key.secret_id] = entry
        entry.opening = asyncio.create_task(entry.client.open())
        entry.opening.add_done_callback(lambda opening: self._open_ended(entry, opening))
        return entry

    async def _opened(self, entry: _KeyClient) -> None:
        if entry.opening is not None:
            # Shielded: the opening goes on for the other requests when this request is cancelled.
            await asyncio.shield(entry.opening)

    def _open_ended(self, entry: _KeyClient, opening: "asyncio.Task[None]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            entry.opening = None
        elif self._clients.get(entry.key.secret_id) is entry:
            # The next request of the key tries again. Requests that wait for this opening get its error.
            del self._clients[entry.key.secret_id]

    def _remove(self, entry: _KeyClient, *, also_used: bool = False) -> None:
        """Forget a client, and close the client once no request uses it."""
        self._clients.pop(entry.key.secret_id, None)
        if not entry.uses or also_used:
            self._close(entry)

    def _close(self, entry: _KeyClient) -> None:
        async def close() -> None:
            if entry.opening is not None:
                entry.opening.cancel()
                await asyncio.wait([entry.opening])
            await entry.client.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
