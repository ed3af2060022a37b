"""The reply gate of a broker with redundancy: no reply leaves without a recent proof that this broker leads.

A reply with a row is proved by the row: the engine has stored the row behind every row of other leaders. A reply
without a row is decided by the index in memory. A broker that was stopped for a while, or whose machine was cut off,
may be fenced without knowing, and its index is old. So replies without a row, refusals too, are held when the last
proof is older than a second, until a newer proof arrives. Proofs are the answers to commits; an idle broker makes an
empty commit.

The age of a proof counts from its request, not from its answer, which may have waited unread while the process was
stopped. A late answer still proves the lead for the replies that were held at the request.

Three refusals depend on no row at all, and wait for a proof all the same (``when_led``): the end of a handshake, which
the broker's own keys decide, and the refusals of requests for a rate, a back-pressure or a full disk. A client that
reads them believes that it has found the leader. Replies that were given up need no proof: a stand-in takes them, and
it only appends.

The clock is read at each reply, not by a timer: a stopped process that goes on may read requests before its timers.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import Final

from cmqd.server.replies.reply_gate import CLOSED, Answerable, Held, Outgoing, ReplyGate

PROOF_S: Final = 1.0
"""Age at which a proof is too old for a reply without a row."""


class LeaderGate:
    """Stands before the reply gate, and closes it without a recent proof; see the module."""

    __slots__ = ("_ask", "_asked_count", "_asked_s", "_clock_s", "_proved_s", "_replies", "_steps")

    def __init__(
        self,
        replies: ReplyGate,
        *,
        clock_s: Callable[[], float],
        proved_s: Callable[[], float],
        ask: Callable[[], None],
    ) -> None:
        """Take the parts.

        Args:
            replies: the gate that holds the replies.
            clock_s: the clock of proofs; see ``Led``.
            proved_s: returns the time of the last proof, by that clock.
            ask: asks for a proof, unless a commit is under way; ``open_to`` is called with the answer.
        """
        self._replies = replies
        self._clock_s = clock_s
        self._proved_s = proved_s
        self._ask = ask
        self._asked_s = float("-inf")
        """Time at which a proof was asked for last."""
        self._asked_count = 0
        """``ReplyGate.held_so_far`` at that time."""
        self._steps: dict[Callable[[], None], float] = {}
        """Steps of ``when_led`` that wait, with the times at which they were decided, oldest first."""

    def hold(self, lsn: int, asker: Answerable, reply: Outgoing, queue: str | None = None) -> None:
        """Send a reply when ``lsn`` is durable and the proof is recent."""
        self._close_if_unproved(lsn)
        self._replies.hold(lsn, asker, reply, queue)
        self._ask_if_closed()

    def hold_all(self, held: list[Held]) -> None:
        """Hold the replies of a group, which have the same LSN, in their order."""
        if held:
            self._close_if_unproved(held[0][0])
            self._replies.hold_all(held)
            self._ask_if_closed()

    def when_led(self, step: Callable[[], None]) -> None:
        """Take a step that depends on no row, but tells a client what only the leader may tell: at a recent proof, or
        at a proof that was asked for later.
        """
        if self._is_recent():
            step()
            return
        self._steps[step] = self._clock_s()
        if self._is_answered():
            self._ask_now()

    def forget(self, step: Callable[[], None]) -> None:
        """Do not take a step that waits for the lead: while the engine is silent, clients come and go by thousands."""
        self._steps.pop(step, None)

    def open_to(self, durable_lsn: int) -> None:
        """Release the replies up to ``durable_lsn``: all if the proof is recent, else those that it was asked for."""
        if self._is_recent():
            self._replies.open_to(durable_lsn)
            self._take_steps(self._clock_s())
            return
        replies = self._replies
        replies.release_given_up(durable_lsn)
        if self._is_answered():
            replies.release_first(durable_lsn, self._asked_count)
        self._take_steps(self._proved_s())
        replies.durable_lsn = CLOSED
        if replies.holds_any or self._steps:
            self._ask_now()

    def _take_steps(self, until_s: float) -> None:
        """Take the steps that were decided up to a time."""
        for step in list(takewhile(lambda step: self._steps[step] <= until_s, self._steps)):
            if self._steps.pop(step, None) is not None:
                step()

    def _is_recent(self) -> bool:
        return self._clock_s() - self._proved_s() < PROOF_S

    def _is_answered(self) -> bool:
        return self._proved_s() >= self._asked_s

    def _close_if_unproved(self, lsn: int) -> None:
        if lsn <= self._replies.durable_lsn and not self._is_recent():
            self._replies.durable_lsn = CLOSED

    def _ask_if_closed(self) -> None:
        """Ask for a proof, unless an answer is outstanding: slow proofs would otherwise be for no reply any more."""
        if self._replies.durable_lsn == CLOSED and self._is_answered():
            self._ask_now()

    def _ask_now(self) -> None:
        self._asked_s = self._clock_s()
        self._asked_count = self._replies.held_so_far
        self._ask()
