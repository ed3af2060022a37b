"""Who waits: the core knows waiting receives by number, clients know them by connection and request id; this is the
table.

A waiter is in the table from the moment in which the core said "waiting" until it is answered, cancelled, or its
connection is gone. It must not know what is waited for.
"""

from typing import Generic, Protocol, TypeVar

from cmqd_protocol.messages import Request


class Asker(Protocol):
    """A connection with requests that wait; ``waiting`` maps request id to waiter id, None while there are none."""

    waiting: dict[int, int] | None


A = TypeVar("A", bound=Asker)


class WaitingRequests(Generic[A]):
    """Waiter ids and whose they are; see the module.

    Invariant: a waiter is known here if and only if its asker lists it in ``waiting``.
    """

    __slots__ = ("_last_id", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[int, tuple[A, Request]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def __repr__(self) -> str:
        return f"<WaitingRequests waiting={len(self._waiters)}>"

    def new_id(self) -> int:
        """A waiter id that was never used; the core is asked with it before anybody knows whether it will wait."""
        self._last_id += 1
        return self._last_id

    @property
    def last_id(self) -> int:
        """The newest waiter id that was given out."""
        return self._last_id

    def replace(self, waiter_id: int, stand_in: A) -> None:
        """Let another asker take the answer of a waiter, which must be known."""
        asker, request = self._waiters[waiter_id]
        self._forget(asker, request.request_id)
        self._waiters[waiter_id] = (stand_in, request)
        stand_in.waiting = {request.request_id: waiter_id}

    def add(self, waiter_id: int, asker: A, request: Request) -> None:
        """The core lets this request wait."""
        self._waiters[waiter_id] = (asker, request)
        if asker.waiting is None:
            asker.waiting = {}
        asker.waiting[request.request_id] = waiter_id

    def take(self, waiter_id: int) -> tuple[A, Request] | None:
        """Whose waiter this was, now that it waits no more; None if it was dropped before."""
        found = self._waiters.pop(waiter_id, None)
        if found is not None:
            asker, request = found
            self._forget(asker, request.request_id)
        return found

    def find(self, asker: A, request_id: int) -> tuple[int, Request] | None:
        """The waiter id of a request and itself, if it waits."""
        waiter_id = None if asker.waiting is None else asker.waiting.get(request_id)
        return None if waiter_id is None else (waiter_id, self._waiters[waiter_id][1])

    def drop_all(self, asker: A) -> list[tuple[int, Request]]:
        """Forget everything that waits for one asker; returns waiter ids and requests, in order of arrival."""
        if not asker.waiting:
            return []
        dropped = [(waiter_id, self._waiters.pop(waiter_id)[1]) for waiter_id in asker.waiting.values()]
        asker.waiting = None
        return dropped

    def everybody(self) -> list[tuple[int, A, Request]]:
        """All that wait, in order of arrival."""
        return [(waiter_id, asker, request) for waiter_id, (asker, request) in self._waiters.items()]

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for waiter_id, (asker, request) in self._waiters.items():
            assert asker.waiting is not None
            assert asker.waiting[request.request_id] == waiter_id

    def _forget(self, asker: A, request_id: int) -> None:
        if asker.waiting is not None:
            asker.waiting.pop(request_id, None)
            if not asker.waiting:
                asker.waiting = None
