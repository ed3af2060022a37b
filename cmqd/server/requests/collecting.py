"""Collects the requests of an I/O batch for the same operation on the same queue or topic into a core call.

A call that decides sixteen sends costs little more than a call that decides a single send, because the look-ups, the
record and the row are shared. The same holds for publishes, deletes and receives. Each request is decided separately: a
refusal does not touch the other requests. Rules:

- Limits (busy, disk nearly full, unread replies) are checked when a request arrives, before the request is collected.
  The log is examined once for the requests that are decided together (``Admission.room_bytes``).
- Requests of a connection take effect in their order (SPEC.md, section 5.1). Therefore a group with a request of a
  client is decided before a request of that client for another operation or queue is taken up. A request for the same
  operation and queue joins the group.
- Between connections there is no order before the answer, and no answer leaves before the log is flushed. Therefore
  time, the log and other clients may take effect in between, as if they had come sooner. Sends are decided before
  receives, so that the receives find the messages.
- Plain sends of a client that arrive together for one queue join their group together (``collect_run``), with the same
  limits.
- Sends to a queue that each are the only unanswered request of their client join their group together as well
  (``LoneSends``), at the latest when the I/O batch ends. A later request of such a client, a cancel or the end of its
  connection is taken up behind the send (``Dispatcher.dispatch``, ``Collector.decide_of``).
- A group is decided at the latest when the I/O batch ends, just before its records go to the storage, and sooner when
  it reaches the size of a batch. Therefore collecting delays no commit.
- At the end of an I/O batch, groups of an operation share an append to the log: with requests to a thousand queues,
  appends of their own would cost as much as the decisions. No effect of a group, and no answer, comes before the append
  of its records. All effects of an operation come before the next operation is decided: a send that ends the wait of a
  receive makes room for the receives behind it.
- A publish with a plan of several slices continues later (``handlers.publishing``). Its clients are held meanwhile: a
  later request of the same client must not overtake it.
- After a bug in the core, or a failure of the storage, no request is collected.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from cmqd.core import domain_errors as domain
from cmqd.core.limits import headers_bytes
from cmqd.core.outcome import Outcome
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import ROW_BYTES
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.client import Acting, Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Gate, Held
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.actors import Actor

MAX_MESSAGES: Final = 256
"""Messages of a group; a request without messages counts as one."""
MAX_BYTES: Final = 1024 * 1024
"""Bytes of a group, the limit of a single batch: a row of the log stays as small as the row of a batch. A request
above the limit (its headers can make it larger) is decided alone."""
MAX_COLLECTED: Final = 1024
"""Messages of all groups beyond which they are decided at once: up to 4 ms of work, which otherwise would come at the
end of an I/O batch that has used up its time."""

MAX_LONE_SENDS: Final = 64
"""Lone sends that are joined to their groups at once."""
MAX_LONE_BYTES: Final = 4 * 1024
"""Bytes of the body of a lone send. The lone sends are not counted as collected bytes: they are 256 KiB at most."""

HALTED: Final = "internal error"

_order = attrgetter("operation.order")

Decided: TypeAlias = Outcome[Any] | None
"""The outcome of a group, with the result of each request as its reply; None = the group continues in slices, and is
answered later."""


class CollectedOperation(msgspec.Struct, frozen=True, eq=False):
    """An operation with collected requests. A single class for all operations: the interpreter specializes the reads of
    its attributes, which each request needs.
    """

    order: int
    """Place among the operations at the end of an I/O batch."""
    name: str
    """Name in log lines."""
    decide: "Callable[[Group, int], Decided]"
    """Has the core decide a group, at a time. The collector carries the outcome out."""
    answer: "Callable[[Group, Sequence[Any], int, list[Held]], None]"
    """Answers each request of a group with its result, at an LSN: adds the replies to the list, or holds them at the
    gate.
    """
    max_bytes: int = MAX_BYTES
    """Bytes of a group."""
    counts_unread: bool = False
    """True if a collected request counts in ``Client.unread_receives``."""


class Group:
    """Requests for one operation on one queue or topic, in order of arrival. No msgspec.Struct, as ``Counters``."""

    __slots__ = ("actors", "askers", "key", "messages", "operation", "requests", "size")

    def __init__(self, operation: CollectedOperation, key: tuple[int, str, str], actors: list[Actor]) -> None:
        self.operation = operation
        self.key = key
        """Order of the operation, account, and name of the queue or topic."""
        self.requests: list[Any] = []
        """The requests in the core's form."""
        self.askers: list[tuple[Client, int]] = []
        """Client and request id of each request."""
        self.actors = actors
        """The client of each request, as records name it: also the client that a gateway states."""
        self.messages = 0
        self.size = 0
        """Bytes of bodies and headers."""


class LoneSends:
    """Plain sends of several clients to a queue, before they join their group together.

    The first send of an I/O batch goes alone, and names the queue: a client that is alone, or clients of many queues,
    would gain nothing. No msgspec.Struct, as ``Counters``.

    Invariant: each send is the only unanswered request of its client, which therefore has no request in a group.
    """

    __slots__ = ("account", "queue", "sends", "take")

    def __init__(self) -> None:
        self.account = self.queue = ""
        """Account and queue of the sends; the queue is empty until the batch has a send, and while requests are refused
        before the core."""
        self.sends: dict[Client, wire.SendMessages] = {}
        """The sends, in order of arrival. Read-only outside: the dispatcher reads the table for every request."""
        self.take: Callable[[], None] = self.sends.clear
        """Has the sends collected, with all checks. Set by the wiring: the checks need the groups."""

    def add(self, client: Client, request: wire.SendMessages) -> bool:
        """Keep a send to ``queue`` that is the only unanswered request of its client; return False if it goes alone."""
        bodies = request.bodies
        if (
            client.account != self.account
            or client.permissions is not None
            or request.headers is not None
            or request.on_behalf_of is not None
            or len(bodies) != 1
            or len(bodies[0]) > MAX_LONE_BYTES
        ):
            return False
        sends = self.sends
        sends[client] = request
        if len(sends) >= MAX_LONE_SENDS:
            self.take()
        return True


@part
class Collector:
    """The groups of an I/O batch; see the module.

    Invariant: a client has requests in one group at a time, which ``group_of`` names.
    """

    waiting_requests: WaitingRequests
    answering: Answering
    gate: Gate
    admission: Admission
    now_ms: Callable[[], int]

    def __post_init__(self) -> None:
        self._groups: dict[tuple[int, str, str], Group] = {}
        """Groups by order of the operation, account and name of the queue or topic."""
        self.group_of: dict[Client, Group] = {}
        """The group with requests of a client. Read-only outside: the dispatcher reads the table for every request."""
        self.lone_sends = LoneSends()
        self._messages: int = 0
        """Messages of all groups."""

    def collect(
        self,
        operation: CollectedOperation,
        client: Client,
        asked: Acting,
        name: str,
        request: Any,
        count: int,
        size: int = 0,
    ) -> None:
        """Put a request into its group, and decide the group if it is full.

        Groups that must precede the request are decided first. Such a decision may hold the client (a publish that
        continues in slices) or show a bug; then the request is put back or answered instead.

        Args:
            operation: the operation.
            client: the connection.
            asked: the request.
            name: the queue or topic.
            request: the request in the core's form.
            count: its messages.
            size: its bytes.
        """
        key = (operation.order, client.account, name)
        group = self._groups.get(key)
        earlier = self.group_of.get(client)
        max_bytes = operation.max_bytes
        if count < 1:
            count = 1
        if earlier is not None and earlier is not group:
            self._decide([earlier])
            if self._is_too_late(client, asked):
                return
            group = self._groups.get(key)
        if group is not None and (group.messages + count > MAX_MESSAGES or group.size + size > max_bytes):
            self._decide([group])
            if self._is_too_late(client, asked):
                return
            group = None
        if operation.counts_unread:
            client.unread_receives += 1
        # In line, and in a new group without an append: two calls less in the most frequent requests.
        actor = client.actor if asked.on_behalf_of is None else client.actor.stating(asked.on_behalf_of)
        if group is None:
            group = self._groups[key] = Group(operation, key, [actor])
        else:
            group.actors.append(actor)
        self.group_of[client] = group
        group.requests.append(request)
        group.askers.append((client, asked.request_id))
        group.messages += count
        group.size += size
        if size:
            self.admission.collected_bytes += size
        self._messages = messages = self._messages + count
        if group.messages >= MAX_MESSAGES or group.size >= max_bytes:
            self._decide([group])
        elif messages >= MAX_COLLECTED:
            self.decide_all()

    def collect_run(
        self,
        operation: CollectedOperation,
        clients: Sequence[Client],
        name: str,
        run: Sequence[wire.Request],
        sizes: list[int],
    ) -> int:
        """Put the first requests of a run into their group, and decide the group if it is full.

        Returns the number of requests collected: as many as the group takes, or 0 if a group must be decided first, or
        if the bytes fit into no group; ``collect`` takes the next request then.

        Args:
            operation: the operation; its requests do not count as unread.
            clients: the connection of each request, all of one account.
            name: the queue.
            run: requests with a message each, in the core's form, none on behalf of a client that it states.
            sizes: bytes of each request.
        """
        key = (operation.order, clients[0].account, name)
        group = self._groups.get(key)
        if not {None, group}.issuperset(map(self.group_of.get, clients)):
            return 0
        count = min(len(run), MAX_MESSAGES if group is None else MAX_MESSAGES - group.messages)
        if count < len(run):
            clients, run, sizes = clients[:count], run[:count], sizes[:count]
        size = sum(sizes)
        max_bytes = operation.max_bytes
        if (size if group is None else group.size + size) > max_bytes or self._messages + count > MAX_COLLECTED:
            return 0
        actors = [client.actor for client in clients]
        if group is None:
            group = self._groups[key] = Group(operation, key, actors)
        else:
            group.actors += actors
        self.group_of.update(dict.fromkeys(clients, group))
        group.requests += run
        group.askers += zip(clients, [asked.request_id for asked in run], strict=True)
        group.messages += count
        group.size += size
        self.admission.collected_bytes += size
        self._messages += count
        if group.messages >= MAX_MESSAGES or group.size >= max_bytes:
            self._decide([group])
        elif self._messages >= MAX_COLLECTED:
            self.decide_all()
        return count

    def decide_all(self) -> None:
        """Decide all groups, because the I/O batch ends."""
        lone_sends = self.lone_sends
        if lone_sends.sends:
            lone_sends.take()
        # Last: sends that are taken up singly name their queue again.
        lone_sends.queue = ""
        # Also without a group: requests that are not collected examine the log too, and the next I/O batch must not go
        # by the state of the disk that they found.
        self.admission.room_bytes = 0
        groups = list(self._groups.values())
        if len(groups) == 1:
            # The usual batch of few clients.
            self._decide(groups)
            return
        # Stable: within an operation in order of arrival.
        groups.sort(key=_order)
        together: list[Group] = []
        size = 0
        for group in groups:
            if together and (group.operation is not together[0].operation or size + group.size > ROW_BYTES):
                self._decide(together)
                together = []
                size = 0
            together.append(group)
            size += group.size
            if self.answering.is_halted:
                # A bug in the groups before has left all requests unknown.
                return
        if together:
            self._decide(together)

    def decide_of(self, client: Client) -> None:
        """Decide the group with requests of a client."""
        if client in self.lone_sends.sends:
            self.lone_sends.take()
        group = self.group_of.get(client)
        if group is not None:
            self._decide([group])

    def carry_out(self, group: Group, decide: Callable[[Group, int], Decided]) -> bool:
        """Decide a group that is in no table; return False if the group goes on in slices."""
        return self._decide([group], decide)

    def drop_all(self, reason: str) -> None:
        """Answer all collected requests ``outcome_unknown``, without deciding them."""
        groups = list(self._groups.values())
        self._remove(groups)
        for group in groups:
            self.leave_unknown(group, reason)
        lone_sends = list(self.lone_sends.sends.items())
        self.lone_sends.sends.clear()
        for client, request in lone_sends:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, reason))

    def leave_unknown(self, group: Group, reason: str) -> None:
        """Answer the requests of a group ``outcome_unknown``."""
        for client, request_id in group.askers:
            # A request that waits in the core by now is answered with all that wait.
            if self.waiting_requests.find(client, request_id) is None:
                client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, reason))

    def _decide(self, groups: list[Group], decide: Callable[[Group, int], Decided] | None = None) -> bool:
        """Decide groups of an operation, append their records together, and answer their requests.

        Returns False if a group goes on in slices.

        Args:
            groups: the groups, at least one.
            decide: has the core decide a group that left the tables earlier; None = the groups are in the tables.
        """
        operation = groups[0].operation
        if decide is None:
            # Removed first: a decision may lead to requests that would join a group otherwise.
            self._remove(groups)
            decide = operation.decide
        now_ms = self.now_ms()
        decided: list[tuple[Group, Outcome[Any]]] = []
        is_whole = True
        rest = iter(groups)
        for group in rest:
            try:
                outcome = decide(group, now_ms)
            except domain.DomainError as refusal:
                # Before the append: the refusal depends on no record of the other groups, which have other queues.
                for client, request_id in group.askers:
                    self.answering.refuse(client, request_id, refusal)
            except Exception as bug:
                # Index and log differ from here on, so the groups before are not appended either.
                self._broke(bug, operation.name, [*(group for group, _ in decided), group, *rest])
                return True
            else:
                if outcome is None:
                    is_whole = False
                else:
                    decided.append((group, outcome))
        if decided:
            self._answer(operation, decided, now_ms)
        return is_whole

    def _answer(self, operation: CollectedOperation, decided: list[tuple[Group, Outcome[Any]]], now_ms: int) -> None:
        try:
            if len(decided) == 1:
                lsn = self.answering.carry_out(decided[0][1], now_ms)
            else:
                lsn = self.answering.carry_out_all([outcome for _, outcome in decided], now_ms)
        except LogFailed as failure:
            # The process is about to end: the failure came between two calls of the loop.
            for group, _ in decided:
                self.leave_unknown(group, str(failure))
            return
        except Exception as bug:
            self._broke(bug, operation.name, [group for group, _ in decided])
            return
        held: list[Held] = []
        try:
            try:
                for group, outcome in decided:
                    operation.answer(group, outcome.reply, lsn, held)
            finally:
                # Within the outer try: a durable reply is handed to its client at once, and a bug there must end the
                # server as well. Past this method the bug would end no I/O batch, and the server would hang.
                self.gate.hold_all(held)
        except Exception as bug:
            self.answering.broke(bug, f"answer to {operation.name}")

    def _broke(self, bug: Exception, during: str, groups: Iterable[Group]) -> None:
        """Report a bug that leaves the requests of groups unknown."""
        # Before the report, which ends all waits: a request that waits by then has its answer from there.
        for group in groups:
            self.leave_unknown(group, HALTED)
        self.answering.broke(bug, during)

    def _is_too_late(self, client: Client, request: wire.Request) -> bool:
        """Answer or put back a request if the last decision keeps it from being collected.

        The dispatcher checks the same before a request is taken up, and only a decision changes the result, so this
        place alone repeats the check.
        """
        if self.answering.is_halted:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
            return True
        if client.is_held:
            self.admission.uncount(client.account)
            client.put_back(request)
            return True
        return False

    def _remove(self, groups: list[Group]) -> None:
        admission, collected, group_of = self.admission, self._groups, self.group_of
        # The records of the groups will take up the room.
        admission.room_bytes = 0
        for group in groups:
            del collected[group.key]
            admission.collected_bytes -= group.size
            self._messages -= group.messages
            for client, _ in group.askers:
                group_of.pop(client, None)
            if group.operation.counts_unread:
                for client, _ in group.askers:
                    # From here on a receive counts if it brings messages.
                    client.unread_receives -= 1


def stored_bytes(request: wire.SendMessages | wire.PublishMessages) -> int:
    """Return the bytes of bodies and headers of a request."""
    size = sum(map(len, request.bodies))
    if request.headers is not None:
        size += sum(headers_bytes(entry) for entry in request.headers if entry)
    return size
