"""Attributes in JSON: fields of requests and replies, made from their declarations.

Ranges and defaults stand in the OpenAPI document alone. The broker checks the values: its refusal has a sentence for
the field, and the gateway's own would not.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from cmqd_gateway.rest.values import BindingKey, Count, Seconds, Tag
from cmqd_types.declared import Attribute, Unit

StructT = TypeVar("StructT", bound=Struct)

ITEMS: Mapping[str, Any] = {"filter_tags": Tag, "binding_keys": BindingKey}
"""Types of the texts in a list."""


def with_attributes(
    base: type[StructT], declared: Mapping[str, Attribute], omitted: Literal["unset", "null", "never"] = "unset"
) -> type[StructT]:
    """Return a struct with the fields of ``base`` and a field for each attribute.

    Args:
        base: the root of requests or replies.
        declared: the attributes by name.
        omitted: value of a field that a request omits; ``null`` can also be given. ``never`` = the field is required.
    """
    nothing: Any = {"unset": (UnsetType, UNSET), "null": (None, None), "never": ()}[omitted]
    fields: list[Any] = []
    for attribute in declared.values():
        kind: Any = _kind(attribute) | nothing[0] if nothing else _kind(attribute)
        fields.append((attribute.argument, Annotated[kind, described(attribute)], *nothing[1:]))
    made: Any = defstruct("Attributes", fields, bases=(base,), frozen=True, kw_only=True)
    return made


def described(attribute: Attribute) -> Meta:
    """Return description, range and default of an attribute for the OpenAPI document, and the parts of a form field."""
    schema: dict[str, Any] = {
        "title": attribute.label,
        "x-hint": _sentences(attribute.help + ("; fixed at creation" if attribute.is_fixed else ""), attribute).replace(
            "`", ""
        ),
        "x-unit": "seconds" if attribute.unit is Unit.MILLISECONDS else attribute.unit.value,
        "x-default": in_json(attribute, attribute.default),
    }
    if attribute.is_number:
        schema |= {"minimum": in_json(attribute, attribute.low), "maximum": in_json(attribute, attribute.high)}
    if attribute.zero:
        schema |= {"x-zero": attribute.zero, "x-least": in_json(attribute, attribute.least)}
    if attribute.is_fixed:
        schema["x-fixed"] = True
    unit = {Unit.MILLISECONDS: "in seconds, ", Unit.BYTES: "in bytes, "}.get(attribute.unit, "")
    limits = attribute.limits(lambda each, number: f"{in_json(each, number):,}", marks="`", joint="-")
    return Meta(description=_sentences(f"{attribute.help}; {unit}{limits}", attribute), extra_json_schema=schema)


def _sentences(first: str, attribute: Attribute) -> str:
    return f"{first}. {attribute.details}".strip()


def in_json(attribute: Attribute, value: Any) -> Any:
    """Return a value of an attribute in the units of JSON."""
    if attribute.unit is not Unit.MILLISECONDS:
        return value
    return value // 1000 if value % 1000 == 0 else value / 1000


def filled(kind: type[StructT], attributes: Mapping[str, Any]) -> StructT:
    """Return the attributes of an object as a reply.

    An attribute that this API lacks is left out: a reply must not fail after the change was made.
    """
    return kind(**{name: attributes[name] for name in kind.__struct_fields__ if name in attributes})


def set_fields(attributes: Struct) -> Any:
    """Return the fields that a request has, as arguments of a call of the client."""
    return {name: value for name, value in structs.asdict(attributes).items() if value is not UNSET}


def _kind(attribute: Attribute) -> Any:
    match attribute.unit:
        case Unit.MILLISECONDS:
            return Seconds
        case Unit.BYTES | Unit.COUNT:
            return Count
        case Unit.SWITCH:
            return bool
        case Unit.NAME | Unit.TEXT:
            return str
        case Unit.CHOICE:
            return Literal[attribute.choices]
        case Unit.TEXTS:
            return Annotated[list[ITEMS[attribute.name]], Meta(max_length=attribute.high)]
