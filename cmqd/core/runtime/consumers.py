"""Consumers of queues: the clients that receive, with their last receives and failures since the start.

A client that asks for messages is a consumer of the queue, also while the queue is empty. A restart forgets the
consumers, and a consumer that is still there asks again at the end of its wait. Names are the word of a client, so the
table is bounded by queue and by account: a client beyond a bound takes the room of an idle consumer. Without an idle
consumer the client is not listed, and receives as before.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from cmqd_types.actors import Actor

MAX_OF_QUEUE: Final = 1_000
"""Consumers of a queue that are remembered, about 200 bytes each."""
MAX_OF_ACCOUNT: Final = 10_000
IDLE_MS: Final = 3_600_000
"""Time after the last request for which a consumer without messages in flight is listed."""
PRESENT_MS: Final = 600_000
"""Time after the last request for which a consumer counts: far above the longest wait of a receive, 30 s."""
EXAMINED: Final = 2
"""Consumers of a full table that are examined for a client beyond the bound, which may ask in every request."""
COUNTED: Final = 200
"""Consumers of a queue that are counted one by one. Of more, the idle ones count too."""


class Consumer(msgspec.Struct):
    """A client that receives from a queue. Its figures count since the start."""

    actor: Actor
    since_ms: int
    """Time of the first request."""
    asked_ms: int
    """Time of the last request for messages that got none at once."""
    last_receive_ms: int = 0
    """Time of the last receive with messages; 0 = there was none."""
    received: int = 0
    failed: int = 0
    """Messages that the consumer gave back (counted), rejected, or did not settle within the visibility timeout."""

    @property
    def last_asked_ms(self) -> int:
        """Time of the last request for messages. Two fields, because a receive with messages is to note one time."""
        return max(self.asked_ms, self.last_receive_ms)


class Consumers:
    """Adds consumers to the tables of queues, within the bounds."""

    def __init__(self) -> None:
        self._of_account: dict[str, int] = {}
        self._tables: dict[str, OrderedDict[int, dict[Actor, Consumer]]] = {}
        """The tables of an account's queues that have consumers, by identity, the next to be examined first."""

    def find(self, account: str, of_queue: dict[Actor, Consumer], actor: Actor, now_ms: int) -> Consumer:
        """Return the consumer of a client, a new consumer at its first request; beyond a bound it is in no table."""
        consumer = of_queue.get(actor)
        if consumer is not None:
            return consumer
        consumer = Consumer(actor, now_ms, now_ms)
        if not actor.secret_id:
            return consumer
        if len(of_queue) >= MAX_OF_QUEUE:
            self._make_room(account, of_queue, now_ms)
        elif self.count(account) >= MAX_OF_ACCOUNT:
            tables = self._tables[account]
            identity, table = next(iter(tables.items()))
            tables.move_to_end(identity)
            self._make_room(account, table, now_ms)
        if len(of_queue) < MAX_OF_QUEUE and self.count(account) < MAX_OF_ACCOUNT:
            of_queue[actor] = consumer
            self._of_account[account] = self.count(account) + 1
            self._tables.setdefault(account, OrderedDict())[id(of_queue)] = of_queue
        return consumer

    def _make_room(self, account: str, of_queue: dict[Actor, Consumer], now_ms: int) -> None:
        """Forget the idle ones of a few consumers of a queue. The others go behind all, so that the next call examines
        others.
        """
        for actor in list(islice(of_queue, EXAMINED)):
            if is_idle(of_queue[actor], now_ms):
                self.drop(account, of_queue, [actor])
            else:
                of_queue[actor] = of_queue.pop(actor)

    def drop(self, account: str, of_queue: dict[Actor, Consumer], actors: list[Actor]) -> None:
        """Forget consumers of a queue that are in its table."""
        for actor in actors:
            del of_queue[actor]
        left = self.count(account) - len(actors)
        if left:
            self._of_account[account] = left
            if not of_queue:
                self._tables[account].pop(id(of_queue), None)
        else:
            self._of_account.pop(account, None)
            self._tables.pop(account, None)

    def count(self, account: str) -> int:
        """Return the number of remembered consumers of an account, over all queues."""
        return self._of_account.get(account, 0)


def is_idle(consumer: Consumer, now_ms: int) -> bool:
    """Return True for a consumer that asked for no messages for a long time."""
    return now_ms - consumer.last_asked_ms > IDLE_MS


def present(of_queue: Mapping[Actor, Consumer], since_ms: int) -> int:
    """Return the number of consumers of a queue that asked for messages at a time or later."""
    if len(of_queue) > COUNTED:
        return len(of_queue)
    return sum([consumer.last_asked_ms >= since_ms for consumer in of_queue.values()])
