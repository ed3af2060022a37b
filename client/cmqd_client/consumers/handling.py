"""The ways in which handling a message ends.

    the handler                   the message
    returns                       is deleted
    raises Reject(reason)         moves to the queue's dead-letter queue
    raises Retry(after)           is delivered again after that time
    raises another Exception      is delivered again, after a pause that grows with its receives
    loses its lease               is delivered again by the server; the handler is cancelled

A message of a typed queue with a body that does not decode reaches no handler; the queue's ``poison`` policy decides.

A program may also settle a message itself, with ``delete``, ``release``, ``change_visibility`` or ``reject``; the
consumer then does nothing more for the message.
"""

import asyncio
import logging
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from cmqd_client.consumers.consumption import DELETE, GIVE_BACK, Action, Lease, Settlement
from cmqd_client.consumers.intake import Intake, MessageWithBody
from cmqd_client.durations import Duration, to_seconds
from cmqd_client.errors import PoisonMessage
from cmqd_client.messages.tracing import TracedMessage
from cmqd_client.messages.typed_bodies import PoisonPolicy

_log = logging.getLogger("cmqd_client.consumer")

MAX_REASON_BYTES = 256
"""Longest reason of a dead letter, as UTF-8; part of the protocol."""


class Reject(Exception):
    """Raise from a handler to move the message to the dead-letter queue, because no retry can help.

    If the queue has no dead-letter queue, or the dead-letter queue takes no message now, the error is logged and the
    message is delivered again after the usual pause.

    Args:
        reason: kept with the dead letter, for the operator; cut to 256 bytes of UTF-8.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = _cut(reason)


class Retry(Exception):
    """Raise from a handler to get the message again later; logged without a traceback.

    Args:
        after: time until the message is delivered again, up to 12 h; None = the consumer's usual pause.
        reason: for the log.
    """

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.after: float | None = None if after is None else to_seconds(after, "after")


class Processing:
    """Runs a body as the handler of a message; see :meth:`ConsumedMessage.process`."""

    __slots__ = ("_cancellations", "_former", "_intake", "_lease", "_message", "_span")

    def __init__(self, intake: Intake, lease: Lease, message: TracedMessage) -> None:
        self._intake = intake
        self._lease = lease
        self._message = message
        self._cancellations = 0
        self._former: asyncio.Task[Any] | None = None
        """The task of the handler of the message, if the body runs inside a handler."""
        self._span: AbstractContextManager[Any] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # the caller is a coroutine
        self._cancellations = task.cancelling()
        self._former = self._intake.running.get(self._lease.handle)
        self._intake.running[self._lease.handle] = task
        if self._lease.lost is not None:
            # The body cannot be skipped, but ends where it first waits.
            task.cancel(self._lease.lost)
        tracing = self._intake.source.channel.tracing
        if tracing is not None:
            self._span = tracing.process(self._intake.source.name, self._message)
            self._span.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._span is not None:
            _end_span(self._span, error)
        lease = self._lease
        task = self._intake.running.pop(lease.handle)
        if self._former is not None:
            self._intake.running[lease.handle] = self._former
        if lease.lost is not None and task.cancelling() > self._cancellations:
            remaining = task.uncancel()
            return remaining <= self._cancellations and (
                isinstance(error, asyncio.CancelledError) or settle(self._intake, lease, error)
            )
        return settle(self._intake, lease, error)


def settle(intake: Intake, lease: Lease, error: BaseException | None) -> bool:
    """Settle a message after its handler ended with ``error``; True if the error goes no further."""
    if error is None:
        intake.settle(lease, DELETE)
        return True
    receive_count = lease.received.receive_count
    if isinstance(error, Reject):
        _log.warning(
            "queue %r: %s is rejected: %s",
            intake.source.name,
            lease.name,
            error.reason,
            extra={
                "event": "rejected",
                "queue": intake.source.name,
                "message_id": lease.name,
                "why": error.reason,
            },
        )
        intake.settle(lease, Settlement(Action.REJECT, reason=error.reason))
        return True
    if not isinstance(error, Exception):
        intake.settle(lease, Settlement(Action.RETRY))
        return False
    settlement = intake.retry_settlement(receive_count)
    if isinstance(error, Retry) and error.after is not None:
        settlement = Settlement(Action.RETRY, error.after)
    _log.warning(
        "queue %r: %s failed at receive %d, again in %.3g s: %r",
        intake.source.name,
        lease.name,
        receive_count,
        settlement.delay,
        error,
        exc_info=None if isinstance(error, Retry) else error,
        extra={
            "event": "handler_failed",
            "queue": intake.source.name,
            "message_id": lease.name,
            "receive_count": receive_count,
            "pause": settlement.delay,
            "why": repr(error),
        },
    )
    intake.settle(lease, settlement)
    return True


def decodes(intake: Intake, lease: Lease, message: MessageWithBody) -> bool:
    """Return True if the body of a message decodes; else settle the message by the poison policy of its queue."""
    policy = intake.source.poison
    if policy is None:
        return True
    try:
        message.body  # noqa: B018 - decodes, and keeps the value
    except PoisonMessage as poison:
        _log.warning(
            "queue %r: poison (%s): %s",
            intake.source.name,
            policy.value,
            poison.text,
            extra={
                "event": "poison",
                "queue": intake.source.name,
                "message_id": lease.name,
                "policy": policy.value,
                "why": poison.text,
            },
        )
        if policy is PoisonPolicy.REJECT:
            intake.settle(lease, Settlement(Action.REJECT, reason=_cut(f"does not decode: {poison.__cause__}")))
        elif policy is PoisonPolicy.SKIP:
            intake.settle(lease, DELETE)
        else:
            intake.settle(lease, GIVE_BACK)
            intake.fail(poison)
        return False
    except Exception as error:
        # A decoding hook of the program failed for another reason than the body.
        settle(intake, lease, error)
        return False
    return True


def _cut(reason: str) -> str:
    """Return the part of a reason that the server keeps."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def _end_span(span: AbstractContextManager[Any], error: BaseException | None) -> None:
    try:
        span.__exit__(type(error) if error is not None else None, error, error.__traceback__ if error else None)
    except BaseException as raised:
        if raised is not error:
            raise
