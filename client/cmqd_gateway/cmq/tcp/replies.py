"""The typed answers of operations as further fields of a reply."""

from collections.abc import Sequence
from typing import Any, Final

from cmqd_client import Message
from cmqd_client.messages.message_ids import id_number
from cmqd_gateway.cmq.reasons import Refusal
from cmqd_gateway.cmq.tcp.commands import (
    BATCH_RECEIVED,
    BATCH_RECEIVED_BODY,
    HEADER,
    NOT_DELETED,
    NOT_DELETED_BODY,
    RECEIVED,
    RECEIVED_BODY,
)
from cmqd_gateway.cmq.tcp.proto2 import Values, encode_bytes

_REDRIVE: Final = "redrive"
"""Reason of the move of a message that is no dead letter any more."""


def ids_content(printed_ids: Sequence[str]) -> bytes:
    """Return the ids of sent messages: the numbers of the printed ids."""
    return HEADER.encode({"msgId": [id_number(printed) for printed in printed_ids]})


def received_content(messages: "Sequence[Message[bytes]]") -> bytes:
    """Return the message of a receive."""
    return encode_bytes(RECEIVED.encode(_received(messages[0])), RECEIVED_BODY)


def batch_received_content(messages: "Sequence[Message[bytes]]") -> bytes:
    """Return the messages of a batch receive."""
    return encode_bytes(BATCH_RECEIVED.encode({"msgInfo": map(_received, messages)}), BATCH_RECEIVED_BODY)


def not_deleted_content(refusals: Sequence[tuple[str, Refusal]]) -> bytes:
    """Return the receipt handles that were not deleted, with their reasons."""
    failed = [
        NOT_DELETED.encode({"receiptHandle": int(handle), "code": refusal.code, "message": refusal.message})
        for handle, refusal in refusals
    ]
    return b"".join([encode_bytes(one, NOT_DELETED_BODY) for one in failed])


def _received(message: "Message[bytes]") -> Values:
    values: dict[str, Any] = {
        "msgId": id_number(message.id),
        "receiptHandle": message.receipt_handle,
        "msgBody": message.raw_body,
        "enqueueTime": int(message.enqueue_time.timestamp()),
        "nextVisibleTime": int(message.next_visible_time.timestamp()),
        "firstDequeueTime": int(message.first_receive_time.timestamp()),
        "dequeueCount": message.receive_count,
    }
    origin = message.origin
    if origin is not None and origin.reason != _REDRIVE:
        # The queue by its name: a message has no id of it, and a question for each dead letter would be one too many.
        values["originalQueueId"] = origin.queue
        values["originalPublishTime"] = int(origin.enqueue_time.timestamp())
        values["originalDequeueCount"] = origin.receive_count
    return values
