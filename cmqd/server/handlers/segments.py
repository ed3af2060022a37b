"""The list of segments: the log knows the positions in its segments, the core the messages that are needed.

As ``reclaim``, which drops a segment when no reason to keep it is left.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from cmqd.core.broker import Broker
from cmqd.core.limits import check_range
from cmqd.core.operations.monitoring.segment_holders import Held
from cmqd.log.interface import Log
from cmqd.log.log_errors import LogFailed
from cmqd.log.values import LogState, SegmentReport
from cmqd.server.access.accounts import Accounts
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.log_upkeep.pins import Pins
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd.server.requests.refusals import BUSY_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.segments import KeptFor, SegmentInfo

MAX_LIMIT: Final = 1_000
"""Most segments of a reply."""
EXAMINED_A_REPLY: Final = 100_000
"""Queues and subscriptions, summed over the segments of a reply, behind which the reply ends: some 0.4 s of slices."""
MAX_AHEAD: Final = 4_000
"""Segments in replies that wait for the disk, and requests under way, each as one segment: about 4 MiB."""
HALTED: Final = "the broker stopped while the segments were read"


@part
class SegmentRequests:
    """Answers ``ListSegments``, for account ``admin``.

    Replies wait for the disk: a list must not show a count that a crash can take back.
    """

    broker: Broker
    log: Log
    answering: Answering
    accounts: Accounts
    state: Callable[[], LogState]
    """Returns room and health of the log."""
    history_bytes: Callable[[], int]
    keep_history_ms: int
    pins: Pins
    now_ms: Callable[[], int]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    schedule: Callable[[], None]
    work: SlicedWork
    _waiting: deque[tuple[int, int]] = dataclasses.field(default_factory=deque[tuple[int, int]], init=False)
    """LSN that a reply waits for, and its segments, in ascending order."""
    _ahead: int = dataclasses.field(default=0, init=False)
    """Segments of ``_waiting``, and requests under way."""

    @handles(wire.ListSegments)
    def handle(self, client: Client, request: wire.ListSegments) -> None:
        """Ask the log for its active segment, count needed messages in steps, and answer.

        Raises:
            PermissionDenied: the account is not ``admin``.
            InvalidArgument: the limit is out of range.
        """
        self.accounts.must_be_admin(client.account, "list segments")
        check_range("limit", request.limit, 1, MAX_LIMIT)
        waiting, durable_lsn = self._waiting, self.log.durable_lsn
        while waiting and waiting[0][0] <= durable_lsn:
            self._ahead -= waiting.popleft()[1]
        if self._ahead >= MAX_AHEAD:
            text = "lists of segments wait for the disk; try again"
            client.answer(error(request.request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return
        self._ahead += 1
        self.spawn(self._describe_active(client, request))

    async def _describe_active(self, client: Client, request: wire.ListSegments) -> None:
        try:
            active = await self.log.active_segment()
        except LogFailed as failure:
            self._ahead -= 1
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
            self.schedule()
        except BaseException:
            self._ahead -= 1
            raise
        else:
            self.work.add(client.account, self._read(client, request, active))

    def _read(self, client: Client, request: wire.ListSegments, active: SegmentReport | None) -> Generator[None]:
        try:
            yield from self._examine(client, request, active)
        finally:
            self._ahead -= 1

    def _examine(self, client: Client, request: wire.ListSegments, active: SegmentReport | None) -> Generator[None]:
        if not self._is_wanted(client, request):
            return
        if client.is_slow:
            # The memory of finished lists would grow with each further request of a client that does not read.
            client.park(request)
            return
        reports = {report.number: report for report in self.log.closed_segments()}
        if active is not None:
            # A segment that was closed since its description is in the table of closed segments.
            reports.setdefault(active.number, active)
        numbers = sorted(number for number in reports if number > request.after)
        segments: list[SegmentInfo] = []
        examined = since_step = 0
        for number in numbers[: request.limit]:
            report = reports[number]
            steps = self.broker.holders_of(report.each_queue(), since_step)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    held: Held = end.value
                    break
                yield
                if not self._is_wanted(client, request):
                    return
            segments.append(self._info(report, held, is_active=report is active))
            since_step = held.since_step
            examined += held.examined
            if examined >= EXAMINED_A_REPLY:
                break
        state = self.state()
        reply = wire.SegmentList(
            request.request_id,
            self.now_ms(),
            segments,
            segments[-1].number if len(segments) < len(numbers) else None,
            len(reports),
            self.keep_history_ms,
            self.log.droppable_lsn,
            state.log_bytes,
            self.history_bytes(),
            state.free_bytes,
            state.reason if state.sends_refused else None,
        )
        self._waiting.append((self.log.last_lsn, len(segments)))
        self._ahead += len(segments)
        self.answering.answer_lookup(client, reply)
        self.schedule()

    def _is_wanted(self, client: Client, request: wire.ListSegments) -> bool:
        """Return True if the request can still be answered; after a failure of the broker the client gets an error."""
        if client.is_gone:
            return False
        if self.answering.is_halted:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
            return False
        return True

    def _info(self, report: SegmentReport, held: Held, *, is_active: bool) -> SegmentInfo:
        reasons = {
            KeptFor.ROWS: is_active,
            KeptFor.MESSAGES: held.live > 0,
            KeptFor.REWIND: held.rewindable > 0,
            KeptFor.DELIVERIES: held.undelivered > 0,
            # Of the active segment this goes without saying.
            KeptFor.CHECKPOINT: not is_active and report.last_lsn > self.log.droppable_lsn,
            KeptFor.HISTORY: not is_active
            and held.holders == 0
            and self.now_ms() - report.last_ms < self.keep_history_ms,
            KeptFor.BACKUP: not is_active and held.holders == 0 and self.pins.holds(report.last_lsn),
        }
        return SegmentInfo(
            number=report.number,
            state="active" if is_active else "sealed" if report.is_sealed else "retired",
            first_lsn=report.first_lsn,
            last_lsn=report.last_lsn,
            first_ms=report.first_ms,
            last_ms=report.last_ms,
            bytes=report.bytes,
            messages=report.messages,
            kept_for=[reason for reason, holds in reasons.items() if holds],
            live=held.live,
            rewindable=held.rewindable,
            undelivered=held.undelivered,
            holders=held.largest,
            holder_count=held.holders,
        )
