"""Answers to the server's checks of the half messages of a queue: a checker runs for each, a limited number at once."""

import asyncio
import logging
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from cmqd_client.errors import CmqError
from cmqd_client.messages.message_ids import MessageId
from cmqd_client.messages.typed_bodies import BodyT
from cmqd_client.queue import Queue
from cmqd_client.results import TransactionStatus
from cmqd_client.transactions.half_messages import Checker, TransactionCheck
from cmqd_client.transactions.open_checks import OpenChecks

_log = logging.getLogger(__name__)

R = TypeVar("R")

CHECK_TIMEOUT = 30.0
"""Seconds a checker may take: as long as a patient query, and far less than the longest interval between checks."""

CHECKS_AT_ONCE = 16
"""Checks answered at the same time: enough to hide the database's round trips, too few to exhaust its connections."""


class CheckAnswers(Generic[BodyT]):
    """Runs a checker for the checks of a queue, between :meth:`open` and :meth:`close`."""

    __slots__ = (
        "_check_seconds",
        "_checker",
        "_checks",
        "_checks_at_once",
        "_closed",
        "_queue",
        "_running",
        "_waiting",
    )

    def __init__(self, queue: Queue[BodyT], checker: Checker[BodyT], check_seconds: float, checks_at_once: int) -> None:
        self._queue = queue
        self._checks = OpenChecks(queue, self._take)
        self._checker = checker
        self._check_seconds = check_seconds
        self._checks_at_once = checks_at_once
        self._closed = False
        self._waiting: dict[MessageId, TransactionCheck[BodyT]] = {}
        """Checks without a running checker, by message, in the order of arrival."""
        self._running: dict[MessageId, asyncio.Task[None]] = {}
        """Checks in progress, by message."""

    async def open(self) -> None:
        """Register the checker with the server; see :meth:`TransactionProducer.open`."""
        await self._checks.open()

    async def close(self) -> None:
        """Take no more checks, and answer the checks that arrived; see :meth:`TransactionProducer.close`."""
        try:
            await self._checks.close()
            while self._running:
                await asyncio.wait(self._running.values())
        finally:
            self._closed = True
            self._waiting.clear()
            for task in self._running.values():
                task.cancel()

    def _take(self, check: TransactionCheck[BodyT]) -> None:
        """Accept a check from the server."""
        # Replaces an older check of the same message; waits behind a running check, which may decide the message.
        self._waiting[check.id] = check
        self._start_some()

    def _start_some(self) -> None:
        """Start waiting checks while slots are free."""
        while len(self._running) < self._checks_at_once:
            message_id = next((message_id for message_id in self._waiting if message_id not in self._running), None)
            if message_id is None:
                return
            self._start(self._waiting.pop(message_id))

    def _start(self, check: TransactionCheck[BodyT]) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(check))
        self._running[check.id] = task
        task.add_done_callback(lambda _: self._finished(check.id))

    def _finished(self, message_id: MessageId) -> None:
        del self._running[message_id]
        if not self._closed:
            self._start_some()

    async def _answer(self, check: TransactionCheck[BodyT]) -> None:
        """Run the checker, and send its answer to the server."""
        tracing = self._queue.channel.tracing
        if tracing is None:
            await self._ask_and_tell(check)
            return
        with tracing.check(check.queue, check):
            await self._ask_and_tell(check)

    async def _ask_and_tell(self, check: TransactionCheck[BodyT]) -> None:
        status = await self._ask(check)
        try:
            outcome = await self._queue.end_transactions([check.id], status, check=False)
        except CmqError as error:
            _log.warning(
                "the answer to a check of %s was not delivered; the server will ask again: %s",
                check.id,
                error,
                extra=_facts("check_not_answered", check, error.text),
            )
            return
        if status is not TransactionStatus.UNKNOWN:
            self._waiting.pop(check.id, None)
        for refused in outcome.failures:
            _log.warning(
                "the checker of queue %r answered too late: %s",
                check.queue,
                refused.error.text,
                extra=_facts("decided_too_late", check, refused.error.text),
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
