"""The message of a task: headers, queue and time. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cmqd_client.foreign_names import usable_queue_name

TASK_ID = "taskiq-id"
TASK_NAME = "taskiq-task"
LABEL_PREFIX = "taskiq-label-"
QUEUE_LABEL = "queue_name"
DELAY_LABEL = "delay"
TIME_LABEL = "at"

MAX_HEADERS = 30
"""Headers of a task: the limit of a message, less two for ``traceparent`` and ``tracestate``."""
MAX_HEADER_BYTES = 14_336
"""Bytes of names and values: the limit of a message, less 2 KiB for these two headers."""


def headers_of(task_id: str, task_name: str, labels: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a task: id, name, and as many of the labels as fit, in their order.

    Workers read labels from the body, so only tools miss a label that does not fit.
    """
    headers = {TASK_ID: task_id, TASK_NAME: task_name}
    free_bytes = MAX_HEADER_BYTES - sum(len(name) + len(value.encode()) for name, value in headers.items())
    for label, value in labels.items():
        name, text = LABEL_PREFIX + label, str(value)
        size = len(name.encode()) + len(text.encode())
        if len(headers) < MAX_HEADERS and size <= free_bytes:
            headers[name] = text
            free_bytes -= size
    return headers


def queue_of(labels: Mapping[str, Any], default: str) -> str:
    """Return the name of the queue for a task."""
    given = labels.get(QUEUE_LABEL)
    return default if given is None else usable_queue_name(str(given))


def delay_of(labels: Mapping[str, Any]) -> float | None:
    """Return the seconds before the message becomes active; None = the task has no such label.

    Raises:
        ValueError: the label is no number.
    """
    given = labels.get(DELAY_LABEL)
    if given is None:
        return None
    try:
        return float(given)
    except (TypeError, ValueError):
        raise ValueError(f"the label {DELAY_LABEL!r} is {given!r}; it must be a number of seconds") from None


def time_of(labels: Mapping[str, Any]) -> datetime | None:
    """Return the time at which the message becomes active; None = the task has no such label.

    A time without a zone is UTC.

    Raises:
        ValueError: the label is no time in ISO 8601.
    """
    given = labels.get(TIME_LABEL)
    if given is None:
        return None
    try:
        time = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise ValueError(
            f"the label {TIME_LABEL!r} is {given!r}; it must be a time such as 2026-01-31T12:00Z"
        ) from None
    return in_utc(time)


def in_utc(time: datetime) -> datetime:
    """Return a time with a zone; a time without a zone is UTC, as everywhere in taskiq."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
