"""The life of a message: a fold of the records that name the message, in the order of the log. Pure.

The fold begins with the ids of the message, the oldest first (see ``births``). The fold follows the message over
queues: a moved message has a new id, and names its former id (``origins``). A committed half message keeps its id at a
new position. Of a published message all copies are followed, or the copy alone that was asked for.

The caller feeds rows, and says which rows are missing. Rows that surely do not name the message may be left out. Behind
missing rows an event is certain if a record names the message, and marked if a record names all messages of a range.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from cmqd_reading.births import index_in, may_store
from cmqd_reading.events import Event, Stored, stored_in
from cmqd_reading.life_events import FindActor, LifeNotes, no_name
from cmqd_reading.places import NO_LEASE, Place, Publish
from cmqd_reading.queue_records import OF_QUEUES
from cmqd_reading.topic_records import OF_TOPICS
from cmqd_segment.newer import tag_number
from cmqd_segment.published import waiting_sets
from cmqd_segment.records import (
    ActorSeen,
    AnyRecord,
    MessagesDeadLettered,
    MessagesPublished,
    MessagesPublishedAlike,
    MessagesSent,
    QueueCreated,
    ScheduleFired,
    ScheduleSet,
    Subscribed,
    TopicCreated,
    TransactionsEnded,
)
from cmqd_segment.rows import stored_messages
from cmqd_types.actors import Actor
from cmqd_types.histories import LifeKind, LifePlace, MessageHistory
from cmqd_types.messages import REDRIVE, CopyOf, Headers, Origin

_ANY_ROW: Final = re.compile(b"")
_TRACE_PARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
REPLAY_MARK: Final = "cmqd-replayed-from"
"""Header of a replayed message: ``queue/message id/time of its send`` of its source."""


def _trace_parent(headers: Headers | None) -> str:
    found = (headers or {}).get("traceparent", "")
    return found if _TRACE_PARENT.fullmatch(found) else ""


class Life:
    """The fold; see the module."""

    def __init__(
        self,
        path: Sequence[int],
        find_name: Callable[[int], str] = no_name,
        find_actor: FindActor | None = None,
    ) -> None:
        """Begin without rows.

        Args:
            path: ids of the message from the oldest to the asked id.
            find_name: finds the name of a queue, topic, subscription or schedule that no row has named yet; empty =
                not known; a text that begins with ``UNNAMED`` = not known yet, for the caller to replace.
            find_actor: finds a client that no row has told yet; without the function no event names its client.
        """
        self._asked = path[-1]
        self._path = tuple(path)
        self._awaited = {path[0]}
        """Ids whose store may come without a record that names another id of the message: the first, that of a half
        message, which its commit stores again, and that of a late copy."""
        self._pattern: re.Pattern[bytes] | None = None
        """Finds the rows that may name the message; None = no row does. To be made anew if ``_is_changed``."""
        self._searched: set[int] = set()
        """Ids of the queues and topics that the pattern finds; empty = the pattern finds all."""
        self._is_changed = True
        self._notes = LifeNotes(find_name, find_actor)
        self._by_id: dict[int, Place] = {}
        self._places: dict[int, list[Place]] = {}
        self._publishes: dict[int, list[Publish]] = {}
        """By topic id."""
        self._published_ids: set[int] = set()
        """Ids of published messages with copies that are followed, all or some."""
        self._row: Sequence[AnyRecord] = ()
        self._stored: list[Stored] | None = None

    # ------------------------------------------------------------------ for the caller

    @property
    def positions(self) -> dict[int, list[int]]:
        """Positions of the message by id of the queue or topic, for a search of the rows that name them."""
        found = {queue_id: [place.position for place in places] for queue_id, places in self._places.items()}
        for topic_id, publishes in self._publishes.items():
            found[topic_id] = [publish.position for publish in publishes]
        return found

    @property
    def open_positions(self) -> list[tuple[int, int]]:
        """(queue or topic id, position) wherever a later record may name the message."""
        places = [(each.queue_id, each.position) for each in self._by_id.values() if each.is_live or each.can_return]
        for topic_id, publishes in self._publishes.items():
            places += [(topic_id, each.position) for each in publishes if each.waiting]
        return places

    @property
    def leases(self) -> list[int]:
        """The leases under which the message is in flight."""
        return [place.lease for place in self._by_id.values() if place.lease != NO_LEASE]

    @property
    def awaited(self) -> set[int]:
        """Ids with a first store that may come."""
        return self._awaited - self._by_id.keys()

    def may_name(self, meta: bytes) -> bool:
        """Return False if the encoded records of the next row surely do not name the message: the row may be left out.

        A record begins with its tag and the id of its queue or topic, so a search for these bytes takes the place of
        the decoder. The names of queues that are created in rows left out are not noted.
        """
        if self._is_changed:
            self._is_changed = False
            self._renew_pattern()
        return self._pattern is not None and self._pattern.search(meta) is not None

    def _renew_pattern(self) -> None:
        wanted = self._wanted()
        if wanted is None:
            self._pattern, self._searched = _ANY_ROW, set()
        elif not wanted:
            self._pattern, self._searched = None, set()
        elif not wanted <= self._searched or 2 * len(wanted) < len(self._searched):
            # A pattern takes milliseconds to make if the message has hundreds of copies, which end one by one. So a
            # pattern serves until half of its queues are of no interest any more.
            self._searched = wanted
            ids = b"|".join(re.escape(msgspec.msgpack.encode(number)) for number in sorted(wanted))
            self._pattern = re.compile(b"[" + _TAGS + b"](?:" + ids + b")", re.DOTALL)

    def _wanted(self) -> set[int] | None:
        """Return the ids of the queues and topics with records that may name the message; None = any record may."""
        by_id = self._by_id
        self._awaited = {each for each in self._awaited if each not in by_id or by_id[each].state == "half"}
        if not self._awaited <= by_id.keys():
            return None
        return {number for number, _ in self.open_positions}

    @property
    def is_over(self) -> bool:
        """True if no later record can name the message."""
        wanted = self._wanted()
        return wanted is not None and not wanted

    def feed(self, lsn: int, time_ms: int, records: Sequence[AnyRecord]) -> None:
        """Take the records of a row; rows ascend."""
        self._row, self._stored = records, None
        self._notes.begin_row(lsn, time_ms, records)
        self._is_changed = True
        places_of, publishes_of = self._places, self._publishes
        record: Any
        for record in records:
            kind: type[Any] = record.__class__
            if kind in self._OF_ALL:
                self._OF_ALL[kind](self, record)
            elif kind in OF_QUEUES:
                for place in tuple(places_of.get(record.queue_id, ())):
                    OF_QUEUES[kind](self._notes, record, place)
            elif kind in OF_TOPICS:
                for publish in publishes_of.get(record.topic_id, ()):
                    OF_TOPICS[kind](self._notes, record, publish)

    def miss(self, first_lsn: int, last_lsn: int) -> None:
        """Note that rows between the last row and the next are missing: reclaimed, or lost."""
        self._notes.events.miss(first_lsn, last_lsn)
        for place in self._by_id.values():
            place.is_known = False
            place.receive_count = None
        for publishes in self._publishes.values():
            for publish in publishes:
                publish.is_known = False

    def result(self, last_lsn: int, last_ms: int) -> MessageHistory:
        """Return the history as of the last row that was read."""
        if any(place.is_live or place.can_return for place in self._by_id.values()) or any(
            publish.waiting for publishes in self._publishes.values() for publish in publishes
        ):
            self._notes.events.tell_missing()
        places = [
            LifePlace(
                queue=self._notes.name(place.queue_id),
                message_id=place.message_id,
                state=place.state,
                since_ms=place.since_ms,
                until_ms=place.until_ms,
                is_certain=place.is_known or not (place.is_live or place.can_return),
            )
            for place in sorted(self._by_id.values(), key=lambda place: place.message_id)
        ]
        return MessageHistory(
            message_id=self._asked,
            events=self._notes.events.kept(),
            places=places,
            last_lsn=last_lsn,
            last_ms=last_ms,
            left_out=self._notes.events.left_out,
        )

    # ------------------------------------------------------------------ names

    def _queue_created(self, record: QueueCreated) -> None:
        self._notes.names[record.queue_id] = record.name

    def _actor_seen(self, record: ActorSeen) -> None:
        self._notes.actors[record.number] = record.actor

    def _topic_created(self, record: TopicCreated) -> None:
        self._notes.names[record.topic_id] = record.name

    def _subscribed(self, record: Subscribed) -> None:
        self._notes.names[record.subscription_id] = record.name

    def _schedule_set(self, record: ScheduleSet) -> None:
        self._notes.names[record.schedule_id] = record.name

    # ------------------------------------------------------------------ stores

    def _stores(self) -> list[Stored]:
        if self._stored is None:
            self._stored = stored_in(self._row)
        return self._stored

    def _sent(self, record: MessagesSent) -> None:
        first, stop = record.first_message_id, record.first_message_id + len(record.sizes)
        indexes = {message_id - first for message_id in self._awaited if first <= message_id < stop}
        if record.origins is not None:
            indexes |= {n for n, one in enumerate(record.origins) if one is not None and self._follows(one)}
        if record.copies_of is not None:
            indexes |= {n for n, one in enumerate(record.copies_of) if one is not None and self._follows_copy(one)}
        if not indexes:
            return
        stored = next(
            one
            for one in self._stores()
            if one.source_id == record.queue_id and one.run.first_position == record.first_position
        )
        for index in sorted(indexes):
            self._begin(record, stored, index)

    def _follows(self, origin: Origin) -> bool:
        return origin.message_id in self._by_id or origin.message_id == self._asked

    def _follows_copy(self, copy_of: CopyOf) -> bool:
        # The copies of a publish that was not asked for are not followed, but for the copy on the path.
        return copy_of.message_id == self._asked

    def _begin(self, record: MessagesSent, stored: Stored, index: int) -> None:
        """Begin the life at a position of a queue."""
        message = stored_messages(stored.run, b"")[index]
        message_id, time_ms = message.message_id, message.enqueue_ms
        place = Place(stored.source_id, message.position, message_id, "active", time_ms, 0)
        if stored.event is Event.HALF:
            place.state = "half"
        elif message.visible_ms > time_ms:
            place.state, place.until_ms = "delayed", message.visible_ms
        if place.state != "half":
            self._awaited.discard(message_id)
        fields: dict[str, Any] = {"until_ms": message.visible_ms, "size": stored.run.sizes[index]}
        kind = _KINDS[stored.event]
        if message_id in self._by_id:
            kind = LifeKind.COMMITTED
        origin, copy_of = message.origin, message.copy_of
        if origin is not None:
            kind = LifeKind.REDRIVEN if origin.reason == REDRIVE else LifeKind.DEAD_LETTERED
            self._tell_origin(origin, copy_of)
            fields |= {
                "from_queue": origin.queue,
                "from_id": origin.message_id,
                "reason": "" if origin.reason == REDRIVE else origin.reason,
                "text": origin.rejection,
                "receive_count": origin.receive_count,
            }
        elif copy_of is not None:
            kind = LifeKind.COPIED
            self._tell_publish(copy_of)
            self._notes.late.append(copy_of.subscription)
            fields |= {
                "from_queue": copy_of.topic,
                "from_id": copy_of.message_id,
                "subscription": copy_of.subscription,
            }
        if kind is LifeKind.SENT:
            fields["schedule"] = self._schedule_of(message_id)
            fields["replayed_from"] = (message.headers or {}).get(REPLAY_MARK, "")
        if kind in (LifeKind.SENT, LifeKind.HALF):
            fields["trace_parent"] = _trace_parent(message.headers)
        fields["actor"] = self._notes.actor(record.actors, index) or self._actor_of_move(origin, message_id)
        self._keep(place)
        self._notes.note_at(place, kind, time_ms, **fields)

    def _actor_of_move(self, origin: Origin | None, message_id: int) -> Actor | None:
        """Return the client that moved a message here or committed it, by the record in the same row."""
        former = self._by_id.get(message_id if origin is None else origin.message_id)
        if origin is not None and origin.reason == REDRIVE:
            return None if former is None else former.redriven_by
        for record in self._row:
            if isinstance(record, MessagesDeadLettered | TransactionsEnded) and former is not None:
                index = index_in(record.positions, former.position)
                if record.queue_id == former.queue_id and index >= 0:
                    return self._notes.actor(record.actors, index)
        return None

    def _keep(self, place: Place) -> None:
        self._by_id[place.message_id] = place
        self._places.setdefault(place.queue_id, []).append(place)

    def _tell_origin(self, origin: Origin, copy_of: CopyOf | None) -> None:
        """Note the send of a moved message. The row of the send is not readable any more."""
        if origin.message_id in self._by_id:
            return
        if copy_of is not None:
            self._tell_publish(copy_of)
        fields = {"lsn": 0, "queue": origin.queue, "message_id": origin.message_id}
        self._notes.note(LifeKind.SENT if copy_of is None else LifeKind.COPIED, origin.enqueue_ms, **fields)

    def _tell_publish(self, copy_of: CopyOf) -> None:
        """Note the publish of a copy, if the row of the publish is not readable any more."""
        if copy_of.message_id not in self._published_ids:
            self._published_ids.add(copy_of.message_id)
            self._notes.note(
                LifeKind.PUBLISHED, copy_of.publish_ms, lsn=0, queue=copy_of.topic, message_id=copy_of.message_id
            )

    def _schedule_of(self, message_id: int) -> str:
        for record in self._row:
            if isinstance(record, ScheduleFired) and record.message_id == message_id:
                return self._notes.name(record.schedule_id)
        return ""

    def _published(self, record: MessagesPublished) -> None:
        if not any(may_store(record, message_id) for message_id in self._awaited):
            return
        stores = [one for one in self._stores() if one.topic_id == record.topic_id]
        for one in stores:
            if one.event is Event.PUBLISHED and 0 <= one.run.first_position - record.first_position < len(record.sizes):
                first = one.run.first_message_id
                for message_id in sorted(self._awaited):
                    if first <= message_id < first + len(one.run.sizes):
                        self._begin_publish(record, one, message_id, stores)
        for one in stores:
            source = one.run.source
            if one.event is Event.COPIED and source is not None:
                for index in self._copies_in(one, source.first_message_id):
                    self._begin_copy(one, index)

    def _copies_in(self, stored: Stored, first_original: int) -> list[int]:
        """Return the messages of a run of copies that are followed and not known yet."""
        run = stored.run
        indexes = [one - run.first_message_id for one in self._path]
        if self._asked in self._published_ids:
            indexes.append(self._asked - first_original)
        known = self._by_id
        return [
            index
            for index in dict.fromkeys(indexes)
            if 0 <= index < len(run.sizes) and run.first_message_id + index not in known
        ]

    def _begin_publish(self, record: MessagesPublished, stored: Stored, message_id: int, row: list[Stored]) -> None:
        run = stored.run
        index = message_id - run.first_message_id
        position = run.first_position + index
        topic = record.topic or self._notes.name(record.topic_id)
        bit = position - record.first_position
        waiting = {number for number, messages in waiting_sets(record) if messages >> bit & 1}
        publish = Publish(topic, position, message_id, waiting if message_id == self._asked else set())
        self._awaited.discard(message_id)
        # The copy on the path is in this record, or comes late.
        self._awaited.update(self._path[1:2])
        self._published_ids.add(message_id)
        self._publishes.setdefault(record.topic_id, []).append(publish)
        copies = sum(
            one.run.source is not None and 0 <= message_id - one.run.source.first_message_id < len(one.run.sizes)
            for one in row
        )
        self._notes.note(
            LifeKind.PUBLISHED,
            run.enqueue_ms,
            queue=topic,
            message_id=message_id,
            size=run.sizes[index],
            copies=copies,
            trace_parent=_trace_parent(None if run.headers is None else run.headers[index]),
            actor=self._notes.actor(record.actors, bit),
        )

    def _begin_copy(self, stored: Stored, index: int) -> None:
        run = stored.run
        source = run.source
        assert source is not None
        message_id = run.first_message_id + index
        self._awaited.discard(message_id)
        place = Place(stored.source_id, run.first_position + index, message_id, "active", run.enqueue_ms, 0)
        self._keep(place)
        self._notes.note_at(
            place,
            LifeKind.COPIED,
            run.enqueue_ms,
            from_queue=source.topic,
            from_id=source.first_message_id + index,
            subscription=source.subscription,
        )

    _OF_ALL: ClassVar[dict[type, Any]] = {
        MessagesSent: _sent,
        MessagesPublished: _published,
        MessagesPublishedAlike: _published,
        ActorSeen: _actor_seen,
        QueueCreated: _queue_created,
        TopicCreated: _topic_created,
        Subscribed: _subscribed,
        ScheduleSet: _schedule_set,
    }


_TAGS: Final = b"".join(re.escape(bytes((tag_number(record),))) for record in (*OF_QUEUES, *OF_TOPICS))
_KINDS: Final = {
    Event.SENT: LifeKind.SENT,
    Event.HALF: LifeKind.HALF,
    Event.COMMITTED: LifeKind.COMMITTED,
    Event.COPIED: LifeKind.COPIED,
    Event.MOVED: LifeKind.DEAD_LETTERED,
}
