"""Actions on half messages, in the style of API 2.0: send, commit, roll back, list.

A half message is stored, and delivered after its commit. Queues that take half messages are created with
``transaction=1``.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from cmqd_client import TransactionStatus
from cmqd_gateway.cmq.body_parameters import Body, check_bodies
from cmqd_gateway.cmq.numbers import seconds
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.parameters import Items, OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

Interval = Annotated[int, range_of(QUEUE["first_check_ms"])]


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


async def send_half_message(call: Call, request: SendHalfMessage) -> Fields:
    """Store a half message; a repeat of the same request is stored once."""
    ids = await _send(call, request.queue_name, [request.msg_body], request.first_query_interval)
    return {"msgId": ids[0]}


async def batch_send_half_message(call: Call, request: BatchSendHalfMessage) -> Fields:
    """Store half messages in one step: all are stored, or none is."""
    ids = await _send(call, request.queue_name, request.msg_body, request.first_query_interval)
    return {"msgList": [{"msgId": message_id} for message_id in ids]}


async def _send(call: Call, queue_name: str, bodies: Sequence[bytes], first_check: int | None) -> Sequence[str]:
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


async def commit_half_message(call: Call, request: DecideHalfMessages) -> Fields:
    """Commit half messages, which are delivered from now on; the same decision again succeeds."""
    return await _decide(call, request, TransactionStatus.COMMIT)


async def rollback_half_message(call: Call, request: DecideHalfMessages) -> Fields:
    """Roll half messages back, which drops them; the same decision again succeeds."""
    return await _decide(call, request, TransactionStatus.ROLLBACK)


async def _decide(call: Call, request: DecideHalfMessages, status: TransactionStatus) -> Fields:
    """Decide half messages independently.

    Raises:
        Refusal: a message id is malformed (no message was decided); or the only message of the request was not decided;
            or, of several, some (10760) or all (10750) were not decided, which ``errorList`` names.
    """
    message_ids = list(dict.fromkeys(request.msg_id))
    try:
        result = await call.client.queue(request.queue_name).end_transactions(message_ids, status, check=False)
    except ValueError as error:
        raise Refusal(Reason.MESSAGE_ID_INVALID, str(error)) from None
    if not result.failures:
        return {}
    refusals = [(failed.id, call.refusal(failed.error)) for failed in result.failures]
    if len(message_ids) == 1:
        raise refusals[0][1]
    reason = Reason.DECISIONS_PARTLY_FAILED if result.done else Reason.DECISIONS_FAILED
    errors = [{"code": refusal.code, "message": refusal.message, "msgId": failed} for failed, refusal in refusals]
    raise Refusal(reason, f"{len(errors)} of {len(message_ids)} messages were not decided", errorList=errors)


async def list_half_message(call: Call, request: ListHalfMessage) -> Fields:
    """List half messages that are not decided, in the order of sending; ``nextStart`` is absent on the last page."""
    page = await call.client.queue(request.queue_name).half_messages(request.limit, start=request.start)
    fields: dict[str, Any] = {
        "halfMsgList": [
            {
                "msgId": half.id,
                "enqueueTime": seconds(half.enqueue_time),
                "queryCount": half.checks,
                "lastQueryTime": seconds(half.last_check_time),
                "nextQueryTime": seconds(half.next_check_time),
                "lastAnswer": half.last_answer,
            }
            for half in page
        ]
    }
    return fields if page.next_start is None else fields | {"nextStart": page.next_start}


OPERATIONS: Final = [
    operation("SendHalfMessage", SendHalfMessage, send_half_message, is_data=True),
    operation("BatchSendHalfMessage", BatchSendHalfMessage, batch_send_half_message, is_data=True),
    operation("CommitHalfMessage", DecideHalfMessages, commit_half_message, is_data=True),
    operation("RollbackHalfMessage", DecideHalfMessages, rollback_half_message, is_data=True),
    operation("ListHalfMessage", ListHalfMessage, list_half_message),
]
