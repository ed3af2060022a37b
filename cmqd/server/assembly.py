"""Assembly: fills the parameters of a part's constructor with the parts and values that were made before it.

A parameter is filled by its type, if a part of that type was made. Values, functions and numbers have no type of their
own, and are filled by name: ``now_ms`` and ``schedule`` mean the same in every part. An argument that is given comes
first, and a parameter with a default needs nothing.

Parts are therefore made in the order of their needs, and no caller repeats the needs that a part declares. The order is
``cmqd.server.wiring``, and so are the circles, which no order can solve.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar, cast

_T = TypeVar("_T")


@cache  # reading signatures was a third of the time of making a server, and a test makes a server or several
def _needs(kind: Callable[..., object]) -> Sequence[tuple[str, object, bool]]:
    """Return name, type and whether it has a default, of each parameter."""
    parameters = inspect.signature(kind, eval_str=True).parameters.values()
    return [(each.name, each.annotation, each.default is not each.empty) for each in parameters]


class IncompleteError(Exception):
    """A part needs a part or a value that was not made before it."""


class Assembly:
    """The parts that were made so far; see the module."""

    def __init__(self, **values: object) -> None:
        """Take values by name."""
        self._parts: dict[object, object] = {}
        self._values = values

    def __repr__(self) -> str:
        return f"<Assembly {len(self._parts)} parts>"

    def add(self, part: _T, *interfaces: object) -> _T:
        """Take a part that was made elsewhere; parameters of its class, or of an interface, are filled with the part.

        An interface with a part takes the new part: a gate for the leader replaces the plain gate.
        """
        for kind in (type(part), *interfaces):
            self._parts[kind] = part
        return part

    def name(self, **values: object) -> None:
        """Take further values by name."""
        self._values |= values

    def get(self, kind: type[_T]) -> _T:
        """Return the part of a class; there must be one."""
        return cast("_T", self._parts[kind])

    def make(self, kind: Callable[..., _T], **given: object) -> _T:
        """Make a part, or call a function with the parameters of a part; keep and return the result.

        Args:
            kind: the class of the part, or the function.
            given: arguments that this part alone gets.

        Raises:
            IncompleteError: a parameter has no part, no value and no default.
        """
        arguments = given
        for name, type_, has_default in _needs(kind):
            if name in given:
                continue
            if type_ in self._parts:
                arguments = arguments | {name: self._parts[type_]}
            elif name in self._values:
                arguments = arguments | {name: self._values[name]}
            elif not has_default:
                needed = inspect.formatannotation(type_)
                raise IncompleteError(
                    f"{kind.__name__} needs {name}: {needed}, and no such part or value was made before it"
                )
        made = kind(**arguments)
        self._parts[kind] = made
        return made
