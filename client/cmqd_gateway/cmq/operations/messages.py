"""Actions of messages: send, receive, delete, change visibility and peek."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from cmqd_client import Client, Message, Peeked
from cmqd_gateway.cmq.body_parameters import Body, check_bodies
from cmqd_gateway.cmq.operation import Call, Fields, operation
from cmqd_gateway.cmq.parameters import MAX_BATCH, Items, OperationRequest, QueueName, Whole, range_of
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.attributes import QUEUE

MAX_WAIT_SECONDS: Final = range_of(QUEUE["polling_wait_ms"]).high
MAX_VISIBILITY_SECONDS: Final = range_of(QUEUE["visibility_timeout_ms"]).high
QUEUES_OWN_WAIT: Final = 30_000
"""The value that the Java SDK sends for "the polling wait of the queue"."""

Delay: TypeAlias = Annotated[int, Whole(0, range_of(QUEUE["delay_ms"]).high, Reason.DELAY)]


class SendMessage(OperationRequest, frozen=True):
    """Parameters of SendMessage."""

    queue_name: QueueName
    msg_body: Body
    delay_seconds: Delay | None = None


async def send_message(call: Call, request: SendMessage) -> Fields:
    """Send a message; a repeat of the same request is stored once."""
    check_bodies([request.msg_body])
    (dedup_id,) = call.dedup_ids(1)
    queue = call.client.queue(request.queue_name)
    sent = await queue.send(request.msg_body, delay=request.delay_seconds, dedup_id=dedup_id)
    return {"msgId": sent.id}


class BatchSendMessage(OperationRequest, frozen=True):
    """Parameters of BatchSendMessage."""

    queue_name: QueueName
    msg_body: Annotated[list[Body], Items()]
    delay_seconds: Delay | None = None


async def batch_send_message(call: Call, request: BatchSendMessage) -> Fields:
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
    return {"msgList": [{"msgId": message_id} for message_id in sent.ids]}


class ReceiveMessage(OperationRequest, frozen=True):
    """Parameters of ReceiveMessage."""

    queue_name: QueueName
    polling_wait_seconds: int | None = None


async def receive_message(call: Call, request: ReceiveMessage) -> Fields:
    """Receive a message; wait for one if there is none."""
    (message,) = await _receive(call, request.queue_name, 1, request.polling_wait_seconds)
    return _message_fields(message)


class BatchReceiveMessage(OperationRequest, frozen=True):
    """Parameters of BatchReceiveMessage."""

    queue_name: QueueName
    num_of_msg: Annotated[int, Whole(1, MAX_BATCH, Reason.BATCH_SIZE)]
    polling_wait_seconds: int | None = None


async def batch_receive_message(call: Call, request: BatchReceiveMessage) -> Fields:
    """Receive messages; wait for the first if there is none, never for a full batch."""
    messages = await _receive(call, request.queue_name, request.num_of_msg, request.polling_wait_seconds)
    return {"msgInfoList": [_message_fields(message) for message in messages]}


async def _receive(call: Call, queue_name: QueueName, count: int, wait: int | None) -> "list[Message[bytes]]":
    messages = await call.client.queue(queue_name).receive(count, wait=polling_wait(wait))
    if not messages:
        raise Refusal(Reason.NO_MESSAGE)
    handles = [message.receipt_handle for message in messages]
    call.received(lambda client: client.queue(queue_name).release_batch(handles, count_receive=False, check=False))
    return messages


def _waits(request: ReceiveMessage | BatchReceiveMessage) -> bool:
    """Return True for a receive that may wait; with the wait of the queue, which only the broker knows, too."""
    return polling_wait(request.polling_wait_seconds) != 0


def polling_wait(seconds: int | None) -> int | None:
    """Return the wait of a receive in seconds, None for the queue's own.

    Raises:
        Refusal: the wait is negative.
    """
    if seconds is None or seconds == QUEUES_OWN_WAIT:
        return None
    if seconds < 0:
        raise Refusal(
            Reason.OUT_OF_RANGE,
            f"pollingWaitSeconds is {seconds}; the range is 0 to {MAX_WAIT_SECONDS},"
            f" and {QUEUES_OWN_WAIT} for the wait of the queue",
        )
    return min(seconds, MAX_WAIT_SECONDS)


class DeleteMessage(OperationRequest, frozen=True):
    """Parameters of DeleteMessage."""

    queue_name: QueueName
    receipt_handle: str


async def delete_message(call: Call, request: DeleteMessage) -> Fields:
    """Delete a received message; a repeat of the same request gets the first answer."""
    handle = to_handle(request.receipt_handle)

    async def delete(client: Client) -> Fields:
        await client.queue(request.queue_name).delete(handle)
        return {}

    return await call.delete_once(delete)


class BatchDeleteMessage(OperationRequest, frozen=True):
    """Parameters of BatchDeleteMessage."""

    queue_name: QueueName
    receipt_handle: Annotated[list[str], Items()]


async def batch_delete_message(call: Call, request: BatchDeleteMessage) -> Fields:
    """Delete received messages; ``errorList`` has the failures.

    Raises:
        Refusal: some (6010) or all (6020) deletes failed; the others are done.
    """
    failures: dict[str, Refusal] = {}
    handles: list[int] = []
    for text in request.receipt_handle:
        try:
            handles.append(to_handle(text))
        except Refusal as refusal:
            failures[text] = refusal

    async def delete(client: Client) -> Fields:
        if handles:
            result = await client.queue(request.queue_name).delete_batch(handles, check=False)
            failures.update({str(failed.receipt_handle): call.refusal(failed.error) for failed in result.failures})
        return failure_fields(failures, len(set(request.receipt_handle)))

    fields = await call.delete_once(delete)
    raise_failures(fields)
    return fields


class ChangeMessageVisibility(OperationRequest, frozen=True):
    """Parameters of ChangeMessageVisibility."""

    queue_name: QueueName
    receipt_handle: str
    visibility_timeout: Annotated[int, Whole(0, MAX_VISIBILITY_SECONDS)]


async def change_message_visibility(call: Call, request: ChangeMessageVisibility) -> Fields:
    """Set how long a received message stays hidden, from now on; 0 returns the message to the queue at once.

    An action beyond CMQ's.
    """
    queue = call.client.queue(request.queue_name)
    handle = to_handle(request.receipt_handle)
    if not request.visibility_timeout:
        await queue.release(handle)
        return {}
    changed = await queue.change_visibility(handle, request.visibility_timeout)
    return {"nextVisibleTime": to_seconds(changed.next_visible_time)}


class PeekMessage(OperationRequest, frozen=True):
    """Parameters of PeekMessage."""

    queue_name: QueueName
    num_of_msg: Annotated[int, Whole(1, MAX_BATCH, Reason.BATCH_SIZE)] = MAX_BATCH
    start: Annotated[int, Whole(0, (1 << 63) - 1)] = 0


async def peek_message(call: Call, request: PeekMessage) -> Fields:
    """Return messages in the order of sending without receiving them: counts, order and visibility stay.

    ``nextStart`` is ``start`` of the next page, and is missing at the end. An action beyond CMQ's.
    """
    page = await call.client.queue(request.queue_name).peek(request.num_of_msg, start=request.start)
    fields: dict[str, Any] = {"msgInfoList": [_peeked_fields(peeked) for peeked in page]}
    if page.next_start is not None:
        fields["nextStart"] = page.next_start
    return fields


def _peeked_fields(peeked: Peeked) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **body_fields(peeked.body),
        "msgId": peeked.id,
        "state": peeked.state,
        "enqueueTime": to_seconds(peeked.enqueue_time),
        "dequeueCount": peeked.receive_count,
    }
    if peeked.visible_time is not None:
        fields["nextVisibleTime"] = to_seconds(peeked.visible_time)
    return fields


def to_seconds(moment: datetime | None) -> int:
    """Return a time as CMQ has times: whole seconds since 1970; 0 without a time."""
    return 0 if moment is None else int(moment.timestamp())


def failure_fields(failures: Mapping[str, Refusal], count: int) -> Fields:
    """Return the fields of the answer to a batch of receipt handles of which some or all failed; {} without failures.

    Args:
        failures: the refusal of each failed handle.
        count: number of different handles in the request.
    """
    if not failures:
        return {}
    all_failed = len(failures) == count
    return {
        "code": 6020 if all_failed else 6010,
        "errorList": [
            {"code": refusal.code, "message": refusal.message, "receiptHandle": handle}
            for handle, refusal in failures.items()
        ],
    }


def raise_failures(fields: Fields) -> None:
    """Raise the refusal of a batch of receipt handles, if there are failures."""
    errors: Sequence[Any] | None = fields.get("errorList")
    if errors:
        if fields["code"] == 6020:
            raise Refusal(Reason.DELETES_FAILED, errorList=errors)
        raise Refusal(Reason.DELETES_PARTLY_FAILED, errorList=errors)


def to_handle(text: str) -> int:
    """Return a receipt handle as a number.

    Raises:
        Refusal: the text is no receipt handle.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) >= 1 << 64:
        raise Refusal(Reason.HANDLE_MALFORMED, f"{text[:40]!r} is no receipt handle")
    return int(text)


def body_fields(body: bytes) -> dict[str, str]:
    """Return the fields of a body: text where it is UTF-8, else base64 with a field that says so."""
    try:
        return {"msgBody": body.decode()}
    except UnicodeDecodeError:
        return {"msgBody": base64.b64encode(body).decode(), "msgBodyEncoding": "base64"}


def _message_fields(message: "Message[bytes]") -> dict[str, Any]:
    return {
        **body_fields(message.raw_body),
        "msgId": message.id,
        "receiptHandle": str(message.receipt_handle),
        "enqueueTime": to_seconds(message.enqueue_time),
        "firstDequeueTime": to_seconds(message.first_receive_time),
        "nextVisibleTime": to_seconds(message.next_visible_time),
        "dequeueCount": message.receive_count,
    }


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
