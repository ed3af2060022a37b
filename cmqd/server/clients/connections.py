"""All connections of the server, regardless of the wire protocol: their limits and their closing.

The limits are shared by every listener, so that a second wire protocol cannot double them.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from cmqd.server.access.permissions import Permissions
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.inspection import ConnectionInfo

CONNECTIONS_AT_ONCE: Final = 64
"""Connections that get changed permissions without a pause, some 10 us each if a receive waits."""
RETRY_MS: Final = 1_000
"""Time after which a refused client may try again."""


class Connection(Protocol):
    """A connection, as the registry sees it."""

    account: str
    """Empty until the connection has authenticated."""
    secret_id: str

    def info(self, now_ms: int) -> ConnectionInfo:
        """Return the figures of the connection.

        Args:
            now_ms: broker time, for the times among the figures.
        """
        ...

    def use_permissions(self, permissions: Permissions | None) -> None:
        """Check requests by changed permissions of the key from now on."""
        ...

    def end(self, code: ErrorCode, text: str, retry_after_ms: int | None = None) -> None:
        """Close with an error that tells the client the reason."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


@part
class Connections:
    """The registry of connections; see the module.

    Invariant: ``_by_account`` counts the open connections that have authenticated.
    """

    limit: int
    limit_of_account: int
    """0 = no limit."""
    counters: Counters

    def __post_init__(self) -> None:
        self._open: dict[Connection, None] = {}
        """In order of arrival. No set, whose table takes three times the memory at thousands of connections."""
        self._by_account: dict[str, int] = {}
        self._none_left: asyncio.Event | None = None
        """Set when the last connection ends, while ``close`` waits for the end."""

    def __len__(self) -> int:
        return len(self._open)

    def current(self) -> list[Connection]:
        """Return the open connections."""
        return list(self._open)

    def is_open(self, connection: Connection) -> bool:
        """Return True until the connection is removed."""
        return connection in self._open

    def add(self, connection: Connection) -> None:
        """Enter a connection; a connection over the limit gets an error and is closed."""
        self.counters.connections_accepted += 1
        self._open[connection] = None
        if len(self._open) > self.limit:
            self.counters.connections_refused += 1
            text = f"the server has reached its limit of {self.limit} connections"
            connection.end(ErrorCode.TOO_MANY_CONNECTIONS, text, RETRY_MS)

    def authenticated(self, connection: Connection) -> None:
        """Count a connection for its account."""
        account = connection.account
        self._by_account[account] = self._by_account.get(account, 0) + 1

    def refusal_of(self, account: str) -> str | None:
        """Return the reason to refuse a connection of an account, None if the account may have a further connection."""
        limit = self.limit_of_account
        if not limit or self._by_account.get(account, 0) < limit:
            return None
        self.counters.connections_refused += 1
        return f"account {account!r} has reached its limit of {limit} connections"

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._open.pop(connection, None)
        account = connection.account
        if account:
            self._by_account[account] -= 1
            if not self._by_account[account]:
                del self._by_account[account]
        if self._none_left is not None and not self._open:
            self._none_left.set()

    async def use_permissions(self, secret_id: str, find: Callable[[str], Permissions | None]) -> None:
        """Give changed permissions to every connection that authenticated by this key.

        Thousands of connections may have the key, and each may have requests to refuse, so other clients are served in
        between. ``find`` returns the permissions of the key at that moment: a later change may come meanwhile.
        """
        for number, connection in enumerate(self._of_key(secret_id), 1):
            connection.use_permissions(find(secret_id))
            if number % CONNECTIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _of_key(self, secret_id: str) -> list[Connection]:
        return [connection for connection in self._open if connection.secret_id == secret_id]

    def revoke(self, secret_id: str) -> None:
        """Close every connection that authenticated by this key."""
        for connection in self._of_key(secret_id):
            connection.end(ErrorCode.AUTHENTICATION_FAILED, "the key was disabled or deleted")

    async def close(self, code: ErrorCode, text: str, within_s: float) -> None:
        """Close every connection with an error; abort the connections of clients that do not read the error in time."""
        for connection in list(self._open):
            connection.end(code, text)
        if self._open:
            self._none_left = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), within_s)
        for connection in list(self._open):
            connection.abort()
        # For the calls of ``connection_lost``, which come a turn of the loop later.
        await asyncio.sleep(0)
