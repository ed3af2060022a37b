"""Names of queues and topics by id, and actors by number, for the tables that a seal writes into a segment.

The storage process knows ids alone. Names are in records and checkpoint parts, which the loop process has decoded. The
classes live there, and answer for a segment before its seal.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from cmqd_segment.checkpoint import ActorsSlice, AnyPart, CheckpointEnd, CheckpointHeader, QueueSlice, TopicSlice
from cmqd_segment.manifest import SourceName
from cmqd_segment.records import ActorSeen, AnyRecord, QueueCreated, QueueDeleted, TopicCreated, TopicDeleted
from cmqd_types.actors import Actor

NAMING: Final = frozenset({QueueCreated, QueueDeleted, TopicCreated, TopicDeleted, ActorSeen})
"""Kinds of records with a name."""


class SourceNames:
    """Names of existing queues and topics, and of deleted queues and topics while an unsealed segment may need them."""

    def __init__(self) -> None:
        self._names: dict[int, SourceName] = {}
        self._deleted: dict[int, int] = {}
        """Id to the row of the deletion. No id is used twice, so no later row holds messages of the id."""
        self.actors = ActorsOfRows()

    def __len__(self) -> int:
        return len(self._names)

    def note(self, records: Iterable[AnyRecord], lsn: int) -> None:
        """Take the records of a row. Records of other kinds than ``NAMING`` need no call."""
        for record in records:
            if type(record) in NAMING:
                self._take(record, lsn)

    def note_part(self, part: AnyPart) -> None:
        """Take a part of the checkpoint at the begin of recovery."""
        self._take(part, 0)

    def _take(self, fact: AnyRecord | AnyPart, lsn: int) -> None:
        match fact:
            case QueueCreated() | QueueSlice():
                self._names[fact.queue_id] = SourceName(fact.queue_id, fact.account, fact.name)
            case TopicCreated() | TopicSlice():
                self._names[fact.topic_id] = SourceName(fact.topic_id, fact.account, fact.name, True)
            case QueueDeleted():
                self._deleted[fact.queue_id] = lsn
            case TopicDeleted():
                self._deleted[fact.topic_id] = lsn
            case ActorSeen():
                self.actors.note(fact.number, fact.actor)
            case ActorsSlice():
                for number, actor in fact.actors:
                    self.actors.note(number, actor)
            case _:
                pass

    def of(self, ids: Iterable[int]) -> list[SourceName]:
        """Return the known names among ids."""
        return [self._names[number] for number in ids if number in self._names]

    def of_deleted(self) -> list[SourceName]:
        """Return the names of deleted queues and topics that an unsealed segment may need."""
        return self.of(self._deleted)

    def forget_deleted(self, sealed_upto: int) -> None:
        """Forget queues and topics deleted in rows up to ``sealed_upto``: no unsealed segment has their messages."""
        forgotten = [number for number, lsn in self._deleted.items() if lsn <= sealed_upto]
        for number in forgotten:
            del self._deleted[number]
            self._names.pop(number, None)


class ActorsOfRows:
    """Actors that rows outside of sealed segments may name. The core decides which they are (``facts.actors``), and its
    checkpoints tell: this table forgets what a checkpoint has no more.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Actor] = {}
        """In the order of the log."""
        self._kept: dict[int, Actor] = {}
        """The actors in the checkpoint that is being written."""
        self._upto = 0
        """First number that the checkpoint does not know."""

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, number: int, actor: Actor) -> None:
        """Take an actor with its number."""
        self._seen.setdefault(number, actor)

    def of(self, numbers: Iterable[int]) -> list[tuple[int, Actor]]:
        """Return the known actors among numbers, with their numbers."""
        return [(number, self._seen[number]) for number in numbers if number in self._seen]

    def note_written(self, part: AnyPart) -> None:
        """Take a part of a checkpoint that is being written; the last part forgets the actors that no part has."""
        match part:
            case CheckpointHeader():
                self._kept = {}
                self._upto = 0
            case ActorsSlice():
                seen = self._seen
                self._kept.update((number, seen[number]) for number, _ in part.actors if number in seen)
                self._upto = part.next_number
            case CheckpointEnd() if self._upto:
                # Part by part, and not with a look at all actors here: the last part takes no longer than others.
                later = list(takewhile(self._upto.__le__, reversed(self._seen)))
                self._kept.update((number, self._seen[number]) for number in reversed(later))
                self._seen, self._kept = self._kept, {}
            case _:
                pass
