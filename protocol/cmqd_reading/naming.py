"""The messages that the rows of a segment name: collected for its side file, and searched for the life of a message.

A row names a message if it stores the message, or if a record has its position, a lease of the message, or a range or
floor that covers its position. A reader that follows a message opens only the segments that name the message.

Only the fields that name messages or clients are decoded. Headers, labels and dedup ids would take most of the time,
and a seal must not take much longer for its side file. Of the runs of leases, the first number is decoded, which shows
in most records that the rows name the message anyway. The few other records are decoded a second time.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Final, get_args

import msgspec
from msgspec import structs
from pyroaring import BitMap64

from cmqd_segment.newer import known_tags, raise_if_newer, raw_items, tag_number
from cmqd_segment.published import count_copies
from cmqd_segment.records import (
    ActorSeen,
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
    RedriveStarted,
    Runs,
    TopicMessagesExpired,
    Unsubscribed,
    count_runs,
    last_of,
    ranges,
)
from cmqd_segment.side import SideHistory, SideNamed, SideRange, side_history

_NAMING_FIELDS: Final = frozenset(
    {
        *("queue_id", "topic_id", "positions", "leases", "first_lease", "actors", "number"),
        *("first_message_id", "sizes", "copies", "first_copy_id", "message_sets", "taken", "message_ids"),
        *("floor", "from_position", "stop_position", "rewind_floor"),
    }
)
_SCALARS: Final = (int, str, bool)
"""Types that are decoded faster than skipped."""
_NEVER: Final = 1 << 63
"""Above every lease and position."""
_LEAP: Final = 1 << 20
"""Leases between two receives that count as given in between. Leaps are larger: of a million after a loss of rows,
which begins a segment, and of 2 to the power of 52 where leases get their shard."""


class _First(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first number of runs. The decoder skips the others."""

    number: int = -1


class _Skipped(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A list, without its content."""


class _Brief(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record by its naming fields. The values here are those of kinds without the field, so that an expression serves
    records of all kinds: a call for each record would take most of the time of a seal.
    """

    leases: ClassVar[_First] = _First(_NEVER)
    first_lease: ClassVar[int] = -1
    first_message_id: ClassVar[int] = -1
    actors: ClassVar[tuple[int, ...]] = ()


class _Special(_Brief, frozen=True, array_like=True, gc=False):
    """A record of a rarer kind, which a method takes by itself."""

    leases: ClassVar[_First] = _First()


def _exact(record: type[Record]) -> type[msgspec.Struct]:
    """Return a Struct that decodes the naming fields of a record."""
    fields = {field.name: field.type for field in structs.fields(record) if field.name in _NAMING_FIELDS}
    return _defined(record, fields, msgspec.Raw, _Special if _is_special(record) else _Brief)


def _quick(record: type[Record]) -> type[msgspec.Struct]:
    """Return a Struct that decodes the fields that tell whether a record needs ``_exact``."""
    if record is MessagesSent:
        return _defined(record, {"first_message_id": int}, _SKIPPED, _Brief)
    if "leases" in record.__struct_fields__:
        return _defined(record, {"leases": _First}, _SKIPPED, _Brief)
    return _exact(record)


_SKIPPED: Final = _Skipped | int | None


def _defined(record: type[Record], kinds: dict[str, Any], skipped: Any, base: type[_Brief]) -> type[msgspec.Struct]:
    """Return a Struct with the tag of a record, for the fields ``kinds`` and the actors."""
    if "actors" in record.__struct_fields__:
        kinds = {**kinds, "actors": tuple[int, ...]}
    fields = structs.fields(record)
    last = max((index for index, field in enumerate(fields) if field.name in kinds), default=-1)
    brief: list[tuple[str, Any, Any]] = []
    for field in fields[: last + 1]:
        # A field without a default may not follow, and a record without the fields at its end is an older record.
        default: Any = field.default if field.default_factory is msgspec.NODEFAULT else []
        if field.name == "actors":
            default = ()
        elif kinds.get(field.name) is _First or (field.name not in kinds and default == []):
            default = None
        kind = kinds.get(field.name, field.type if field.type in _SCALARS else skipped)
        name = field.name if field.name in kinds else f"skipped_{field.name}"
        brief.append((name, kind, msgspec.field() if field.required else msgspec.field(default=default)))
    return msgspec.defstruct(
        record.__name__, brief, bases=(base,), tag=tag_number(record), array_like=True, frozen=True, gc=False
    )


def _is_special(record: type[Record]) -> bool:
    return record not in (MessagesReceived, MessagesSent) and "leases" not in record.__struct_fields__


_TAGS: Final = known_tags(AnyRecord)


def _decoder(briefs: Iterable[type[msgspec.Struct]]) -> msgspec.msgpack.Decoder[list[Any]]:
    union: Any = None
    for brief in briefs:
        union = brief if union is None else union | brief
    return msgspec.msgpack.Decoder(list[union])


class NamedMessages:
    """Collects the messages and clients that the rows of a segment name.

    Most records name messages that the segment stores, by leases that it gives. A comparison finds that, and no set is
    touched. A deleted message whose lease the segment gives is named by the receive already.
    """

    def __init__(self, stored: Iterable[tuple[int, int, int]]) -> None:
        """``stored``: id, first position and stop position of each queue and topic with messages in the segment."""
        self.actors: set[int] = set()
        """Numbers of clients."""
        self.lowest_message_id: int | None = None
        self._highest_message_id: int | None = None
        self._tops: list[tuple[int, list[bytes]]] = []
        """Records of rows that may store a higher message id, below the number in front."""
        self._positions: dict[int, BitMap64] = {}
        # The positions of a queue or topic are dense.
        self._stored = {number: (first, stop) for number, first, stop in stored}
        self._leases = BitMap64()
        self._first_lease: int = 0
        self._next_lease: int = 0
        """Range of leases, given by receives without a leap, that is not in ``_leases`` yet."""
        self._ranges: dict[int, list[SideRange]] = {}
        self._floors: dict[tuple[int, int], int] = {}
        """Newest floor, by tag of the record and id of queue or topic."""

    @property
    def highest_message_id(self) -> int | None:
        """Highest id of the messages that the rows store; None without messages."""
        for _, metas in self._tops:
            for meta in metas:
                for record in _decoded(_exact_records, meta):
                    if record.__class__ is _EXACT_SENT:
                        self._note_ids(record.first_message_id, len(record.sizes))
        self._tops = []
        return self._highest_message_id

    def add_rows(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        """Take some rows with correct checksums: LSN, number of messages, and records.

        Raises:
            NewerFormatError: a record has a tag that this version does not know.
            msgspec.MsgspecError: the bytes are not records of any version.
        """
        decoded = [_decoded(_quick_records, meta) for _, _, meta in rows]
        records = decoded[0] if len(decoded) == 1 else list(chain.from_iterable(decoded))
        receives = [record for record in records if record.first_lease >= 0]
        if receives:
            self._take_receives(receives)
        # No record names a lease before a receive has given the lease: a lease from this one on is of this segment.
        given = self._first_lease if self._next_lease else _NEVER
        if [True for record in records if record.leases.number < given]:
            for (lsn, _, meta), row in zip(rows, decoded, strict=True):
                self._take_each(lsn, meta, row, given)
        self._take_ids(rows, [record.first_message_id for record in records if record.first_message_id >= 0])
        self._take_actors({record.actors for record in records})

    def _take_each(self, lsn: int, meta: bytes, row: Sequence[Any], given: int) -> None:
        """Take the records of a row that name leases below ``given``, and those of rarer kinds."""
        exact: Sequence[Any] | None = None
        for index, record in enumerate(row):
            if record.leases.number < given:
                if record.__class__ in _NEED_EXACT:
                    exact = exact or _decoded(_exact_records, meta)
                    record = exact[index]
                taker = _TAKERS.get(record.__class__)
                if taker is not None:
                    taker(self, lsn, record)

    def _take_receives(self, receives: Sequence[Any]) -> None:
        first, last = receives[0].first_lease, receives[-1].first_lease
        stop = last + count_runs(receives[-1].positions)
        if not self._next_lease:
            self._first_lease = self._next_lease = first
        if self._next_lease <= first <= last < self._next_lease + _LEAP:
            self._next_lease = stop
        else:
            for record in receives:
                if record.first_lease != self._next_lease:
                    self._keep_leases()
                    self._first_lease = self._next_lease = record.first_lease
                self._next_lease += count_runs(record.positions)
        stored = self._stored
        for record in receives:
            # The first decides: positions ascend along the log, so no record names a position behind the last stored.
            if record.positions and record.positions[0] < stored.get(record.queue_id, _NOT_STORED)[0]:
                _add(self._bitmap(record.queue_id), record.positions)

    def _take_ids(self, rows: Sequence[tuple[int, int, bytes]], first_ids: Sequence[int]) -> None:
        """Take the first message id of each record; the sizes, which tell the last, are only decoded of few records."""
        if not first_ids:
            return
        self._note_ids(min(first_ids), 1)
        last = max(first_ids)
        self._note_ids(last, 1)
        assert self._highest_message_id is not None
        last += max(messages for _, messages, _ in rows)
        self._tops = [top for top in self._tops if top[0] > self._highest_message_id + 1]
        if last > self._highest_message_id + 1:
            self._tops.append((last, [meta for _, messages, meta in rows if messages]))

    def _take_actors(self, fields: Iterable[tuple[int, ...]]) -> None:
        for actors in fields:
            if len(actors) == 1:
                self.actors.add(actors[0])
            elif actors:
                self.actors.update(actors[1::2])
        self.actors.discard(0)

    def history(self) -> SideHistory:
        """Return part two of the side file."""
        self._keep_leases()
        return side_history(
            _packed(self._leases),
            [(number, first, stop) for number, (first, stop) in self._stored.items()],
            [
                SideNamed(number, _packed(self._positions.get(number)), self._ranges.get(number, []))
                for number in self._positions.keys() | self._ranges.keys()
            ],
        )

    def _bitmap(self, number: int) -> BitMap64:
        bitmap = self._positions.get(number)
        if bitmap is None:
            bitmap = self._positions[number] = BitMap64()
        return bitmap

    def _add_positions(self, number: int, positions: Runs) -> None:
        # As with receives. Positions without a stored neighbour are always added.
        if positions and positions[0] < self._stored.get(number, _NOT_STORED)[0]:
            _add(self._bitmap(number), positions)

    def _keep_leases(self) -> None:
        self._leases.add_range(self._first_lease, self._next_lease)

    # Every method takes a record in its exact form, with the naming fields of the record.

    def take_positions(self, _lsn: int, record: Any) -> None:
        """Take a record with positions."""
        self._add_positions(_owner(record), record.positions)

    def take_leases(self, _lsn: int, record: Any) -> None:
        """Take a record with leases that the segment did not give."""
        if record.leases:
            _add(self._leases, record.leases)

    def take_both(self, lsn: int, record: Any) -> None:
        """Take a record with positions, and leases that the segment did not give."""
        self._add_positions(record.queue_id, record.positions)
        self.take_leases(lsn, record)

    def take_actor(self, _lsn: int, record: Any) -> None:
        """Take an ``ActorSeen``."""
        self.actors.add(record.number)

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

    def take_redrive(self, lsn: int, record: Any) -> None:
        """Take a ``RedriveStarted``, whose row tells the key of the moves that follow."""
        self._note(lsn, record, 0, record.stop_position)

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
            low, high = self.lowest_message_id, self._highest_message_id
            if low is None or first < low:
                self.lowest_message_id = first
            if high is None or first + count > high:
                self._highest_message_id = first + count - 1


def _taker(record: type[Record]) -> Callable[[NamedMessages, int, Any], None] | None:
    special = _SPECIAL.get(record)
    if special is not None:
        return special
    fields = record.__struct_fields__
    if "leases" not in fields:
        return NamedMessages.take_positions if "positions" in fields else None
    return NamedMessages.take_both if "positions" in fields else NamedMessages.take_leases


_SPECIAL: Final[dict[type[Record], Callable[[NamedMessages, int, Any], None]]] = {
    ActorSeen: NamedMessages.take_actor,
    MessagesPublished: NamedMessages.take_published,
    MessagesPublishedAlike: NamedMessages.take_published,
    QueueAttributesSet: NamedMessages.take_rewind_floor,
    QueueRewound: NamedMessages.take_rewound,
    RedriveStarted: NamedMessages.take_redrive,
    QueueCleared: NamedMessages.take_floor,
    MessagesExpired: NamedMessages.take_floor,
    TopicMessagesExpired: NamedMessages.take_floor,
    DeliveriesCleared: NamedMessages.take_cleared,
    QueueDeleted: NamedMessages.take_whole,
    Unsubscribed: NamedMessages.take_whole,
}
_QUICK: Final = {record: _quick(record) for record in get_args(AnyRecord)}
_EXACT: Final = {
    record: _exact(record) if "leases" in record.__struct_fields__ else _QUICK[record] for record in _QUICK
}
_EXACT[MessagesSent] = _exact(MessagesSent)
_EXACT_SENT: Final = _EXACT[MessagesSent]
_NEED_EXACT: Final = frozenset(_QUICK.values()) - frozenset(_EXACT.values())
_quick_records: Final = _decoder(_QUICK.values())
_exact_records: Final = _decoder(_EXACT.values())
_TAKERS: Final = {brief: taker for record, brief in _EXACT.items() if (taker := _taker(record)) is not None}
_NOT_STORED: Final = (_NEVER, _NEVER)


def _decoded(decoder: msgspec.msgpack.Decoder[list[Any]], meta: bytes) -> list[Any]:
    try:
        return decoder.decode(meta)
    except msgspec.ValidationError:
        raise_if_newer("row holds records", map(memoryview, raw_items(meta)), _TAGS)
        raise


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
    if history.stores(number, position):
        return True
    named = _find(history, number)
    if named is not None:
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
