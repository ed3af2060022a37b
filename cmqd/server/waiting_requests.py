"""Requests that wait in the core, by waiter id and by connection.

The core knows a waiting request by its waiter id, a client by connection and request id. The table joins both. A
request is in the table from the moment when the core lets the request wait, until the request is answered or cancelled
or the connection closes.
"""

from cmqd.server.client import Client
from cmqd_protocol.messages import (
    DropDelivery,
    GetMessageDeliveries,
    PeekDeliveries,
    PeekMessages,
    ReceiveMessages,
    Request,
    RetryDelivery,
)

READS = (PeekMessages, PeekDeliveries, RetryDelivery, DropDelivery, GetMessageDeliveries)
"""Requests that read the log, and answer when they have read."""


class WaitingRequests:
    """The table of waiting requests; see the module.

    Invariant: a waiter is in the table if and only if its asker lists it in ``waiting``.
    """

    __slots__ = ("_receives", "_waiters", "last_id")

    def __init__(self) -> None:
        self._waiters: dict[int, tuple[Client, Request]] = {}
        self._receives: dict[str, int] = {}
        """Number of waiting receives by account."""
        self.last_id = 0
        """The newest waiter id."""

    def __len__(self) -> int:
        return len(self._waiters)

    def __repr__(self) -> str:
        return f"<WaitingRequests waiting={len(self._waiters)}>"

    def new_id(self) -> int:
        """Return a waiter id that was never used. The core gets one with every request that may have to wait."""
        self.last_id += 1
        return self.last_id

    def receives_of(self, account: str) -> int:
        """Return the number of waiting receives of an account."""
        return self._receives.get(account, 0)

    def add(self, waiter_id: int, asker: Client, request: Request) -> None:
        """Enter a request that the core lets wait.

        A waiting peek or look-up counts in ``unread_receives`` before its reads are answered: any number of pipelined
        peeks would pass the limit otherwise. A waiting receive does not count, because its queue may stay empty for
        long.
        """
        self._waiters[waiter_id] = (asker, request)
        if asker.waiting is None:
            asker.waiting = {}
        asker.waiting[request.request_id] = waiter_id
        if isinstance(request, ReceiveMessages):
            self._receives[asker.account] = self._receives.get(asker.account, 0) + 1
        elif isinstance(request, READS):
            asker.unread_receives += 1

    def take(self, waiter_id: int) -> tuple[Client, Request] | None:
        """Remove a waiter and return its asker and request, None after an earlier removal."""
        waiter = self._waiters.pop(waiter_id, None)
        if waiter is not None:
            self._forget(*waiter)
        return waiter

    def replace(self, waiter_id: int, stand_in: Client) -> None:
        """Let another asker take the reply of a waiter, which must be in the table."""
        asker, request = self._waiters[waiter_id]
        self._forget(asker, request)
        self.add(waiter_id, stand_in, request)

    def find(self, asker: Client, request_id: int) -> tuple[int, Request] | None:
        """Return the waiter id of a waiting request and the request, None for any other request."""
        waiter_id = None if asker.waiting is None else asker.waiting.get(request_id)
        return None if waiter_id is None else (waiter_id, self._waiters[waiter_id][1])

    def drop_all(self, asker: Client) -> list[tuple[int, Request]]:
        """Remove all waiters of an asker; return waiter ids and requests, in order of arrival."""
        dropped: list[tuple[int, Request]] = []
        for waiter_id in list((asker.waiting or {}).values()):
            _, request = self._waiters.pop(waiter_id)
            self._forget(asker, request)
            dropped.append((waiter_id, request))
        return dropped

    def of(self, asker: Client) -> list[tuple[int, Request]]:
        """Return waiter ids and requests of an asker, in order of arrival."""
        return [(waiter_id, self._waiters[waiter_id][1]) for waiter_id in (asker.waiting or {}).values()]

    def all(self) -> list[tuple[int, Client, Request]]:
        """Return all waiters, in order of arrival."""
        return [(waiter_id, asker, request) for waiter_id, (asker, request) in self._waiters.items()]

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        receives: dict[str, int] = {}
        for waiter_id, (asker, request) in self._waiters.items():
            assert asker.waiting is not None
            assert asker.waiting[request.request_id] == waiter_id
            if isinstance(request, ReceiveMessages):
                receives[asker.account] = receives.get(asker.account, 0) + 1
        assert receives == self._receives

    def _forget(self, asker: Client, request: Request) -> None:
        if asker.waiting is not None:
            asker.waiting.pop(request.request_id, None)
            if not asker.waiting:
                asker.waiting = None
        if isinstance(request, ReceiveMessages):
            left = self._receives[asker.account] - 1
            if left:
                self._receives[asker.account] = left
            else:
                del self._receives[asker.account]
        elif isinstance(request, READS):
            asker.unread_receives -= 1
