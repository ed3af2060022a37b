"""Parameters of an operation: their ranges, and the reading of values into the typed request.

A request of an operation is a Struct; its fields are the parameters. The type of a field is its kind: text, bytes, a
number, a list of these, or a Struct that the door makes. Annotations have the ranges, with the reason of the refusal.
A door gives each parameter its own name, which stands in the texts of refusals.
"""

import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from cmqd_gateway.cmq.reasons import Reason, Refusal
from cmqd_types.declared import Attribute, Unit

MAX_BATCH: Final = 16
_NAME = re.compile(r"[A-Za-z0-9_-]*")

R = TypeVar("R", bound="OperationRequest")


class OperationRequest(msgspec.Struct, frozen=True):
    """The parameters of an operation; each operation has a Struct of this kind."""


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


def camel(field: str) -> str:
    """Return the parameter of a field of a request, in API 2.0: ``queueName`` for ``queue_name``.

    A field of an object is ``object.field``.
    """
    whole, dot, part = field.partition(".")
    if dot:
        return f"{camel(part)} of {camel(whole)}"
    first, *others = field.split("_")
    return first + "".join([word.capitalize() for word in others])


QueueName: TypeAlias = Annotated[str, Name(1, 64, Reason.QUEUE_NAME)]


# ---------------------------------------------------------------------- reading


class Field(msgspec.Struct, frozen=True):
    """A parameter of an operation."""

    name: str
    """The field of the request."""
    kind: Any
    """``str``, ``bytes``, ``int``, ``float`` or a Struct; of a list, the kind of its entries."""
    checks: tuple[Whole | Size | Name, ...]
    items: Items | None
    """For a list, the range of its length."""
    is_required: bool

    def checked(self, shown: str, value: Any) -> Any:
        """Return a value of the right kind, if it is in the range.

        Args:
            shown: the door's name of the parameter.
            value: the value; of a list, an entry.

        Raises:
            Refusal: the value is out of range.
        """
        for check in self.checks:
            if isinstance(check, Whole):
                if not check.low <= value <= check.high:
                    raise Refusal(check.reason, f"{shown} is {value}; the range is {check.low} to {check.high}")
            elif isinstance(check, Name):
                if not check.low <= len(value) <= check.high or not _NAME.fullmatch(value):
                    raise Refusal(
                        check.reason,
                        f"{shown} is {value[:80]!r}; it must be {check.low} to {check.high} letters, digits, - or _",
                    )
            else:
                length = len(value.encode() if self.kind is str else value)
                if not check.low <= length <= check.high:
                    limits = f"{check.low} to {check.high}"
                    raise Refusal(check.reason, f"{shown} has {length} bytes; the range is {limits}")
        return value

    def check_count(self, shown: str, count: int) -> None:
        """Check the length of a list.

        Raises:
            Refusal: the length is out of range.
        """
        items = self.items
        if items is not None and not items.low <= count <= items.high:
            raise Refusal(items.reason, f"{shown} has {count} entries; the range is {items.low} to {items.high}")


def fields_of(request_type: type[OperationRequest]) -> list[Field]:
    """Return the parameters of an operation."""
    hints = get_type_hints(request_type, include_extras=True)
    return [
        _field(field.name, hints[field.name], is_required=field.required)
        for field in msgspec.structs.fields(request_type)
    ]


class TypedReader:
    """Reads parameters that are Python values: text, bytes, numbers, and lists of these."""

    def __init__(
        self, request_type: type[OperationRequest], names: Mapping[str, str] | Callable[[str], str] = camel
    ) -> None:
        """Make a reader.

        Args:
            request_type: of the operation.
            names: the door's name of each field of the request.
        """
        self._type = request_type
        shown = names if callable(names) else names.__getitem__
        self._fields = [(shown(field.name), field) for field in fields_of(request_type)]
        self.names = frozenset(name for name, _ in self._fields)
        """The door's names of all parameters."""

    def read(self, values: Mapping[str, Any]) -> OperationRequest:
        """Return the typed request; other names are ignored, and None is a parameter left out.

        Args:
            values: by the door's names. Text and bytes may stand for one another.

        Raises:
            Refusal: a parameter is missing, of the wrong kind or out of range.
        """
        request: dict[str, Any] = {}
        for name, field in self._fields:
            value = values.get(name)
            if value is None:
                if field.is_required:
                    raise Refusal(Reason.MISSING_PARAMETER, name)
            elif field.items is None:
                request[field.name] = field.checked(name, _converted(field.kind, name, value))
            elif isinstance(value, list):
                entries = cast("list[Any]", value)
                field.check_count(name, len(entries))
                request[field.name] = [
                    field.checked(shown, _converted(field.kind, shown, entry))
                    for shown, entry in ((f"{name}.{index}", entry) for index, entry in enumerate(entries))
                ]
            else:
                raise Refusal(Reason.WRONG_TYPE, f"{name} is {_described(value)}; it must be a list")
        return self._type(**request)


def _converted(kind: Any, name: str, value: Any) -> Any:
    """Return a value as a value of this kind."""
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return value
    if kind is bytes and isinstance(value, str):
        return value.encode()
    if kind is str and isinstance(value, bytes):
        return text_value(name, value)
    raise Refusal(Reason.WRONG_TYPE, f"{name} is {_described(value)}; it must be {_KINDS.get(kind, 'an object')}")


def text_value(name: str, value: bytes) -> str:
    """Return a value as text.

    Raises:
        Refusal: the value is not UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Refusal(Reason.WRONG_TYPE, f"{name} is not UTF-8") from None


_KINDS: Final[Mapping[Any, str]] = {str: "text", bytes: "text", int: "a whole number", float: "a number"}


def _described(value: Any) -> str:
    """Return a value of a wrong kind for the text of a refusal, in a few characters."""
    if isinstance(value, (str, bytes)):
        return repr(value[:40])
    if isinstance(value, (bool, int, float)):
        return repr(value)[:40]
    return "a list" if isinstance(value, list) else "an object"


def _field(name: str, hint: Any, *, is_required: bool) -> Field:
    kind, metadata = _unwrapped(hint)
    items = next((data for data in metadata if isinstance(data, Items)), None)
    if get_origin(kind) is list:
        items = items or Items()
        kind, more = _unwrapped(get_args(kind)[0])
        metadata += more
    checks = tuple(data for data in metadata if isinstance(data, (Whole, Size, Name)))
    return Field(name, kind, checks, items, is_required)


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
