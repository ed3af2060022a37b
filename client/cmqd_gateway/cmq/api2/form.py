"""Forms of API 2.0: their decoding, and the reading of parameters into the typed request of an operation.

A list stands in the form as ``name.0``, ``name.1`` ... or from 1 on.
"""

import binascii
import re
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from cmqd_gateway.cmq.parameters import Field, OperationRequest, camel, fields_of, text_value
from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_gateway.http.turns import at_once

MAX_PARAMETERS: Final = 256
"""Parameters of a request, known or not. The largest known request has about 30."""
MAX_NAME_BYTES: Final = 128

_SLICE: Final = 16_384
"""Bytes that are decoded at once: 1.7 ms for percent signs alone, 0.2 ms for escapes."""
_MALFORMED_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_WHOLE = re.compile(rb"-?[0-9]{1,20}")

Form = dict[str, bytes]
"""Decoded parameters: names, and values as bytes, in the order of the request."""


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
    return None if value is None else text_value(name, value)


def whole_of(form: Mapping[str, bytes], name: str) -> int:
    """Return a required parameter as a whole number.

    Raises:
        Refusal: the parameter is missing or no number.
    """
    value = form.get(name)
    if not value:
        raise Refusal(Reason.MISSING_PARAMETERS, name)
    return whole_value(name, value)


# ---------------------------------------------------------------------- typed requests


class FormField(msgspec.Struct, frozen=True):
    """A parameter in a form."""

    name: str
    """The name in the form."""
    twins: tuple[str, ...]
    """Further spellings, for a form without the name."""
    field: Field
    convert: Callable[[str, bytes], Any]
    may_be_empty: bool
    """False for a parameter whose empty value is a value left out: SDKs send such values for options that the program
    left out."""


class FormReader:
    """Reads a form into the request of an operation."""

    def __init__(
        self,
        request_type: type[OperationRequest],
        twins: Mapping[str, str] = MappingProxyType({}),
        converters: Mapping[str, Callable[[str, bytes], Any]] = MappingProxyType({}),
    ) -> None:
        """Make a reader.

        Args:
            request_type: of the operation.
            twins: further spellings of parameters, with the names that they stand for.
            converters: make the values of these fields, from the name in the form and the value.
        """
        self._type = request_type
        self.fields: list[FormField] = []
        """The parameters."""
        for field in fields_of(request_type):
            name = camel(field.name)
            spellings = tuple(twin for twin, meant in twins.items() if meant == name)
            convert = converters.get(field.name) or _CONVERTERS[field.kind]
            may_be_empty = field.kind not in (str, int, float)
            self.fields.append(FormField(name, spellings, field, convert, may_be_empty))
        self._list_names = {name for each in self.fields if each.field.items for name in (each.name, *each.twins)}
        self._single_names = {name for each in self.fields if not each.field.items for name in (each.name, *each.twins)}

    def read(self, form: Form) -> OperationRequest:
        """Return the typed request; parameters that the operation does not know are ignored.

        Raises:
            Refusal: a parameter is missing, of the wrong type or out of range.
        """
        lists = self._collect_lists(form)
        request: dict[str, Any] = {}
        for each in self.fields:
            field, name = each.field, each.name
            if field.items is not None:
                given = next((spelling for spelling in (name, *each.twins) if spelling in lists), None)
                if given is not None:
                    request[field.name] = _read_list(each, given, lists[given])
                elif field.is_required:
                    raise Refusal(Reason.MISSING_PARAMETER, f"{name}.n")
                continue
            value = form.get(name)
            if not value:
                if each.twins:
                    name, value = next(((twin, form[twin]) for twin in each.twins if form.get(twin)), (name, value))
                if value is None or not (value or each.may_be_empty):
                    if field.is_required:
                        raise Refusal(Reason.MISSING_PARAMETER, name)
                    continue
            converted = each.convert(name, value)
            request[field.name] = None if converted is None else field.checked(name, converted)
        return self._type(**request)

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


def _read_list(each: FormField, name: str, entries: dict[int, bytes]) -> list[Any]:
    each.field.check_count(name, len(entries))
    indexes = sorted(entries)
    if indexes[0] > 1 or indexes[-1] - indexes[0] != len(indexes) - 1:
        raise Refusal(
            Reason.NOT_CONSECUTIVE,
            f"the indexes of {name} are {', '.join(map(str, indexes))}; they must be consecutive and begin with 0 or 1",
        )
    numbered = [(f"{name}.{index}", entries[index]) for index in indexes]
    return [each.field.checked(shown, each.convert(shown, value)) for shown, value in numbered]


def _to_bytes(name: str, value: bytes) -> bytes:
    return value


def whole_value(name: str, value: bytes) -> int:
    """Return a value as a whole number.

    Raises:
        Refusal: the value is no whole number.
    """
    if not _WHOLE.fullmatch(value):
        raise Refusal(Reason.WRONG_TYPE, f"{name} is {text_value(name, value)[:40]!r}; it must be a whole number")
    return int(value)


_CONVERTERS: Final[Mapping[Any, Callable[[str, bytes], Any]]] = {
    str: text_value,
    bytes: _to_bytes,
    int: whole_value,
    float: whole_value,
}
