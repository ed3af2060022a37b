"""Options for attributes, made from their declarations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from cmq_cli.options import Bytes, Repeated
from cmq_cli.session import Seconds
from cmqd_types.declared import Attribute, Unit
from cmqd_types.units import DURATION, SIZE

T = TypeVar("T")


class AttributeOptions:
    """Root of the classes with a field for each attribute; see :func:`attribute_options`."""

    def given(self) -> Any:
        """Return the attributes that the command line sets, as arguments of a call of the client."""
        return {name: value for name, value in vars(self).items() if value is not None}


def attribute_options(declared: Iterable[Attribute]) -> Callable[[type[T]], type[T]]:
    """Give a class a field for each attribute, None by default, which is an option of a command."""
    options = {attribute.argument: _option(attribute) for attribute in declared}

    def decorate(kind: type[T]) -> type[T]:
        kind.__annotations__ = options
        for name in options:
            setattr(kind, name, None)
        return Parameter(name="*")(dataclass(frozen=True)(kind))

    return decorate


def option_help(attribute: Attribute) -> str:
    """Return the help of an option: meaning, range and default as they are typed."""
    limits = attribute.limits(_typed)
    return f"{attribute.help} ({limits.replace('_', '-') if attribute.choices else limits})."


def _typed(attribute: Attribute, number: int) -> str:
    unit = {Unit.MILLISECONDS: DURATION, Unit.BYTES: SIZE}.get(attribute.unit)
    return str(number) if unit is None or not number else unit.format(number)


def _option(attribute: Attribute) -> Any:
    text = option_help(attribute)
    match attribute.unit:
        case Unit.MILLISECONDS:
            return Annotated[Seconds | None, Parameter(help=text)]
        case Unit.BYTES:
            return Annotated[Bytes | None, Parameter(help=text)]
        case Unit.COUNT:
            return Annotated[int | None, Parameter(help=text)]
        case Unit.NAME | Unit.TEXT:
            return Annotated[str | None, Parameter(help=text)]
        case Unit.SWITCH if attribute.is_fixed:
            return Annotated[bool | None, Parameter(help=text, negative=())]
        case Unit.SWITCH:
            return Annotated[bool | None, Parameter(help=text)]
        case Unit.CHOICE:
            words = StrEnum(attribute.argument, {word.upper(): word for word in attribute.choices})
            return Annotated[words | None, Parameter(help=text)]
        case Unit.TEXTS:
            name = f"--{attribute.argument.removesuffix('s').replace('_', '-')}"
            return Annotated[Repeated, Parameter(name=name, help=f"{text} Can be repeated.")]
