"""Collects the requests of an I/O batch for the same operation on the same queue or topic into a core call.

A call that decides sixteen sends costs little more than a call that decides a single send, because the look-ups, the
record and the row are shared. The same holds for publishes, deletes and receives. Each request is decided separately: a
refusal does not touch the other requests. Rules:

- Limits (busy, disk nearly full, unread replies) are checked when a request arrives, before the request is collected.
- Requests of a connection take effect in their order (SPEC.md, section 5.1). Therefore a group with a request of a
  client is decided before a request of that client for another operation or queue is taken up. A request for the same
  operation and queue joins the group.
- Between connections there is no order before the answer, and no answer leaves before the log is flushed. Therefore
  time, the log and other clients may take effect in between, as if they had come sooner. Sends are decided before
  receives, so that the receives find the messages.
- A group is decided at the latest when the I/O batch ends, just before its records go to the storage, and sooner when
  it reaches the size of a batch. Therefore collecting delays no commit.
- A publish with a plan of several slices continues later (``handlers.publishing``). Its clients are held meanwhile: a
  later request of the same client must not overtake it.
- After a bug in the core, or a failure of the storage, no request is collected.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from cmqd.core import errors as domain
from cmqd.core.limits import headers_bytes
from cmqd.log.errors import LogFailed
from cmqd.server.answering import Answering
from cmqd.server.client import Client
from cmqd.server.part import part
from cmqd.server.request_admission import Admission
from cmqd.server.waiting_requests import WaitingRequests
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

MAX_MESSAGES: Final = 256
"""Messages of a group; a request without messages counts as one."""
MAX_BYTES: Final = 1024 * 1024
"""Bytes of a group, the limit of a single batch: a row of the log stays as small as the row of a batch. A request
above the limit (its headers can make it larger) is decided alone."""
MAX_COLLECTED: Final = 1024
"""Messages of all groups beyond which they are decided at once: up to 4 ms of work, which otherwise would come at the
end of an I/O batch that has used up its time."""

HALTED: Final = "internal error"

Decided: TypeAlias = tuple[Sequence[Any], int] | None
"""The result of each request, and the LSN that the replies depend on; None = the group continues in slices, and is
answered later."""


class CollectedOperation(Protocol):
    """An operation with collected requests."""

    order: int
    """Place among the operations at the end of an I/O batch."""
    name: str
    """Name in log lines."""
    max_bytes: int
    """Bytes of a group."""
    counts_unread: bool
    """True if a collected request counts in ``Client.unread_receives``."""

    def decide(self, group: "Group", now_ms: int) -> Decided:
        """Have the core decide a group."""
        ...

    def answer(self, group: "Group", results: Sequence[Any], lsn: int) -> None:
        """Answer each request of a group."""
        ...


class Group(msgspec.Struct, eq=False):
    """Requests for one operation on one queue or topic, in order of arrival."""

    operation: CollectedOperation
    account: str
    name: str
    """Name of the queue or topic."""
    requests: list[Any] = []
    """The requests in the core's form."""
    askers: list[tuple[Client, int]] = []
    """Client and request id of each request."""
    messages: int = 0
    size: int = 0
    """Bytes of bodies and headers."""


@part
class Collector:
    """The groups of an I/O batch; see the module.

    Invariant: a client has requests in one group at a time, which ``group_of`` names.
    """

    waiting_requests: WaitingRequests
    answering: Answering
    admission: Admission
    now_ms: Callable[[], int]

    def __post_init__(self) -> None:
        self._groups: dict[tuple[int, str, str], Group] = {}
        """Groups by order of the operation, account and name of the queue or topic."""
        self.group_of: dict[Client, Group] = {}
        """The group with requests of a client. Read-only outside: the dispatcher reads the table for every request."""
        self._messages: int = 0
        """Messages of all groups."""

    def collect(
        self,
        operation: CollectedOperation,
        client: Client,
        asked: wire.Request,
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
            self._decide(earlier)
            if self._is_too_late(client, asked):
                return
            group = self._groups.get(key)
        if group is not None and (group.messages + count > MAX_MESSAGES or group.size + size > max_bytes):
            self._decide(group)
            if self._is_too_late(client, asked):
                return
            group = None
        if operation.counts_unread:
            client.unread_receives += 1
        if group is None:
            group = self._groups[key] = Group(operation, client.account, name)
        self.group_of[client] = group
        group.requests.append(request)
        group.askers.append((client, asked.request_id))
        group.messages += count
        group.size += size
        if size:
            self.admission.collected_bytes += size
        self._messages = messages = self._messages + count
        if group.messages >= MAX_MESSAGES or group.size >= max_bytes:
            self._decide(group)
        elif messages >= MAX_COLLECTED:
            self.decide_all()

    def decide_all(self) -> None:
        """Decide all groups, because the I/O batch ends."""
        for key in sorted(self._groups):
            # A decision may have decided a later group.
            group = self._groups.get(key)
            if group is not None:
                self._decide(group)

    def decide_of(self, client: Client) -> None:
        """Decide the group with requests of a client."""
        group = self.group_of.get(client)
        if group is not None:
            self._decide(group)

    def carry_out(self, group: Group, decide: Callable[[Group, int], Decided]) -> bool:
        """Decide a group and answer its requests; return False if the group goes on in slices."""
        answering = self.answering
        try:
            decided = decide(group, self.now_ms())
        except domain.DomainError as refusal:
            for client, request_id in group.askers:
                answering.refuse(client, request_id, refusal)
        except LogFailed as failure:
            # The process is about to end: the failure came between two calls of the loop.
            self.leave_unknown(group, str(failure))
        except Exception as bug:
            self.leave_unknown(group, HALTED)
            answering.broke(bug, group.operation.name)
        else:
            if decided is None:
                return False
            results, lsn = decided
            try:
                group.operation.answer(group, results, lsn)
            except Exception as bug:
                answering.broke(bug, f"answer to {group.operation.name}")
        return True

    def drop_all(self, reason: str) -> None:
        """Answer all collected requests ``outcome_unknown``, without deciding them."""
        for group in list(self._groups.values()):
            self._remove(group)
            self.leave_unknown(group, reason)

    def leave_unknown(self, group: Group, reason: str) -> None:
        """Answer the requests of a group ``outcome_unknown``."""
        for client, request_id in group.askers:
            # A request that waits in the core by now is answered with all that wait.
            if self.waiting_requests.find(client, request_id) is None:
                client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, reason))

    def _decide(self, group: Group) -> None:
        # Removed first: a decision may lead to requests that would join the group otherwise.
        self._remove(group)
        self.carry_out(group, group.operation.decide)

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

    def _remove(self, group: Group) -> None:
        self._groups.pop((group.operation.order, group.account, group.name), None)
        self.admission.collected_bytes -= group.size
        self._messages -= group.messages
        group_of = self.group_of
        if group.operation.counts_unread:
            for client, _ in group.askers:
                group_of.pop(client, None)
                # From here on a receive counts if it brings messages.
                client.unread_receives -= 1
        else:
            for client, _ in group.askers:
                group_of.pop(client, None)


def stored_bytes(request: wire.SendMessages | wire.PublishMessages) -> int:
    """Return the bytes of bodies and headers of a request."""
    size = sum(map(len, request.bodies))
    if request.headers is not None:
        size += sum(headers_bytes(entry) for entry in request.headers if entry)
    return size
