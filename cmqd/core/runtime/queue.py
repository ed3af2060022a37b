"""Runtime of a queue beside its facts: bodies in memory, waiting receives, work under way."""

import msgspec
from pyroaring import BitMap64

from cmqd.core.runtime.consumers import Consumer
from cmqd.core.runtime.waiters import WaitingLine
from cmqd.core.runtime.window import Window
from cmqd_types.actors import Actor


class Redriving(msgspec.Struct):
    """Progress of a redrive beside what is in the log; a restart begins anew with the messages that are left."""

    cursor: int = 0
    """Messages below it were examined."""
    missing_origins: dict[str, int] = {}
    held_up: str = ""
    next_ms: int = 0
    """The next page is not read before this time."""


class QueueRuntime:
    """The runtime of a queue; made at the first use, forgotten by a restart."""

    __slots__ = (
        "_overdue",
        "_unmovable",
        "consumers",
        "has_checkers",
        "line",
        "received_bytes",
        "redriving",
        "soon_wanted",
        "used_ms",
        "waited_until_ms",
        "window",
    )

    def __init__(self) -> None:
        self.window = Window()
        self.line = WaitingLine()
        self.consumers: dict[Actor, Consumer] = {}
        self.soon_wanted: list[int] = []
        """Positions of delayed messages with bodies to be read ahead of their time, in ascending order by second."""
        self._overdue: BitMap64 | None = None
        self._unmovable: BitMap64 | None = None
        self.redriving: Redriving | None = None
        """Set while a redrive is under way."""
        self.has_checkers = False
        """A connected client answers checks of half messages of the queue."""
        self.received_bytes = 0
        """Bytes of bodies that were received since the start."""
        self.used_ms = 0
        """Time of the last use, see :mod:`cmqd.core.operations.queues.auto_delete`; 0 = not used since the start."""
        self.waited_until_ms = 0
        """Latest deadline of the receives that waited. A field of its own: a use in the middle of a wait must not put
        back the time until which the wait counts."""

    @property
    def overdue(self) -> BitMap64:
        """Messages received as often as policy 0 allows; the active messages among them are to be moved."""
        if self._overdue is None:
            self._overdue = BitMap64()
        return self._overdue

    @overdue.setter
    def overdue(self, positions: BitMap64) -> None:
        self._overdue = positions

    @property
    def unmovable(self) -> BitMap64:
        """Dead letters that expired or that are too large for their queue: not tried again before a restart or a change
        of attributes.
        """
        if self._unmovable is None:
            self._unmovable = BitMap64()
        return self._unmovable

    @unmovable.setter
    def unmovable(self, positions: BitMap64) -> None:
        self._unmovable = positions


class QueueRuntimes(dict[int, QueueRuntime]):
    """By queue id. A queue that is not used since the start has no entry, which is made by its first look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.cold: set[int] = set()
        """Queues without an entry that have messages from before the start: their bodies are in the log alone."""

    def __missing__(self, queue_id: int) -> QueueRuntime:
        runtime = self[queue_id] = QueueRuntime()
        if queue_id in self.cold:
            self.cold.discard(queue_id)
            runtime.window.cold = True
        return runtime
