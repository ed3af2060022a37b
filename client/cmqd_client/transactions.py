"""Messages that are delivered if, and only if, a local transaction succeeded.

    send() ── half message ──► stored, not delivered
                  │
                  ▼
         local transaction ── COMMIT ───► delivered to consumers, in the place of the commit
                  ├────────── ROLLBACK ─► dropped
                  └── UNKNOWN, or no answer: the producer died, its reply was lost
                                 │
                                 ▼  after the first check interval, then at doubling intervals
                       the server asks a checker of the queue, in this producer or in another producer;
                       the checker reads the database and answers COMMIT, ROLLBACK or UNKNOWN

Guarantee: a message is delivered at least once if the transaction committed and a checker can see the commit, and never
if the transaction did not commit. The delivery waits for a checker. The first decision on the server's disk is final.

So the local transaction must leave a trace that every checker can find: a row with the order, the message's id, or a
dedup id. A checker without a trace may answer ROLLBACK only if the transaction can no longer commit. While the
transaction is still open, the checker answers UNKNOWN, and the server asks again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

import msgspec

from cmqd_client.durations import Duration, to_datetime, to_seconds
from cmqd_client.errors import (
    AlreadyCommitted,
    AlreadyRolledBack,
    ClientClosed,
    CmqError,
)
from cmqd_client.message_ids import MessageId, printed_id
from cmqd_client.outgoing import Outgoing
from cmqd_client.queue import Queue
from cmqd_client.results import DecisionResult, SentBatch, TransactionStatus
from cmqd_client.retry import Repeat
from cmqd_protocol import messages as wire
from cmqd_types.messages import Headers

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CHECK_TIMEOUT = 30.0
"""Seconds a checker may take: as long as a patient query, and far less than the longest interval between checks."""

CHECKS_AT_ONCE = 16
"""Checks answered at the same time: enough to hide the database's round trips, too few to exhaust its connections."""


_NOTHING: Any = None
"""The argument of a local transaction without an argument."""


class HalfMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is stored and waits for its decision; the first argument of a local transaction."""

    queue: str
    id: MessageId
    body: bytes
    headers: Headers


class TransactionCheck(HalfMessage, frozen=True, kw_only=True):
    """A question of the server about an undecided half message; the argument of a checker."""

    enqueue_time: datetime
    """Time of the half send (UTC)."""
    age: float
    """Seconds from the half send to the check, by the server's clock."""
    attempt: int
    """Number of the check of this message, from 1."""


class TransactionResult(msgspec.Struct, frozen=True):
    """The result for a message of a transactional send."""

    id: MessageId
    status: TransactionStatus
    """The decision on the server's disk: COMMIT or ROLLBACK; UNKNOWN = this producer has seen no decision, and a check
    decides."""
    request_id: int
    """Number of the request that decided, or of the half send if no decision was answered."""
    error: Exception | None = None
    """The reason for a status that differs from the local transaction's, or for UNKNOWN: an exception of the local
    transaction, or the failure of the decision (``OutcomeUnknown``, ``ServerUnreachable`` ..., ``AlreadyRolledBack``).
    None = the status is the local transaction's."""

    def raise_for_error(self) -> None:
        """Raise ``error`` if the status is not the local transaction's.

        Raises:
            Exception: ``error``.
        """
        if self.error is not None:
            raise self.error


LocalTransaction: TypeAlias = Callable[[HalfMessage, T], TransactionStatus | Awaitable[TransactionStatus]]
"""Does the work that belongs to a message, and returns its status."""

LocalBatchTransaction: TypeAlias = Callable[
    [list[HalfMessage], T],
    TransactionStatus | Sequence[TransactionStatus] | Awaitable[TransactionStatus | Sequence[TransactionStatus]],
]
"""Does the work that belongs to a batch; returns a status for all messages, or a status per message."""

Checker: TypeAlias = Callable[[TransactionCheck], TransactionStatus | Awaitable[TransactionStatus]]
"""Finds out how the work that belongs to a message ended."""


class TransactionProducer:
    """Sends messages that are delivered only if a local transaction succeeds, and answers the server's checks::

        def insert(message: HalfMessage, order: Order) -> TransactionStatus:
            with database:
                database.execute("insert into orders values (?, ?)", (message.id, order.total))
            return TransactionStatus.COMMIT


        def was_inserted(check: TransactionCheck) -> TransactionStatus:
            found = database.execute("select 1 from orders where message = ?", (check.id,)).fetchone()
            return TransactionStatus.COMMIT if found else TransactionStatus.ROLLBACK


        async with client.transaction_producer("orders", checker=was_inserted) as producer:
            result = await producer.send(b"one espresso", insert, order)

    Get a producer from :meth:`Client.transaction_producer`, and use the producer as an async context manager, inside
    that of its client. Any number of tasks can use a producer at once.

    Local transactions and checkers are functions, async or plain. A plain function runs in the event loop and blocks
    the loop, so keep it short; use ``asyncio.to_thread`` in an async function for longer work. An exception in either
    is UNKNOWN.
    """

    __slots__ = (
        "_check_seconds",
        "_checker",
        "_checks_at_once",
        "_closed",
        "_first_check",
        "_opened",
        "_queue",
        "_running",
        "_waiting",
    )

    def __init__(
        self,
        queue: Queue,
        checker: Checker | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> None:
        """Make a producer for a transactional queue.

        Args:
            queue: the queue of the messages.
            checker: answers checks of all producers' messages, not only of this producer's. None = this producer
                answers no checks; then another producer must, or an operator.
            check_timeout: limit for an async checker; after that the checker is cancelled, and the answer is UNKNOWN.
            checks_at_once: concurrency limit for checks; further checks wait in the order of arrival.
            first_check: time from the send of a half message to its first check; None = the queue's own. Longer than
                local transactions usually take, so that the server does not ask about running transactions.

        Raises:
            ValueError: a number is out of range.
        """
        if checks_at_once < 1:
            raise ValueError(f"checks_at_once is {checks_at_once}; it must be at least 1")
        self._check_seconds = to_seconds(check_timeout, "check_timeout")
        if self._check_seconds <= 0:
            raise ValueError(f"check_timeout is {check_timeout!r}; it must be more than 0")
        self._queue = queue
        self._checker = checker
        self._checks_at_once = checks_at_once
        self._first_check = first_check
        self._opened = self._closed = False
        self._waiting: dict[int, wire.TransactionCheck] = {}
        """Checks that wait for a slot, by message."""
        self._running: dict[int, asyncio.Task[None]] = {}
        """Checks in progress, by message."""

    @property
    def queue(self) -> Queue:
        """The queue of the messages."""
        return self._queue

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Register this producer's checker with the server; ``async with`` calls this on entering.

        The client registers again on every new connection, before any other request. (A deleted queue that is created
        again under the same name is a new queue: open a new producer.) Safe to cancel.

        Raises:
            NotTransactional, QueueNotFound: the queue is not transactional, or does not exist.
            ServerUnreachable, RequestTimeout, ConnectionLost: the server did not answer.
        """
        if self._opened:
            raise ClientClosed("a producer is opened once")
        self._opened = True
        if self._checker is None:
            return
        channel = self._queue.channel
        # Before the registration, because checks may arrive together with its reply.
        channel.checks.add(self._queue.name, self._checked)
        try:
            request = wire.RegisterChecker(channel.next_request_id(), self._queue.name)
            await channel.call(request, wire.Done, Repeat.READ)
        except BaseException:
            channel.checks.discard(self._queue.name, self._checked)
            self._closed = True
            raise
        connections = channel.connections()
        if len(connections) > 1:
            channel.checks.register(self._queue.name, connections)

    async def close(self) -> None:
        """Take no more checks, and answer the checks that arrived; ``async with`` calls this on leaving. Harmless when
        repeated.

        Waits for running checkers, at most until their time-out, and starts the waiting checks. Cancelling cancels the
        checkers; the server then asks other producers.
        """
        if self._closed or not self._opened:
            self._closed = True
            return
        channel = self._queue.channel
        try:
            if self._checker is not None:
                await channel.checks.remove(self._queue.name, self._checked, channel.connections)
            while self._running:
                await asyncio.wait(self._running.values())
        finally:
            self._closed = True
            channel.checks.discard(self._queue.name, self._checked)
            self._waiting.clear()
            for task in self._running.values():
                task.cancel()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ send

    async def send(
        self,
        body: bytes,
        local_transaction: LocalTransaction[T],
        argument: T = _NOTHING,
        *,
        headers: Mapping[str, str] | None = None,
        first_check: Duration | None = None,
        dedup_id: str | None = None,
    ) -> TransactionResult:
        """Store a half message, run the local transaction, and commit or roll back by its status.

        The half message is numbered, so a repeat after a lost reply stores no second message. The client repeats the
        decision as often as every safe call, because a repeated decision has no further effect. A decision that cannot
        be delivered or is UNKNOWN is left to a check. If a check or an operator decided first, the result's status is
        that decision, and its ``error`` is set where the local transaction wanted the opposite.

        Cancelling the call during the local transaction cancels the transaction; the half message stays undecided until
        a check decides. The same holds if this process crashes, at any moment.

        Args:
            body: see :meth:`Queue.send`.
            local_transaction: called with the half message and ``argument`` once the message is on the server's disk.
            argument: any value; never leaves this process.
            headers: see :meth:`Queue.send`. Checkers get them too.
            first_check: time from now to the first check; None = the producer's own.
            dedup_id: see :meth:`Queue.send`. A repeat gets the id of the first message, which may be decided already;
                the local transaction of the repeat runs all the same.

        Returns:
            The message's id and status; an exception in the local transaction is in ``error``.

        Raises:
            NotTransactional, QueueNotFound, MessageTooLarge, InvalidArgument, BacklogFull, DiskNearlyFull, Busy,
            ServerUnreachable, ClientClosed: the message was not stored, and the local transaction did not run.
            OutcomeUnknown: the half message may be stored; the local transaction did not run, and the server asks a
                checker.
        """

        def for_all(messages: list[HalfMessage], argument: T) -> TransactionStatus | Awaitable[TransactionStatus]:
            return local_transaction(messages[0], argument)

        outgoing = Outgoing(body, headers, None, dedup_id)
        (result,) = await self.send_batch([outgoing], for_all, argument, first_check=first_check)
        return result

    async def send_batch(
        self,
        messages: Iterable[bytes | Outgoing],
        local_transaction: LocalBatchTransaction[T],
        argument: T = _NOTHING,
        *,
        headers: Mapping[str, str] | None = None,
        first_check: Duration | None = None,
        dedup_ids: Sequence[str | None] | None = None,
    ) -> list[TransactionResult]:
        """Store up to 256 half messages in one step, run a local transaction for the batch, and decide every message.

        The batch is stored all or none; decisions and checks are per message. Guarantees, cancellation and errors are
        as for :meth:`send`.

        Args:
            messages: as for :meth:`Queue.send_batch`, without delays. An empty batch sends no request.
            local_transaction: called with all half messages and ``argument``; returns a status for all messages, or a
                list with a status per message, in their order.
            argument: any value.
            headers: for messages without headers of their own.
            first_check: time from now to the first checks; None = the producer's own.
            dedup_ids: as for :meth:`Queue.send_batch`.

        Returns:
            A result per message, in the order of the messages.
        """
        if self._closed or not self._opened:
            raise ClientClosed("the producer is not open; use it in `async with`")
        batch = [message if isinstance(message, Outgoing) else Outgoing(message) for message in messages]
        sent = await self._queue.send_half_batch(
            batch,
            headers=headers,
            first_check=self._first_check if first_check is None else first_check,
            dedup_ids=dedup_ids,
        )
        if not sent.ids:
            return []
        halves = [
            HalfMessage(
                queue=self._queue.name,
                id=message_id,
                body=message.body,
                headers=dict((headers if message.headers is None else message.headers) or {}),
            )
            for message_id, message in zip(sent.ids, batch, strict=True)
        ]
        try:
            statuses = _statuses(await _result(local_transaction(halves, argument)), len(halves))
        except Exception as problem:
            _log.warning(
                "the local transaction of %s in queue %r raised %r; a check will decide",
                sent.ids[0] if len(sent.ids) == 1 else f"{len(sent.ids)} messages, from {sent.ids[0]} on,",
                self._queue.name,
                problem,
                exc_info=problem,
            )
            return [TransactionResult(message_id, _UNKNOWN, sent.request_id, problem) for message_id in sent.ids]
        return await self._decide(sent, statuses)

    async def _decide(self, sent: SentBatch, statuses: list[TransactionStatus]) -> list[TransactionResult]:
        """Send the known statuses to the server; return the server's decisions."""
        ids = sent.ids
        decided = [
            (message_id, status) for message_id, status in zip(ids, statuses, strict=True) if status is not _UNKNOWN
        ]
        if not decided:
            # Sending UNKNOWN would change nothing: the check comes at the same time anyway.
            return [TransactionResult(message_id, _UNKNOWN, sent.request_id) for message_id in ids]
        try:
            outcome = await self._queue.end_transactions(
                [message_id for message_id, _ in decided], [status for _, status in decided]
            )
        except CmqError as error:
            _log.warning("a decision in queue %r was not delivered, a check will decide: %s", self._queue.name, error)
            return [
                TransactionResult(message_id, _UNKNOWN, sent.request_id, None if status is _UNKNOWN else error)
                for message_id, status in zip(ids, statuses, strict=True)
            ]
        return _results(ids, statuses, outcome)

    # ------------------------------------------------------------------ checks

    def _checked(self, check: wire.TransactionCheck) -> None:
        """Accept a check from the server."""
        if self._closed:
            return
        # Replaces an older check of the same message; waits behind a running check, which may decide the message.
        self._waiting[check.message_id] = check
        self._start_some()

    def _start_some(self) -> None:
        """Start waiting checks while slots are free."""
        while len(self._running) < self._checks_at_once:
            number = next((number for number in self._waiting if number not in self._running), None)
            if number is None:
                return
            self._start(self._waiting.pop(number))

    def _start(self, check: wire.TransactionCheck) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(check))
        self._running[check.message_id] = task
        task.add_done_callback(lambda _: self._finished(check.message_id))

    def _finished(self, number: int) -> None:
        del self._running[number]
        if not self._closed:
            self._start_some()

    async def _answer(self, check: wire.TransactionCheck) -> None:
        """Run the checker, and send its answer to the server."""
        message_id = printed_id(check.message_id)
        status = await self._ask(
            TransactionCheck(
                queue=check.queue,
                id=message_id,
                body=check.body,
                headers=check.headers or {},
                enqueue_time=to_datetime(check.enqueue_ms),
                age=check.age_ms / 1000,
                attempt=check.attempt,
            )
        )
        try:
            outcome = await self._queue.end_transactions([message_id], status)
        except CmqError as error:
            _log.warning(
                "the answer to a check of %s was not delivered; the server will ask again: %s", message_id, error
            )
            return
        if status is not _UNKNOWN:
            self._waiting.pop(check.message_id, None)
        for refused in outcome.failures:
            _log.warning("the checker of queue %r came too late: %s", check.queue, refused.error.text)

    async def _ask(self, check: TransactionCheck) -> TransactionStatus:
        checker = self._checker
        assert checker is not None  # else none was registered
        try:
            async with asyncio.timeout(self._check_seconds):
                return _status(await _result(checker(check)))
        except TimeoutError as problem:
            _log.warning(
                "the checker of queue %r did not answer for %s within %g s; the answer is UNKNOWN for now",
                check.queue,
                check.id,
                self._check_seconds,
                exc_info=problem,
            )
        except Exception as problem:
            _log.warning(
                "the checker of queue %r raised %r for %s; the answer is UNKNOWN for now",
                check.queue,
                problem,
                check.id,
                exc_info=problem,
            )
        return _UNKNOWN

    def __repr__(self) -> str:
        return (
            f"<TransactionProducer of {self._queue.name!r}, {len(self._running)} checks, {len(self._waiting)} waiting>"
        )


_UNKNOWN = TransactionStatus.UNKNOWN


async def _result(answer: R | Awaitable[R]) -> R:
    """Return the result of a function, async or plain."""
    if isawaitable(answer):
        return await cast("Awaitable[R]", answer)
    return cast("R", answer)


def _status(answer: object) -> TransactionStatus:
    """Return the status from a user's function.

    Raises:
        TypeError: the value is no status.
    """
    if isinstance(answer, TransactionStatus):
        return answer
    raise TypeError(f"a TransactionStatus was expected, not {answer!r}")


def _statuses(answer: object, count: int) -> list[TransactionStatus]:
    """Return a status per message, from a status for all or a list."""
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        statuses = [_status(element) for element in cast("Sequence[object]", answer)]
        if len(statuses) != count:
            raise TypeError(
                f"{len(statuses)} statuses for {count} messages; return a status per message, or one status"
            )
        return statuses
    return [_status(answer)] * count


def _results(
    ids: list[MessageId], statuses: list[TransactionStatus], outcome: DecisionResult
) -> list[TransactionResult]:
    """Return the server's decision for each message."""
    refused = {failure.id: failure.error for failure in outcome.failures}
    results: list[TransactionResult] = []
    for message_id, status in zip(ids, statuses, strict=True):
        error = refused.get(message_id)
        if error is not None and status is not _UNKNOWN:
            if isinstance(error, AlreadyCommitted):
                status = TransactionStatus.COMMIT
            elif isinstance(error, AlreadyRolledBack):
                status = TransactionStatus.ROLLBACK
            else:
                status = _UNKNOWN
            _log.warning("the local transaction's status came too late: %s", error.text)
            results.append(TransactionResult(message_id, status, outcome.request_id, error))
        else:
            results.append(TransactionResult(message_id, status, outcome.request_id))
    return results
