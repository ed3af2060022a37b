"""End the waiting receives of a leader that waits for its log: a newer leader may exist, and have the messages.

A leader that is cut off from its engine answers nothing, and a client with a waiting receive notices nothing: no answer
is due before the end of the wait. So once a proof or an append has had no answer for ``STALLED_AFTER_S``, the receives
of clients that named ``stalled_receives`` in their hello are answered, and the client looks for the newer leader:

- A receive that waits in the core gets ``busy`` with ``stalled``: the receive holds no lease. With deletes it gets
  ``outcome_unknown``, because only a durable reply may tell that the deletes are done.
- A receive with a reply at the gate gets ``outcome_unknown``: its row was handed over, and may be stored. A stand-in
  takes the reply, and puts the messages back if the row becomes durable after all.

Receives of other clients wait as before: an older client would use up its repeats, although the leader may come back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from cmqd.log.interface import Led
from cmqd.server.clients.absent_client import AbsentClient
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.reply_gate import Answerable, Outgoing, ReplyGate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.refusals import STALLED_RETRY_MS, stalled_error
from cmqd_protocol.messages import Error, MessagesReceived, ReceiveMessages, error
from cmqd_protocol.protocol_errors import ErrorCode

STALLED_AFTER_S: Final = 3.0
"""Longest time for which a healthy engine keeps an append waiting: the failure of a primary's process takes longer, and
costs the clients of the leader a look at the standby."""
ANSWERED_AT_ONCE: Final = 200
"""Receives answered, and replies examined at the gate, in one call, which takes about 2 ms for each of the two."""


@part
class StalledReceives:
    """Examines the lead from beat to beat; see the module."""

    loop: asyncio.AbstractEventLoop
    lead: Led
    gate: ReplyGate
    answering: Answering
    waiting_requests: WaitingRequests
    stand_in: Callable[[str], AbsentClient]
    """Makes the stand-in for a client of an account."""

    def __post_init__(self) -> None:
        self._to_end: deque[int] = deque()
        """Waiter ids of receives to answer, in slices."""
        self._examined = 0
        """Replies at the gate up to this number of ``held_so_far`` were examined: a beat examines later ones alone."""
        self._is_ending = False
        """The next slice is under way."""

    def stalled_s(self) -> float:
        """Time in seconds for which a proof or an append has had no answer."""
        since_s = self.lead.unanswered_s
        return 0.0 if since_s is None else max(0.0, self.lead.clock_s() - since_s)

    def beat(self) -> None:
        """Answer receives if the lead is stalled."""
        if not self._is_ending and self.stalled_s() >= STALLED_AFTER_S:
            # Once for all slices: a scan of all waiting receives takes milliseconds.
            self._to_end.extend(
                waiter_id
                for waiter_id, client, request in self.waiting_requests.all()
                if isinstance(request, ReceiveMessages) and client.understands_stalls
            )
            self._end_some()

    def _text(self) -> str:
        return f"the log of this server has not answered for {self.stalled_s():.1f} s; another server may lead"

    def _give_up(self, asker: Answerable, reply: Outgoing, queue: str | None) -> Answerable:
        """Answer the receive of a reply at the gate; return the taker of the reply."""
        client = cast("Client", asker)
        if not isinstance(reply, MessagesReceived) or not client.understands_stalls:
            return asker
        if queue is not None:
            client.unread_receives -= 1
        client.answer(_unknown(reply.request_id, self._text()))
        return self.stand_in(client.account)

    def _end_some(self) -> None:
        self._is_ending = False
        if self.stalled_s() < STALLED_AFTER_S:
            self._to_end.clear()
            return
        gate = self.gate
        self._examined = gate.replace_askers(self._examined, ANSWERED_AT_ONCE, self._give_up)
        text = self._text()
        for _ in range(min(len(self._to_end), ANSWERED_AT_ONCE)):
            waiter_id = self._to_end.popleft()
            waiter = self.waiting_requests.get(waiter_id)
            if waiter is None:
                # Answered or cancelled since the scan.
                continue
            _, request = waiter
            refusal = stalled_error(request.request_id, ErrorCode.BUSY, text)
            if waiter_id in self.waiting_requests.deletes:
                refusal = _unknown(request.request_id, text)
            self.answering.end_wait(waiter_id, refusal)
        if self._to_end or self._examined < gate.held_so_far:
            self._is_ending = True
            self.loop.call_soon(self._end_some)


def _unknown(request_id: int, text: str) -> Error:
    """Return an unknown outcome with a pause: a client that repeats its receive is answered by the next beat again."""
    return error(request_id, ErrorCode.OUTCOME_UNKNOWN, text, retry_after_ms=STALLED_RETRY_MS)
