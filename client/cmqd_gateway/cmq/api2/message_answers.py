"""Answers of operations on messages, half messages and publishes, as fields of API 2.0."""

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cmqd_client import Message, Peeked, PeekPage
from cmqd_client.results import UndecidedPage
from cmqd_gateway.cmq.api2.fields import Fields
from cmqd_gateway.cmq.failures import Failures
from cmqd_gateway.cmq.numbers import seconds
from cmqd_gateway.cmq.reasons import Reason, Refusal


def stored(ids: Sequence[str]) -> Fields:
    """Return the fields of a stored message."""
    return {"msgId": ids[0]}


def stored_batch(ids: Sequence[str]) -> Fields:
    """Return the fields of a stored batch."""
    return {"msgList": [{"msgId": message_id} for message_id in ids]}


def received(messages: Sequence[Message[bytes]]) -> Fields:
    """Return the fields of a received message."""
    return _message_fields(messages[0])


def received_batch(messages: Sequence[Message[bytes]]) -> Fields:
    """Return the fields of received messages."""
    return {"msgInfoList": [_message_fields(message) for message in messages]}


def deleted_batch(failures: Failures) -> Fields:
    """Return no fields for a batch of deletes without failures.

    Raises:
        Refusal: some (6010) or all (6020) deletes failed; the others are done.
    """
    if failures.refusals:
        reason = Reason.DELETES_FAILED if failures.are_all else Reason.DELETES_PARTLY_FAILED
        raise Refusal(reason, errorList=_error_list(failures, "receiptHandle"))
    return {}


def hidden(until: datetime | None) -> Fields:
    """Return the fields of a changed visibility."""
    return {} if until is None else {"nextVisibleTime": seconds(until)}


def peeked_page(page: PeekPage) -> Fields:
    """Return the fields of a page; ``nextStart`` is ``start`` of the next page, and is missing at the end."""
    fields: dict[str, Any] = {"msgInfoList": [_peeked_fields(peeked) for peeked in page]}
    return fields if page.next_start is None else fields | {"nextStart": page.next_start}


def decided(failures: Failures) -> Fields:
    """Return no fields for decisions without failures.

    Raises:
        Refusal: the only message of the request was not decided; or, of several, some (10760) or all (10750) were not
            decided, which ``errorList`` names.
    """
    if not failures.refusals:
        return {}
    if failures.count == 1:
        raise next(iter(failures.refusals.values()))
    errors = _error_list(failures, "msgId")
    reason = Reason.DECISIONS_FAILED if failures.are_all else Reason.DECISIONS_PARTLY_FAILED
    raise Refusal(reason, f"{len(errors)} of {failures.count} messages were not decided", errorList=errors)


def undecided_page(page: UndecidedPage) -> Fields:
    """Return the fields of a page of half messages; ``nextStart`` is absent on the last page."""
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
        "enqueueTime": seconds(message.enqueue_time),
        "firstDequeueTime": seconds(message.first_receive_time),
        "nextVisibleTime": seconds(message.next_visible_time),
        "dequeueCount": message.receive_count,
    }


def _peeked_fields(peeked: Peeked) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **body_fields(peeked.body),
        "msgId": peeked.id,
        "state": peeked.state,
        "enqueueTime": seconds(peeked.enqueue_time),
        "dequeueCount": peeked.receive_count,
    }
    if peeked.visible_time is not None:
        fields["nextVisibleTime"] = seconds(peeked.visible_time)
    return fields


def _error_list(failures: Failures, name: str) -> list[dict[str, Any]]:
    return [
        {"code": refusal.code, "message": refusal.message, name: item} for item, refusal in failures.refusals.items()
    ]


def route(addresses: Sequence[str]) -> Fields:
    """Return the addresses of CMQ's TCP protocol."""
    return {"addr": list(addresses)}
