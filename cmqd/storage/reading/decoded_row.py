"""A decoded row in memory, shared by every reader: each queue with a copy of a published message reads the same row.

Published messages are kept once, with the queues that got copies and the position in each queue. The run of a queue is
made when the queue is read, so a row costs little memory. Records with the same queues share an *audience*, the index
of queues.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent
from cmqd_segment.rows import PublishedRuns, Run, names_of, sent_runs

ROW_OVERHEAD_BYTES = 1500
"""Estimated memory of a decoded row beside its bodies."""
PUBLISH_OVERHEAD_BYTES = 600
"""Estimated memory of a publish beside 8 bytes for each queue."""
KNOWN_QUEUES = 16_384
"""Limit of the queues in all audiences kept for sharing."""
AUDIENCE_BYTES = 100
"""Estimated memory of a queue in an audience; counted with the row that made the audience."""
NAME_BYTES = 120
"""Estimated memory of a subscription's name in an audience: text of up to 64 characters and its place."""


class Audience:
    """Index of the queues in ``copies``."""

    __slots__ = ("again", "names", "places")

    def __init__(self, queue_ids: Sequence[int]) -> None:
        self.places: dict[int, int] = {}
        self.names: list[str] = []
        """Names of the subscriptions behind the copies, from the newest decoded record."""
        self.again: list[tuple[int, int]] = []
        """(queue id, place) of the second and later places of a queue."""
        for index, queue_id in enumerate(queue_ids):
            if queue_id in self.places:
                self.again.append((queue_id, index))
            else:
                self.places[queue_id] = index

    def of(self, queue_id: int) -> Sequence[int]:
        """Return the places of a queue, ascending."""
        index = self.places.get(queue_id)
        if index is None:
            return ()
        if not self.again:
            return (index,)
        return (index, *(other for again, other in self.again if again == queue_id))


class Audiences:
    """Audiences by their queues: records and rows with the same queues share an ``Audience``."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Audience] = {}
        self._size = 0
        self.made_bytes = 0
        """Estimated memory of all audiences ever made; a difference of two readings is the cost of the audiences
        between."""

    def of(self, queue_ids: tuple[int, ...]) -> Audience:
        """Return the audience of these queues, in this order."""
        audience = self._known.get(queue_ids)
        if audience is None:
            self._size += len(queue_ids) + 1
            if self._size > KNOWN_QUEUES:
                # Rows in use keep their audience; an audience that comes again is made again.
                self._known.clear()
                self._size = len(queue_ids) + 1
            self.made_bytes += AUDIENCE_BYTES * len(queue_ids)
            audience = self._known[queue_ids] = Audience(queue_ids)
        return audience


class Published(NamedTuple):
    """Source of the copies of one ``MessagesPublished``."""

    runs: PublishedRuns
    audience: Audience
    names: list[str]
    """Name of the subscription for each queue; records with equal names share one list."""


class DecodedRow:
    """A row that passed its checks."""

    __slots__ = ("_published", "_runs", "cost", "data")

    def __init__(self, records: Sequence[AnyRecord], data: bytes, audiences: Audiences) -> None:
        self.data = data
        self._runs: dict[int, list[Run]] = {}
        """Runs of messages by queue or topic, without copies, which are in ``_published``."""
        self._published: list[Published] = []
        self.cost = len(data) + ROW_OVERHEAD_BYTES
        """Estimated memory of the row."""
        if any(isinstance(record, MessagesPublished) for record in records):
            self._take(records, audiences)
            return
        for queue_id, run in sent_runs(records):
            self._runs.setdefault(queue_id, []).append(run)

    def _take(self, records: Sequence[AnyRecord], audiences: Audiences) -> None:
        offset = 0
        made_bytes = audiences.made_bytes
        for record in records:
            if isinstance(record, MessagesPublished):
                runs = PublishedRuns(record, offset)
                self._runs.setdefault(record.topic_id, []).extend(runs.topic_runs())
                audience = audiences.of(tuple(record.copies[::2]))
                names = names_of(record)
                if audience.names != names:
                    audience.names = names
                    self.cost += NAME_BYTES * len(names)
                self._published.append(Published(runs, audience, audience.names))
                self.cost += PUBLISH_OVERHEAD_BYTES + runs.memory_bytes
                offset += sum(record.sizes)
            elif type(record) is MessagesSent:
                for queue_id, run in sent_runs((record,)):
                    self._runs.setdefault(queue_id, []).append(run._replace(offset=offset))
                offset += sum(record.sizes)
        self.cost += audiences.made_bytes - made_bytes

    def runs_of(self, queue_id: int) -> Sequence[Run]:
        """Return the messages of a queue or topic in this row, ascending."""
        runs = self._runs.get(queue_id, ())
        if not self._published:
            return runs
        copies = [
            run
            for published in self._published
            for index in published.audience.of(queue_id)
            for run in published.runs.copy_runs(index, published.names[index])
        ]
        if not runs or not copies:
            return copies or runs
        return sorted((*runs, *copies), key=lambda run: run.first_position)
