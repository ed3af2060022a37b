# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (kombu has no types; its JSON knows dates, UUIDs, decimals and bytes.)
"""The form of a kombu message in the broker.

The body is a line of JSON with content type, encoding, headers and properties, then the serialized body of the task,
unchanged. Headers of the broker are text of at most 16 KiB, which a task's headers may exceed, so only facts for the
transport are headers of the broker's message.

A message without the header ``kombu`` was sent by another program: its body is the whole message.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

import msgspec
from kombu.utils.json import dumps, loads

from cmqd_kombu.task_headers import is_readable

MARK = "kombu"
_VERSION = "1"
_DUE = "due_ms"
_EXPIRATION = "expiration_ms"
_MOST_DIGITS = 15
_PROPERTIES = frozenset(
    {"delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type"}
    | {"user_id", "app_id", "cluster_id"}
    | {"delivery_tag", "delivery_info"}
)
"""AMQP's properties of a message, and kombu's own. kombu puts all other arguments of a publish among them."""


class Envelope(msgspec.Struct):
    """The parts of a kombu ``Message``."""

    body: bytes
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]


def pack(message: Mapping[str, Any]) -> bytes:
    """Return the body of the broker's message for the result of ``Channel.prepare_message``.

    Properties that AMQP does not have are left out, as kombu's AMQP transports do: they may be any objects.
    """
    properties = {name: value for name, value in message["properties"].items() if name in _PROPERTIES}
    head: str = dumps([message["content-type"], message["content-encoding"], message["headers"], properties])
    body = message["body"]
    return head.encode() + b"\n" + (body.encode() if isinstance(body, str) else bytes(body))


def unpack(content: bytes, headers: Mapping[str, str]) -> Envelope:
    """Read the body of a message.

    A message that is not kombu's, is damaged, or is a task with headers that end a worker of Celery, is returned as raw
    bytes of the content type ``application/octet-stream``: Celery reports and drops it as an unknown message.
    """
    if headers.get(MARK) == _VERSION:
        head, _, body = content.partition(b"\n")
        try:
            content_type, content_encoding, own_headers, properties = loads(head.decode())
        except MemoryError:
            raise  # a lack of this process: the message is whole, and another worker can process it
        except Exception:
            # Any exception is damage: kombu's decoders of dates, decimals and bytes, which users extend, raise any
            # class, and deep nesting is a RecursionError. An exception that left would end the worker, and after the
            # lease the next worker.
            return _raw(content, headers)
        if (
            _is_text(content_type)
            and _is_text(content_encoding)
            and isinstance(own_headers, dict)
            and isinstance(properties, dict)
            and isinstance(properties.get("delivery_info") or {}, dict)
            and is_readable(content_type, own_headers)
        ):
            return Envelope(body, content_type, content_encoding, own_headers, properties)
    return _raw(content, headers)


def _raw(content: bytes, headers: Mapping[str, str]) -> Envelope:
    return Envelope(content, "application/octet-stream", "binary", dict(headers), {})


def _is_text(value: object) -> TypeGuard[str | None]:
    return value is None or isinstance(value, str)


def transport_headers(due_ms: int | None, expiration_ms: int | None) -> dict[str, str]:
    """Return the headers of the broker's message.

    Args:
        due_ms: time (epoch) before which no consumer gets the message; None = at once.
        expiration_ms: time after the send after which no consumer gets the message; None = never.
    """
    headers = {MARK: _VERSION}
    if due_ms is not None:
        headers[_DUE] = str(due_ms)
    if expiration_ms is not None:
        headers[_EXPIRATION] = str(expiration_ms)
    return headers


def milliseconds(headers: Mapping[str, str], name: str) -> int | None:
    """Return a time in the headers of a message of kombu; None = missing, or not a number."""
    return _milliseconds(headers.get(name, "") if MARK in headers else "")


def _milliseconds(value: str) -> int | None:
    """Read a number. More digits are damage: no float holds the number, and ``int`` refuses 4,301 digits."""
    return int(value) if value.isdecimal() and len(value) <= _MOST_DIGITS else None


def remaining_ms(headers: Mapping[str, str], now_ms: int) -> int:
    """Return the time until the message is due; 0 = now."""
    due_ms = milliseconds(headers, _DUE)
    return 0 if due_ms is None else max(due_ms - now_ms, 0)


def expired(headers: Mapping[str, str], sent_ms: int, now_ms: int) -> bool:
    """True if the message outlived its ``expiration``."""
    expiration_ms = milliseconds(headers, _EXPIRATION)
    return expiration_ms is not None and now_ms - sent_ms >= expiration_ms


def eta_ms(headers: Mapping[str, Any] | None) -> int | None:
    """Return the ETA of a task (header ``eta`` of Celery's messages: ISO 8601; UTC if no zone is named) as epoch."""
    eta = (headers or {}).get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None  # the worker reports the task with its own error
    if not isinstance(eta, datetime):
        return None
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=UTC)
    return int(eta.timestamp() * 1000)


def expiration_of(properties: Mapping[str, Any]) -> int | None:
    """Return AMQP's ``expiration`` of a message in milliseconds."""
    value = properties.get("expiration")
    return None if value is None else _milliseconds(str(value))
