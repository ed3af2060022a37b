"""The events of a life: a bounded list, in which missing rows stand where an event follows; and their names. Pure."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cmqd_reading.places import Place
from cmqd_segment.actor_runs import actor_numbers
from cmqd_segment.records import Administered, AnyRecord, Runs
from cmqd_types.actors import Actor
from cmqd_types.histories import LifeEvent, LifeKind

MAX_EVENTS: Final = 10_000
"""Events of a history; of a longer history the first and the last half are kept."""


class LifeEvents:
    """The list; see the module."""

    def __init__(self) -> None:
        self._first: list[LifeEvent] = []
        self._last: deque[LifeEvent] = deque(maxlen=MAX_EVENTS // 2)
        self._count = 0
        self._missing: list[tuple[int, int]] = []
        """Ranges of missing rows since the last event."""
        self.begun_ms = 0
        """Time of the first event."""

    def add(self, event: LifeEvent) -> None:
        """Add an event, behind the rows that are missing before it."""
        self.tell_missing()
        self._append(event)
        self.begun_ms = self.begun_ms or event.time_ms

    def miss(self, first_lsn: int, last_lsn: int) -> None:
        """Note missing rows. Rows before the first event are of no interest."""
        if self._count:
            self._missing.append((first_lsn, last_lsn))

    def tell_missing(self) -> None:
        """Add an event for the missing rows since the last event."""
        if self._missing:
            before = self._last[-1] if self._last else self._first[-1]
            first, last = self._missing[0][0], self._missing[-1][1]
            self._missing.clear()
            self._append(
                LifeEvent(time_ms=before.time_ms, kind=LifeKind.ROWS_MISSING, lsn=0, first_lsn=first, last_lsn=last)
            )

    def _append(self, event: LifeEvent) -> None:
        self._count += 1
        if len(self._first) < MAX_EVENTS // 2:
            self._first.append(event)
        else:
            self._last.append(event)

    def kept(self) -> list[LifeEvent]:
        """Return the events, without those in the middle of a long history."""
        return [*self._first, *self._last]

    @property
    def left_out(self) -> int:
        """Number of events in the middle that were left out."""
        return self._count - len(self._first) - len(self._last)


UNNAMED: Final = "#"
"""Begins a text that stands for a name that is not known yet. No name has the character."""


def unnamed(number: int) -> str:
    """Return the text that stands for the name of a queue, topic, subscription or schedule."""
    return f"{UNNAMED}{number}"


def unnamed_actor(number: int) -> Actor:
    """Return the client that stands for a client that is not known yet."""
    return Actor("", unnamed(number))


def unnamed_number(actor: Actor) -> int:
    """Return the number of a client that is not known yet; 0 = the client is known."""
    return int(actor.secret_id.removeprefix(UNNAMED)) if actor.secret_id.startswith(UNNAMED) else 0


def no_name(number: int) -> str:
    """Find no name."""
    return ""


FindActor: TypeAlias = Callable[[int], Actor | None]
"""Finds a client by its number in the records; None = not known."""


class LifeNotes:
    """Notes of a life: the events, with the row under way and the names that they need."""

    def __init__(self, find_name: Callable[[int], str], find_actor: FindActor | None) -> None:
        self.events = LifeEvents()
        self.names: dict[int, str] = {}
        """Names of queues, topics, subscriptions and schedules by id."""
        self.actors: dict[int, Actor | None] = {}
        """Clients by their numbers in the records."""
        self._find_name = find_name
        self._find_actor = find_actor
        self.lsn = self.time_ms = 0
        self._records: Sequence[AnyRecord] = ()
        self.late: list[str] = []
        """Subscriptions with late copies of the message in the row under way."""

    def begin_row(self, lsn: int, time_ms: int, records: Sequence[AnyRecord]) -> None:
        """Begin a row."""
        self.lsn, self.time_ms, self._records = lsn, time_ms, records
        self.late.clear()

    def name(self, number: int) -> str:
        """Return the name of a queue, topic, subscription or schedule; empty if it is not known."""
        name = self.names.get(number)
        if name is None:
            name = self.names[number] = self._find_name(number)
        return name

    def actor(self, runs: Runs, index: int) -> Actor | None:
        """Return the client of a message by the field ``actors`` of a record; None if it is not known."""
        number = actor_numbers(runs, index + 1)[-1] if runs else 0
        if not number or self._find_actor is None:
            return None
        if number not in self.actors:
            self.actors[number] = self._find_actor(number)
        return self.actors[number]

    def administrator(self, operation: str) -> Actor | None:
        """Return the key that made an administrative operation of the row; None if it is not known, or one of several.

        The entry of the audit trail is in the append of the operation's facts.
        """
        entries = [one.entry for one in self._records if isinstance(one, Administered)]
        found = [entry for entry in entries if entry.operation == operation]
        if len(found) != 1 or self._find_actor is None:
            return None
        (entry,) = found
        return Actor(entry.by_account, entry.secret_id, host=entry.peer.rpartition(":")[0])

    def note(self, kind: LifeKind, time_ms: int, **fields: Any) -> None:
        """Add an event of the row under way."""
        self.events.add(LifeEvent(time_ms=time_ms, kind=kind, lsn=fields.pop("lsn", self.lsn), **fields))

    def note_at(self, place: Place, kind: LifeKind, time_ms: int, **fields: Any) -> None:
        """Add an event in a queue."""
        self.note(kind, time_ms, queue=self.name(place.queue_id), message_id=place.message_id, **fields)
