"""Parts of the server: classes whose constructor takes the fields by name, so that a part is declared once."""

import dataclasses
from typing import TypeVar, dataclass_transform

_C = TypeVar("_C")


@dataclass_transform(kw_only_default=True, eq_default=False)
def part(declared: type[_C]) -> type[_C]:
    """Make a class a part: its fields are the parts and values that it needs.

    Parts are equal only to themselves. They have no representation, because it would print all joined parts, with
    the bodies of messages.
    """
    return dataclasses.dataclass(kw_only=True, eq=False, repr=False)(declared)
