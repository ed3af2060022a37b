"""Due times in coarse buckets, with lazy removal.

Deleting a lease or clearing a delay does not search the buckets: the stale entry stays until its bucket comes due, and
is dropped then. An entry is eight or sixteen bytes in an array.
(Hashed timing wheels, Varghese and Lauck 1987, with a heap over the few occupied buckets in place of the wheel.)
"""

from array import array
from collections.abc import Callable, Container
from heapq import heappop, heappush

_SWEEP_STEP = 2
"""Arrays examined in a step of a sweep. With 1, an array could be added per examined array, and no sweep would end."""


class DeadlineBuckets:
    """Numbers by due time and queue.

    Invariant: the heap holds each occupied bucket, and perhaps buckets that a sweep emptied. A number comes due at the
    end of its bucket, that is at its time or less than ``width_ms`` later, never earlier.
    """

    def __init__(self, width_ms: int) -> None:
        self.width_ms = width_ms
        self.size = 0
        """Numbers held, including stale numbers."""
        self._buckets: dict[int, dict[int, array[int]]] = {}
        self.heap: list[int] = []
        """Numbers of buckets. The first is due at its number times ``width_ms``; the agenda reads it."""
        self._sweep: list[tuple[int, int]] = []
        """(bucket, queue) of arrays that the sweep under way has not examined yet."""
        self._sweep_kept = 0

    def bucket(self, due_ms: int, queue_id: int) -> "array[int]":
        """Return the array for numbers due at ``due_ms``; the caller appends to the array and adds to ``size``."""
        number = -(-due_ms // self.width_ms)
        queues = self._buckets.get(number)
        if queues is None:
            queues = self._buckets[number] = {}
            heappush(self.heap, number)
        numbers = queues.get(queue_id)
        if numbers is None:
            numbers = queues[queue_id] = array("Q")
        return numbers

    def next_due_ms(self) -> int | None:
        """Return the time at which the first bucket comes due."""
        return self.heap[0] * self.width_ms if self.heap else None

    def between(self, after_ms: int, until_ms: int, most: int) -> "dict[int, array[int]]":
        """Return, by queue, up to ``most`` numbers that come due after ``after_ms`` and by ``until_ms``.

        The earliest buckets come first, stale numbers are included, and all numbers stay.
        """
        found: dict[int, array[int]] = {}
        for number in range(after_ms // self.width_ms + 1, until_ms // self.width_ms + 1):
            for queue_id, numbers in self._buckets.get(number, {}).items():
                if most <= 0:
                    return found
                found.setdefault(queue_id, array("Q")).extend(numbers[:most])
                most -= len(numbers)
        return found

    def take_due(self, now_ms: int, most: int) -> "tuple[int, array[int]] | None":
        """Remove and return up to ``most`` numbers of one queue that are due by ``now_ms``, or None.

        ``most`` is even, because pairs must stay together. Further numbers stay due.
        """
        heap = self.heap
        while heap and heap[0] not in self._buckets:
            heappop(heap)
        if not heap or heap[0] * self.width_ms > now_ms:
            return None
        number = heap[0]
        queues = self._buckets[number]
        queue_id, numbers = next(iter(queues.items()))
        if len(numbers) > most:
            # From the end, which is cheap; the order inside a bucket has no meaning.
            taken = numbers[-most:]
            del numbers[-most:]
        else:
            taken = numbers
            self._remove(number, queue_id)
        self.size -= len(taken)
        return queue_id, taken

    def of_queue(self, queue_id: int) -> "list[tuple[int, array[int]]]":
        """Return (due time in ms, numbers) of one queue, including stale numbers."""
        return [
            (number * self.width_ms, queues[queue_id]) for number, queues in self._buckets.items() if queue_id in queues
        ]

    def around(self, time_ms: int, back_ms: int, queue_id: int) -> "list[tuple[int, array[int]]]":
        """Return (due time in ms, numbers) of one queue in the bucket of a time, and in those of ``back_ms`` before.

        The buckets before may be overdue, or hold the rest of a bucket that was taken in part.
        """
        last = -(-time_ms // self.width_ms)
        return [
            (number * self.width_ms, queues[queue_id])
            for number in range(last - back_ms // self.width_ms, last + 1)
            if (queues := self._buckets.get(number)) is not None and queue_id in queues
        ]

    def drop_last(self, due_ms: int, queue_id: int, count: int) -> None:
        """Remove the last ``count`` numbers of a queue in a bucket; they are stale."""
        if count:
            number = due_ms // self.width_ms
            numbers = self._buckets[number][queue_id]
            del numbers[-count:]
            self.size -= count
            if not numbers:
                self._remove(number, queue_id)

    def no_later_than(self, due_ms: int, queue_ids: Container[int]) -> None:
        """Make later numbers of these queues come due at ``due_ms``, because broker time stepped back."""
        last = -(-due_ms // self.width_ms)
        for number in [number for number in self._buckets if number > last]:
            for queue_id in [queue_id for queue_id in self._buckets[number] if queue_id in queue_ids]:
                self.bucket(due_ms, queue_id).extend(self._buckets[number][queue_id])
                self._remove(number, queue_id)

    def sweep(self, keep: "Callable[[int, int, array[int]], array[int]]") -> int | None:
        """Do one step of removing stale numbers before they come due.

        ``keep(due_ms, queue_id, numbers)`` returns the numbers of an array to keep. The last step returns the count of
        all kept numbers, earlier steps None; the call after the last step starts a new sweep.
        """
        if not self._sweep:
            self._sweep_kept = 0
            self._sweep = [(number, queue_id) for number, queues in self._buckets.items() for queue_id in queues]
        looked_at = 0
        while self._sweep and looked_at < _SWEEP_STEP:
            number, queue_id = self._sweep.pop()
            queues = self._buckets.get(number)
            if queues is None or queue_id not in queues:
                continue
            looked_at += 1
            numbers = queues[queue_id]
            kept = keep(number * self.width_ms, queue_id, numbers)
            self.size += len(kept) - len(numbers)
            self._sweep_kept += len(kept)
            if kept:
                queues[queue_id] = kept
            else:
                self._remove(number, queue_id)
        return None if self._sweep else self._sweep_kept

    def _remove(self, number: int, queue_id: int) -> None:
        queues = self._buckets[number]
        del queues[queue_id]
        if not queues:
            del self._buckets[number]
            if self.heap[0] == number:
                heappop(self.heap)
            elif len(self.heap) > 2 * len(self._buckets) + _SWEEP_STEP:
                self.heap = sorted(self._buckets)
