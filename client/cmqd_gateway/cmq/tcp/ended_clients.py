"""Clients of ended connections that sent half messages: connected anew, they may answer checks of the same queues."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

REMEMBERED_SECONDS: Final = 3_600.0
"""Time for which the queues of an ended connection are remembered."""
MAX_REMEMBERED: Final = 20_000
"""Remembered pairs of client and queue, over all keys; the oldest client is forgotten first."""
MAX_QUEUES: Final = 1_000
"""Queues of a connection, and of a remembered client; half messages of further queues make no checker."""


class EndedClients:
    """The queues of ended connections, for an hour; a client is the id of a key and the client id of a log-in."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Make an empty memory; ``now`` is the clock in seconds."""
        self._now = now
        self._clients: OrderedDict[tuple[str, str], OrderedDict[str, float]] = OrderedDict()
        """Times of the ends by client and queue, the last end last."""
        self._pairs = 0

    def add(self, client: tuple[str, str], queue_name: str) -> None:
        """Note that a connection of a client ended, which sent half messages of a queue."""
        queues = self._clients.setdefault(client, OrderedDict())
        self._clients.move_to_end(client)
        self._pairs += queue_name not in queues
        queues[queue_name] = self._now()
        queues.move_to_end(queue_name)
        if len(queues) > MAX_QUEUES:
            queues.popitem(last=False)
            self._pairs -= 1
        latest = self._now() - REMEMBERED_SECONDS
        while True:
            oldest, queues = next(iter(self._clients.items()))
            if self._pairs <= MAX_REMEMBERED and next(reversed(queues.values())) > latest:
                return
            del self._clients[oldest]
            self._pairs -= len(queues)

    def queues(self, client: tuple[str, str]) -> list[str]:
        """Return the remembered queues of a client."""
        queues = self._clients.get(client)
        if queues is None:
            return []
        latest = self._now() - REMEMBERED_SECONDS
        return [name for name, ended_at in queues.items() if ended_at > latest]
