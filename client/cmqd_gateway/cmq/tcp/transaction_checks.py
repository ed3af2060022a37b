"""The choice of the connection that is asked for the state of a half message.

    half send ──► its connection is a checker of the queue until it ends
    log-in ─────► a checker of the queues for which connections of its key and client id sent half messages, when these
                  have ended less than an hour ago: a *remembered* checker
    first checker of a queue ──► the gateway registers with the broker    last checker ends ──► the registration ends

Programs have no command to register, so a half message is the sign that a connection can answer. A client that
connects anew would be unknown until its next half message. A client id names no process: a consumer on the producer's
host looks remembered too, and answers no check. Therefore remembered checkers are asked last, newest first as all, and
each further check of a message goes to a connection that was not asked for this message so far.

A check stays open at the broker until a decision comes, over this or another gateway, or until its registration ends.
An answer "unknown" at once would close the check, and a producer that dies would cost a check that counts. When the
asked connection ends, the next one is asked at once. When the last one ends, the end of the registration makes the open
checks due again at other producers. Nothing here outlives a kill: the broker asks again.

No socket is here: a connection is an object with ``ask``, and the registration is a function.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Final, Protocol, TypeAlias

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp.ended_clients import MAX_QUEUES, EndedClients

MAX_CHECKERS: Final = 100_000
"""Pairs of connection and queue in the gateway; beyond that, half messages make no checker."""
PAIRS_AT_END: Final = 10_000
"""Pairs of another connection of the client and a queue that the end of a connection makes remembered checkers: some
milliseconds of work. The newest connections are taken, because a producer that connected anew is among them."""
CHECK_SECONDS: Final = 600.0
"""Time for which the asked connections of a message are remembered: twice the broker's longest time between checks."""
MAX_CHECKS: Final = 50_000
"""Messages with a remembered check in the gateway. The oldest of a queue is forgotten first; its next check may go to a
connection that was asked before."""
MAX_TRIES: Final = 32
"""Connections that do not read which a check passes over; its next check begins behind them."""


class Connection(Protocol):
    """A connection of a program that has logged in."""

    def ask(self, queue: str, message_number: int) -> bool:
        """Ask for the state of a half message; False = the connection cannot be asked now.

        Must neither block nor raise, nor call back.
        """
        ...


class Registration(Protocol):
    """A registration with the broker as checker of a queue."""

    def half_sent(self) -> None:
        """Make sure of the registration: the queue may have been deleted and created again."""
        ...

    def end(self) -> None:
        """End the registration."""
        ...


TakeNumber: TypeAlias = Callable[[int], None]
"""Takes a check of the broker; the argument is the number of the message."""
Register: TypeAlias = Callable[[KeySecret, str, TakeNumber], Registration]
"""Begins a registration with a key for a queue. Returns at once, and takes no check meanwhile."""


class _Check:
    """A message for which the broker has asked."""

    __slots__ = ("asked", "at", "current")

    def __init__(self) -> None:
        self.at = 0.0
        """Time of the last check."""
        self.current: Connection | None = None
        """The connection of which the answer is expected; None = none could be asked."""
        self.asked: set[int] = set()
        """Numbers of the log-ins that were asked or passed over, emptied when all were. Numbers, because an ended
        connection must not stay in memory."""


class _Queue:
    """A queue with the checkers of a key."""

    __slots__ = ("checks", "has_ended", "key", "name", "registration", "remembered", "senders")

    def __init__(self, key: KeySecret, name: str) -> None:
        self.key = key
        self.name = name
        self.registration: Registration
        self.senders: dict[Connection, None] = {}
        """Connections that sent half messages, the last half message last."""
        self.remembered: dict[Connection, None] = {}
        """Remembered checkers, the last log-in last."""
        self.checks: OrderedDict[int, _Check] = OrderedDict()
        """Checks by message, the last check last."""
        self.has_ended = False

    def checkers(self) -> Iterator[Connection]:
        """Return the checkers in the order of asking."""
        return chain(reversed(self.senders), reversed(self.remembered))


class _LogIn:
    """A connection that has logged in."""

    __slots__ = ("client_id", "key", "number", "open_checks", "queues")

    def __init__(self, number: int, key: KeySecret, client_id: str) -> None:
        self.number = number
        self.key = key
        self.client_id = client_id
        self.queues: dict[str, _Queue] = {}
        """The queues of which the connection is a checker."""
        self.open_checks: dict[tuple[str, int], _Check] = {}
        """The checks that wait for the connection's answer, by queue and message."""

    @property
    def client(self) -> tuple[str, str]:
        """Id of the key, and client id."""
        return self.key.secret_id, self.client_id


class TransactionChecks:
    """The checkers and checks of a gateway; see the module.

    Invariants: a queue of ``_queues`` has a checker and a registration. A check with a current connection is among the
    open checks of this connection, which is a checker of the queue.
    """

    def __init__(self, register: Register, now: Callable[[], float]) -> None:
        """Make the object without checkers.

        Args:
            register: begins a registration.
            now: the clock, in seconds.
        """
        self._register = register
        self._now = now
        self._numbers = count()
        self._log_ins: dict[Connection, _LogIn] = {}
        self._connections: dict[tuple[str, str], dict[Connection, None]] = {}
        """By id of the key and client id."""
        self._queues: dict[tuple[str, str, str], _Queue] = {}
        """By id of the key, its secret, and name. The registration with a former secret may be dead."""
        self._ended = EndedClients(now)
        self._checkers = 0
        """Pairs of connection and queue."""
        self._checks = 0
        """Checks of all queues."""
        self.asked: int = 0
        """Checks since the start that went to a connection."""
        self.answered: int = 0
        """Checks that a decision answered."""
        self.unanswered: int = 0
        """Checks that ended without an answer: with their connection, or at the next check of the message."""

    @property
    def queues(self) -> int:
        """Number of registrations."""
        return len(self._queues)

    # ------------------------------------------------------------------ called by connections

    def logged_in(self, connection: Connection, key: KeySecret, client_id: str) -> None:
        """Note that a connection has logged in; called once per connection."""
        log_in = self._log_ins[connection] = _LogIn(next(self._numbers), key, client_id)
        self._connections.setdefault(log_in.client, {})[connection] = None
        for name in self._ended.queues(log_in.client):
            self._add_remembered(connection, log_in, name)

    def half_sent(self, connection: Connection, queue_name: str) -> bool:
        """Note that a connection has sent a half message, which the broker has stored.

        Returns False if the connection is no checker of the queue: there are too many checkers, or it has ended.
        """
        log_in = self._log_ins.get(connection)
        if log_in is None:
            return False
        queue = log_in.queues.get(queue_name)
        if queue is None:
            if self._is_full(log_in):
                return False
            queue = self._add(connection, log_in, queue_name)
        else:
            queue.senders.pop(connection, None)
            queue.remembered.pop(connection, None)
        queue.senders[connection] = None
        queue.registration.half_sent()
        return True

    def decided(self, connection: Connection, queue_name: str, message_numbers: Iterable[int]) -> None:
        """Note that the broker has a decision about messages, of this connection or an earlier one."""
        log_in = self._log_ins.get(connection)
        if log_in is None:
            return
        queue = self._queues.get(_queue_id(log_in.key, queue_name))
        if queue is None:
            return
        for number in message_numbers:
            check = queue.checks.pop(number, None)
            if check is None:
                continue
            self._checks -= 1
            if check.current is None:
                continue
            self.answered += 1
            if check.current is connection and connection in queue.remembered:
                # A remembered checker that answers has the transactions of this queue, as if it had sent the message.
                del queue.remembered[connection]
                queue.senders[connection] = None
            del self._log_ins[check.current].open_checks[queue_name, number]

    def ended(self, connection: Connection) -> None:
        """Note that a connection ended: the checks that it has not answered go to other connections."""
        log_in = self._log_ins.pop(connection, None)
        if log_in is None:
            return
        others = self._connections[log_in.client]
        del others[connection]
        if not others:
            del self._connections[log_in.client]
        self._checkers -= len(log_in.queues)
        newest = list(islice(reversed(others), max(1, PAIRS_AT_END // max(1, len(log_in.queues)))))
        for queue in log_in.queues.values():
            if connection in queue.senders:
                del queue.senders[connection]
                self._ended.add(log_in.client, queue.name)
                # A client may have connected anew before its lost connection was noticed.
                for other in reversed(newest):
                    self._add_remembered(other, self._log_ins[other], queue.name)
            else:
                del queue.remembered[connection]
            if not queue.senders and not queue.remembered:
                self._end_queue(queue)
        for (queue_name, number), check in log_in.open_checks.items():
            self.unanswered += 1
            check.current = None
            queue = log_in.queues[queue_name]
            if not queue.has_ended:
                self._ask_next(queue, number, check)

    # ------------------------------------------------------------------ inside

    def _is_full(self, log_in: _LogIn) -> bool:
        return len(log_in.queues) >= MAX_QUEUES or self._checkers >= MAX_CHECKERS

    def _add(self, connection: Connection, log_in: _LogIn, queue_name: str) -> _Queue:
        """Return the queue, of which the connection becomes a checker."""
        queue_id = _queue_id(log_in.key, queue_name)
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = _Queue(log_in.key, queue_name)
            new = queue
            queue.registration = self._register(log_in.key, queue_name, lambda number: self._check(new, number))
        log_in.queues[queue_name] = queue
        self._checkers += 1
        return queue

    def _add_remembered(self, connection: Connection, log_in: _LogIn, queue_name: str) -> None:
        if queue_name not in log_in.queues and not self._is_full(log_in):
            self._add(connection, log_in, queue_name).remembered[connection] = None

    def _end_queue(self, queue: _Queue) -> None:
        queue.has_ended = True
        del self._queues[_queue_id(queue.key, queue.name)]
        self._checks -= len(queue.checks)
        queue.checks.clear()
        queue.registration.end()

    def _check(self, queue: _Queue, number: int) -> None:
        """Take a check of the broker."""
        if queue.has_ended:
            return
        check = queue.checks.get(number)
        if check is None:
            self._forget_old_checks(queue)
            check = queue.checks[number] = _Check()
            self._checks += 1
        else:
            queue.checks.move_to_end(number)
            self._give_up(queue, number, check)
        check.at = self._now()
        self._ask_next(queue, number, check)

    def _give_up(self, queue: _Queue, number: int, check: _Check) -> None:
        """Expect no answer of the current connection any more."""
        if check.current is not None:
            del self._log_ins[check.current].open_checks[queue.name, number]
            check.current = None
            self.unanswered += 1

    def _forget_old_checks(self, queue: _Queue) -> None:
        latest = self._now() - CHECK_SECONDS
        while queue.checks:
            number, check = next(iter(queue.checks.items()))
            if check.at > latest and self._checks < MAX_CHECKS:
                return
            del queue.checks[number]
            self._checks -= 1
            self._give_up(queue, number, check)

    def _ask_next(self, queue: _Queue, number: int, check: _Check) -> None:
        tries = MAX_TRIES
        for _ in range(2):
            for connection in queue.checkers():
                log_in = self._log_ins[connection]
                if log_in.number in check.asked:
                    continue
                if not tries:
                    return
                tries -= 1
                check.asked.add(log_in.number)
                if connection.ask(queue.name, number):
                    check.current = connection
                    log_in.open_checks[queue.name, number] = check
                    self.asked += 1
                    return
            # All were asked, or could not be asked: the turn begins anew.
            check.asked.clear()


def _queue_id(key: KeySecret, queue_name: str) -> tuple[str, str, str]:
    return key.secret_id, key.secret_key, queue_name
