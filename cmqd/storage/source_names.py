"""Names of queues and topics by id, for the table that a seal writes into a segment.

The storage process knows ids alone. Names are in records and checkpoint parts, which the loop process has decoded. The
class lives there, and answers for a segment before its seal.
"""

from collections.abc import Iterable
from typing import Final

from cmqd_segment.checkpoint import AnyPart, QueueSlice, TopicSlice
from cmqd_segment.manifest import SourceName
from cmqd_segment.records import AnyRecord, QueueCreated, QueueDeleted, TopicCreated, TopicDeleted

NAMING: Final = frozenset({QueueCreated, QueueDeleted, TopicCreated, TopicDeleted})
"""Kinds of records with a name."""


class SourceNames:
    """Names of existing queues and topics, and of deleted queues and topics while an unsealed segment may need them."""

    def __init__(self) -> None:
        self._names: dict[int, SourceName] = {}
        self._deleted: dict[int, int] = {}
        """Id to the row of the deletion. No id is used twice, so no later row holds messages of the id."""

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
