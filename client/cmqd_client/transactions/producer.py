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

import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from cmqd_client.durations import Duration, to_seconds
from cmqd_client.errors import AlreadyCommitted, AlreadyRolledBack, ClientClosed, CmqError
from cmqd_client.messages.message_ids import MessageId
from cmqd_client.messages.outgoing import Outgoing
from cmqd_client.messages.typed_bodies import BodyT
from cmqd_client.queue import Queue
from cmqd_client.results import DecisionResult, SentBatch, TransactionStatus
from cmqd_client.transactions.check_answers import CHECK_TIMEOUT, CHECKS_AT_ONCE, CheckAnswers, result_of, status_of
from cmqd_client.transactions.half_messages import (
    Checker,
    HalfMessage,
    LocalBatchTransaction,
    LocalTransaction,
    TransactionResult,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NOTHING: Any = None
"""The argument of a local transaction without an argument."""

_UNKNOWN = TransactionStatus.UNKNOWN
_DECIDED: Mapping[type[CmqError], TransactionStatus] = {
    AlreadyCommitted: TransactionStatus.COMMIT,
    AlreadyRolledBack: TransactionStatus.ROLLBACK,
}
"""The earlier decision, by the refusal of a later one."""


class TransactionProducer(Generic[BodyT]):
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

    __slots__ = ("_answers", "_closed", "_first_check", "_opened", "_queue")

    def __init__(
        self,
        queue: Queue[BodyT],
        checker: Checker[BodyT] | None = None,
        *,
        check_timeout: Duration = CHECK_TIMEOUT,
        checks_at_once: int = CHECKS_AT_ONCE,
        first_check: Duration | None = None,
    ) -> None:
        """See :meth:`Client.transaction_producer`."""
        if checks_at_once < 1:
            raise ValueError(f"checks_at_once is {checks_at_once}; it must be at least 1")
        check_seconds = to_seconds(check_timeout, "check_timeout")
        if check_seconds <= 0:
            raise ValueError(f"check_timeout is {check_timeout!r}; it must be more than 0")
        self._queue = queue
        self._first_check = first_check
        self._answers = None if checker is None else CheckAnswers(queue, checker, check_seconds, checks_at_once)
        self._opened = self._closed = False

    @property
    def queue(self) -> Queue[BodyT]:
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
            raise ClientClosed("the producer was opened before; make a new producer")
        self._opened = True
        if self._answers is not None:
            try:
                await self._answers.open()
            except BaseException:
                self._closed = True
                raise

    async def close(self) -> None:
        """Take no more checks, and answer the checks that arrived; ``async with`` calls this on leaving. Harmless when
        repeated.

        Waits for running checkers, at most until their time-out, and starts the waiting checks. Cancelling cancels the
        checkers; the server then asks other producers.
        """
        try:
            if self._answers is not None and self._opened and not self._closed:
                await self._answers.close()
        finally:
            self._closed = True

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
        body: BodyT,
        local_transaction: LocalTransaction[BodyT, T],
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

        def for_all(
            messages: list[HalfMessage[BodyT]], argument: T
        ) -> TransactionStatus | Awaitable[TransactionStatus]:
            return local_transaction(messages[0], argument)

        outgoing = Outgoing(body, headers, None, dedup_id)
        (result,) = await self.send_batch([outgoing], for_all, argument, first_check=first_check)
        return result

    async def send_batch(
        self,
        messages: Iterable[BodyT | Outgoing[BodyT]],
        local_transaction: LocalBatchTransaction[BodyT, T],
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
        batch = [
            cast("Outgoing[BodyT]", message) if isinstance(message, Outgoing) else Outgoing(message)
            for message in messages
        ]
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
            statuses = _statuses(await result_of(local_transaction(halves, argument)), len(halves))
        except Exception as problem:
            _log.warning(
                "the local transaction of %s in queue %r raised %r; a check will decide",
                sent.ids[0] if len(sent.ids) == 1 else f"{len(sent.ids)} messages, from {sent.ids[0]} on,",
                self._queue.name,
                problem,
                exc_info=problem,
                extra=self._facts("local_transaction_failed", sent.ids, repr(problem)),
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
                [message_id for message_id, _ in decided], [status for _, status in decided], check=False
            )
        except CmqError as error:
            _log.warning(
                "a decision in queue %r was not delivered, a check will decide: %s",
                self._queue.name,
                error,
                extra=self._facts("not_decided", [message_id for message_id, _ in decided], error.text),
            )
            return [
                TransactionResult(message_id, _UNKNOWN, sent.request_id, None if status is _UNKNOWN else error)
                for message_id, status in zip(ids, statuses, strict=True)
            ]
        return _results(self._queue.name, ids, statuses, outcome)

    def _facts(self, event: str, ids: Sequence[MessageId], why: str) -> dict[str, object]:
        """Return the attributes of a log record about messages, the first of which it names."""
        return {"event": event, "queue": self._queue.name, "message_id": ids[0], "count": len(ids), "why": why}

    def __repr__(self) -> str:
        return f"<TransactionProducer of {self._queue.name!r}, {self._answers or 'no checker'}>"


def _statuses(answer: object, count: int) -> list[TransactionStatus]:
    """Return a status per message, from a status for all or a list."""
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        statuses = [status_of(element) for element in cast("Sequence[object]", answer)]
        if len(statuses) != count:
            raise TypeError(
                f"{len(statuses)} statuses for {count} messages; return a status per message, or one status"
            )
        return statuses
    return [status_of(answer)] * count


def _results(
    queue: str, ids: list[MessageId], statuses: list[TransactionStatus], outcome: DecisionResult
) -> list[TransactionResult]:
    """Return the server's decision for each message."""
    refused = {failure.id: failure.error for failure in outcome.failures}
    results: list[TransactionResult] = []
    for message_id, status in zip(ids, statuses, strict=True):
        error = refused.get(message_id)
        if error is None or status is _UNKNOWN:
            results.append(TransactionResult(message_id, status, outcome.request_id))
            continue
        _log.warning(
            "the local transaction decided too late: %s",
            error.text,
            extra={"event": "decided_too_late", "queue": queue, "message_id": message_id, "why": error.text},
        )
        decision = _DECIDED.get(type(error), _UNKNOWN)
        results.append(TransactionResult(message_id, decision, outcome.request_id, error))
    return results
