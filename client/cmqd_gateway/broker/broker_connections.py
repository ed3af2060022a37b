"""Connections to the broker: clients of the native protocol, with the keys of the callers.

    client(key) ───► the client of the key                    sends, deletes, administration: pipelined in a connection
    polling(key) ──► a client of the key for waiting receives, as long as it has room for one more
                       ├─► none ──► a new client, opened once for all requests that wait for it
                       └─► full ──► the client that is idle for longest makes room; if all are in use, a refusal
    checking(key) ─► a client of the key for the checks of a queue's half messages, likewise

Receives that wait have connections of their own, for two reasons. A broker refuses requests in a connection with too
many unanswered requests (4,096 by default), and a waiting receive is unanswered for up to 30 s. And a client with a
waiting receive cannot make room for another key. If polls shared the connections of other requests, enough polls would
end the sends and the deletes of the same key, and of other keys. Therefore polls take at most half of the connections,
and a poll is the request that is refused when that half is in use.

A registration for checks lasts as long as its producers are connected, so its client cannot make room either, and the
broker takes 1,000 registrations in a connection. Clients for checks are at most a quarter of the connections.

A client without requests is closed after a minute. After a change of a key's secret the clients of the key are
replaced; requests in progress finish over the former clients, which count until then. A request that was authenticated
before the change and asks for a client after the change gets the new client, and so does the undo of such a request: a
client with the former secret would replace the new client, and the broker would refuse the former secret.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeAlias

from cmqd_client import Client
from cmqd_client.errors import ClientClosed
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_types.actors import StatedClient

MAX_POLLS_PER_CLIENT: Final = 1_000
"""Waiting receives in a connection. A lost connection ends as many polls at once, and more would gain nothing: 20
connections carry the polls of 20,000 HTTP connections."""
MAX_MADE_FOR: Final = 1_000
"""Callers of a client whose names and addresses are remembered, some 500 bytes each; beyond that, all are forgotten."""
MAX_CHECKED_QUEUES_PER_CLIENT: Final = 1_000
"""Registrations for checks that the broker takes in a connection."""
POLLS_SHARE: Final = 0.75
"""Part of the broker's limit of unanswered requests in a connection that polls use. The rest is for the releases of
messages that crossed the end of their poll."""


class TooManyKeysInUse(Exception):
    """Every connection to the broker is in use, by other keys or by polls up to their share."""

    def __init__(self) -> None:
        super().__init__("all connections of the gateway to the broker are in use; send the request again")


class TooManyPolls(Exception):
    """Every connection to the broker that polls may use is full. Other requests are served."""

    def __init__(self) -> None:
        super().__init__(
            "all connections of the gateway for waiting receives are in use; poll again, or with a wait of 0"
        )


class TooManyCheckedQueues(Exception):
    """Every connection to the broker that checks may use is full. Other requests are served."""

    def __init__(self) -> None:
        super().__init__("all connections of the gateway for checks of half messages are in use")


MakeClient: TypeAlias = Callable[[KeySecret], Client]
"""Makes a client that is not open yet."""


class _Kind(Enum):
    """The use of a client."""

    REQUESTS = 1
    POLLS = 2
    CHECKS = 3


_REFUSALS: Final = {
    _Kind.REQUESTS: TooManyKeysInUse,
    _Kind.POLLS: TooManyPolls,
    _Kind.CHECKS: TooManyCheckedQueues,
}


class KeyClient:
    """A client of a key, and the number of requests that use it."""

    __slots__ = ("_made_for", "client", "idle_since", "is_replaced", "key", "kind", "opening", "uses")

    def __init__(self, key: KeySecret, client: Client, kind: _Kind) -> None:
        self.key = key
        self.client = client
        self.kind = kind
        self.uses = 0
        self.idle_since = 0.0
        self.opening: asyncio.Task[None] | None = None
        self.is_replaced = False
        """True once no further request gets this client; the last request that uses it closes it."""
        self._made_for: dict[StatedClient, Client] = {}

    def made_for(self, stated: StatedClient | None) -> Client:
        """Return the client, once it is open, making its requests for a caller; None = for the gateway."""
        if stated is None:
            return self.client
        found = self._made_for.get(stated)
        if found is None:
            if len(self._made_for) >= MAX_MADE_FOR:
                self._made_for.clear()
            found = self._made_for[stated] = self.client.on_behalf_of(stated)
        return found


class _Use:
    """A context manager with the client of a request. A class, because a generator takes more CPU than the whole search
    for the client."""

    __slots__ = ("_entry", "_find", "_key", "_release", "_stated")

    def __init__(
        self,
        find: Callable[[KeySecret], Coroutine[Any, Any, KeyClient]],
        release: Callable[[KeyClient], None],
        key: KeySecret,
        stated: StatedClient | None = None,
    ) -> None:
        self._find = find
        self._release = release
        self._key = key
        self._stated = stated

    async def __aenter__(self) -> Client:
        self._entry = await self._find(self._key)
        return self._entry.made_for(self._stated)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release(self._entry)


class BrokerConnections:
    """The clients of the keys; see the module.

    Invariants: ``_open`` has each client from its making until it begins to close. ``_shared`` and ``_roomy`` have
    the clients of ``_open`` that are not replaced. At most ``limit`` clients are open, at most half of them for polls
    and a quarter for checks.
    """

    def __init__(
        self,
        make_client: MakeClient,
        limit: int,
        idle_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the pool.

        Args:
            make_client: makes a client of a key.
            limit: connections over all keys, at least 2; polls use at most half of them, checks a quarter.
            idle_seconds: time without requests after which a client is closed.
            now: the clock, in seconds.
        """
        self._make_client = make_client
        self._limit = limit
        self._limits = {_Kind.POLLS: limit // 2, _Kind.CHECKS: limit // 4}
        self._idle_seconds = idle_seconds
        self._now = now
        self._open: set[KeyClient] = set()
        self._shared: dict[str, KeyClient] = {}
        """By id of the key: the client of its requests that do not wait."""
        self._roomy: dict[tuple[_Kind, str], list[KeyClient]] = {}
        """By kind and id of the key: the clients for polls and for checks, in the order of their making."""
        self._polls_per_client = MAX_POLLS_PER_CLIENT
        """Room of a client for polls, by the last word of the broker."""
        self._closing: set[asyncio.Task[None]] = set()
        self._polls_ended = False
        self._closed = False

    def __len__(self) -> int:
        """Return the number of clients, each with a connection; clients that are being closed do not count."""
        return len(self._open)

    @property
    def for_polls(self) -> int:
        """Number of clients for receives that wait."""
        return self._count(_Kind.POLLS)

    @property
    def for_checks(self) -> int:
        """Number of clients for checks of half messages."""
        return self._count(_Kind.CHECKS)

    @property
    def keys(self) -> int:
        """Number of keys with a client."""
        return len({entry.key.secret_id for entry in self._open})

    def client(self, key: KeySecret, stated: StatedClient | None = None) -> "_Use":
        """Return the open client of a key for the length of a request that does not wait for messages.

        ``stated`` is the caller that the request is made for; None = the gateway.

        Raises:
            TooManyKeysInUse: there is no room for another key.
            ClientClosed: the pool is closed.
            CmqError: the broker cannot be reached, or refuses the key.
        """
        return _Use(self._shared_client, self.release, key, stated)

    def polling(self, key: KeySecret, stated: StatedClient | None = None) -> "_Use":
        """Return an open client of a key for the length of a receive that waits; ``stated`` as for :meth:`client`.

        Raises:
            TooManyPolls: there is no room for another poll.
            ClientClosed: the polls are ended.
            CmqError: the broker cannot be reached, or refuses the key.
        """
        return _Use(self._polling_client, self.release, key, stated)

    def checking(self, key: KeySecret) -> "_Use":
        """Return an open client of a key for as long as the client is registered for the checks of a queue.

        Raises:
            TooManyCheckedQueues: there is no room for another queue.
            ClientClosed: the pool is closed.
            CmqError: the broker cannot be reached, or refuses the key.
        """
        return _Use(self._checking_client, self.release, key)

    def ready(self, key: KeySecret, *, polls: bool) -> KeyClient | None:
        """Return a client of a key if it is open and has room, else None; to be given back by :meth:`release`.

        A short way of :meth:`client` and :meth:`polling` for the requests of a busy key, which find an open client.
        """
        if polls:
            entries = self._roomy.get((_Kind.POLLS, key.secret_id))
            entry = entries[0] if entries else None
        else:
            entry = self._shared.get(key.secret_id)
        # The same object: a later reading of the key takes the long way, which compares secrets.
        if entry is None or entry.key is not key or entry.opening is not None:
            return None
        if polls and entry.uses >= self._polls_per_client:
            return None
        entry.uses += 1
        return entry

    def clients(self) -> list[Client]:
        """Return all clients that are not being closed."""
        return [entry.client for entry in self._open]

    def replace_all(self) -> None:
        """Give every later request a new client, because another broker leads; requests in progress finish over the
        former clients.
        """
        for entry in [entry for entry in self._open if not entry.is_replaced]:
            self._replace(entry)

    def close_idle(self) -> None:
        """Close the clients without requests for the set time; to be called about once a second."""
        latest = self._now() - self._idle_seconds
        for entry in [entry for entry in self._open if not entry.uses and entry.idle_since <= latest]:
            self._close(entry)

    async def end_polls(self) -> None:
        """End the receives that wait, and refuse further polls with ``ClientClosed``. Other requests are served.

        Messages on their way to a receive are released.
        """
        self._polls_ended = True
        await self._close_all([entry for entry in self._open if entry.kind is _Kind.POLLS])

    async def close(self) -> None:
        """Close all clients: waiting receives end, other requests have a second to finish. Further requests are refused
        with ``ClientClosed``.
        """
        self._closed = True
        await self._close_all(list(self._open))

    # ------------------------------------------------------------------ inside

    async def _shared_client(self, key: KeySecret) -> KeyClient:
        """Return the open client of a key; the request counts as one of its uses already."""
        entry = self._shared.get(key.secret_id)
        if entry is not None and not self._serves(entry, key):
            self._replace(entry)
            entry = None
        if entry is None:
            entry = self._add(key, _Kind.REQUESTS)
        entry.uses += 1
        try:
            await self._opened(entry)
        except BaseException:
            self.release(entry)
            raise
        return entry

    async def _polling_client(self, key: KeySecret) -> KeyClient:
        return await self._roomy_client(key, _Kind.POLLS)

    async def _checking_client(self, key: KeySecret) -> KeyClient:
        return await self._roomy_client(key, _Kind.CHECKS)

    async def _roomy_client(self, key: KeySecret, kind: _Kind) -> KeyClient:
        """Return an open client with room for another use, which counts as one of its uses already."""
        while True:
            entry = self._find_roomy(key, kind) or self._add(key, kind)
            entry.uses += 1
            try:
                await self._opened(entry)
            except BaseException:
                self.release(entry)
                raise
            if entry.uses <= self._room(entry):
                return entry
            # The broker's limit became known with the opening, and it is too low for all polls that waited for the
            # client. The last of them take another client.
            self.release(entry)

    @staticmethod
    def _serves(entry: KeyClient, key: KeySecret) -> bool:
        """Return True if a client has the secret of the key, or the secret that followed it."""
        if entry.key.secret_key == key.secret_key:
            if key.reading > entry.key.reading:
                # The secret was confirmed: a secret of a reading between the two is a former secret now.
                entry.key = key
            return True
        return key.is_former_of(entry.key)

    def _find_roomy(self, key: KeySecret, kind: _Kind) -> KeyClient | None:
        for entry in list(self._roomy.get((kind, key.secret_id), ())):
            if not self._serves(entry, key):
                self._replace(entry)
            elif entry.uses < self._room(entry):
                # The first with room: uses gather in few clients, and the others become idle and close.
                return entry
        return None

    def _room(self, entry: KeyClient) -> int:
        """Return the number of polls, or of queues with checks, that a client may have."""
        if entry.kind is _Kind.CHECKS:
            return MAX_CHECKED_QUEUES_PER_CLIENT
        limit = entry.client.max_waiting_requests
        if limit is not None:
            self._polls_per_client = max(1, min(MAX_POLLS_PER_CLIENT, int(limit * POLLS_SHARE)))
        return self._polls_per_client

    def _count(self, kind: _Kind) -> int:
        return sum(entry.kind is kind for entry in self._open)

    def _add(self, key: KeySecret, kind: _Kind) -> KeyClient:
        if self._closed or (kind is _Kind.POLLS and self._polls_ended):
            raise ClientClosed("the gateway is shutting down")
        limit = self._limits.get(kind)
        if limit is not None and self._count(kind) >= limit:
            self._make_room((entry for entry in self._open if entry.kind is kind), _REFUSALS[kind])
        elif len(self._open) >= self._limit:
            self._make_room(self._open, _REFUSALS[kind])
        entry = KeyClient(key, self._make_client(key), kind)
        self._open.add(entry)
        if kind is _Kind.REQUESTS:
            self._shared[key.secret_id] = entry
        else:
            self._roomy.setdefault((kind, key.secret_id), []).append(entry)
        entry.opening = asyncio.create_task(entry.client.open())
        entry.opening.add_done_callback(lambda opening: self._open_ended(entry, opening))
        return entry

    def _make_room(self, entries: Iterable[KeyClient], refusal: type[Exception]) -> None:
        """Close the client that is idle for longest.

        Raises:
            TooManyKeysInUse, TooManyPolls, TooManyCheckedQueues: all are in use.
        """
        idle = [entry for entry in entries if not entry.uses]
        if not idle:
            raise refusal
        self._close(min(idle, key=lambda entry: entry.idle_since))

    async def _opened(self, entry: KeyClient) -> None:
        opening = entry.opening
        if opening is None:
            return
        # Waited for and not awaited: the opening goes on for the other requests when this request is cancelled, and a
        # cancelled opening does not cancel the requests, which would end their connections without an answer.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ClientClosed("the gateway is shutting down")
        opening.result()

    def _open_ended(self, entry: KeyClient, opening: "asyncio.Task[None]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            entry.opening = None
        else:
            # The next request of the key tries again. Requests that wait for this opening get its error.
            self._close(entry)

    def release(self, entry: KeyClient) -> None:
        """Note that a request uses a client no more."""
        entry.uses -= 1
        if not entry.uses:
            entry.idle_since = self._now()
            if entry.is_replaced:
                self._close(entry)

    def _replace(self, entry: KeyClient) -> None:
        """Give a client to no further request, and close the client once no request uses it."""
        entry.is_replaced = True
        if entry.kind is _Kind.REQUESTS:
            del self._shared[entry.key.secret_id]
        else:
            others = self._roomy[entry.kind, entry.key.secret_id]
            others.remove(entry)
            if not others:
                del self._roomy[entry.kind, entry.key.secret_id]
        if not entry.uses:
            self._close(entry)

    def _close(self, entry: KeyClient) -> None:
        """Begin to close a client, also with requests in progress. Harmless when repeated."""
        if entry not in self._open:
            return
        self._open.remove(entry)
        if not entry.is_replaced:
            self._replace(entry)

        async def close() -> None:
            if entry.opening is not None:
                entry.opening.cancel()
                await asyncio.wait([entry.opening])
            await entry.client.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_all(self, entries: Iterable[KeyClient]) -> None:
        for entry in entries:
            self._close(entry)
        while self._closing:
            await asyncio.wait(self._closing)
