"""Results made from the structs of replies.

A result and the struct of its reply are two types with nearly the same fields, for the same reasons everywhere. The
struct encodes to an array, and its fields are frozen: milliseconds, numbers of messages, words. The result is for
programs: times, printed ids, members of enumerations; and it encodes to an object. Where no field differs, the result
is a subclass of the struct.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from cmqd_client.durations import to_datetime
from cmqd_client.messages.message_ids import MessageId, printed_id

ResultT = TypeVar("ResultT", bound=Struct)
Convert = Callable[[Any], Any]

_ON_THE_WIRE = {
    "id": "message_id",
    "time": "broker_time_ms",
    "create_time": "created_ms",
    "start_time": "started_ms",
    "end_time": "ended_ms",
    "last_error_time": "last_failed_ms",
    "tags": "labels",
    "routing_key": "labels",
}
"""Names on the wire that do not follow from the name of the field."""


def converted(kind: type[ResultT], reply: Struct, **given: Any) -> ResultT:
    """Return a result with the values of a reply, or of a struct within a reply.

    A field has the value of the same name, or of the name on the wire: ``next_time`` is ``next_ms``, ``tls`` is
    ``is_tls``. A time that may be missing is None for 0.

    Args:
        kind: type of the result.
        reply: the reply, or the struct.
        given: values of fields that follow no rule.
    """
    values = {name: convert(getattr(reply, source)) for name, source, convert in _plan(kind, type(reply))}
    return kind(**(values | given))


@cache
def _plan(kind: type[Struct], reply: type[Struct]) -> list[tuple[str, str, Convert]]:
    """Return the fields of a result with the names of their values in the reply, and the conversions."""
    plan: list[tuple[str, str, Convert]] = []
    for name, hint in get_type_hints(kind).items():
        stem = name.removesuffix("_time")
        for source in (name, f"{name}_ms", f"{stem}_ms", f"is_{name}", _ON_THE_WIRE.get(name, "")):
            if source in reply.__struct_fields__:
                labels = {"tags": _tags, "routing_key": _routing_key} if source == "labels" else {}
                plan.append((name, source, labels.get(name) or _conversion(hint)))
                break
    return plan


def _conversion(hint: Any) -> Convert:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        is_optional = NoneType in arguments
        conversions = {_conversion(each) for each in arguments if each is not NoneType} - {_same}
        convert = conversions.pop() if conversions else _same
        if not is_optional:
            return convert
        # A time of 0 is no time.
        return partial(_optional, convert, (None, 0) if datetime in arguments else (None,))
    if origin is list:
        convert = _conversion(arguments[0])
        return convert if convert is _same else lambda values: [convert(value) for value in values]
    if hint is MessageId:
        return printed_id
    if not isinstance(hint, type):
        return _same
    if issubclass(hint, Enum):
        return partial(_member, hint)
    if issubclass(hint, Struct):
        return partial(_struct, hint)
    if issubclass(hint, datetime):
        return to_datetime
    return _span if issubclass(hint, timedelta) else _same


def _same(value: Any) -> Any:
    return value


def _span(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _optional(convert: Convert, missing: tuple[object, ...], value: Any) -> Any:
    return None if value in missing else convert(value)


def _member(kind: type[Enum], word: str) -> Any:
    """Return the member of an enumeration; the word itself if a newer server sent another."""
    return kind(word) if word in {member.value for member in kind} else word


def _struct(kind: type[Struct], value: Struct) -> Struct:
    return value if isinstance(value, kind) else converted(kind, value)


def _tags(labels: list[str] | str | None) -> list[str]:
    return labels if isinstance(labels, list) else []


def _routing_key(labels: list[str] | str | None) -> str | None:
    return labels if isinstance(labels, str) else None
