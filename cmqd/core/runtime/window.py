"""Bodies in memory: a bounded window near the head of each queue; the log has all bodies.

A sent body is kept while it is near enough to the head to be received from memory. From the first body that is not
kept, the queue is *cold*: its bodies are paged in from the log, ahead of need, until the tail is reached again. A cold
queue keeps no new bodies, because consumers need the older bodies first, and the newer would only push them out.
Delayed bodies are kept only shortly before they are due, bodies of half messages until the decision or until newer half
messages need the memory. All windows share one budget; when it is used up, the window least recently received from is
dropped.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pyroaring import BitMap64

from cmqd.core.limits import headers_bytes
from cmqd_segment.records import StoredMessage

OVERHEAD_BYTES = 320
"""Of a message in the window beside its body: the struct, its integers, the bytes header, the dict entry (measured)."""


ORIGIN_MEMORY_BYTES = 320
"""Memory of an origin: the struct, a name, three integers (measured)."""
COPY_MEMORY_BYTES = 320
"""Memory of a copy's link to its original: the struct, two integers, labels; names are mostly shared."""
HEADER_BYTES = 200
"""Memory of a header beside its name and value, roughly."""
HALF_SHARE = 4
"""Divisor of the budget for the half messages of a queue: a quarter, since most are decided within milliseconds."""


def cost(message: StoredMessage) -> int:
    """Return the memory of a message in the window, in bytes, roughly."""
    size = len(message.body) + OVERHEAD_BYTES
    if message.headers:
        size += HEADER_BYTES * len(message.headers) + headers_bytes(message.headers)
    if message.origin is not None:
        size += ORIGIN_MEMORY_BYTES + len(message.origin.rejection)
    if message.copy_of is not None:
        size += COPY_MEMORY_BYTES
    return size


class Window:
    """Bodies of a queue in memory."""

    __slots__ = ("cold", "half", "half_size", "messages", "paged_until", "size", "soon")

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        """Active messages, by position."""
        self.soon: dict[int, StoredMessage] = {}
        """Delayed messages that are about to become active, by position."""
        self.half: dict[int, StoredMessage] = {}
        """Half messages, by position, oldest first."""
        self.half_size = 0
        """Cost of the half messages."""
        self.size = 0
        """Cost of all messages."""
        self.cold = False
        """New bodies are not kept: some bodies before them are in the log alone."""
        self.paged_until = 0
        """While cold: positions below were in the window, or are known to the pager."""

    def go_back_to(self, first: int) -> None:
        """Page in from ``first`` on: active messages from there may have their bodies in the log alone."""
        self.paged_until = min(self.paged_until, first) if self.cold else first
        self.cold = True


class WindowBudget:
    """The memory budget shared by all windows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._order: OrderedDict[int, Window] = OrderedDict()
        """Windows that hold messages, least recently received from first."""

    def keep(self, queue_id: int, window: Window, message: StoredMessage) -> None:
        """Put a message in, dropping other windows if there is no room."""
        window.messages[message.position] = message
        self.kept(queue_id, window, cost(message))

    def kept(self, queue_id: int, window: Window, size: int) -> None:
        """Account for messages that the caller put in, at a cost of ``size`` in all: the hot path's ``keep``."""
        window.size += size
        self.used += size
        if queue_id not in self._order:
            self._order[queue_id] = window

    def keep_page(self, queue_id: int, window: Window, messages: Sequence[StoredMessage]) -> None:
        """Put in messages that are not in the window, without a look at the room."""
        if messages:
            window.messages.update([(message.position, message) for message in messages])
            self.kept(queue_id, window, sum(map(cost, messages)))

    def take(self, queue_id: int, window: Window, positions: Iterable[int]) -> list[StoredMessage]:
        """Remove and return messages of the window, and mark the queue as most recently received from."""
        taken = list(map(window.messages.pop, positions))
        if window.messages or window.soon or window.half:
            size = 0
            for message in taken:
                # Nearly all messages are plain, and a call for each would cost as much as the rest of the method.
                if message.headers or message.origin is not None or message.copy_of is not None:
                    size += cost(message)
                else:
                    size += len(message.body) + OVERHEAD_BYTES
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
        """Put in a half message, in place of the oldest half messages if there is no room beside them."""
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
        """Forget decided half messages, as far as they are in memory."""
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
        """Make delayed messages active in the window: their delays have ended."""
        soon = window.soon
        if soon:
            for position in positions:
                message = soon.pop(position, None)
                if message is not None:
                    window.messages[position] = message

    def forget(self, queue_id: int, window: Window, positions: BitMap64) -> None:
        """Drop the bodies of active messages that no receive will take from this queue."""
        messages = window.messages
        if len(positions) < len(messages):
            gone = [position for position in positions if position in messages]
        else:
            gone = [position for position in messages if position in positions]
        if gone:
            self.take(queue_id, window, gone)

    def drop_below(self, queue_id: int, window: Window, floor: int) -> None:
        """Forget the bodies of messages below the floor, which are gone."""
        if window.half:
            self.drop_half(queue_id, window, [position for position in window.half if position < floor])
        self.activate(window, [position for position in window.soon if position < floor])
        gone = [position for position in window.messages if position < floor]
        if gone:
            self.take(queue_id, window, gone)

    def has_room(self, queue_id: int, size: int) -> bool:
        """Make room for ``size`` bytes of this queue by dropping less recently used windows; False if there is none.

        A queue that fills the budget by itself does not drop its own head, only its half messages: the head is next to
        be received, and would be paged in again at once.
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
        """Forget a window after its messages are gone; the queue does not turn cold."""
        self.drop(queue_id, window)
        window.cold = False
