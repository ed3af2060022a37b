"""Operations on half messages: send, commit, roll back, list.

A half message is stored, and delivered after its commit. Queues that take half messages are created with
``transaction=1``.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from cmqd_client import TransactionStatus
from cmqd_client.results import UndecidedPage
from cmqd_gateway.cmq.body_parameters import Body, check_bodies
from cmqd_gateway.cmq.failures import Failures
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.parameters import Items, OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

Interval = Annotated[float, range_of(QUEUE["first_check_ms"])]
"""Seconds, whole ones in API 2.0."""


class SendHalfMessage(OperationRequest, frozen=True):
    """Parameters of SendHalfMessage."""

    queue_name: QueueName
    msg_body: Body
    first_query_interval: Interval | None = None
    """Seconds until the first check; absent = the queue's own."""


class BatchSendHalfMessage(OperationRequest, frozen=True):
    """Parameters of BatchSendHalfMessage."""

    queue_name: QueueName
    msg_body: Annotated[list[Body], Items()]
    first_query_interval: Interval | None = None


class DecideHalfMessages(OperationRequest, frozen=True):
    """Parameters of CommitHalfMessage and RollbackHalfMessage: ``msgId``, or ``msgId.1``, ``msgId.2`` ..."""

    queue_name: QueueName
    msg_id: Annotated[list[str], Items()]


class ListHalfMessage(OperationRequest, frozen=True):
    """Parameters of ListHalfMessage."""

    queue_name: QueueName
    start: Annotated[int, Whole(0, 2**63 - 1)] = 0
    """0, or ``nextStart`` of the page before."""
    limit: Annotated[int, Whole(1, 100)] = 20


async def send_half_message(call: Call, request: SendHalfMessage) -> Sequence[str]:
    """Store a half message."""
    return await _send(call, request.queue_name, [request.msg_body], request.first_query_interval)


async def batch_send_half_message(call: Call, request: BatchSendHalfMessage) -> Sequence[str]:
    """Store half messages in one step: all are stored, or none is."""
    return await _send(call, request.queue_name, request.msg_body, request.first_query_interval)


async def _send(call: Call, queue_name: str, bodies: Sequence[bytes], first_check: float | None) -> Sequence[str]:
    check_bodies(bodies)
    queue = call.client.queue(queue_name)
    dedup_ids = call.dedup_ids(len(bodies))
    sent = await call.store_batch(
        dedup_ids,
        lambda all_or_none: queue.send_half_batch(
            bodies, first_check=first_check, dedup_ids=dedup_ids, all_or_none=all_or_none
        ),
    )
    return sent.ids


async def commit_half_message(call: Call, request: DecideHalfMessages) -> Failures:
    """Commit half messages, which are delivered from now on; the same decision again succeeds."""
    return await _decide(call, request, TransactionStatus.COMMIT)


async def rollback_half_message(call: Call, request: DecideHalfMessages) -> Failures:
    """Roll half messages back, which drops them; the same decision again succeeds."""
    return await _decide(call, request, TransactionStatus.ROLLBACK)


async def _decide(call: Call, request: DecideHalfMessages, status: TransactionStatus) -> Failures:
    """Decide half messages independently.

    Raises:
        Refusal: a message id is malformed; no message was decided.
    """
    message_ids = list(dict.fromkeys(request.msg_id))
    try:
        result = await call.client.queue(request.queue_name).end_transactions(message_ids, status, check=False)
    except ValueError as error:
        raise Refusal(Reason.MESSAGE_ID_INVALID, str(error)) from None
    return Failures(len(message_ids), {failed.id: call.refusal(failed.error) for failed in result.failures})


async def list_half_message(call: Call, request: ListHalfMessage) -> UndecidedPage:
    """List half messages that are not decided, in the order of sending."""
    return await call.client.queue(request.queue_name).half_messages(request.limit, start=request.start)


OPERATIONS: Final = [
    operation("SendHalfMessage", SendHalfMessage, send_half_message, is_data=True),
    operation("BatchSendHalfMessage", BatchSendHalfMessage, batch_send_half_message, is_data=True),
    operation("CommitHalfMessage", DecideHalfMessages, commit_half_message, is_data=True),
    operation("RollbackHalfMessage", DecideHalfMessages, rollback_half_message, is_data=True),
    operation("ListHalfMessage", ListHalfMessage, list_half_message),
]
