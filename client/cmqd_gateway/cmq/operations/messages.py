"""Operations on messages: send, receive, delete, change visibility and peek."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, TypeAlias

from cmqd_client import Client, Message, PeekPage
from cmqd_gateway.cmq.body_parameters import Body, check_bodies
from cmqd_gateway.cmq.failures import NO_FAILURES, Failures
from cmqd_gateway.cmq.operation import Call, operation
from cmqd_gateway.cmq.parameters import MAX_BATCH, Items, OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

MAX_WAIT_SECONDS: Final = range_of(QUEUE["polling_wait_ms"]).high
MAX_VISIBILITY_SECONDS: Final = range_of(QUEUE["visibility_timeout_ms"]).high

PollingWait: TypeAlias = Annotated[int, Whole(0, MAX_WAIT_SECONDS)]
"""Seconds for which a receive waits for messages; absent = the polling wait of the queue."""
Delay: TypeAlias = Annotated[int, Whole(0, range_of(QUEUE["delay_ms"]).high, Reason.DELAY)]


class SendMessage(OperationRequest, frozen=True):
    """Parameters of SendMessage."""

    queue_name: QueueName
    msg_body: Body
    delay_seconds: Delay | None = None


async def send_message(call: Call, request: SendMessage) -> Sequence[str]:
    """Send a message."""
    check_bodies([request.msg_body])
    (dedup_id,) = call.dedup_ids(1)
    queue = call.client.queue(request.queue_name)
    sent = await queue.send(request.msg_body, delay=request.delay_seconds, dedup_id=dedup_id)
    return [sent.id]


class BatchSendMessage(OperationRequest, frozen=True):
    """Parameters of BatchSendMessage."""

    queue_name: QueueName
    msg_body: Annotated[list[Body], Items()]
    delay_seconds: Delay | None = None


async def batch_send_message(call: Call, request: BatchSendMessage) -> Sequence[str]:
    """Send messages in one step: all are stored, or none is."""
    bodies = request.msg_body
    check_bodies(bodies)
    queue = call.client.queue(request.queue_name)
    ids = call.dedup_ids(len(bodies))
    sent = await call.store_batch(
        ids,
        lambda all_or_none: queue.send_batch(
            bodies, delay=request.delay_seconds, dedup_ids=ids, all_or_none=all_or_none
        ),
    )
    return sent.ids


class ReceiveMessage(OperationRequest, frozen=True):
    """Parameters of ReceiveMessage."""

    queue_name: QueueName
    polling_wait_seconds: PollingWait | None = None


async def receive_message(call: Call, request: ReceiveMessage) -> "list[Message[bytes]]":
    """Receive a message; wait for one if there is none."""
    return await _receive(call, request.queue_name, 1, request.polling_wait_seconds)


class BatchReceiveMessage(OperationRequest, frozen=True):
    """Parameters of BatchReceiveMessage."""

    queue_name: QueueName
    num_of_msg: Annotated[int, Whole(1, MAX_BATCH, Reason.BATCH_SIZE)]
    polling_wait_seconds: PollingWait | None = None


async def batch_receive_message(call: Call, request: BatchReceiveMessage) -> "list[Message[bytes]]":
    """Receive messages; wait for the first if there is none, never for a full batch."""
    return await _receive(call, request.queue_name, request.num_of_msg, request.polling_wait_seconds)


async def _receive(call: Call, queue_name: QueueName, count: int, wait: int | None) -> "list[Message[bytes]]":
    messages = await call.client.queue(queue_name).receive(count, wait=wait)
    if not messages:
        raise Refusal(Reason.NO_MESSAGE)
    handles = [message.receipt_handle for message in messages]
    call.received(lambda client: client.queue(queue_name).release_batch(handles, count_receive=False, check=False))
    return messages


def _waits(request: ReceiveMessage | BatchReceiveMessage) -> bool:
    """Return True for a receive that may wait; with the wait of the queue, which only the broker knows, too."""
    return request.polling_wait_seconds != 0


class DeleteMessage(OperationRequest, frozen=True):
    """Parameters of DeleteMessage."""

    queue_name: QueueName
    receipt_handle: str


async def delete_message(call: Call, request: DeleteMessage) -> None:
    """Delete a received message."""
    handle = to_handle(request.receipt_handle)

    async def delete(client: Client) -> Failures:
        await client.queue(request.queue_name).delete(handle)
        return NO_FAILURES

    await call.delete_once(delete)


class BatchDeleteMessage(OperationRequest, frozen=True):
    """Parameters of BatchDeleteMessage."""

    queue_name: QueueName
    receipt_handle: Annotated[list[str], Items()]


async def batch_delete_message(call: Call, request: BatchDeleteMessage) -> Failures:
    """Delete received messages."""
    refusals: dict[str, Refusal] = {}
    handles: list[int] = []
    for text in request.receipt_handle:
        try:
            handles.append(to_handle(text))
        except Refusal as refusal:
            refusals[text] = refusal

    async def delete(client: Client) -> Failures:
        if handles:
            result = await client.queue(request.queue_name).delete_batch(handles, check=False)
            refusals.update({str(failed.receipt_handle): call.refusal(failed.error) for failed in result.failures})
        return Failures(len(set(request.receipt_handle)), refusals)

    return await call.delete_once(delete)


class ChangeMessageVisibility(OperationRequest, frozen=True):
    """Parameters of ChangeMessageVisibility."""

    queue_name: QueueName
    receipt_handle: str
    visibility_timeout: Annotated[int, Whole(0, MAX_VISIBILITY_SECONDS)]


async def change_message_visibility(call: Call, request: ChangeMessageVisibility) -> datetime | None:
    """Set how long a received message stays hidden, from now on; 0 returns the message to the queue at once.

    An operation beyond CMQ's.

    Returns:
        The time until which the message is hidden, None for a message that was returned.
    """
    queue = call.client.queue(request.queue_name)
    handle = to_handle(request.receipt_handle)
    if not request.visibility_timeout:
        await queue.release(handle)
        return None
    return (await queue.change_visibility(handle, request.visibility_timeout)).next_visible_time


class PeekMessage(OperationRequest, frozen=True):
    """Parameters of PeekMessage."""

    queue_name: QueueName
    num_of_msg: Annotated[int, Whole(1, MAX_BATCH, Reason.BATCH_SIZE)] = MAX_BATCH
    start: Annotated[int, Whole(0, (1 << 63) - 1)] = 0


async def peek_message(call: Call, request: PeekMessage) -> PeekPage:
    """Return messages in the order of sending without receiving them: counts, order and visibility stay.

    An operation beyond CMQ's.
    """
    return await call.client.queue(request.queue_name).peek(request.num_of_msg, start=request.start)


def to_handle(text: str) -> int:
    """Return a receipt handle as a number.

    Raises:
        Refusal: the text is no receipt handle.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) >= 1 << 64:
        raise Refusal(Reason.HANDLE_MALFORMED, f"{text[:40]!r} is no receipt handle")
    return int(text)


OPERATIONS: Final = [
    operation("SendMessage", SendMessage, send_message, is_data=True, failure=Reason.SEND_FAILED),
    operation("BatchSendMessage", BatchSendMessage, batch_send_message, is_data=True, failure=Reason.SEND_FAILED),
    operation(
        "ReceiveMessage", ReceiveMessage, receive_message, waits=_waits, is_data=True, failure=Reason.RECEIVE_FAILED
    ),
    operation(
        "BatchReceiveMessage",
        BatchReceiveMessage,
        batch_receive_message,
        waits=_waits,
        is_data=True,
        failure=Reason.RECEIVE_FAILED,
    ),
    operation("DeleteMessage", DeleteMessage, delete_message, is_data=True, failure=Reason.DELETE_FAILED),
    operation(
        "BatchDeleteMessage", BatchDeleteMessage, batch_delete_message, is_data=True, failure=Reason.DELETE_FAILED
    ),
    operation("ChangeMessageVisibility", ChangeMessageVisibility, change_message_visibility, is_data=True),
    operation("PeekMessage", PeekMessage, peek_message, is_data=True),
]
