"""Parts of the server: the constructor of a class takes the fields by name, so that a field is declared once."""

import dataclasses
from typing import TypeVar, dataclass_transform

_C = TypeVar("_C")


@dataclass_transform(kw_only_default=True, eq_default=False)
def part(declared: type[_C]) -> type[_C]:
    """Make a class a part: the constructor takes the fields, which are the parts and values that the class needs.

    Two parts are never equal. A part has no ``repr`` of its fields: the output would hold all joined parts, with the
    bodies of messages.
    """
    return dataclasses.dataclass(kw_only=True, eq=False, repr=False)(declared)
