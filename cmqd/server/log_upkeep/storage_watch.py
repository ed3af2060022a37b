"""Watch over the storage: log when commits hang, give up requests that wait too long, refuse new requests meanwhile.

Three steps, by the time for which the durable LSN has not moved and no page has come back, although rows or reads wait:

- After a second the hang is logged, and later its end.
- A request that was decided and has waited for ``storage_patience_ms`` is answered ``outcome_unknown``. Its rows were
  handed over and may still become durable, so a refusal would be a lie. The late reply goes to a stand-in, and the
  messages of a late receive go back to their queue, uncounted, when their lease is durable. Not before that: a release
  could otherwise become durable without the lease that it ends.
- From then on requests are refused before they reach the core (retryable, no change made), until the storage moves.
  Receives that wait for bodies since then are refused too: they hold no lease yet.

Time comes from outside (``beat``), ten times a second. Requests cost no more for it: a beat notes how many replies were
held so far, and a reply is as old as the first beat that counted the reply.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from cmqd.log.interface import Log
from cmqd.server.admission.request_admission import Admission
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.absent_client import AbsentClient
from cmqd.server.clients.client import Client
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.part import part
from cmqd.server.replies.reply_gate import ReplyGate
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage

HANGS_AFTER_MS: Final = 1_000
"""A commit takes milliseconds, on a slow disk some hundreds of them."""
SCAN_EVERY_MS: Final = 1_000
"""Time between two scans of the requests that wait in the core, while the storage hangs."""
ANSWERED_AT_ONCE: Final = 500
"""Requests given up in one call, which takes about 2 ms."""
SLICE_S: Final = 0.002

_log = get_logger()


@part
class StorageWatch:
    """Compares the progress of the storage from beat to beat; see the module."""

    loop: asyncio.AbstractEventLoop
    log: Log
    gate: ReplyGate
    admission: Admission
    events: ClientEvents
    waiting_requests: WaitingRequests
    schedule: Callable[[], None]
    patience_ms: int
    reason: Callable[[], str]
    """Returns the cause of a hang, "" if the cause is unknown."""

    def __post_init__(self) -> None:
        self._position = (self.log.durable_lsn, self.log.pages_answered)
        self._moved_ms: int | None = None
        """Time of the last beat with progress of the storage or without waiting work; None before the first beat."""
        self.stuck_s = 0.0
        """Time for which rows or reads have waited without progress, at the last beat."""
        self._is_told = False
        self._is_stalled = False
        self._marks: deque[tuple[int, int, int]] = deque()
        """(time, replies held before, newest waiter id) of the beats within the patience."""
        self._give_up_to = 0
        """Overdue are the replies up to this count of all replies since the start."""
        self._giving_up = False
        self._scanned_ms = 0
        self._late: deque[tuple[str, str, Sequence[ReceivedMessage]]] = deque()
        """Messages to put back, in slices: (account, queue, messages)."""

    def beat(self, now_ms: int) -> None:
        """Examine the storage; ``now_ms`` is monotonic."""
        log = self.log
        position = (log.durable_lsn, log.pages_answered)
        is_waiting = log.pending.records or log.pages_asked > log.pages_answered
        if self._moved_ms is None or position != self._position or not is_waiting:
            self._position = position
            if self._is_told and self._moved_ms is not None:
                _log.warning("storage_goes_on", after_ms=now_ms - self._moved_ms, durable_lsn=log.durable_lsn)
            self._moved_ms = now_ms
            self._is_told = False
            if self._is_stalled:
                self._is_stalled = False
                self._stall(None)
        stuck_ms = now_ms - self._moved_ms
        self.stuck_s = stuck_ms / 1000
        if stuck_ms >= HANGS_AFTER_MS and not self._is_told:
            self._is_told = True
            _log.warning(
                "storage_hangs",
                for_ms=stuck_ms,
                durable_lsn=log.durable_lsn,
                records=log.pending.records,
                reads=log.pages_asked - log.pages_answered,
                replies=len(self.gate),
                reason=self.reason() or "unknown",
            )
        if stuck_ms >= self.patience_ms and not self._is_stalled:
            self._is_stalled = True
            self._stall(self._text(stuck_ms))
        self._mark(now_ms, stuck_ms)

    def _stall(self, reason: str | None) -> None:
        self.admission.stall(reason)
        # The end of an I/O batch decides anew whether clients are read from.
        self.schedule()

    def _text(self, stuck_ms: int) -> str:
        reason = self.reason()
        return f"the storage has not answered for {stuck_ms / 1000:g} s" + (f": {reason}" if reason else "")

    def _mark(self, now_ms: int, stuck_ms: int) -> None:
        marks = self._marks
        waiter_id = 0
        while marks and marks[0][0] <= now_ms - self.patience_ms:
            _, self._give_up_to, waiter_id = marks.popleft()
        if len(self.gate) or stuck_ms:
            marks.append((now_ms, self.gate.held_so_far, self.waiting_requests.last_id))
        if self._give_up_to > self.gate.let_go_so_far and not self._giving_up:
            self._give_up()
        if self._is_stalled and waiter_id and now_ms - self._scanned_ms >= SCAN_EVERY_MS:
            self._scanned_ms = now_ms
            reads = self.log.pages_asked > self.log.pages_answered
            self.events.give_up_waiting(waiter_id, self._given_up_text(), self.stand_in, receives=reads)

    def _given_up_text(self) -> str:
        return f"it may still happen: the storage has not made it durable within {self.patience_ms / 1000:g} s"

    def _give_up(self) -> None:
        """Answer some of the overdue requests, and the rest in the next turns of the loop."""
        text = self._given_up_text()
        given_up = self.gate.give_up(
            self._give_up_to, ANSWERED_AT_ONCE, lambda asker: self.stand_in(cast("Client", asker).account)
        )
        for asker, reply, queue in given_up:
            if queue is not None:
                cast("Client", asker).unread_receives -= 1
            asker.answer(error(reply.request_id, ErrorCode.OUTCOME_UNKNOWN, text))
        if given_up:
            _log.warning("requests_given_up", count=len(given_up), patience_ms=self.patience_ms)
        self._giving_up = self._give_up_to > self.gate.let_go_so_far
        if self._giving_up:
            self.loop.call_soon(self._give_up)

    def stand_in(self, account: str) -> AbsentClient:
        """Return a taker of late replies to a client of an account; the messages of a late receive are put back."""
        return AbsentClient(account, self._put_back)

    def _put_back(self, account: str, queue: str, messages: Sequence[ReceivedMessage]) -> None:
        self._late.append((account, queue, messages))
        if len(self._late) == 1:
            self.loop.call_soon(self._put_back_some)

    def _put_back_some(self) -> None:
        stop_at = time.perf_counter() + SLICE_S
        while self._late:
            self.events.give_back(*self._late.popleft())
            if time.perf_counter() >= stop_at:
                break
        if self._late:
            self.loop.call_soon(self._put_back_some)
