"""Requests that wait in the core, by waiter id and by connection.

The core knows a waiting request by its waiter id, a client by connection and request id. The table joins both. A
request is in the table from the moment when the core lets the request wait, until the request is answered or cancelled
or the connection closes.
"""

from array import array

from msgspec.structs import replace

from cmqd.core.operations.monitoring.audit import AuditAction
from cmqd.core.outcome import HandleFailure, HandlesDone
from cmqd.server.clients.client import Client
from cmqd_protocol.messages import ReceiveMessages, Request
from cmqd_protocol.operations import Wait, requests_of

_PAGES = tuple(requests_of(lambda operation: operation.wait is Wait.PAGES))
"""Requests that read the log, and answer when they have read."""


class WaitingRequests:
    """The table of waiting requests; see the module.

    Invariant: a waiter is in the table if and only if its asker lists it in ``waiting``.
    """

    __slots__ = ("_waiters", "actions", "deletes", "last_id", "receives")

    def __init__(self) -> None:
        self._waiters: dict[int, tuple[Client, Request]] = {}
        self.receives: dict[str, int] = {}
        """Number of waiting receives by account, without accounts that have none. Read-only outside."""
        self.actions: dict[int, AuditAction] = {}
        """Administrative operations that wait, by waiter id; their entries are made when the wait ends."""
        self.deletes: dict[int, tuple[array[int], bytes]] = {}
        """Failed handles of the deletes of waiting receives, each with its ``gone``, by waiter id. The deletes are
        carried out, and every answer to the receive tells of them. In arrays, because thousands of receives of a
        connection can wait, each with 256 handles that failed: as objects with their texts 300 MB, and no memory budget
        counts them."""
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

    def new_ids(self, count: int) -> range:
        """Return waiter ids that were never used."""
        first_id = self.last_id + 1
        self.last_id += count
        return range(first_id, first_id + count)

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
            self.receives[asker.account] = self.receives.get(asker.account, 0) + 1
        elif isinstance(request, _PAGES):
            asker.unread_receives += 1

    def add_after_deletes(self, waiter_id: int, asker: Client, request: ReceiveMessages, deletes: HandlesDone) -> None:
        """Enter a receive that the core lets wait after its deletes; the handles of the request are not kept."""
        self.add(waiter_id, asker, replace(request, acknowledge=None))
        failures = deletes.failures
        handles = array("Q", [failure.receipt_handle for failure in failures])
        self.deletes[waiter_id] = handles, bytes(failure.gone for failure in failures)

    def deletes_of(self, waiter_id: int) -> HandlesDone | None:
        """Return the deletes of a waiting receive, without texts; None = it has none."""
        failed = self.deletes.get(waiter_id) if self.deletes else None
        if failed is None:
            return None
        return HandlesDone([HandleFailure(handle, "", gone) for handle, gone in zip(*failed, strict=True)])

    def take(self, waiter_id: int) -> tuple[Client, Request] | None:
        """Remove a waiter and return its asker and request, None after an earlier removal."""
        waiter = self._waiters.pop(waiter_id, None)
        if waiter is not None:
            self._forget(*waiter)
        if self.actions:
            self.actions.pop(waiter_id, None)
        if self.deletes:
            self.deletes.pop(waiter_id, None)
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
            self.actions.pop(waiter_id, None)
            self.deletes.pop(waiter_id, None)
            dropped.append((waiter_id, request))
        return dropped

    def of(self, asker: Client) -> list[tuple[int, Request]]:
        """Return waiter ids and requests of an asker, in order of arrival."""
        return [(waiter_id, self._waiters[waiter_id][1]) for waiter_id in (asker.waiting or {}).values()]

    def all(self) -> list[tuple[int, Client, Request]]:
        """Return all waiters, in order of arrival."""
        return [(waiter_id, asker, request) for waiter_id, (asker, request) in self._waiters.items()]

    def ids(self) -> list[int]:
        """Return all waiter ids, in order of arrival."""
        return list(self._waiters)

    def get(self, waiter_id: int) -> tuple[Client, Request] | None:
        """Return the asker and the request of a waiter, None after the removal of the waiter."""
        return self._waiters.get(waiter_id)

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        receives: dict[str, int] = {}
        for waiter_id, (asker, request) in self._waiters.items():
            assert asker.waiting is not None
            assert asker.waiting[request.request_id] == waiter_id
            if isinstance(request, ReceiveMessages):
                receives[asker.account] = receives.get(asker.account, 0) + 1
        assert receives == self.receives
        assert all(isinstance(self._waiters[waiter_id][1], ReceiveMessages) for waiter_id in self.deletes)

    def _forget(self, asker: Client, request: Request) -> None:
        if asker.waiting is not None:
            asker.waiting.pop(request.request_id, None)
            if not asker.waiting:
                asker.waiting = None
        if isinstance(request, ReceiveMessages):
            left = self.receives[asker.account] - 1
            if left:
                self.receives[asker.account] = left
            else:
                del self.receives[asker.account]
        elif isinstance(request, _PAGES):
            asker.unread_receives -= 1
