"""Receives, extends and settles the messages of one consumer: the asyncio shell around ``consumption``.

Three activities run side by side, without waiting for one another: the receive task, the settle task (a request at a
time; messages that handlers finish meanwhile share the next request), and the extensions, in tasks of their own
whenever the timer finds some due. An outage ends no activity: each logs, waits and goes on.

Deletes ride in the next receive, if the server can and a receive is sent at that moment: a request and a commit less.
Only the reply to the receive tells their result, so such a receive has a short wait, and a stop does not cancel it
before that reply.
While a receive is under way, the settle task deletes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import random
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

import msgspec

from cmqd_client.consumers.acknowledging import Acknowledgement
from cmqd_client.consumers.consumption import (
    Action,
    ConsumerStatistics,
    Consumption,
    Lease,
    Settlement,
    SettlementBatch,
)
from cmqd_client.consumers.options import LONGEST_PAUSE, Clock, ConsumerOptions, TimerHandle
from cmqd_client.consumers.settlements import Settlements
from cmqd_client.durations import to_ms
from cmqd_client.errors import CmqError, InternalError, MessagesDamaged, ReceiptHandleInvalid
from cmqd_client.links.channel import SHORTEST_ATTEMPT, Channel
from cmqd_client.links.retry import RetryPolicy, may_have_happened
from cmqd_client.messages.message_ids import printed_id
from cmqd_client.messages.tracing import TracedMessage, now_ns
from cmqd_client.messages.typed_bodies import PoisonPolicy
from cmqd_client.results import may_be_done_before
from cmqd_protocol import messages as wire
from cmqd_protocol.features import Feature
from cmqd_types.messages import GONE_DELETED, GONE_MOVED, Headers, ReceivedMessage


class MessageWithBody(TracedMessage, Protocol):
    """A message with a body that is decoded at its first use."""

    @property
    def body(self) -> object: ...  # noqa: D102 - said above


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the default of a type variable came with Python 3.13

    MessageT = TypeVar("MessageT", bound=MessageWithBody, default=Any)
else:
    from typing import TypeVar

    MessageT = TypeVar("MessageT")

R = TypeVar("R")

_log = logging.getLogger("cmqd_client.consumer")

_PAUSES = RetryPolicy(first_delay=0.1)
"""Pauses between attempts in an outage. Each attempt has used up the channel's own repeats before."""

ATTEMPT_SECONDS = 9.0
"""Longest time for a request with the channel's repeats. After that time the consumer logs the outage and tries again:
a request with unlimited patience would hide the outage from the log, and the end of a lease from the settlements."""

RIDING_WAIT_MS = 200
"""Longest wait of a receive with deletes. Statistics and a stop do not wait longer than that for the result of the
deletes, and messages at a lower rate cost no more requests than with separate deletes."""


class Source(msgspec.Struct, Generic[MessageT], frozen=True, kw_only=True):
    """The queue of a consumer."""

    channel: Channel
    name: str
    poison: PoisonPolicy | None
    """Treatment of a body that does not decode; None = bodies are bytes."""
    message: "Callable[[Intake, Lease], MessageT]"
    """Makes the message that a program sees."""


class _Traced(msgspec.Struct):
    """A received message for its span."""

    id: str
    headers: Headers
    raw_body: bytes

    @classmethod
    def of(cls, received: ReceivedMessage) -> "_Traced":
        return cls(printed_id(received.message_id), received.headers or {}, received.body)


class _Outage(msgspec.Struct):
    """Receives that fail, in a row."""

    first_receive: float
    """Start of the first receive that failed."""
    began: float
    attempts: int = 0


class Intake:
    """Keeps the messages of a consumer, between :meth:`open` and :meth:`close`."""

    __slots__ = (
        "_chance",
        "_clock",
        "_closing",
        "_extensions",
        "_limits",
        "_lost_handler",
        "_options",
        "_outage",
        "_receiving",
        "_riders",
        "_riding",
        "_room",
        "_settled",
        "_settlements",
        "_tasks",
        "_timer",
        "_timer_at",
        "_turn_scheduled",
        "_unsettled",
        "_wake",
        "core",
        "failure",
        "retry_pauses",
        "running",
        "source",
    )

    def __init__(
        self, source: Source[Any], options: ConsumerOptions, wake: Callable[[], None], lost: Callable[[Lease], None]
    ) -> None:
        """Make an intake.

        ``wake`` is called when messages wait, and after a stop; ``lost`` for a begun message with a lost lease.
        """
        self.source: Source[Any] = source
        self.core: Consumption = Consumption(options.limits)
        self.retry_pauses: RetryPolicy = options.retry_pauses
        self.failure: BaseException | None = None
        """The error that ended the consumer; None = none did."""
        self.running: dict[int, asyncio.Task[Any]] = {}
        """Tasks that handle messages, by receipt handle."""
        self._limits = options.limits
        self._options = options
        channel = source.channel
        patience = min(channel.patience, ATTEMPT_SECONDS)
        self._receiving = channel.with_patience(min(patience, options.patience))
        # An attempt of a settlement or extension leaves time for another before the lease ends.
        patience = min(patience, self._limits.lease / 3)
        self._settlements = Settlements(channel.with_patience(patience), source.name)
        self._riding = channel.with_patience(min(patience, options.patience))
        """For receives with deletes, which are settlements too."""
        self._riders: Acknowledgement | None = None
        """The deletes in the receive that is under way; None = it has none."""
        self._clock: Clock = options.clock or asyncio.get_running_loop()
        self._wake = wake
        self._lost_handler = lost
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._extensions: set[asyncio.Task[None]] = set()
        self._timer: TimerHandle | None = None
        self._timer_at: float | None = None
        self._turn_scheduled = False
        self._room: asyncio.Future[None] | None = None
        """The receive task waits here while no more messages are wanted."""
        self._unsettled: asyncio.Future[None] | None = None
        """The settle task waits here while there is nothing to settle."""
        self._settled: asyncio.Future[None] | None = None
        """:meth:`close` waits here until nothing is held."""
        self._outage: _Outage | None = None
        self._chance = random()

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Begin to receive."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._settle())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        # A client that is closed first settles the messages that its consumers have handled.
        self.source.channel.before_close.add(self.close)

    def stop(self) -> None:
        """Receive no more; messages that are not begun go back uncounted. Leases of begun messages are still kept."""
        if not self.core.stopping:
            self.core.stop(self.now())
            if self._tasks and (self._riders is None or self._riders.is_done):
                # Cancelling is safe: messages on their way are released uncounted. But a cancelled receive would not
                # tell the result of its deletes.
                self._tasks[0].cancel()
            self.changed()
            self._wake()

    async def close(self) -> None:
        """Stop, and return when every message is settled or its lease has ended. Cancelling ends the wait: messages not
        settled are delivered again when their leases end."""
        self.stop()
        try:
            # After a close that was cut short no task is left that could settle.
            while not (self.core.is_settled or self._closing):
                if self._settled is None or self._settled.done():
                    self._settled = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._settled)
        finally:
            self._closing = True
            if self._settled is not None and not self._settled.done():
                self._settled.set_result(None)  # another close waits too
            self.source.channel.before_close.discard(self.close)
            if self._timer is not None:
                self._timer.cancel()
            for task in (*self._tasks, *self._extensions):
                task.cancel()

    def abandon_idle(self, task: "asyncio.Task[Any] | None") -> None:
        """Leave begun messages to the program that no task handles but (perhaps) this task."""
        for lease in self.core.begun_leases():
            if self.running.get(lease.handle, task) is task:
                self.core.abandon(lease, self.now())
        self.changed()

    def now(self) -> float:
        """Return the time of the consumer's clock."""
        return self._clock.time()

    def statistics(self) -> ConsumerStatistics:
        """Return the counters of now."""
        return self.core.statistics()

    # ------------------------------------------------------------------ for handlers

    def begin(self) -> Lease | None:
        """Return the next message to handle, or None; see :meth:`Consumption.begin`."""
        lease = self.core.begin(self._clock.time())
        if lease is not None and not self._turn_scheduled:
            self.changed()
        return lease

    def settle(self, lease: Lease, settlement: Settlement) -> None:
        """Settle a begun message, in a request shared by all messages of this loop turn."""
        self.core.settle(lease, settlement, self._clock.time())
        if not self._turn_scheduled:
            self.changed()

    def retry_settlement(self, receive_count: int) -> Settlement:
        """Return the retry after this many receives. Failures of a loop turn have equal pauses, and so share a
        request."""
        pause = self.retry_pauses.delay(max(receive_count, 1), self._chance)
        return Settlement(Action.RETRY, min(pause, LONGEST_PAUSE))

    async def settled_by_program(self, lease: Lease, request: Callable[[], Awaitable[R]]) -> R:
        """Make a request of the program that settles a message; on success its lease is no longer kept."""
        while lease.extending and self._extensions:
            # Executed after the request, a repeated extension would undo the request.
            await asyncio.wait(self._extensions, return_when=asyncio.FIRST_COMPLETED)
        is_claimed = self.core.claim(lease)
        try:
            answer = await request()
        except ReceiptHandleInvalid:
            if is_claimed:
                self.core.claim_refused(lease)
            raise
        except BaseException:
            if is_claimed:
                self.core.unclaim(lease)
            raise
        else:
            if is_claimed:
                self.core.claimed(lease, self.now())
            return answer
        finally:
            self.changed()

    def changed(self) -> None:
        """Plan to receive, settle and extend messages, at the end of this loop turn."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self._closing:
            return
        core = self.core
        if core.has_waiting:
            self._wake()
        # The receive task first, which takes deletes along that would take a request of their own otherwise.
        room = self._room
        if room is not None and not room.done() and core.receive_size(with_deletes=self._deletes_ride()):
            room.set_result(None)
        # Not without a reason: a settle task that was woken too early would take the deletes of the next turn, in which
        # a receive could take them along.
        if (unsettled := self._unsettled) is not None and not unsettled.done() and core.has_unsettled:
            unsettled.set_result(None)
        if core.examine_at != self._timer_at:
            self._set_timer()
        self._tell_settled()

    def _tell_settled(self) -> None:
        if self._settled is not None and not self._settled.done() and self.core.is_settled:
            self._settled.set_result(None)

    # ------------------------------------------------------------------ receive

    async def _receive(self) -> None:
        core = self.core
        channel = self._receiving
        wait_ms = self._options.wait_ms
        loop = asyncio.get_running_loop()
        lease_ms = round(self._limits.lease * 1000)
        failed = 0
        while not core.stopping:
            size = core.receive_size(with_deletes=self._deletes_ride())
            if not size:
                self._room = loop.create_future()
                await self._room
                self._room = None
                continue
            riders = core.deletes_to_ride() if self._deletes_ride() else None
            wait = wait_ms if riders is None else min(wait_ms, RIDING_WAIT_MS)
            request = wire.ReceiveMessages(channel.next_request_id(), self.source.name, size, wait, lease_ms)
            started = self._clock.time()
            try:
                if riders is None:
                    reply = await self._receive_traced(channel, request)
                else:
                    reply = await self._receive_with_deletes(request, riders)
            except CmqError as error:
                if core.stopping:
                    # As after a cancellation; the settle task goes on with deletes that have no answer.
                    return
                if not _passes(error):
                    self.fail(error)
                    return
                failed += 1
                pause = max(_PAUSES.delay(failed, random()), error.retry_after or 0.0)
                outage = self._note_outage(error, started, wait)
                left = outage.began + self._options.patience - self.now() - pause
                if left < SHORTEST_ATTEMPT:
                    error.waited = self.now() - outage.first_receive
                    error.attempts = outage.attempts
                    self.fail(error)
                    return
                await self._pause(pause)
                # Without a wait, so that the first answer ends the outage.
                channel, wait_ms = self._receiving.with_patience(min(self._receiving.patience, left)), 0
                continue
            if failed:
                self._note_return()
                failed = 0
                channel, wait_ms = self._receiving, self._options.wait_ms
            is_full = len(reply.messages) == size
            core.arrived(reply.messages, reply.request_id, self._clock.time(), is_full=is_full)
            if reply.messages:
                channel.counters.messages_received += len(reply.messages)
                self._wake()
                self.changed()

    def _deletes_ride(self) -> bool:
        """True if a receive may take deletes along: the server can, there is no outage, and no tracing wants a span for
        each settlement.
        """
        channel = self._receiving
        return self._outage is None and channel.tracing is None and channel.supports(Feature.ACKNOWLEDGE)

    async def _receive_with_deletes(
        self, request: wire.ReceiveMessages, riders: SettlementBatch
    ) -> wire.MessagesReceived:
        """Make a receive that deletes messages first. The settle task repeats deletes that got no answer."""
        deletes = self._riders = Acknowledgement([lease.handle for lease in riders.leases])
        try:
            return await self._riding.receive(request, deletes)
        finally:
            self._riders = None
            # Before the new messages: in order, the loss of a message gives back the messages that wait.
            if deletes.is_done:
                self._take_failures(riders, {entry.receipt_handle: entry.error for entry in deletes.failures})
            else:
                late = self.core.not_answered(riders, self.now(), may_have_happened=deletes.is_uncertain)
                self._log_late(late)
            self.changed()

    async def _receive_traced(self, channel: Channel, request: wire.ReceiveMessages) -> wire.MessagesReceived:
        tracing = channel.tracing
        if tracing is None:
            return await channel.receive(request)
        started_ns = now_ns()
        reply = await channel.receive(request)
        if reply.messages:
            tracing.received(self.source.name, list(map(_Traced.of, reply.messages)), started_ns)
        return reply

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the consumer with an unexpected error of a task: without the task it would wait for ever, silently."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
            self._tell_lost(self.core.lose_all(f"the consumer failed: {error!r}"))
            self._tell_settled()

    def fail(self, error: BaseException) -> None:
        """End the consumer with an error: no later attempt can succeed, or its patience is over."""
        if self.failure is None:
            self.failure = error
        self.stop()

    def _note_outage(self, error: CmqError, started: float, wait_ms: int) -> "_Outage":
        """Log the first failure of an outage; count its attempts."""
        outage = self._outage
        if outage is None:
            # The wait of the receive is no part of the outage: no message was missing while the queue was empty.
            beyond_wait = max(self.now() - started - wait_ms / 1000, 0.0)
            outage = self._outage = _Outage(first_receive=started, began=self.now() - beyond_wait)
            _log.warning(
                "queue %r: cannot receive, the consumer waits and goes on: %s",
                self.source.name,
                error,
                extra={"event": "cannot_receive", "queue": self.source.name, "why": error.text},
            )
        outage.attempts += max(error.attempts, 1)
        return outage

    def _note_return(self) -> None:
        if self._outage is not None:
            outage = self.now() - self._outage.first_receive
            _log.info(
                "queue %r: receives again after %.1f s",
                self.source.name,
                outage,
                extra={"event": "receives_again", "queue": self.source.name, "outage": outage},
            )
            self._outage = None

    async def _pause(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self.now() + seconds, _resolve, over)
        try:
            await over
        finally:
            timer.cancel()

    # ------------------------------------------------------------------ settle

    async def _settle(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            self._chance = random()
            batch = self.core.next_batch()
            if batch is None:
                self._unsettled = loop.create_future()
                await self._unsettled
                self._unsettled = None
                continue
            try:
                failures = await self._request(batch)
            except CmqError as error:
                attempt += 1
                if not _passes(error):
                    if batch.settlement.action is Action.REJECT:
                        # An older server does not know the operation. The messages must not end the consumer: they
                        # would do so again at every start.
                        self._take_failures(batch, {lease.handle: error for lease in batch.leases})
                        self.changed()
                        continue
                    self.core.lose(batch, f"the message could not be settled: {error}")
                    self.fail(error)
                    self.changed()
                    continue
                _log.warning(
                    "queue %r: %d messages are handled but not settled, the consumer tries again: %s",
                    self.source.name,
                    len(batch.leases),
                    error,
                    extra={
                        "event": "cannot_settle",
                        "queue": self.source.name,
                        "count": len(batch.leases),
                        "action": batch.settlement.action.value,
                        "why": error.text,
                    },
                )
                late = self.core.not_answered(batch, self.now(), may_have_happened=may_have_happened(error))
                self._log_late(late)
                self.changed()
                if not self.core.is_settled:
                    await self._pause(max(_PAUSES.delay(attempt, random()), error.retry_after or 0.0))
                continue
            attempt = 0
            self._take_failures(batch, failures)
            self.changed()

    async def _request(self, batch: SettlementBatch) -> dict[int, CmqError]:
        """Make the request of a batch; return the errors of single handles."""
        settlements, settlement = self._settlements, batch.settlement
        handles = [lease.received.receipt_handle for lease in batch.leases]
        if settlement.action is Action.DELETE:
            result = await settlements.delete(handles)
        elif settlement.action is Action.GIVE_BACK:
            result = await settlements.release(handles, count_receive=False)
        elif settlement.action is Action.RETRY:
            result = await settlements.change_visibility(handles, to_ms(settlement.delay, "delay"))
        else:
            result = await settlements.reject(handles, settlement.reason)
        return {failure.receipt_handle: failure.error for failure in result.failures}

    def _take_failures(self, batch: SettlementBatch, failures: dict[int, CmqError]) -> None:
        refused = [] if not failures else _refused(batch, failures)
        for lease in refused:
            again = self.retry_settlement(lease.received.receive_count)
            _log.error(
                "queue %r: %s could not be settled (%s), it is delivered again in %.3g s: %s",
                self.source.name,
                lease.name,
                batch.settlement.action.value,
                again.delay,
                failures[lease.handle],
                extra={
                    "event": "not_settled",
                    "queue": self.source.name,
                    "message_id": lease.name,
                    "action": batch.settlement.action.value,
                    "pause": again.delay,
                    "why": failures[lease.handle].text,
                },
            )
            self.core.refused(lease, again)
            batch.leases.remove(lease)
        gone = _GONE.get(batch.settlement.action, 0)
        not_done_before = [handle for handle, error in failures.items() if not may_be_done_before(error, gone)]
        self._log_late(self.core.answered(batch, set(failures), not_done_before))

    def _log_late(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            _log.warning(
                "queue %r: %s was handled and is delivered again: %s",
                self.source.name,
                lease.name,
                lease.lost,
                extra=self._facts("handled_again", lease, lease.lost),
            )

    def _facts(self, event: str, lease: Lease, why: str | None) -> dict[str, object]:
        """Return the attributes of a log record about a message."""
        return {"event": event, "queue": self.source.name, "message_id": lease.name, "why": why}

    # ------------------------------------------------------------------ leases

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self.core.examine_at
        if self._timer_at is not None:
            self._timer = self._clock.call_at(self._timer_at, self._examine)

    def _examine(self) -> None:
        self._timer = self._timer_at = None
        due = self.core.examine(self.now())
        self._tell_lost(due.lost)
        if due.extend:
            task = asyncio.get_running_loop().create_task(self._extend(due.extend))
            self._extensions.add(task)
            task.add_done_callback(self._extensions.discard)
            task.add_done_callback(self._ended)
        self.changed()

    async def _extend(self, leases: list[Lease]) -> None:
        asked_at = self.now()
        lease_ms = round(self._limits.lease * 1000)
        handles = [lease.received.receipt_handle for lease in leases]
        try:
            result = await self._settlements.change_visibility(handles, lease_ms)
        except CmqError as error:
            _log.warning(
                "queue %r: %d leases could not be extended: %s",
                self.source.name,
                len(leases),
                error,
                extra={
                    "event": "leases_not_extended",
                    "queue": self.source.name,
                    "count": len(leases),
                    "why": error.text,
                },
            )
            self.core.not_extended(leases, self.now())
            if not _passes(error):
                self.fail(error)
                self._tell_lost(self.core.lose_all(f"its lease cannot be extended: {error}"))
        else:
            invalid = {failure.receipt_handle for failure in result.failures}
            self._tell_lost(self.core.extended(leases, invalid, asked_at, self.now()))
        self.changed()

    def _tell_lost(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            _log.warning(
                "queue %r: the handler of %s is cancelled: %s",
                self.source.name,
                lease.name,
                lease.lost,
                extra=self._facts("lease_lost", lease, lease.lost),
            )
            self._lost_handler(lease)


_GONE: Final = {Action.DELETE: GONE_DELETED, Action.REJECT: GONE_MOVED}
"""How a lease ends with a settlement, where the server remembers it."""


def _refused(batch: SettlementBatch, failures: dict[int, CmqError]) -> list[Lease]:
    """Return the leases that the server left as they were."""
    return [
        lease
        for lease in batch.leases
        if lease.handle in failures and not isinstance(failures[lease.handle], ReceiptHandleInvalid)
    ]


def _passes(error: CmqError) -> bool:
    """True if a later attempt may succeed without a change of the program, its key or the queue."""
    return error.retryable or may_have_happened(error) or isinstance(error, (InternalError, MessagesDamaged))


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
