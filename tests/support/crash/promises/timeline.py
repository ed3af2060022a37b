"""Operations in the order of their calls, found by time without a search through all: histories are long."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from support.crash.promises.history import Operation

AnOperation = TypeVar("AnOperation", bound=Operation)


@dataclass(slots=True)
class Timeline(Generic[AnOperation]):
    """Operations, appended in the order of their calls."""

    operations: list[AnOperation] = field(default_factory=list[AnOperation])
    _called_ns: list[int] = field(default_factory=list[int])
    _latest_ns: list[int] = field(default_factory=list[int])
    """For each operation the latest answer so far: the first value from a time on belongs to an operation with an
    answer from that time on."""

    def append(self, operation: AnOperation) -> None:
        """Add an operation that was called after all others."""
        self.operations.append(operation)
        self._called_ns.append(operation.called_ns)
        latest_ns = self._latest_ns[-1] if self._latest_ns else operation.answered_ns
        self._latest_ns.append(max(latest_ns, operation.answered_ns))

    def answered_from(self, at_ns: float) -> int:
        """Return the index of the first operation that was answered at or after a time."""
        return bisect_left(self._latest_ns, at_ns)

    def called_until(self, at_ns: float) -> int:
        """Return the index behind the last operation that was called at or before a time."""
        return bisect_right(self._called_ns, at_ns)

    def called_before(self, at_ns: float) -> int:
        """Return the index behind the last operation that was called before a time."""
        return bisect_left(self._called_ns, at_ns)

    def overlapping(self, from_ns: float, until_ns: float) -> Iterator[int]:
        """Yield the index of each operation that was under way at some moment of an interval."""
        for index in range(self.answered_from(from_ns), self.called_until(until_ns)):
            if self.operations[index].answered_ns >= from_ns:
                yield index
