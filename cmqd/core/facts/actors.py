"""Actors: the clients that changed messages, with the numbers by which records name them.

An actor gets its number at its first change: ``ActorSeen`` stands in front of the record that names the actor, in the
same append. A client that only looks at messages, or whose requests are all refused, costs nothing.

Names are the word of a client. A key and an account have shares of the table, so a client that invents names takes no
room of others: beyond the shares, and beyond the limit of the table, further clients of a key have one number together,
of an actor without name and host.

An actor is forgotten when no lease in a checkpoint and no row outside of sealed segments names it, because a sealed
segment has a table of its actors. Time is cut into generations, and an entry has the generation of its last use. When a
checkpoint is written and all rows of the generations before the present one are sealed, their actors are forgotten, and
a new generation begins. A forgotten actor that comes back gets a new number: its old number is in no checkpoint any
more, so a start could not tell that the two are equal.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat

import msgspec

from cmqd.core.limits import Limits
from cmqd_segment.actor_runs import pack_actors
from cmqd_segment.checkpoint import ActorsSlice
from cmqd_segment.records import ActorSeen, AnyRecord, Runs
from cmqd_types.actors import NO_ACTOR, Actor

ACTORS_A_PART = 2000
"""Actors of a part of a checkpoint: a part takes about a millisecond."""
JUMP = 1_000_000
"""Leap of the numbers when part of the log was lost: more clients than a lost part can have named."""


class Numbered(msgspec.Struct, gc=False):
    """An actor's entry."""

    number: int
    generation: int
    """Generation of the last record that names the actor."""
    actor: Actor
    runs: Runs
    """The field ``actors`` of a record that the actor makes alone. Records share the list, so it is never changed."""


NOT_KNOWN = Numbered(0, 0, NO_ACTOR, [])


class Actors:
    """The actors that rows outside of sealed segments may name; see the module."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.next_number = 1
        self._entries: dict[Actor, Numbered] = {}
        self._by_number: dict[int, Actor] = {}
        self._named: Counter[tuple[str, str]] = Counter()
        """Number of named actors of each key, by account and id, and of each account, with an empty id."""
        self._generation = 0
        self._begun_lsn = 0
        """Newest row at the begin of the generation."""

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Actors kept={len(self._entries)} next_number={self.next_number}>"

    def find(self, number: int) -> Actor | None:
        """Return the actor with a number; None if the actor is forgotten: the sealed segments with the number have a
        table of their actors.
        """
        return self._by_number.get(number)

    def number_of(self, actor: Actor, records: list[AnyRecord]) -> int:
        """Return the number of an actor for a record that is about to be made. A record that gives the number is added
        to ``records``, if the actor has none.
        """
        try:
            entry = self._entries[actor]
        except KeyError:
            entry = self._number(actor, records)
        entry.generation = self._generation
        return entry.number

    def known_number(self, actor: Actor) -> int:
        """Return the number by which records name an actor; 0 = no record names the actor."""
        entry = self._entries.get(actor) or self._entries.get(Actor(actor.account, actor.secret_id))
        return 0 if entry is None else entry.number

    def joined(self, actors: Sequence[Actor], counts: Iterable[int], total: int, records: list[AnyRecord]) -> Runs:
        """Return the field ``actors`` of a record that requests share.

        Args:
            actors: the client of each request; empty = not known.
            counts: the messages of each request in the record, in the order of the record, up to the total. A client
                without messages is not named.
            total: the messages of the record, at least one.
            records: as for ``number_of``.
        """
        if len(actors) == 1:
            # The usual record. ``number_of`` in line: a call less in the most frequent requests.
            try:
                entry = self._entries[actors[0]]
            except KeyError:
                entry = self._number(actors[0], records)
            entry.generation = self._generation
            return entry.runs
        if not actors:
            return []
        before = actors[0]
        if actors.count(before) == len(actors):
            return self.joined([before], counts, total, records)
        pairs: list[tuple[int, int]] = []
        number = -1
        for actor, count in zip(actors, counts, strict=False):
            if count and total:
                if actor is not before or number < 0:
                    before = actor
                    number = self.number_of(actor, records)
                pairs.append((min(count, total), number))
                total -= min(count, total)
        return pack_actors(pairs)

    def sorted_by(
        self, keys: Sequence[int], actors: Sequence[Actor], counts: Iterable[int], records: list[AnyRecord]
    ) -> Runs:
        """Return the field ``actors`` of a record whose messages stand in another order than its requests.

        Args:
            keys: the position or lease of each message, in the order of the requests; the record has them ascending.
            actors: as for ``joined``.
            counts: the messages of each request.
            records: as for ``number_of``.
        """
        if len(actors) > 1 and any(key > following for key, following in pairwise(keys)):
            of_each = [actor for actor, count in zip(actors, counts, strict=False) for actor in repeat(actor, count)]
            ascending = sorted(range(len(keys)), key=keys.__getitem__)
            actors, counts = [of_each[place] for place in ascending], repeat(1)
        return self.joined(actors, counts, len(keys), records)

    def _number(self, actor: Actor, records: list[AnyRecord]) -> Numbered:
        """Give a number to an actor that has none."""
        if not actor.secret_id:
            return NOT_KNOWN
        limits = self._limits
        if (
            self._named[actor.account, actor.secret_id] >= limits.max_actors_per_key
            or self._named[actor.account, ""] >= limits.max_actors_per_account
            or len(self._entries) >= limits.max_actors
        ):
            actor = Actor(actor.account, actor.secret_id)
            entry = self._entries.get(actor)
            if entry is not None:
                return entry
        record = ActorSeen(self.next_number, actor)
        records.append(record)
        return self.apply(record)

    def apply(self, record: ActorSeen) -> Numbered:
        """Note the number of an actor, live and in a replay."""
        actor = record.actor
        entry = self._entries.get(actor)
        if entry is None:
            entry = self._entries[actor] = Numbered(record.number, self._generation, actor, [record.number])
            self._named.update(_shares_of(actor))
        else:
            # Higher, if the actor was forgotten before the record, and the checkpoint is from before that.
            del self._by_number[entry.number]
            entry.number = max(entry.number, record.number)
            entry.runs = [entry.number]
        self._by_number[entry.number] = actor
        self.reserve(record.number + 1)
        return entry

    def reserve(self, until: int) -> None:
        """Use no number below ``until`` again."""
        self.next_number = max(self.next_number, until)

    def slices(self, lsn: int, sealed_upto: int) -> Iterator[ActorsSlice]:
        """Yield the parts of a checkpoint, and forget the actors that no row outside of sealed segments names.

        No part, if no actor was ever named. Other operations may run between two parts: an actor that is named in
        between stays, and an actor that comes in between is in the log behind the begin of the checkpoint.

        Args:
            lsn: of the newest row.
            sealed_upto: every row up to this LSN is in a sealed segment, or gone.
        """
        next_number = self.next_number
        if next_number == 1:
            return
        oldest = 0
        if sealed_upto >= self._begun_lsn:
            # Before the first part: from here on an actor that is named is of the new generation.
            oldest = self._generation
            self._generation += 1
            self._begun_lsn = lsn
        # References alone, and no pairs: with pairs the first part would take ten milliseconds at the limit.
        entries = list(self._entries.values())
        for start in range(0, len(entries), ACTORS_A_PART):
            kept: list[tuple[int, Actor]] = []
            for entry in entries[start : start + ACTORS_A_PART]:
                if entry.generation < oldest:
                    self._forget(entry.actor)
                else:
                    kept.append((entry.number, entry.actor))
            yield ActorsSlice(next_number, kept)
        if not entries:
            yield ActorsSlice(next_number, [])

    def _forget(self, actor: Actor) -> None:
        del self._by_number[self._entries.pop(actor).number]
        for share in _shares_of(actor):
            self._named[share] -= 1
            if not self._named[share]:
                del self._named[share]

    def keep(self, numbers: Iterable[int]) -> None:
        """Keep the actors of leases in a checkpoint until the next checkpoint, also without rows that name them."""
        for number in numbers:
            actor = self._by_number.get(number)
            if actor is not None:
                self._entries[actor].generation = self._generation

    def load(self, part: ActorsSlice) -> None:
        """Take a part of a checkpoint."""
        for number, actor in part.actors:
            self.apply(ActorSeen(number, actor))
        self.reserve(part.next_number)

    def check_invariants(self) -> None:
        """Raise AssertionError if the tables disagree."""
        numbers = [entry.number for entry in self._entries.values()]
        assert len(set(numbers)) == len(numbers)
        assert self._by_number == {entry.number: actor for actor, entry in self._entries.items()}
        assert all(0 < number < self.next_number for number in numbers)
        assert self._named == Counter(share for actor in self._entries for share in _shares_of(actor))


def _shares_of(actor: Actor) -> tuple[tuple[str, str], ...]:
    """Return the shares to which an actor counts: none, if the actor stands for the further clients of a key."""
    return ((actor.account, actor.secret_id), (actor.account, "")) if actor.name or actor.host else ()
