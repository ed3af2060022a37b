"""Reading a request: query and JSON body become the types of the operation, or a problem that names the field."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec

from cmqd_gateway.rest.problems import ProblemError, gateway_problem, invalid
from cmqd_gateway.rest.values import END_OF_MOMENTS, FIRST_MOMENT

T = TypeVar("T", bound=msgspec.Struct)

ID_FIELDS = frozenset({"receipt_handle", "receipt_handles", "message_id", "start"})
"""Fields with 64-bit numbers, which are strings in JSON."""
WHY_STRINGS = (
    "many JSON libraries read a number as a float of 53 bits and would change its last digits without an error"
)
_MAX_SHOWN = 100
"""Characters of a wrong value that an error repeats."""
_MAX_EXPLAINED_BYTES = 65_536
"""Largest wrong body that is read a second time to show its wrong value. 4 MiB of short elements would hold the event
loop for tens of milliseconds."""
UNCOUNTED_BYTES = 16_384
"""Largest body whose strings are not counted: decoding 16 KiB of any JSON takes about a millisecond."""
_FEW_STRINGS = 4_096
"""So many strings are decoded for any type, because the decoder's refusal names the field with too many entries."""
_COUNTED_AT_ONCE = 262_144
_MAX_HEADERS = 32
"""Headers of a message; more are refused by the broker."""
_UNREAD = object()


def read_body(content_type: str | None, charset: str | None, raw: bytes, kind: type[T]) -> T:
    """Return the body of a request.

    An empty body stands for an object without fields, so that ``curl -X POST`` receives a message.

    Args:
        content_type: media type of the request, without parameters; None = the request has no header for it.
        charset: parameter of the media type; None = the request has none.
        raw: the bytes of the body.
        kind: type of the operation's request.

    Raises:
        ProblemError: the media type or the JSON is wrong, or a field is unknown, missing or of the wrong kind.
    """
    if not raw:
        return _converted({}, kind)
    if not kind.__struct_fields__:
        raise invalid(None, "this operation takes no body; leave the body of the request empty")
    if content_type != "application/json" or (charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        shown = "nothing" if content_type is None else content_type + (f"; charset={charset}" if charset else "")
        raise gateway_problem(
            "unsupported_media_type",
            f"the header Content-Type must be application/json (in UTF-8) for a request with a body, not {shown[:100]}",
            field="Content-Type",
            headers={"Accept-Post": "application/json"},
        )
    try:
        # Read as its type at once: the decoder stops at the first fault, and makes no objects that no field has.
        return _with_moments(_decoded(raw, kind), kind)
    except msgspec.ValidationError as problem:
        text = str(problem)
    raise _explained(text, _untyped(raw), kind)


READ_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ProblemError)
"""Errors of :func:`json_reader`."""


def json_reader(kind: type[T]) -> Callable[[bytes], T]:
    """Return the quickest reader of bodies; its errors (``READ_ERRORS``) are for :func:`read_body` to explain."""
    decode = msgspec.json.Decoder(kind).decode
    return decode if not _moments(kind) else lambda raw: _with_moments(decode(raw), kind)


def _untyped(raw: bytes) -> Any:
    """Return the value of a wrong body without its type, for the error; ``_UNREAD`` for a body that is too large.

    A number that no double holds makes a body unreadable without its type, wherever the number stands.

    Raises:
        ProblemError: the bytes behind the wrong value are not JSON.
    """
    if len(raw) > _MAX_EXPLAINED_BYTES:
        return _UNREAD
    try:
        return _decoded(raw, Any)
    except msgspec.ValidationError:
        return _UNREAD


def count_steps(raw: bytes, kind: type[Any]) -> Generator[None, None, None]:
    """Refuse a body with far more strings than its type can have, with a yield behind each quarter of a MiB.

    The decoder checks the length of a list at its end. For 4 MiB of short entries that is after a third of a second.

    Raises:
        ProblemError: the body has too many strings.
    """
    if len(raw) <= UNCOUNTED_BYTES or not kind.__struct_fields__:
        return
    limit = _max_strings(kind)
    delimiters = 0
    for start in range(0, len(raw), _COUNTED_AT_ONCE):
        end = start + _COUNTED_AT_ONCE
        delimiters += raw.count(b'"', start, end)
        # Escaped quotes, also across the start of the slice. A quote behind a string that ends with an escaped
        # backslash counts too, but the quote at a start of a string never does: at least one per string remains.
        delimiters -= raw.count(b'\\"', max(start - 1, 0), end)
        if delimiters > 2 * max(limit, _FEW_STRINGS):
            raise invalid(
                None,
                f"the body of the request has more than {limit} strings, the names of fields included; this operation"
                " takes no more, so a list or an object of the request has too many entries",
                limit=limit,
            )
        yield


def _decoded(raw: bytes, kind: Any) -> Any:
    """Return the value of a body.

    Raises:
        msgspec.ValidationError: the value is not of the type.
        ProblemError: the bytes are not JSON.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise gateway_problem("malformed_json", f"the body of the request is not JSON in UTF-8: {problem}") from None
    except RecursionError:
        raise gateway_problem("malformed_json", "the JSON of the request is nested too deeply") from None


def read_query(pairs: Sequence[tuple[str, str]], kind: type[T]) -> T:
    """Return the query of a request. A parameter that is a list stands in the query once per element.

    Raises:
        ProblemError: a parameter is unknown, wrong, or stands in the query twice.
    """
    fields = _query_fields(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            raise invalid(name[:_MAX_SHOWN], f"{_shown(name)} is not a query parameter here; {_known(list(fields))}")
        if fields[name]:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise invalid(name, f"the query parameter {name} is given twice")
        else:
            values[name] = value
    return _with_moments(_converted(values, kind, strict=False), kind)


def _with_moments(value: T, kind: type[T]) -> T:
    """Return a request whose times lie in the years that arithmetic with zones and clock offsets never leaves.

    Raises:
        ProblemError: a time lies before 1970 or after 9998.
    """
    for field in _moments(kind):
        moment: datetime | None = getattr(value, field)
        if moment is not None and not FIRST_MOMENT <= moment < END_OF_MOMENTS:
            shown = moment.isoformat()
            raise invalid(field, f"{field} must be a time from 1970 to 9998, not {shown}", value=shown)
    return value


def read_idempotency_key(values: Sequence[str]) -> str | None:
    """Return the value of the header ``Idempotency-Key``, or None without one.

    The quotes of a structured field (``"8e03"``) are no part of the key.

    Raises:
        ProblemError: the header stands in the request twice, or its value is empty, too long or not printable ASCII.
    """
    if not values:
        return None
    if len(values) > 1:
        raise invalid("Idempotency-Key", "the header Idempotency-Key is given twice")
    key = values[0].strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 1 <= len(key) <= 64 or not key.isascii() or not key.isprintable():
        raise invalid(
            "Idempotency-Key", "the header Idempotency-Key must be 1 to 64 printable ASCII characters", limit=64
        )
    return key


# ---------------------------------------------------------------- texts of wrong values

_MAX_EXAMINED = 400
"""Characters of a text of msgspec that are examined at its begin, and at its end. In between is the caller's own text,
an unknown field or a wrong choice of any length; patterns with two stars need the square of the length."""
_AT = " - at `$"
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def _converted(value: Any, kind: type[T], *, strict: bool = True) -> T:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as problem:
        raise _explained(str(problem), value, kind) from None
    except ValueError as problem:
        # msgspec passes the error of a number on that is no time: "year 10000 is out of range".
        field = next((name for name in _moments(kind) if _is_no_time(value.get(name))), None)
        raise invalid(field, f"{field or 'the request'} must be {_KINDS['datetime']}: {problem}") from None


def _is_no_time(value: Any) -> bool:
    try:
        msgspec.convert(value, datetime | None, strict=False)
    except (ValueError, msgspec.ValidationError):
        return True
    return False


def _explained(text: str, value: Any, kind: type[Any]) -> ProblemError:
    """Return the refusal of a value that does not convert, from the text of msgspec.

    A text of an unknown form is passed on as it is.
    """
    if len(text) > 2 * _MAX_EXAMINED:
        text = text[:_MAX_EXAMINED] + text[-_MAX_EXAMINED:]
    head, at, path = text.rpartition(_AT)
    text, path = (head, path.removesuffix("`")) if at else (text, "")
    names = [name or f"[{index}]" for name, index in _STEP.findall(path)]
    field = path.removeprefix(".")
    if unknown := _UNKNOWN.fullmatch(text):
        name = unknown["name"]
        full = f"{field}.{name}" if field else name
        known = _fields_at(kind, names)
        return invalid(full[:_MAX_SHOWN], f"{_shown(full)} is not a field of this request; {_known(known)}")
    if missing := _MISSING.fullmatch(text):
        full = f"{field}.{missing['name']}" if field else missing["name"]
        return invalid(full, f"{full} is missing")
    wrong, field = _value_at(value, names, field)
    expected, got = text.partition("Expected ")[2].replace("`", ""), text.partition(", got ")[2].strip("`")
    if expected:
        expected = _limit(expected.partition(", got")[0])
    elif text in _OUT_OF_RANGE:
        # A wrong value, whatever the type of its field.
        wrong, expected = _UNREAD, "within the range of numbers of 64 bits"
    elif "RFC3339" in text or "imestamp" in text:
        expected = _KINDS["datetime"]
    elif choices := _choices_at(kind, names):
        expected = f"one of {', '.join(choices)}"
    else:
        return invalid(field or None, f"{field or 'the request'} is wrong: {text}")
    last = next((name for name in reversed(names) if not name.startswith("[")), "")
    if last in ID_FIELDS and got in ("int", "float"):
        write = "" if wrong is _UNREAD else f', write "{wrong}"'
        return invalid(field, f"{field} must be a string{write}: {WHY_STRINGS}", limit="a string")
    if "matching" in expected:
        expected = "a message id like Msg-0000000000000001" if last == "message_id" else "a decimal number in a string"
    if wrong is _UNREAD or "secret" in last:
        return invalid(field or None, f"{field or 'the request'} must be {expected}", limit=expected)
    if not field:
        # Not the value: a body of the wrong kind is often a whole message, and logs of clients keep the error.
        return invalid(None, f"the request must be {expected}, not {_KINDS.get(got, 'another value')}", limit=expected)
    shown = _json(wrong)
    return invalid(field, f"{field} must be {expected}, not {shown}", value=shown, limit=expected)


_OUT_OF_RANGE = frozenset({"Number out of range", "Integer value out of range"})
"""Texts of msgspec for numbers in JSON that neither an integer of its parser nor a double holds."""
_KINDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "datetime": "a time with its offset from UTC, like 2027-01-31T09:00:00Z",
}


def _limit(expected: str) -> str:
    """Return the words for an expectation of msgspec: ``int >= 0`` becomes ``an integer >= 0``."""
    kinds, *rest = re.split(r"(?= (?:[<>]=?|of length|matching|with) )", expected, maxsplit=1)
    words = " or ".join(_KINDS.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))
    return words + "".join(rest).replace(".0", "")


def _value_at(value: Any, names: list[str], field: str) -> tuple[Any, str]:
    """Return the wrong value and its full name. For a map, msgspec does not say which value is wrong."""
    for name in names:
        if value is _UNREAD:
            break
        if name == "[...]" and isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            key = next((key for key, entry in entries.items() if not isinstance(entry, str)), None)
            if key is None:
                return entries, field
            return entries[key], field.replace("[...]", f".{key[:_MAX_SHOWN]}")
        try:
            value = value[int(name[1:-1])] if name.startswith("[") else value[name]
        except (LookupError, ValueError, TypeError):
            return None, field
    return value, field


def _fields_at(kind: Any, names: list[str]) -> list[str]:
    """Return the names of the fields of the object at a path of a type."""
    info = _part(_info_at(kind, names), msgspec.inspect.StructType)
    return [] if info is None else [field.encode_name for field in info.fields]


def _choices_at(kind: Any, names: list[str]) -> list[str]:
    """Return the strings of which a value at a path of a type must be one; empty if it has no such list."""
    info = _part(_info_at(kind, names), msgspec.inspect.LiteralType)
    return [] if info is None else [str(choice) for choice in info.values]


def _info_at(kind: Any, names: list[str]) -> Any:
    info: Any = msgspec.inspect.type_info(kind)
    for name in names:
        if name.startswith("["):
            info = _part(info, msgspec.inspect.ListType)
            info = None if info is None else info.item_type
        else:
            info = _part(info, msgspec.inspect.StructType)
            fields = () if info is None else info.fields
            info = next((field.type for field in fields if field.encode_name == name), None)
    return info


def _part(info: Any, wanted: type[Any]) -> Any:
    """Return the part of a type that is a list, an object or a choice: without its metadata, and without null."""
    if isinstance(info, msgspec.inspect.Metadata):
        return _part(info.type, wanted)
    if isinstance(info, msgspec.inspect.UnionType):
        return next((part for kind in info.types if (part := _part(kind, wanted)) is not None), None)
    return info if isinstance(info, wanted) else None


@cache
def _query_fields(kind: Any) -> Mapping[str, bool]:
    """Return the parameters of a query, and whether each is a list. Remembered: the inspection takes 20 us and more."""
    fields = msgspec.structs.fields(kind)
    return {
        field.encode_name: _part(msgspec.inspect.type_info(field.type), msgspec.inspect.ListType) is not None
        for field in fields
    }


@cache
def _moments(kind: Any) -> tuple[str, ...]:
    """Return the fields of a request that are times."""
    fields = msgspec.structs.fields(kind)
    return tuple(
        field.name
        for field in fields
        if _part(msgspec.inspect.type_info(field.type), msgspec.inspect.DateTimeType) is not None
    )


@cache
def _max_strings(kind: Any) -> int:
    """Return the largest number of strings in the JSON of a type, the names of fields included."""
    return _strings_of(msgspec.inspect.type_info(kind))


def _strings_of(info: msgspec.inspect.Type) -> int:
    match info:
        case msgspec.inspect.Metadata():
            return _strings_of(info.type)
        case msgspec.inspect.UnionType():
            return max(map(_strings_of, info.types))
        case msgspec.inspect.StructType():
            return sum(1 + _strings_of(field.type) for field in info.fields)
        case msgspec.inspect.ListType():
            assert info.max_length is not None, "a list in a request has a limit"
            return info.max_length * _strings_of(info.item_type)
        case msgspec.inspect.DictType():
            return (_MAX_HEADERS if info.max_length is None else info.max_length) * (1 + _strings_of(info.value_type))
        case _:
            return 1


def _known(fields: Sequence[str]) -> str:
    return f"known are {', '.join(fields)}" if fields else "there are none"


def _shown(text: str) -> str:
    return _json(text)


def _json(value: Any) -> str:
    """Return a value for an error, cut short."""
    try:
        shown = msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, RecursionError, msgspec.EncodeError):
        shown = "a value that JSON lacks"
    return shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "..."
