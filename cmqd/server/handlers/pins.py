"""Requests about pins, for programs beside the broker that copy its files.

The broker opens no path and no URL of a client, and sends no segment: it says which of its files make a copy, and keeps
them meanwhile.
"""

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from typing import Any, Final

from cmqd.core.domain_errors import DomainError, InvalidArgument, shown
from cmqd.core.limits import check_range
from cmqd.log.interface import Log, Segments
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.audit_entries import AuditEntries, action_of
from cmqd.server.clients.client import Client
from cmqd.server.log_upkeep.pins import MAX_PINS, PIN_LIFE_MS, STANDING_LIMIT_MS, Pin, Pins
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd.server.requests.refusals import BUSY_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode

SEGMENTS_A_SLICE: Final = 2_000
MAX_LIMIT: Final = 10_000
"""Most segments of a reply: the encoding takes about 0.2 ms."""
EVERY_MS: Final = (1_000, STANDING_LIMIT_MS)
"""Shortest and longest interval of the copies: a longer interval would leave a gap each time."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@part
class PinRequests:
    """Answers the requests about pins, for account ``admin``."""

    log: Log
    pins: Pins
    accounts: Accounts
    answering: Answering
    audit_entries: AuditEntries
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    schedule: Callable[[], None]

    @handles(wire.PinLog)
    def pin_log(self, client: Client, request: wire.PinLog) -> None:
        """Hold the segments and a checkpoint, seal, and answer with the pin.

        Raises:
            PermissionDenied: the account is not ``admin``.
        """
        self.accounts.must_be_admin(client.account, "pin the log")
        log = self._log_with_files(client, request)
        if log is None:
            return
        pin = self.pins.begin()
        if pin is None:
            text = f"{MAX_PINS} copies of the log are being made; try again"
            client.answer(error(request.request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return
        self.spawn(self._guarded(client, request, self._pin(client, request, log, pin)))

    async def _pin(self, client: Client, request: wire.PinLog, log: Segments, pin: Pin) -> None:
        pins = self.pins
        try:
            # In one turn of the loop: a checkpoint that ends behind this call may hold facts of rows above the pin.
            pin.lsn, time_ms = self.log.last_lsn, pins.now_ms()
            held = await log.hold_checkpoint()
            if not pins.lives(pin):
                if held is not None:
                    log.release_checkpoint(held.number)
            else:
                pin.checkpoint = held
            await log.seal_now()
            rows = await log.find_rows(pin.lsn, pin.lsn)
        except BaseException:
            pins.end(pin.pin_id)
            raise
        if client.is_gone:
            pins.end(pin.pin_id)
            return
        # Raises if the pin ended before the seal, which a full disk or a reader of the segment can hold up for long.
        pins.use(pin.pin_id)
        pin.numbers = await self._numbers(pin.lsn)
        checkpoint, checkpoint_lsn = (held.number, held.lsn) if held is not None else (0, 0)
        reply = wire.LogPinned(
            request.request_id,
            pin.pin_id,
            log.log_id,
            pin.lsn,
            rows.start,
            time_ms,
            checkpoint,
            checkpoint_lsn,
            PIN_LIFE_MS,
        )
        self._answer(client, reply)

    async def _numbers(self, lsn: int) -> list[int]:
        """Return the numbers of the sealed segments with rows up to ``lsn``, in slices: none goes while a pin lives."""
        numbers: list[int] = []
        for count, segment in enumerate(self.log.closed_segments(), 1):
            if segment.is_sealed and segment.first_lsn <= lsn:
                numbers.append(segment.number)
            if not count % SEGMENTS_A_SLICE:
                await asyncio.sleep(0)
        return numbers

    @handles(wire.ListPinnedSegments)
    def list_segments(self, client: Client, request: wire.ListPinnedSegments) -> None:
        """Answer with the next segments of a pin, and extend its life.

        Raises:
            PermissionDenied: the account is not ``admin``.
            InvalidArgument: the limit is out of range, or the pin has ended.
        """
        self.accounts.must_be_admin(client.account, "list pinned segments")
        check_range("limit", request.limit, 1, MAX_LIMIT)
        all_numbers = self.pins.use(request.pin_id).numbers
        start = bisect_right(all_numbers, request.after)
        numbers = list(all_numbers[start : start + request.limit])
        is_end = start + len(numbers) == len(all_numbers)
        self._answer(client, wire.PinnedSegments(request.request_id, numbers, None if is_end else numbers[-1]))

    @handles(wire.ReleasePin)
    def release(self, client: Client, request: wire.ReleasePin) -> None:
        """End a pin.

        Raises:
            PermissionDenied: the account is not ``admin``.
        """
        self.accounts.must_be_admin(client.account, "release a pin")
        self.pins.end(request.pin_id)
        self._answer(client, wire.Done(request.request_id))

    @handles(wire.SetStandingPin)
    def set_standing_pin(self, client: Client, request: wire.SetStandingPin) -> None:
        """Take the row that a backup has copied.

        Raises:
            PermissionDenied: the account is not ``admin``.
            InvalidArgument: the name is not one, or the row is not of this log.
        """
        self.accounts.must_be_admin(client.account, "set a standing pin")
        log = self._log_with_files(client, request)
        if log is None:
            return
        if log.standing_pins is None:
            text = (
                "the tables of the engine have no column for standing pins, so the next leader would not know them;"
                " 'cmqd ha check' prints the statement that adds the column. The next lead, or start, finds the column"
            )
            client.answer(error(request.request_id, ErrorCode.UNKNOWN_OPERATION, text))
            return
        if _NAME.fullmatch(request.name) is None:
            raise InvalidArgument(
                f"{shown(request.name)} is no name of a standing pin: it has 1 to 64 letters, digits, '-' and '_'",
                field="name",
                value=request.name,
                limit="1 to 64 letters, digits, '-' and '_'",
            )
        check_range("every_ms", request.every_ms, *EVERY_MS)
        self.spawn(self._guarded(client, request, self._set(client, request, log)))

    async def _set(self, client: Client, request: wire.SetStandingPin, log: Segments) -> None:
        if request.log_id != log.log_id:
            raise InvalidArgument(
                f"the copy is of log {shown(request.log_id)}, and this broker has log {log.log_id!r}; begin a new"
                " backup",
                field="log_id",
                value=request.log_id,
                limit=log.log_id,
            )
        newest = self.log.durable_lsn
        if request.lsn > newest:
            raise InvalidArgument(
                f"the copy has row {request.lsn}, and the newest row of the broker is {newest}: the broker runs on an"
                " older state of the log; begin a new backup",
                field="lsn",
                value=request.lsn,
                limit=f"at most {newest}",
            )
        above = request.lsn if request.after_lsn is None else request.after_lsn
        rows = await log.find_rows(request.lsn, above)
        # An empty number is of rows from before the oldest start that the manifest keeps.
        if rows.start and request.start != rows.start:
            raise InvalidArgument(
                f"row {request.lsn} of the copy was written by start {shown(request.start)}, and the broker's by start"
                f" {rows.start!r}: the log went two ways from an older state; begin a new backup",
                field="start",
                value=request.start,
                limit=rows.start,
            )
        self.pins.copied(request.name, request.lsn, request.pinned_ms, request.every_ms)
        await log.keep_standing_pins(self.pins.entries())
        self._answer(client, wire.StandingPinSet(request.request_id, rows.reclaimed, STANDING_LIMIT_MS))

    @handles(wire.DeleteStandingPin)
    def delete_standing_pin(self, client: Client, request: wire.DeleteStandingPin) -> None:
        """Delete a standing pin.

        Raises:
            PermissionDenied: the account is not ``admin``.
            InvalidArgument: there is no such standing pin.
        """
        self.accounts.must_be_admin(client.account, "delete a standing pin")
        log = self._log_with_files(client, request)
        if log is None:
            return
        self.pins.forget(request.name)
        self.spawn(self._guarded(client, request, self._delete(client, request, log)))

    async def _delete(self, client: Client, request: wire.DeleteStandingPin, log: Segments) -> None:
        action = action_of(client, request)
        await log.keep_standing_pins(self.pins.entries())
        self.audit_entries.answer(client, action, request.request_id, wire.Done(request.request_id))

    async def _guarded(self, client: Client, request: wire.Request, work: Coroutine[Any, Any, None]) -> None:
        """Run work that waits for the log, and answer its refusal or failure."""
        try:
            await work
        except DomainError as refusal:
            self.answering.refuse(client, request.request_id, refusal)
        except LogFailed as failure:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
        self.schedule()

    def _answer(self, client: Client, reply: wire.AnyReply) -> None:
        """Answer once the rows are durable, and with redundancy once the lead is proved: a broker that was fenced
        unaware must not have its old folder copied.
        """
        self.answering.answer_lookup(client, reply)

    def _log_with_files(self, client: Client, request: wire.Request) -> Segments | None:
        """Return the log, or answer that it has no files."""
        if isinstance(self.log, Segments):
            return self.log
        text = "the log of this broker has no segment files"
        client.answer(error(request.request_id, ErrorCode.UNKNOWN_OPERATION, text))
        return None
