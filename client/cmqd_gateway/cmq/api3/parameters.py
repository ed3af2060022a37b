"""The parameters of an action of API 3.0: their declarations, and the reading of values by their kinds.

A JSON body has texts, whole numbers and truth values as such: a number as text is refused. In a form every value is
text. Ranges are declared at the operation, and are checked when its request is made.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeAlias, cast

import msgspec

from cmqd_gateway.cmq.api3.faults import Code, Fault
from cmqd_gateway.cmq.api3.request_values import Branch, list_of

Values: TypeAlias = dict[str, Any]
"""Values by the names of their parameters: texts, whole numbers, truth values, lists and objects."""

MAX_DIGITS: Final = 20
_SHOWN: Final = 80
_TRUTHS: Final = {b"true": True, b"false": False}


class Kind(Enum):
    """The kind of a parameter; the value is its description in documents and errors."""

    TEXT = "text"
    NUMBER = "number"
    TRUTH = "true or false"
    TEXTS = "list of texts"
    TAGS = "list of {TagKey, TagValue}"
    FILTERS = "list of {Name, Values}"


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of an action."""

    name: str
    kind: Kind = Kind.TEXT
    field: str = ""
    """Field of the operation's request; empty = the action deals with the parameter."""
    is_required: bool = False


_FIELDS: Final[Mapping[Kind, Mapping[str, Kind]]] = {
    Kind.TAGS: {"TagKey": Kind.TEXT, "TagValue": Kind.TEXT},
    Kind.FILTERS: {"Name": Kind.TEXT, "Values": Kind.TEXTS},
}
"""The fields of objects in lists."""


def read_values(parameters: Mapping[str, Parameter], given: Mapping[str, Any], action: str) -> Values:
    """Return the values of a request.

    Absent parameters, ``null`` and optional texts and lists without content are left out.

    Args:
        parameters: the parameters of the action, by their names.
        given: the values of a JSON body; in a form, bytes and branches.
        action: name of the action, for the text of an error.

    Raises:
        Fault: a parameter is unknown, missing, or of another kind.
    """
    values: Values = {}
    for name, value in given.items():
        parameter = parameters.get(name)
        if parameter is None:
            raise Fault(
                Code.UNKNOWN_PARAMETER,
                f"{action} has no parameter {name[:_SHOWN]!r}; its parameters are {', '.join(parameters)}",
            )
        if value is None:
            continue
        # The kind of most parameters first: a call less for each.
        is_text = parameter.kind is Kind.TEXT
        read = value if is_text and isinstance(value, str) else _read(name, parameter.kind, value)
        if parameter.is_required or read not in ("", []):
            values[name] = read
    for parameter in parameters.values():
        if parameter.is_required and parameter.name not in values:
            raise Fault(Code.MISSING_PARAMETER, f"the parameter {parameter.name} of {action} is missing")
    return values


def _read(name: str, kind: Kind, value: Any) -> Any:
    match kind:
        case Kind.TEXT:
            return _text(name, value)
        case Kind.NUMBER:
            return _number(name, value)
        case Kind.TRUTH:
            return _truth(name, value)
        case Kind.TEXTS:
            return [_text(f"{name}.{index}", entry) for index, entry in enumerate(_entries(name, kind, value))]
        case _:
            entries = enumerate(_entries(name, kind, value))
            return [_object(f"{name}.{index}", kind, entry) for index, entry in entries]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Fault(Code.INVALID_PARAMETER_VALUE, f"{name} is not UTF-8") from None
    if not isinstance(value, str):
        raise _wrong(name, Kind.TEXT, value)
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bytes):
        digits = value.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > MAX_DIGITS:
            raise _wrong(name, Kind.NUMBER, value)
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, Kind.NUMBER, value)
    if not -(1 << 63) <= value < 1 << 63:
        raise Fault(Code.INVALID_PARAMETER_VALUE, f"{name} must be a whole number of 64 bits")
    return value


def _truth(name: str, value: Any) -> bool:
    if isinstance(value, bytes):
        value = _TRUTHS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise _wrong(name, Kind.TRUTH, value)
    return value


def _entries(name: str, kind: Kind, value: Any) -> list[Any]:
    if isinstance(value, Branch):
        return list_of(name, value)
    if not isinstance(value, list):
        raise _wrong(name, kind, value)
    return cast("list[Any]", value)


def _object(name: str, kind: Kind, value: Any) -> Values:
    fields = _FIELDS[kind]
    if not isinstance(value, dict):
        raise Fault(Code.INVALID_PARAMETER_VALUE, f"{name} must be an object with {' and '.join(fields)}")
    entries = cast("dict[str, Any]", value)
    for field in entries:
        if field not in fields:
            shown = f"{name}.{field[:_SHOWN]}"
            raise Fault(Code.UNKNOWN_PARAMETER, f"{shown!r} is unknown; {name} has {' and '.join(fields)}")
    return {
        field: _read(f"{name}.{field}", fields[field], entry) for field, entry in entries.items() if entry is not None
    }


def _wrong(name: str, kind: Kind, value: object) -> Fault:
    words = {Kind.NUMBER: "a whole number", Kind.TRUTH: "true or false"}.get(kind, f"a {kind.value}")
    match value:
        case bytes():
            shown = repr(value[:_SHOWN].decode(errors="replace"))
        case str():
            shown = repr(value[:_SHOWN])
        case bool() | float():
            shown = str(value).lower()
        case int():
            shown = "a number"
        case list():
            shown = "a list"
        case _:
            shown = "an object"
    return Fault(Code.INVALID_PARAMETER_VALUE, f"{name} must be {words}, not {shown}")
