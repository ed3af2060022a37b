"""Check of the headers of a task of Celery (protocol 2), by their types.

Celery's worker reads these headers while the worker takes a message from the transport, outside of any ``try``: a value
of a wrong type raises there, which ends the worker, and after the lease the next worker. Celery reports and drops a
task with a header of the right type and a wrong value, such as an ETA that is no date.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

_SECONDS: Final = 1e9
"""Longest time limit: 30 years. A bound also excludes NaN, which the timers of a worker cannot order."""
_NO_SERIALIZATION: Final = frozenset({"", "application/data", "application/text"})
"""Content types with which kombu hands the bytes of the body on. The body of a task is a serialized list."""


def is_readable(content_type: str | None, headers: Mapping[str, Any]) -> bool:
    """Return False for a task that ends a worker of Celery. A message without the header ``task`` is no task."""
    if "task" not in headers:
        return True
    if (content_type or "") in _NO_SERIALIZATION:
        return False
    return all(is_right(headers.get(name)) for name, is_right in _CHECKS.items())


def _is_id(value: object) -> bool:
    """Return True for text that names a result in a result backend: it must have an encoding."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_optional_text(value: object) -> bool:
    return not value or isinstance(value, str)


def _is_time(value: object) -> bool:
    """Return True for None, text or a date. Celery makes None of 0 or an empty list, and then asks for its zone."""
    return value is None or (isinstance(value, str) and value != "") or isinstance(value, datetime)


def _is_time_limit(value: object) -> bool:
    """Return True for no limits, or for a pair: the hard and the soft limit in seconds."""
    if not isinstance(value, list):
        return not value
    limits = cast("list[object]", value)
    return not limits or (len(limits) == 2 and all(_is_seconds(limit) for limit in limits))


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and -_SECONDS <= value <= _SECONDS)


def _is_texts(value: object) -> bool:
    if not isinstance(value, list):
        return not value
    return all(isinstance(name, str) for name in cast("list[object]", value))


def _is_mapping(value: object) -> bool:
    return not value or isinstance(value, dict)


def _is_nothing(value: object) -> bool:
    """Return True for an empty value. Celery writes these fields into the body, and falls back to the headers."""
    return not value


_CHECKS: Final[Mapping[str, Callable[[object], bool]]] = {
    "task": _is_text,
    "id": _is_id,
    "shadow": _is_optional_text,
    "eta": _is_time,
    "expires": _is_time,
    "timelimit": _is_time_limit,
    "stamped_headers": _is_texts,
    "stamps": _is_mapping,
    "chain": _is_nothing,
    "errbacks": _is_nothing,
}
