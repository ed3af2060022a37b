"""Declarations of attributes: unit, range, defaults, meaning and the name in CMQ's API 2.0.

``attributes`` declares the attributes of queues, topics and subscriptions with the functions of this module. A
declaration stands in the annotation of a field, so type checkers see a plain ``int``, and the field's default is the
frozen one:

    retention_ms: Annotated[int, milliseconds(60_000, 1_296_000_000, label="Retention", help="...")] = 345_600_000

An attribute has two defaults. Disk leaves out a value that equals ``stored_default``, so a reader gives an absent value
this default for all time: changing it would change every stored queue that never set the attribute. ``default`` is the
value of a new queue, and may change with any release: ``milliseconds(..., default=604_800_000)``.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType, structs

Value: TypeAlias = int | str | bool | list[str]


class Unit(StrEnum):
    """Kind and unit of the values of an attribute."""

    MILLISECONDS = "ms"
    """A duration. The protocol's name ends in ``_ms``; the faces have seconds under the name without the ending."""
    BYTES = "bytes"
    COUNT = "count"
    SWITCH = "switch"
    """True or false."""
    NAME = "name"
    """The name of an object, or empty for none."""
    TEXT = "text"
    """A text that is not empty."""
    CHOICE = "choice"
    """One of several words."""
    TEXTS = "texts"
    """A list of texts."""


NUMBERS = (Unit.MILLISECONDS, Unit.BYTES, Unit.COUNT)


class Attribute(Struct, frozen=True, kw_only=True):
    """An attribute of a kind of object."""

    unit: Unit
    label: str
    """Its name for people, in a form."""
    help: str
    """Its meaning in a sentence without the full stop, for an option or a field of a form."""
    details: str = ""
    """Further sentences, for documents."""
    low: int = 0
    high: int = 0
    """Ends of the range of a number; the largest number of texts."""
    zero: str = ""
    """Meaning of 0, if 0 switches the attribute off."""
    least: int = 0
    """Smallest value other than 0, if 0 switches the attribute off."""
    choices: tuple[str, ...] = ()
    enumeration: type[StrEnum] | None = None
    """The choices with their meanings."""
    is_fixed: bool = False
    """True if only the request that creates the object sets the attribute."""
    cmq: str = ""
    """Parameter of API 2.0; empty = API 2.0 lacks the attribute."""
    default: Value | UnsetType = UNSET
    """Value in a new object; unset = the stored default."""
    stored_default: Value | UnsetType = UNSET
    """Value of an object whose stored attributes lack this one. Never changes."""
    default_text: str = ""
    """Default for readers, where the value says too little."""
    name: str = ""
    """Its name in the protocol and on disk."""

    @property
    def argument(self) -> str:
        """Name of the attribute in the faces, whose durations are seconds."""
        return self.name.removesuffix("_ms")

    @property
    def is_number(self) -> bool:
        """True for durations, sizes and counts."""
        return self.unit in NUMBERS

    def limits(self, shown: Callable[["Attribute", int], str], *, marks: str = "", joint: str = " to ") -> str:
        """Return range and default for readers, in the units of a face: ``1 s to 12 h, default 30 s``.

        Args:
            shown: returns a number in the units of the face.
            marks: characters around words of the protocol, such as backquotes.
            joint: text between the ends of a range.
        """
        default = self.default
        fixed = "; fixed at creation" if self.is_fixed else ""
        words = " or ".join(f"{marks}{word}{marks}" for word in self.choices)
        if self.default_text:
            return f"{words and words + ', '}default {self.default_text}{fixed}"
        if self.is_number:
            low = "" if self.zero and not self.least else shown(self, self.least or self.low)
            text = f"{low}{joint}{shown(self, self.high)}" if low else f"up to {shown(self, self.high)}"
            if self.zero:
                text += f"; 0 = {self.zero}"
                return text + (", the default" if default == 0 else f"; default {shown(self, int(str(default)))}")
            return text + (", the default" if default == self.high else f", default {shown(self, int(str(default)))}")
        if self.unit is Unit.CHOICE:
            return f"{words}, default {marks}{default}{marks}{fixed}"
        if self.unit is Unit.SWITCH:
            return f"default {str(default).lower()}{fixed}"
        if self.unit is Unit.TEXTS:
            return f"up to {self.high}, default none"
        return (f"default {default}" if default else "empty = none, the default") + fixed


def milliseconds(low: int, high: int, **rest: Any) -> Attribute:
    """Declare a duration."""
    return Attribute(unit=Unit.MILLISECONDS, low=low, high=high, **rest)


def size(low: int, high: int, **rest: Any) -> Attribute:
    """Declare a number of bytes."""
    return Attribute(unit=Unit.BYTES, low=low, high=high, **rest)


def count(low: int, high: int, **rest: Any) -> Attribute:
    """Declare a number of messages, receives and the like."""
    return Attribute(unit=Unit.COUNT, low=low, high=high, **rest)


def switch(**rest: Any) -> Attribute:
    """Declare an attribute that is true or false."""
    return Attribute(unit=Unit.SWITCH, **rest)


def name_of(**rest: Any) -> Attribute:
    """Declare the name of an object, or a URL."""
    return Attribute(unit=Unit.NAME, **rest)


def text(**rest: Any) -> Attribute:
    """Declare a text that is not empty."""
    return Attribute(unit=Unit.TEXT, **rest)


def choice(*words: str, **rest: Any) -> Attribute:
    """Declare a choice of words, or of the members of an enumeration."""
    kind = type(words[0])
    enumeration = kind if issubclass(kind, StrEnum) else None
    return Attribute(unit=Unit.CHOICE, choices=tuple(map(str, words)), enumeration=enumeration, **rest)


def texts(most: int, **rest: Any) -> Attribute:
    """Declare a list of texts."""
    return Attribute(unit=Unit.TEXTS, high=most, **rest)


def declared(kind: type[Struct]) -> dict[str, Attribute]:
    """Return the attributes that the annotations of a struct declare, by name, in their order."""
    attributes: dict[str, Attribute] = {}
    stored = structs.asdict(kind())
    for name, hint in get_type_hints(kind, include_extras=True).items():
        assert get_origin(hint) is Annotated, f"{kind.__name__}.{name} has no declaration"
        (attribute,) = (each for each in get_args(hint) if isinstance(each, Attribute))
        default = stored[name] if attribute.default is UNSET else attribute.default
        attributes[name] = structs.replace(attribute, name=name, stored_default=stored[name], default=default)
    return attributes
