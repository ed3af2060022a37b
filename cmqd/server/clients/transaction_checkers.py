"""Checkers: connections that registered to answer checks of half messages of a queue, and their open checks.

    register ──► available ◄──► slow ──► unregister, connection ends, queue deleted
                     │ check pushed
                     ▼
                   asked ──► settled by any decision of the message, or left unanswered: another checker is asked

Rules:

- A check goes to a single connection. Checkers take turns; slow readers are left out, because a check in their buffer
  would wait behind unread replies.
- The core decides. The core learns only whether a queue has a checker that can be asked (``CheckersChange``), and which
  messages need another check; it counts the checks and says when they are due.
- A check stays open until a decision of the message comes, the connection closes, or another checker is asked about the
  message. The number of open checks is bounded: a check beyond the bound comes again at its next time, not at once.
"""

from collections import deque
from typing import Final, NamedTuple, TypeAlias

from cmqd.server.clients.client import Client

MAX_REGISTRATIONS: Final = 1_000
"""Registrations of a connection; each costs about 1 KiB. A producer works with a few queues."""

MAX_ASKED: Final = 100_000
"""Open checks of a connection and queue, some 10 MiB; the oldest is forgotten."""

QueueKey: TypeAlias = tuple[str, str]
"""Account and name of a queue."""


class TooManyRegistrations(Exception):
    """A connection has as many registrations as allowed."""


class CheckersChange(NamedTuple):
    """A change for the core to learn."""

    account: str
    queue: str
    has_checkers: bool
    changed: bool
    """``has_checkers`` differs from the last value that the core learned."""
    unanswered: list[int]
    """Message ids that need another checker now."""


class _Queue:
    """The checkers of a queue."""

    __slots__ = ("asked", "asked_by_message", "has_checkers", "turns")

    def __init__(self) -> None:
        self.turns: deque[Client] = deque()
        """Checkers in the order of their turns."""
        self.asked: dict[Client, dict[int, None]] = {}
        """Open checks by checker, as message ids, oldest first."""
        self.asked_by_message: dict[int, Client] = {}
        self.has_checkers = False
        """The last value that the core learned."""

    def forget_message(self, message_id: int) -> None:
        checker = self.asked_by_message.pop(message_id, None)
        if checker is not None:
            del self.asked[checker][message_id]


class TransactionCheckers:
    """All checkers; see the module.

    Invariants: a connection is among a queue's checkers if and only if it lists the queue in ``checked_queues``; a
    message is unanswered at one checker at most; a queue without checkers is not held.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[QueueKey, _Queue] = {}

    def __len__(self) -> int:
        """Registrations."""
        return sum(len(queue.turns) for queue in self._queues.values())

    def __repr__(self) -> str:
        return f"<TransactionCheckers registrations={len(self)} queues={len(self._queues)}>"

    def register(self, checker: Client, name: str) -> CheckersChange:
        """Register a connection as checker of a queue; registering again changes nothing.

        Raises:
            TooManyRegistrations: the connection has ``MAX_REGISTRATIONS``.
        """
        names = checker.checked_queues
        if names is None:
            names = checker.checked_queues = set()
        if name not in names:
            if len(names) >= MAX_REGISTRATIONS:
                raise TooManyRegistrations
            names.add(name)
            queue = self._queues.setdefault((checker.account, name), _Queue())
            queue.turns.append(checker)
            queue.asked[checker] = {}
        return self._change_of((checker.account, name))

    def unregister(self, checker: Client, name: str) -> CheckersChange | None:
        """Remove a registration; return the change, or None if there was no registration."""
        names = checker.checked_queues
        if names is None or name not in names:
            return None
        names.discard(name)
        if not names:
            checker.checked_queues = None
        key = (checker.account, name)
        queue = self._queues[key]
        queue.turns.remove(checker)
        unanswered = list(queue.asked.pop(checker))
        for message_id in unanswered:
            del queue.asked_by_message[message_id]
        change = self._change_of(key, unanswered)
        if not queue.turns:
            del self._queues[key]
        return change

    def forget(self, checker: Client) -> list[CheckersChange]:
        """Remove all registrations of a connection that closed, and return the changes."""
        changes = [self.unregister(checker, name) for name in sorted(checker.checked_queues or ())]
        return [change for change in changes if change is not None]

    def slowness_changed(self, checker: Client) -> list[CheckersChange]:
        """Return the changes after a checker became slow, or has read its replies."""
        return [self._change_of((checker.account, name)) for name in sorted(checker.checked_queues or ())]

    def forget_queue(self, account: str, name: str) -> None:
        """Remove the registrations of a deleted queue: they do not hold for a new queue of the same name."""
        queue = self._queues.pop((account, name), None)
        for checker in queue.turns if queue is not None else ():
            if checker.checked_queues is not None:
                checker.checked_queues.discard(name)
                if not checker.checked_queues:
                    checker.checked_queues = None

    def ask(self, account: str, name: str, message_id: int) -> Client | None:
        """Return the checker to ask about a message, and note the open check; None if no checker can be asked."""
        queue = self._queues.get((account, name))
        if queue is None:
            return None
        turns = queue.turns
        for _ in range(len(turns)):
            checker = turns[0]
            turns.rotate(-1)
            if not checker.is_slow:
                break
        else:
            return None
        queue.forget_message(message_id)
        asked = queue.asked[checker]
        if len(asked) >= MAX_ASKED:
            queue.forget_message(next(iter(asked)))
        asked[message_id] = None
        queue.asked_by_message[message_id] = checker
        return checker

    def settle(self, account: str, name: str, message_ids: list[int]) -> None:
        """Close the checks of messages: a decision came, or the answer that the outcome is unknown."""
        queue = self._queues.get((account, name))
        if queue is not None and queue.asked_by_message:
            for message_id in message_ids:
                queue.forget_message(message_id)

    def _change_of(self, key: QueueKey, unanswered: list[int] | None = None) -> CheckersChange:
        queue = self._queues[key]
        has_checkers = any(not checker.is_slow for checker in queue.turns)
        changed = has_checkers != queue.has_checkers
        queue.has_checkers = has_checkers
        return CheckersChange(*key, has_checkers, changed, unanswered or [])
