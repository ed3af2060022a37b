"""Requests of one I/O batch that ask the same of the same queue or topic, collected, so that the core decides those of
many clients in one call.

A call that decides sixteen sends costs little more than one that decides a single one: the look-ups, the record and the
row are shared. So it is with publishes, deletes and receives. Each request is decided for itself: one that is refused
does not touch the others. Rules:

- Whether there is room (busy, disk nearly full, unread replies) is asked when a request arrives, before that.
- A connection's requests have effect in their order (SPEC.md, section 5.1): before a request of a client is taken up,
  what is collected with another one of his is decided. One that asks the same of the same queue joins those that are
  there, in its place.
- Between connections there is no order before the answer, and no answer leaves before the log is flushed; so what
  time, the log and other clients bring meanwhile may come first, as if it had arrived sooner. Sends are decided before
  receives, so that these find something.
- What is collected is decided at the latest when the I/O batch ends, just before its records go to the storage, and
  sooner when it is as much as one batch may be. So collecting delays no commit; what needs none (a receive that finds
  nothing and does not wait, a refusal) is answered with the others.
- Publishes that take long to plan go on in slices (``publishlines``). Their clients are held meanwhile, so that none of
  their later requests is taken up.
- A bug in the core, or a failure of the storage, ends everything (``halt``): from then on nothing is collected.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cmqd.core import errors as domain
from cmqd.log.errors import LogFailed
from cmqd.log.values import ROW_BYTES
from cmqd.server.handlers.outcomes import Client, Outcomes, translate
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error

MAX_MESSAGES: Final = 256
"""Decided together; a request without any counts as one message."""
MAX_BYTES: Final = 1024 * 1024
"""Of publishes, as much as one batch may bring: a row of the log stays as small as that of a batch. A request that is
larger by itself (its headers can make it so) is decided alone."""
MAX_SENT_BYTES: Final = ROW_BYTES
"""Of sends: what makes a full row anyway. A larger one would be read whole for each of its messages."""


SEND: Final = 0
PUBLISH: Final = 1
DELETE: Final = 2
RECEIVE: Final = 3
"""Kinds of requests, in the order in which they are decided at the end of an I/O batch."""
KINDS: Final[dict[type[wire.Request], int]] = {
    wire.SendMessages: SEND,
    wire.PublishMessages: PUBLISH,
    wire.DeleteMessages: DELETE,
    wire.ReceiveMessages: RECEIVE,
}
NAMES: Final = ("send", "publish", "delete", "receive")
HALTED: Final = "internal error"
MAX_COLLECTED: Final = 1024
"""Messages of all that is collected, beyond which it is decided at once: up to 4 ms of work, which else would come at
the end of an I/O batch that has used up its time."""


class Collected:
    """Requests to one queue or topic, in order of arrival."""

    __slots__ = ("account", "askers", "kind", "messages", "name", "requests", "size")

    def __init__(self, kind: int, account: str, name: str) -> None:
        self.kind = kind
        self.account = account
        self.name = name
        """Of the queue or topic."""
        self.requests: list[Any] = []
        """As the core takes them."""
        self.askers: list[tuple[Client, int]] = []
        """The client and the number of each request."""
        self.messages = 0
        self.size = 0
        """Bytes of bodies and headers."""

    def __repr__(self) -> str:
        return f"<Collected kind={self.kind} {self.account}/{self.name} requests={len(self.requests)}>"


Decide: TypeAlias = Callable[[Collected, int], tuple[Sequence[Any], int] | None]
"""Has the core decide what is collected, at this time: the reply to each, and the LSN that they depend on. None = it
goes on in slices, and is answered later.
"""
AnswerAll: TypeAlias = Callable[[Collected, Sequence[Any], int], None]
"""Answers each."""


class Collecting(Outcomes):
    """The base of the handlers whose requests are collected; see the module."""

    _deciding: dict[int, tuple[Decide, AnswerAll]]

    def _collect(
        self, kind: int, client: Client, asked: wire.Request, name: str, request: Any, count: int, size: int = 0
    ) -> None:
        """Collect a request of so many messages and bytes, ``request`` being its form for the core. It is put back if
        an earlier request of its client is found to take several slices.
        """
        key = (kind, client.account, name)
        collected = self._collected.get(key)
        others = self._collecting.get(client)
        most = MAX_SENT_BYTES if kind == SEND else MAX_BYTES
        if count < 1:
            count = 1
        if others is not None and others is not collected:
            self._decide(others)
            if self._is_too_late(client, asked):
                return
            collected = self._collected.get(key)
        if collected is not None and (collected.messages + count > MAX_MESSAGES or collected.size + size > most):
            self._decide(collected)
            if self._is_too_late(client, asked):
                return
            collected = None
        if kind == RECEIVE:
            client.unread_receives += 1
        if collected is None:
            collected = self._collected[key] = Collected(*key)
        self._collecting[client] = collected
        collected.requests.append(request)
        collected.askers.append((client, asked.request_id))
        collected.messages += count
        collected.size += size
        if size:
            self._collected_bytes += size
        self._collected_messages = in_all = self._collected_messages + count
        if collected.messages >= MAX_MESSAGES or collected.size >= most:
            self._decide(collected)
        elif in_all >= MAX_COLLECTED:
            self.settle_collected()

    def _is_too_late(self, client: Client, request: wire.Request) -> bool:
        """Whether the decision that was just made keeps a request from being collected; then it is answered, or put
        back. Nothing else halts or holds between ``dispatch``, which asks the same first, and here.
        """
        if self._halted:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
            return True
        if client.is_held:
            # An earlier request of this client takes several slices: this one comes again when that is done.
            self._counters.requests -= 1
            if self._rates is not None:
                self._rates.give_back(client.account)
            client.put_back(request)
            return True
        return False

    def settle_collected(self) -> None:
        """Decide all that is collected: the I/O batch ends."""
        for key in sorted(self._collected):
            collected = self._collected.get(key)
            if collected is not None:
                self._decide(collected)

    def settle_collected_of(self, client: Client) -> None:
        """Decide what is collected with a request of this client."""
        collected = self._collecting.get(client)
        if collected is not None:
            self._decide(collected)

    def _decide(self, collected: Collected) -> None:
        """Have the core decide these, and answer each."""
        self._forget_collected(collected)
        self._carry_out(collected, *self._deciding[collected.kind])

    def _carry_out(self, collected: Collected, decide: Decide, answer_all: AnswerAll) -> bool:
        """Decide and answer; False if it goes on in slices."""
        try:
            decided = decide(collected, self._now_ms())
        except domain.DomainError as refusal:
            for client, request_id in collected.askers:
                self._refuse(client, request_id, refusal, self._log.last_lsn)
        except LogFailed as failure:
            # The process is about to end; these came in between.
            self._leave_unknown(collected, str(failure))
        except Exception as bug:
            self._leave_unknown(collected, HALTED)
            self._broke(bug, NAMES[collected.kind])
        else:
            if decided is None:
                return False
            replies, lsn = decided
            try:
                answer_all(collected, replies, lsn)
            except Exception as bug:
                self._broke(bug, f"answer to {NAMES[collected.kind]}")
        return True

    def _drop_collected(self, reason: str) -> None:
        """Nothing more is decided."""
        for collected in list(self._collected.values()):
            self._forget_collected(collected)
            self._leave_unknown(collected, reason)
        for publish in self._publish_lines.take_all():
            self._collected_bytes -= publish.collected.size
            self._leave_unknown(publish.collected, reason)

    def _forget_collected(self, collected: Collected) -> None:
        self._collected.pop((collected.kind, collected.account, collected.name), None)
        self._collected_bytes -= collected.size
        self._collected_messages -= collected.messages
        collecting = self._collecting
        if collected.kind == RECEIVE:
            for client, _ in collected.askers:
                collecting.pop(client, None)
                # From here on it counts if it brings messages, or waits.
                client.unread_receives -= 1
        else:
            for client, _ in collected.askers:
                collecting.pop(client, None)

    def _refuse(self, client: Client, request_id: int, refusal: domain.DomainError, lsn: int) -> None:
        self._counters.refusals += 1
        self._gate.hold(lsn, client, translate(request_id, refusal))

    def _leave_unknown(self, collected: Collected, reason: str) -> None:
        for client, request_id in collected.askers:
            # Who waits by now is answered with all that wait.
            if self._waiting_requests.find(client, request_id) is None:
                client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, reason))
