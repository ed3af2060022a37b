"""Changes of keys that the server pushes to a gateway, and the watches of the connections.

A watch ends with its connection, and changes of before a watch are not pushed. Therefore each new connection watches
before any other request, and the takers learn that they may have missed changes: when a connection ends, and when
another connection watches. A taker then forgets everything it knows of keys.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import random
from typing import TypeAlias

import msgspec

from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError
from cmqd_client.links.retry import RetryPolicy
from cmqd_protocol.messages import KeyChanged, WatchKeys

_log = logging.getLogger(__name__)


class KeyChange(msgspec.Struct, frozen=True):
    """A change of a key, or the news that changes may have been missed."""

    secret_id: str | None
    """The key; None = any key may have changed, because a connection to the server ended."""
    change: str
    """``created``, ``enabled``, ``disabled``, ``roles_changed``, ``deleted`` or ``missed``. A newer server may have
    further words."""


MISSED = KeyChange(None, "missed")

OnKeyChange: TypeAlias = Callable[[KeyChange], None]
"""Takes a change; must neither block nor raise."""


class KeyWatch:
    """A watch of the changes of keys, see ``Accounts.watch_keys``. A context manager; the watch ends with ``close``."""

    __slots__ = ("_on_change", "_router", "request_id")

    def __init__(self, router: "KeyChangeRouter", on_change: OnKeyChange, request_id: int) -> None:
        self._router = router
        self._on_change = on_change
        self.request_id: int = request_id
        """Number of the request that the server confirmed."""

    def close(self) -> None:
        """Take no more changes. Harmless when repeated."""
        self._router.discard(self._on_change)

    def __enter__(self) -> "KeyWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeyChangeRouter:
    """Routes changes of keys to their takers, and keeps the connections of this client watching.

    Invariant: while there is a taker, every open connection watches, or asks to.
    """

    __slots__ = ("_next_request_id", "_policy", "_takers", "_tasks", "_timeout")

    def __init__(self, next_request_id: Callable[[], int], request_timeout: float, policy: RetryPolicy) -> None:
        self._next_request_id = next_request_id
        self._timeout = request_timeout
        self._policy = policy
        self._takers: list[OnKeyChange] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, taker: OnKeyChange, connections: Iterable[Connection], request_id: int) -> KeyWatch:
        """Route changes to a taker too; these connections and all new connections watch from now on. ``request_id``
        numbers the request by which the caller learned that the key may watch.
        """
        self._takers.append(taker)
        for connection in connections:
            self._watch(connection)
        return KeyWatch(self, taker, request_id)

    def discard(self, taker: OnKeyChange) -> None:
        """Stop routing changes to a taker; the server is not told, and its pushes are ignored."""
        if taker in self._takers:
            self._takers.remove(taker)

    def close(self) -> None:
        """Stop asking; the channel is being closed."""
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------------ called by connections and links

    def connected(self, connection: Connection) -> None:
        """Watch over a new connection."""
        if self._takers:
            self._watch(connection)

    def ended(self) -> None:
        """Tell the takers that a connection ended: changes may be on their way that no connection takes."""
        self._tell(MISSED)

    def pushed(self, push: KeyChanged) -> None:
        """Route a change to every taker."""
        self._tell(KeyChange(push.secret_id, push.change))

    # ------------------------------------------------------------------ inside

    def _tell(self, change: KeyChange) -> None:
        for taker in list(self._takers):
            taker(change)

    def _watch(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(self._keep_watching(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_watching(self, connection: Connection) -> None:
        """Repeat the request until the server watches, refuses for good, or the connection ends."""
        attempt = 0
        while connection.usable and self._takers:
            try:
                await connection.request(WatchKeys(self._next_request_id()), self._timeout)
                self._tell(MISSED)
                return
            except CmqError as error:
                attempt += 1
                if not error.retryable:
                    if connection.usable:
                        _log.warning("changes of keys will not come: %s", error, extra={"event": "keys_not_watched"})
                    return
                await asyncio.sleep(max(self._policy.delay(attempt, random()), error.retry_after or 0))
