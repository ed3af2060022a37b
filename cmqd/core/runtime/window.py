"""Bodies in memory: a bounded window near the head of each queue; the log has them all.

A body sent is kept while it is near enough to the head to be received from memory; from the first one that is not
kept, a queue is *cold* and its bodies are paged in from the log, ahead of need, until the tail is reached again.
Delayed bodies are kept only shortly before they are due, those of half messages until they are decided or newer ones
need the room. All windows share one budget; when it is used up, the window least recently received from is dropped.
"""

from collections import OrderedDict
from collections.abc import Iterable

from pyroaring import BitMap64

from cmqd.core.limits import headers_bytes
from cmqd_segment.records import StoredMessage

OVERHEAD_BYTES = 320
"""Of a message in the window beside its body: the struct, its integers, the bytes header, the dict entry (measured)."""


ORIGIN_MEMORY_BYTES = 320
"""Of an origin: the struct, a name, three integers (measured)."""
COPY_MEMORY_BYTES = 320
"""Of what a copy knows of its original: the struct, two integers, labels; names are mostly shared."""
HEADER_BYTES = 200
"""Of one header beside its name and value, roughly."""
HALF_SHARE = 4
"""The bodies of one queue's half messages get a quarter of the budget at most: most are decided within milliseconds."""


def cost(message: StoredMessage) -> int:
    """Memory of a message in the window, in bytes, roughly."""
    size = len(message.body) + OVERHEAD_BYTES
    if message.headers:
        size += HEADER_BYTES * len(message.headers) + headers_bytes(message.headers)
    if message.origin is not None:
        size += ORIGIN_MEMORY_BYTES
    if message.copy_of is not None:
        size += COPY_MEMORY_BYTES
    return size


class Window:
    """One queue's bodies in memory."""

    __slots__ = ("cold", "half", "half_size", "messages", "paged_until", "size", "soon")

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        """Active ones, by position."""
        self.soon: dict[int, StoredMessage] = {}
        """Delayed ones that are about to become active, by position."""
        self.half: dict[int, StoredMessage] = {}
        """Half messages, by position, oldest first."""
        self.half_size = 0
        """Cost of those."""
        self.size = 0
        """Cost of them all."""
        self.cold = False
        """Bodies sent now are not kept: some before them are in the log alone."""
        self.paged_until = 0
        """While cold: positions below were in the window, or are known to the pager."""

    def go_back_to(self, first: int) -> None:
        """Page in from ``first`` on: messages are active again whose bodies are in the log alone."""
        self.paged_until = min(self.paged_until, first) if self.cold else first
        self.cold = True


class WindowBudget:
    """What all windows may hold together."""

    __slots__ = ("_order", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._order: OrderedDict[int, Window] = OrderedDict()
        """Windows with something in them, least recently received from first."""

    def keep(self, queue_id: int, window: Window, message: StoredMessage) -> None:
        """Put a message in, making room if need be."""
        window.messages[message.position] = message
        self.kept(queue_id, window, cost(message))

    def kept(self, queue_id: int, window: Window, size: int) -> None:
        """Messages that cost ``size`` in all were put in: the hot path's ``keep``."""
        window.size += size
        self.used += size
        if queue_id not in self._order:
            self._order[queue_id] = window

    def take(self, queue_id: int, window: Window, positions: Iterable[int]) -> list[StoredMessage]:
        """Remove and return messages that are in the window: somebody receives from this queue."""
        pop = window.messages.pop
        taken = [pop(position) for position in positions]
        if window.messages or window.soon or window.half:
            size = sum(map(cost, taken))
            self._order.move_to_end(queue_id)
        else:
            size = window.size
            self._order.pop(queue_id, None)
        window.size -= size
        self.used -= size
        return taken

    def keep_soon(self, queue_id: int, window: Window, message: StoredMessage) -> None:
        """Put in a message that is still delayed."""
        window.soon[message.position] = message
        self.kept(queue_id, window, cost(message))

    def keep_half(self, queue_id: int, window: Window, message: StoredMessage) -> None:
        """Put in a half message, in place of the oldest ones if there is no room beside them."""
        size = cost(message)
        limit = self.limit // HALF_SHARE
        if size > limit:
            return
        while window.half and window.half_size + size > limit:
            self._drop_half(queue_id, window, next(iter(window.half)))
        if self.has_room(queue_id, size):
            window.half[message.position] = message
            window.half_size += size
            self.kept(queue_id, window, size)

    def drop_half(self, queue_id: int, window: Window, positions: Iterable[int]) -> None:
        """Forget half messages, those of them that are in memory: they were decided."""
        if window.half:
            for position in positions:
                if position in window.half:
                    self._drop_half(queue_id, window, position)

    def _drop_half(self, queue_id: int, window: Window, position: int) -> None:
        size = cost(window.half.pop(position))
        window.half_size -= size
        window.size -= size
        self.used -= size
        if not window.size:
            self._order.pop(queue_id, None)

    def activate(self, window: Window, positions: Iterable[int]) -> None:
        """Delays ended: what was put in ahead of that is now as any other."""
        soon = window.soon
        if soon:
            for position in positions:
                message = soon.pop(position, None)
                if message is not None:
                    window.messages[position] = message

    def forget(self, queue_id: int, window: Window, positions: BitMap64) -> None:
        """Drop the bodies of active messages that nobody will receive from this queue."""
        messages = window.messages
        if len(positions) < len(messages):
            gone = [position for position in positions if position in messages]
        else:
            gone = [position for position in messages if position in positions]
        if gone:
            self.take(queue_id, window, gone)

    def drop_below(self, queue_id: int, window: Window, floor: int) -> None:
        """Forget messages that are gone."""
        if window.half:
            self.drop_half(queue_id, window, [position for position in window.half if position < floor])
        self.activate(window, [position for position in window.soon if position < floor])
        gone = [position for position in window.messages if position < floor]
        if gone:
            self.take(queue_id, window, gone)

    def has_room(self, queue_id: int, size: int) -> bool:
        """Whether ``size`` more bytes of this queue may be kept, dropping others' windows that are less in use.

        A queue that fills the budget by itself does not drop its own head, only its half messages.
        """
        while self.used + size > self.limit:
            oldest = next(iter(self._order), None)
            if oldest is None:
                return False
            window = self._order[oldest]
            if oldest != queue_id:
                self.drop(oldest, window)
            elif window.half:
                self._drop_half(queue_id, window, next(iter(window.half)))
            else:
                return False
        return True

    def drop(self, queue_id: int, window: Window) -> None:
        """Forget a window; its queue turns cold."""
        self.used -= window.size
        window.size = 0
        window.messages.clear()
        window.soon.clear()
        window.half.clear()
        window.half_size = 0
        window.cold = True
        window.paged_until = 0
        self._order.pop(queue_id, None)

    def clear(self, queue_id: int, window: Window) -> None:
        """Forget a window whose messages are gone; its queue is not cold for that."""
        self.drop(queue_id, window)
        window.cold = False
