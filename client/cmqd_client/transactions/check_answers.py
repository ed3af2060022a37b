"""Answers to the server's checks of the half messages of a queue: a checker runs for each, a limited number at once."""

import asyncio
import logging
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from cmqd_client.durations import to_datetime
from cmqd_client.errors import CmqError
from cmqd_client.messages.message_ids import printed_id
from cmqd_client.messages.typed_bodies import BodyT
from cmqd_client.queue import Queue
from cmqd_client.results import TransactionStatus
from cmqd_client.transactions.half_messages import Checker, TransactionCheck
from cmqd_protocol import messages as wire
from cmqd_protocol import operations

_log = logging.getLogger(__name__)

R = TypeVar("R")

CHECK_TIMEOUT = 30.0
"""Seconds a checker may take: as long as a patient query, and far less than the longest interval between checks."""

CHECKS_AT_ONCE = 16
"""Checks answered at the same time: enough to hide the database's round trips, too few to exhaust its connections."""


class CheckAnswers(Generic[BodyT]):
    """Runs a checker for the checks of a queue, between :meth:`open` and :meth:`close`."""

    __slots__ = ("_check_seconds", "_checker", "_checks_at_once", "_closed", "_queue", "_running", "_waiting")

    def __init__(self, queue: Queue[BodyT], checker: Checker[BodyT], check_seconds: float, checks_at_once: int) -> None:
        self._queue = queue
        self._checker = checker
        self._check_seconds = check_seconds
        self._checks_at_once = checks_at_once
        self._closed = False
        self._waiting: dict[int, wire.TransactionCheck] = {}
        """Checks without a running checker, by message, in the order of arrival."""
        self._running: dict[int, asyncio.Task[None]] = {}
        """Checks in progress, by message."""

    async def open(self) -> None:
        """Register the checker with the server; see :meth:`TransactionProducer.open`."""
        channel = self._queue.channel
        # Before the registration, because checks may arrive together with its reply, and would have no taker.
        channel.checks.add(self._queue.name, self._take)
        try:
            await channel.ask(operations.REGISTER_CHECKER, self._queue.name)
        except BaseException:
            channel.checks.discard(self._queue.name, self._take)
            raise
        connections = channel.connections()
        if len(connections) > 1:
            channel.checks.register(self._queue.name, connections)

    async def close(self) -> None:
        """Take no more checks, and answer the checks that arrived; see :meth:`TransactionProducer.close`."""
        channel = self._queue.channel
        try:
            await channel.checks.remove(self._queue.name, self._take, channel.connections)
            while self._running:
                await asyncio.wait(self._running.values())
        finally:
            self._closed = True
            channel.checks.discard(self._queue.name, self._take)
            self._waiting.clear()
            for task in self._running.values():
                task.cancel()

    def _take(self, check: wire.TransactionCheck) -> None:
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
        question = TransactionCheck(
            queue=check.queue,
            id=printed_id(check.message_id),
            raw_body=check.body,
            headers=check.headers or {},
            enqueue_time=to_datetime(check.enqueue_ms),
            age=check.age_ms / 1000,
            attempt=check.attempt,
            codec=self._queue.codec,
        )
        tracing = self._queue.channel.tracing
        if tracing is None:
            await self._ask_and_tell(check.message_id, question)
            return
        with tracing.check(check.queue, question):
            await self._ask_and_tell(check.message_id, question)

    async def _ask_and_tell(self, number: int, question: TransactionCheck[BodyT]) -> None:
        message_id = question.id
        status = await self._ask(question)
        try:
            outcome = await self._queue.end_transactions([message_id], status, check=False)
        except CmqError as error:
            _log.warning(
                "the answer to a check of %s was not delivered; the server will ask again: %s",
                message_id,
                error,
                extra=_facts("check_not_answered", question, error.text),
            )
            return
        if status is not TransactionStatus.UNKNOWN:
            self._waiting.pop(number, None)
        for refused in outcome.failures:
            _log.warning(
                "the checker of queue %r answered too late: %s",
                question.queue,
                refused.error.text,
                extra=_facts("decided_too_late", question, refused.error.text),
            )

    async def _ask(self, check: TransactionCheck[BodyT]) -> TransactionStatus:
        try:
            async with asyncio.timeout(self._check_seconds):
                return status_of(await result_of(self._checker(check)))
        except TimeoutError as problem:
            _log.warning(
                "the checker of queue %r did not answer for %s within %g s; the answer is UNKNOWN for now",
                check.queue,
                check.id,
                self._check_seconds,
                exc_info=problem,
                extra=_facts("checker_failed", check, f"no answer within {self._check_seconds:g} s"),
            )
        except Exception as problem:
            _log.warning(
                "the checker of queue %r raised %r for %s; the answer is UNKNOWN for now",
                check.queue,
                problem,
                check.id,
                exc_info=problem,
                extra=_facts("checker_failed", check, repr(problem)),
            )
        return TransactionStatus.UNKNOWN

    def __repr__(self) -> str:
        return f"{len(self._running)} checks running, {len(self._waiting)} waiting"


def _facts(event: str, check: TransactionCheck[Any], why: str) -> dict[str, object]:
    """Return the attributes of a log record about a check."""
    return {"event": event, "queue": check.queue, "message_id": check.id, "why": why}


async def result_of(answer: R | Awaitable[R]) -> R:
    """Return the result of a function, async or plain."""
    if isawaitable(answer):
        return await cast("Awaitable[R]", answer)
    return cast("R", answer)


def status_of(answer: object) -> TransactionStatus:
    """Return the status from a user's function.

    Raises:
        TypeError: the value is not a status.
    """
    if isinstance(answer, TransactionStatus):
        return answer
    raise TypeError(f"a TransactionStatus was expected, not {answer!r}")
