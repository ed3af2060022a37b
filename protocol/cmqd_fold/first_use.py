"""Parts of an object that are made at their first use.

A broker may have 100,000 queues, most of them quiet. A slot without a value takes eight bytes, and its read comes to
``__getattr__``, which makes the part. A slot with a value is read as fast as any other, so busy queues pay nothing.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class MadeAtFirstUse:
    """Base of a class with such slots."""

    __slots__ = ("made",)

    makers: ClassVar[Mapping[str, tuple[int, Callable[[Any], object]]]]
    """By the name of a slot: a bit of its own, and the function that makes the part, from the object."""
    made: int
    """Bits of the parts that are made; 0 = none. The constructor of the class sets it to 0."""

    if not TYPE_CHECKING:  # else every name would pass for an attribute

        def __getattr__(self, name):
            maker = self.makers.get(name)
            if maker is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            part = maker[1](self)
            setattr(self, name, part)
            self.made |= maker[0]
            return part

    def is_made(self, name: str) -> bool:
        """Return whether a part is made, for calls that would make the part in vain."""
        return self.made & self.makers[name][0] != 0

    def unmake(self, name: str) -> None:
        """Forget a part that is made; its next use makes the part anew."""
        delattr(self, name)
        self.made ^= self.makers[name][0]
