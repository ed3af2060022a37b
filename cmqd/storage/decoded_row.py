"""A row in memory, shared by all that read it: a row of published messages is read by every queue that got a copy.

So it costs little to keep and little to ask: what was published stands once, with the queues that got it and the
position in each, and the run of a queue is made when it is asked for. Queues are looked up in the *audience* of a
record, which all records with the same queues share.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent
from cmqd_segment.rows import PublishedRuns, Run, names_of, sent_runs

ROW_OVERHEAD_BYTES = 1500
"""Of a decoded row beside its bodies, about."""
PUBLISH_OVERHEAD_BYTES = 600
"""Of what was published by one record, about, beside 8 bytes for each queue."""
KNOWN_QUEUES = 16_384
"""Of all audiences that are kept for others to share."""
AUDIENCE_BYTES = 100
"""Of a queue in an audience, about; counted with the row for which the audience was made."""
NAME_BYTES = 120
"""Of the name of a subscription in an audience, about: text of up to 64 characters and its place."""


class Audience:
    """In which places of ``copies`` queues stand."""

    __slots__ = ("again", "names", "places")

    def __init__(self, queue_ids: Sequence[int]) -> None:
        self.places: dict[int, int] = {}
        self.names: list[str] = []
        """Of the subscriptions for which the queues get copies, as the newest record says that was decoded."""
        self.again: list[tuple[int, int]] = []
        """(queue id, place) of queues that stand in more than one, beyond the first."""
        for place, queue_id in enumerate(queue_ids):
            if queue_id in self.places:
                self.again.append((queue_id, place))
            else:
                self.places[queue_id] = place

    def of(self, queue_id: int) -> Sequence[int]:
        """The places of a queue, ascending."""
        place = self.places.get(queue_id)
        if place is None:
            return ()
        if not self.again:
            return (place,)
        return (place, *(other for again, other in self.again if again == queue_id))


class Audiences:
    """One ``Audience`` for all records (and rows) with the same queues."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Audience] = {}
        self._size = 0
        self.made_bytes = 0
        """Of all that were ever made, about: what they cost is the difference between before and after."""

    def of(self, queue_ids: tuple[int, ...]) -> Audience:
        """That of these queues, in this order."""
        audience = self._known.get(queue_ids)
        if audience is None:
            self._size += len(queue_ids) + 1
            if self._size > KNOWN_QUEUES:
                # Whoever has one keeps it; those that come again are made again.
                self._known.clear()
                self._size = len(queue_ids) + 1
            self.made_bytes += AUDIENCE_BYTES * len(queue_ids)
            audience = self._known[queue_ids] = Audience(queue_ids)
        return audience


class Published(NamedTuple):
    """What the copies of one ``MessagesPublished`` are made from."""

    runs: PublishedRuns
    audience: Audience
    names: list[str]
    """Of the subscription for each queue; one list for all records that have the same."""


class DecodedRow:
    """A row that passed its checks."""

    __slots__ = ("_published", "_runs", "cost", "data")

    def __init__(self, records: Sequence[AnyRecord], data: bytes, audiences: Audiences) -> None:
        self.data = data
        self._runs: dict[int, list[Run]] = {}
        """What stands in the row as messages of one queue or topic; copies are in ``_published``."""
        self._published: list[Published] = []
        self.cost = len(data) + ROW_OVERHEAD_BYTES
        """Bytes in memory, about."""
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
        """The messages of a queue or topic in this row, ascending."""
        runs = self._runs.get(queue_id, ())
        if not self._published:
            return runs
        copies = [
            run
            for published in self._published
            for place in published.audience.of(queue_id)
            for run in published.runs.copy_runs(place, published.names[place])
        ]
        if not runs or not copies:
            return copies or runs
        return sorted((*runs, *copies), key=lambda run: run.first_position)
