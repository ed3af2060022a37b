"""Parameters of a request: the decoding of forms, and the reading of parameters into the typed request of an action.

A request of an action is a Struct; its fields are the parameters, in the lower-camel names of CMQ. The type of a field
is its kind: text, bytes, a whole number, or a list of these, which stands in the form as ``name.0``, ``name.1`` ... or
from 1 on. Annotations have the ranges, with the reason of the refusal.
"""

import binascii
import re
import types
from collections.abc import Callable, Generator, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.http.turns import at_once
from cmqd_types.declared import Attribute, Unit

MAX_PARAMETERS: Final = 256
"""Parameters of a request, known or not. The largest known request has about 30."""
MAX_NAME_BYTES: Final = 128
MAX_BATCH: Final = 16

_SLICE: Final = 16_384
"""Bytes that are decoded at once: 1.7 ms for percent signs alone, 0.2 ms for escapes."""
_MALFORMED_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9_-]*")
_WHOLE = re.compile(rb"-?[0-9]{1,20}")

Form = dict[str, bytes]
"""Decoded parameters: names, and values as bytes, in the order of the request."""
R = TypeVar("R", bound="ActionRequest")


class ActionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of an action; each action has a Struct of this kind."""


class Whole(msgspec.Struct, frozen=True):
    """Range of a whole number."""

    low: int
    high: int
    reason: Reason = Reason.OUT_OF_RANGE


class Size(msgspec.Struct, frozen=True):
    """Range of the length of a text or body in bytes."""

    low: int
    high: int
    reason: Reason = Reason.OUT_OF_RANGE


class Name(msgspec.Struct, frozen=True):
    """Form of a name: ASCII letters, digits, ``-`` and ``_``, in this number of bytes."""

    low: int
    high: int
    reason: Reason


class Items(msgspec.Struct, frozen=True):
    """Range of the number of entries of a list."""

    low: int = 1
    high: int = MAX_BATCH
    reason: Reason = Reason.BATCH_SIZE


def with_parameters(base: type[R], attributes: Mapping[str, Attribute]) -> type[R]:
    """Return a request with the parameters of ``base`` and an optional whole number for each attribute, by field."""
    kinds: dict[str, Any] = {field: Annotated[int, range_of(attribute)] for field, attribute in attributes.items()}
    fields = [(field, kind | None, None) for field, kind in kinds.items()]
    made: Any = msgspec.defstruct("Attributes", fields, bases=(base,), frozen=True)
    return made


def parameter_field(name: str) -> str:
    """Return the field of a request for a parameter."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def range_of(attribute: Attribute) -> Whole:
    """Return the range of an attribute in the units of CMQ, without a 0 that switches the attribute off."""
    factor = 1000 if attribute.unit is Unit.MILLISECONDS else 1
    return Whole((attribute.least or attribute.low) // factor, attribute.high // factor)


QueueName: TypeAlias = Annotated[str, Name(1, 64, Reason.QUEUE_NAME)]


def parse_form(*parts: bytes) -> Form:
    """Decode the query string and the body of a request.

    Raises:
        Refusal: there are too many parameters, a name is given twice or is malformed.
    """
    return at_once(form_steps(*parts))


def form_steps(*parts: bytes) -> Generator[None, None, Form]:
    """Decode like :func:`parse_form`, in pieces of about a millisecond with a yield behind each piece.

    A form of 4 MiB takes up to half a second, and its sender may be a stranger.
    """
    form: Form = {}
    if sum([part.count(b"&") for part in parts]) >= MAX_PARAMETERS:
        raise Refusal(Reason.KEY_FORMAT, f"the request has more than {MAX_PARAMETERS} parameters")
    since_yield = 0
    for part in parts:
        is_large = len(part) > _SLICE
        if is_large:
            # Each look over, and each copy of, 4 MiB is a step of its own.
            yield
        # A separator is neither "+" nor " ", so a single call decodes the spaces of all parameters.
        pieces = (part if is_large else part.replace(b"+", b" ")).split(b"&")
        if is_large:
            yield
        for piece in pieces:
            if not piece:
                continue
            raw_name, _, raw_value = piece.partition(b"=")
            if len(raw_name) > 3 * MAX_NAME_BYTES:
                raise Refusal(Reason.KEY_FORMAT, f"the name of a parameter is longer than {MAX_NAME_BYTES} bytes")
            if is_large:
                raw_name = raw_name.replace(b"+", b" ")
            try:
                name = (_unquoted(raw_name) if b"%" in raw_name else raw_name).decode()
            except UnicodeDecodeError:
                raise Refusal(Reason.KEY_FORMAT, "the name of a parameter is not UTF-8") from None
            if name in form:
                raise Refusal(Reason.NOT_REPEATABLE, f"the parameter {name[:80]!r} is given twice")
            if is_large:
                form[name] = yield from _value_steps(raw_value)
                since_yield += len(piece)
                if since_yield > _SLICE:
                    since_yield = 0
                    yield
            else:
                form[name] = _unquoted(raw_value) if b"%" in raw_value else raw_value
    return form


def _value_steps(raw: bytes) -> Generator[None, None, bytes]:
    """Decode a value of a large form, in slices."""
    if len(raw) <= _SLICE or (b"%" not in raw and b"+" not in raw):
        return _value(raw)
    yield
    decoded: list[bytes] = []
    start = 0
    while len(raw) - start > _SLICE:
        end = start + _SLICE
        # No escape is cut: an escape has no second percent sign, so a cut before the sign is safe.
        if raw[end - 1 : end] == b"%":
            end -= 1
        elif raw[end - 2 : end - 1] == b"%":
            end -= 2
        decoded.append(_value(raw[start:end]))
        start = end
        yield
    decoded.append(_value(raw[start:]))
    yield
    return b"".join(decoded)


def _value(raw: bytes) -> bytes:
    raw = raw.replace(b"+", b" ")
    return _unquoted(raw) if b"%" in raw else raw


def _unquoted(raw: bytes) -> bytes:
    """Decode the escapes of a name or value."""
    # A percent sign without two digits stands for itself.
    raw = _MALFORMED_ESCAPE.sub(b"%25", raw)
    # A form of 1 MiB may consist of escapes alone. Decoding quoted-printable, which has the same escapes after "=", is
    # compiled code and takes a hundredth of the time of urllib.
    return binascii.a2b_qp(raw.replace(b"=", b"=3D").replace(b"%", b"="))


def text_of(form: Mapping[str, bytes], name: str) -> str | None:
    """Return a parameter as text, None without the parameter.

    Raises:
        Refusal: the value is not UTF-8.
    """
    value = form.get(name)
    return None if value is None else _to_text(name, value)


def whole_of(form: Mapping[str, bytes], name: str) -> int:
    """Return a required parameter as a whole number.

    Raises:
        Refusal: the parameter is missing or no number.
    """
    value = form.get(name)
    if not value:
        raise Refusal(Reason.MISSING_PARAMETERS, name)
    return _to_whole(name, value)


# ---------------------------------------------------------------------- typed requests


class _Field(msgspec.Struct, frozen=True):
    name: str
    """The name in the form."""
    attribute: str
    """The name in the Struct."""
    convert: Callable[[str, bytes], Any]
    checks: tuple[Whole | Size | Name, ...]
    items: Items | None
    """For a list, the range of its length."""
    is_required: bool


class RequestReader:
    """Reads the form of a request into the Struct of an action."""

    def __init__(self, request_type: type[ActionRequest]) -> None:
        self._type = request_type
        hints = get_type_hints(request_type, include_extras=True)
        self._fields = [
            _field(field.encode_name, field.name, hints[field.name], is_required=field.required)
            for field in msgspec.structs.fields(request_type)
        ]
        self._list_names = {field.name for field in self._fields if field.items is not None}
        self._single_names = {field.name for field in self._fields if field.items is None}

    def read(self, form: Form) -> ActionRequest:
        """Return the typed request; parameters that the action does not know are ignored.

        Raises:
            Refusal: a parameter is missing, of the wrong type or out of range.
        """
        lists = self._collect_lists(form)
        values: dict[str, Any] = {}
        for field in self._fields:
            if field.items is not None:
                entries = lists.get(field.name)
                if entries is None:
                    if field.is_required:
                        raise Refusal(Reason.MISSING_PARAMETER, f"{field.name}.n")
                    continue
                values[field.attribute] = _read_list(field, field.items, entries)
                continue
            value = form.get(field.name)
            if value is None or (not value and field.convert is not _to_bytes):
                # SDKs send empty values for options that the program left out.
                if field.is_required:
                    raise Refusal(Reason.MISSING_PARAMETER, field.name)
                continue
            values[field.attribute] = _checked(field, field.name, value)
        return self._type(**values)

    def _collect_lists(self, form: Form) -> dict[str, dict[int, bytes]]:
        lists: dict[str, dict[int, bytes]] = {}
        for key, value in form.items():
            if "." not in key and key not in self._list_names:
                # Most parameters of most requests.
                continue
            name, dot, index = key.partition(".")
            if dot and name in self._single_names:
                raise Refusal(
                    Reason.NOT_REPEATABLE, f"the parameter {name} is not a list, but the request has {key[:80]!r}"
                )
            if name not in self._list_names:
                continue
            if not dot:
                index = "0"
            if not _INDEX.fullmatch(index):
                raise Refusal(Reason.KEY_FORMAT, f"{key[:80]!r} has no index; lists are {name}.1, {name}.2 ...")
            entries = lists.setdefault(name, {})
            if int(index) in entries:
                raise Refusal(Reason.KEY_FORMAT, f"the parameter {name} is given with and without an index")
            entries[int(index)] = value
        return lists


def _read_list(field: _Field, items: Items, entries: dict[int, bytes]) -> list[Any]:
    if not items.low <= len(entries) <= items.high:
        raise Refusal(
            items.reason, f"{field.name} has {len(entries)} entries; the range is {items.low} to {items.high}"
        )
    indexes = sorted(entries)
    if indexes[0] > 1 or indexes[-1] - indexes[0] != len(indexes) - 1:
        raise Refusal(
            Reason.NOT_CONSECUTIVE,
            f"the indexes of {field.name} are {', '.join(map(str, indexes))}; they must be consecutive"
            " and begin with 0 or 1",
        )
    return [_checked(field, f"{field.name}.{index}", entries[index]) for index in indexes]


def _checked(field: _Field, name: str, value: bytes) -> Any:
    converted = field.convert(name, value)
    for check in field.checks:
        if isinstance(check, Whole):
            if not check.low <= converted <= check.high:
                raise Refusal(check.reason, f"{name} is {converted}; the range is {check.low} to {check.high}")
        elif isinstance(check, Name):
            if not check.low <= len(value) <= check.high or not _NAME.fullmatch(converted):
                raise Refusal(
                    check.reason,
                    f"{name} is {converted[:80]!r}; it must be {check.low} to {check.high} letters, digits, - or _",
                )
        elif not check.low <= len(value) <= check.high:
            raise Refusal(
                check.reason,
                f"{name} has {len(value)} bytes; the range is {check.low} to {check.high}",
            )
    return converted


def _to_text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Refusal(Reason.WRONG_TYPE, f"{name} is not UTF-8") from None


def _to_bytes(name: str, value: bytes) -> bytes:
    return value


def _to_whole(name: str, value: bytes) -> int:
    if not _WHOLE.fullmatch(value):
        raise Refusal(Reason.WRONG_TYPE, f"{name} is {_to_text(name, value)[:40]!r}; it must be a whole number")
    return int(value)


_CONVERTERS: Final[Mapping[Any, Callable[[str, bytes], Any]]] = {str: _to_text, bytes: _to_bytes, int: _to_whole}


def _field(name: str, attribute: str, hint: Any, *, is_required: bool) -> _Field:
    kind, metadata = _unwrapped(hint)
    items = next((data for data in metadata if isinstance(data, Items)), None)
    if get_origin(kind) is list:
        items = items or Items()
        kind, more = _unwrapped(get_args(kind)[0])
        metadata += more
    checks = tuple(data for data in metadata if isinstance(data, (Whole, Size, Name)))
    return _Field(name, attribute, _CONVERTERS[kind], checks, items, is_required)


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type without ``Annotated`` and ``| None``, and the annotations."""
    metadata: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            metadata += more
        elif get_origin(hint) in (types.UnionType, Union):
            (hint,) = [part for part in get_args(hint) if part is not type(None)]
        else:
            return hint, metadata
