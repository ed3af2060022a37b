"""Amounts that limits bound: connections, and bytes of heads and bodies.

Several gateway processes of one setting bound their amounts together: see :mod:`cmqd_gateway.processes.shared_memory`.
"""


class Amount:
    """An amount that this process holds."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        """Make an amount of 0."""
        self._held = 0

    @property
    def held(self) -> int:
        """The part of this process."""
        return self._held

    def add(self, amount: int) -> None:
        """Hold more, or with a negative number less. No limit is asked."""
        self._held += amount

    def take(self, amount: int, limit: int) -> bool:
        """Hold more; False if all processes together would hold more than ``limit``."""
        if self._held + amount > limit:
            return False
        self._held += amount
        return True
