"""The messages that the rows of a segment name: collected for its side file, and searched for the life of a message.

A row names a message if it stores the message, or if a record has its position, a lease of the message, or a range or
floor that covers its position. A reader that follows a message opens only the segments that name the message.

Only the fields that name messages are decoded. Headers, labels and dedup ids would take most of the time, and a seal
must not take much longer for its side file.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import structs
from pyroaring import BitMap64

from cmqd_segment.newer import known_tags, raise_if_newer, raw_items, tag_number
from cmqd_segment.published import count_copies
from cmqd_segment.records import (
    AnyRecord,
    DeliveriesCleared,
    MessagesExpired,
    MessagesPublished,
    MessagesPublishedAlike,
    MessagesReceived,
    MessagesSent,
    QueueAttributesSet,
    QueueCleared,
    QueueDeleted,
    QueueRewound,
    Record,
    Runs,
    TopicMessagesExpired,
    Unsubscribed,
    count_runs,
    last_of,
    ranges,
)
from cmqd_segment.side import SideHistory, SideNamed, SideRange, SideSource

_NAMING_FIELDS: Final = frozenset(
    {
        *("queue_id", "topic_id", "positions", "leases", "first_lease"),
        *("first_message_id", "sizes", "copies", "first_copy_id", "message_sets", "taken", "message_ids"),
        *("floor", "from_position", "stop_position", "rewind_floor"),
    }
)

_SCALARS: Final = (int, str, bool)
"""Types that are decoded faster than skipped."""


def _brief(record: type[Record]) -> type[msgspec.Struct]:
    """Return a Struct with the tag of a record that decodes the naming fields alone."""
    fields = structs.fields(record)
    used = [index for index, field in enumerate(fields) if field.name in _NAMING_FIELDS]
    brief: list[tuple[str, Any, Any]] = []
    for field in fields[: used[-1] + 1 if used else 0]:
        kind = field.type if field.name in _NAMING_FIELDS or field.type in _SCALARS else msgspec.Raw
        # A field without a default may not follow, and a record without the fields at its end is an older record.
        default: Any = field.default if field.default_factory is msgspec.NODEFAULT else []
        brief.append((field.name, kind, msgspec.field() if field.required else msgspec.field(default=default)))
    return msgspec.defstruct(record.__name__, brief, tag=tag_number(record), array_like=True, frozen=True, gc=False)


_BRIEF: Final = {record: _brief(record) for record in get_args(AnyRecord)}
_TAGS: Final = known_tags(AnyRecord)


def _union(kinds: Collection[type[msgspec.Struct]]) -> Any:
    union: Any = None
    for kind in kinds:
        union = kind if union is None else union | kind
    return union


_briefs: Final[msgspec.msgpack.Decoder[list[Any]]] = msgspec.msgpack.Decoder(list[_union(_BRIEF.values())])


class NamedMessages:
    """Collects the messages that the rows of a segment name, row by row.

    Most records name messages that the segment stores, by leases that it gives. A comparison finds that, and no set is
    touched.
    """

    def __init__(self, sources: Sequence[SideSource]) -> None:
        """``sources``: of the segment, for part one of the side file."""
        self.lowest_message_id: int | None = None
        self.highest_message_id: int | None = None
        self._positions: dict[int, BitMap64] = {}
        # The positions of a source are dense.
        self._stored = {each.id: (each.first_position, each.first_position + each.messages) for each in sources}
        self._leases = BitMap64()
        self._first_lease: int = 0
        self._next_lease: int = 0
        """Range of leases, given by receives without a gap, that is not in ``_leases`` yet."""
        self._ranges: dict[int, list[SideRange]] = {}
        self._floors: dict[tuple[int, int], int] = {}
        """Newest floor, by tag of the record and id of queue or topic."""

    def add_row(self, lsn: int, meta: bytes) -> None:
        """Take the records of a row with a correct checksum.

        Raises:
            NewerFormatError: a record has a tag that this version does not know.
            msgspec.MsgspecError: the bytes are not records of any version.
        """
        try:
            records: list[Any] = _briefs.decode(meta)
        except msgspec.ValidationError:
            raise_if_newer("row holds records", map(memoryview, raw_items(meta)), _TAGS)
            raise
        for record in records:
            taker = _TAKERS.get(record.__class__)
            if taker is not None:
                taker(self, lsn, record)

    def history(self) -> SideHistory:
        """Return part two of the side file."""
        self._keep_leases()
        numbers = self._stored.keys() | self._positions.keys() | self._ranges.keys()
        return SideHistory(
            _packed(self._leases),
            [
                SideNamed(
                    number,
                    *self._stored.get(number, _NOWHERE),
                    _packed(self._positions.get(number)),
                    self._ranges.get(number, []),
                )
                for number in sorted(numbers)
            ],
        )

    def _bitmap(self, number: int) -> BitMap64:
        bitmap = self._positions.get(number)
        if bitmap is None:
            bitmap = self._positions[number] = BitMap64()
        return bitmap

    def _add_positions(self, number: int, positions: Runs) -> None:
        first, stop = self._stored.get(number, _NOWHERE)
        # The first decides: positions ascend along the log, so no record here names a position behind the last stored.
        if positions and not first <= positions[0] < stop:
            _add(self._bitmap(number), positions)

    def _keep_leases(self) -> None:
        self._leases.add_range(self._first_lease, self._next_lease)

    # Every method takes a record in its brief form, with the naming fields of the record.

    def take_positions(self, _lsn: int, record: Any) -> None:
        """Take a record with positions."""
        self._add_positions(_owner(record), record.positions)

    def take_leases(self, _lsn: int, record: Any) -> None:
        """Take a record with leases."""
        leases = record.leases
        # As with positions: no record names a lease before a receive has given it.
        if leases and not self._first_lease <= leases[0] < self._next_lease:
            _add(self._leases, leases)

    def take_both(self, lsn: int, record: Any) -> None:
        """Take a record with positions and leases."""
        self._add_positions(record.queue_id, record.positions)
        self.take_leases(lsn, record)

    def take_received(self, _lsn: int, record: Any) -> None:
        """Take a ``MessagesReceived``."""
        positions = record.positions
        self._add_positions(record.queue_id, positions)
        if record.first_lease != self._next_lease:
            self._keep_leases()
            self._first_lease = self._next_lease = record.first_lease
        self._next_lease += positions[1] if len(positions) == 2 else count_runs(positions)

    def take_sent(self, _lsn: int, record: Any) -> None:
        """Take a ``MessagesSent``."""
        self._note_ids(record.first_message_id, len(record.sizes))

    def take_published(self, _lsn: int, record: Any) -> None:
        """Take a ``MessagesPublished`` of either kind."""
        self._note_ids(record.first_message_id, last_of(record.message_ids) + 1 or len(record.sizes))
        self._note_ids(record.first_copy_id, count_copies(record))

    def take_rewind_floor(self, lsn: int, record: Any) -> None:
        """Take a ``QueueAttributesSet`` or ``QueueRewound``."""
        # -1: an older version wrote the record, and only a fold of the queue tells how far its floor reaches.
        self._note(lsn, record, 0, None if record.rewind_floor < 0 else record.rewind_floor)

    def take_rewound(self, lsn: int, record: Any) -> None:
        """Take a ``QueueRewound``."""
        self.take_rewind_floor(lsn, record)
        self._note(lsn, record, record.from_position, record.stop_position)

    def take_floor(self, lsn: int, record: Any) -> None:
        """Take a record that ends all messages below its floor."""
        key = record.__struct_config__.tag, _owner(record)
        floor = self._floors.get(key, 0)
        # The messages below the floor before are gone since then.
        self._note(lsn, record, floor, record.floor)
        self._floors[key] = max(record.floor, floor)

    def take_cleared(self, lsn: int, record: Any) -> None:
        """Take a ``DeliveriesCleared``: each subscription of a topic has floors of its own."""
        self._note(lsn, record, 0, record.floor)

    def take_whole(self, lsn: int, record: Any) -> None:
        """Take a record about all messages of its queue or topic."""
        self._note(lsn, record, 0, None)

    def _note(self, lsn: int, record: Any, first: int, stop: int | None) -> None:
        if stop is None or first < stop:
            self._ranges.setdefault(_owner(record), []).append(
                SideRange(record.__struct_config__.tag, lsn, first, stop)
            )

    def _note_ids(self, first: int, count: int) -> None:
        if count:
            low, high = self.lowest_message_id, self.highest_message_id
            if low is None or first < low:
                self.lowest_message_id = first
            if high is None or first + count > high:
                self.highest_message_id = first + count - 1


def _taker(record: type[Record]) -> Callable[[NamedMessages, int, Any], None] | None:
    special = _SPECIAL.get(record)
    if special is not None:
        return special
    fields = record.__struct_fields__
    if "leases" not in fields:
        return NamedMessages.take_positions if "positions" in fields else None
    return NamedMessages.take_both if "positions" in fields else NamedMessages.take_leases


_SPECIAL: Final[dict[type[Record], Callable[[NamedMessages, int, Any], None]]] = {
    MessagesReceived: NamedMessages.take_received,
    MessagesSent: NamedMessages.take_sent,
    MessagesPublished: NamedMessages.take_published,
    MessagesPublishedAlike: NamedMessages.take_published,
    QueueAttributesSet: NamedMessages.take_rewind_floor,
    QueueRewound: NamedMessages.take_rewound,
    QueueCleared: NamedMessages.take_floor,
    MessagesExpired: NamedMessages.take_floor,
    TopicMessagesExpired: NamedMessages.take_floor,
    DeliveriesCleared: NamedMessages.take_cleared,
    QueueDeleted: NamedMessages.take_whole,
    Unsubscribed: NamedMessages.take_whole,
}
_TAKERS: Final = {brief: taker for record, brief in _BRIEF.items() if (taker := _taker(record)) is not None}
_NOWHERE: Final = (0, 0)


def _owner(record: Any) -> int:
    number: int | None = getattr(record, "queue_id", None)
    return record.topic_id if number is None else number


def _add(bitmap: BitMap64, runs: Runs) -> None:
    for start, stop in ranges(runs):
        bitmap.add_range(start, stop)


def _packed(bitmap: BitMap64 | None) -> bytes:
    if not bitmap:
        return b""
    bitmap.run_optimize()
    return bitmap.serialize()


def names_message(history: SideHistory, number: int, position: int, leases: Collection[int] = ()) -> bool:
    """Return whether the rows of a segment name a message.

    Args:
        history: of the side file of the segment.
        number: id of the queue or topic of the message.
        position: of the message there.
        leases: known leases of the message. Some records name a lease alone, so a search that finds new leases in a
            receive asks again.

    A message that a floor has ended lies below all later floors of its queue, too: a search must end there.
    """
    named = _find(history, number)
    if named is not None:
        if named.first_position <= position < named.stop_position:
            return True
        if any(_covers(each, position) for each in named.ranges):
            return True
        if named.positions and position in BitMap64.deserialize(named.positions):
            return True
    # Unpacked once: a message that is received again and again has thousands of leases.
    return bool(leases and history.leases) and not BitMap64.deserialize(history.leases).isdisjoint(BitMap64(leases))


def names_lease(history: SideHistory, lease: int) -> bool:
    """Return whether the rows of a segment name a lease."""
    return bool(history.leases) and lease in BitMap64.deserialize(history.leases)


def _find(history: SideHistory, number: int) -> SideNamed | None:
    named = history.named
    index = bisect_left(named, number, key=lambda each: each.id)
    return named[index] if index < len(named) and named[index].id == number else None


def _covers(each: SideRange, position: int) -> bool:
    return each.first <= position and (each.stop is None or position < each.stop)
