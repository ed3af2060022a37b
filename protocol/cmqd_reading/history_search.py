"""The search for the life of a message, as questions to a caller that has the rows. Pure.

The search is a generator: it yields ``HolderWanted``, ``RowsWanted`` and ``IdWanted``, and is sent their answers. So a
broker reads some rows at a time, between other work, from files or from memory.

Ids of messages and leases ascend with the rows, so the row that stored a message, or gave it out, is found by halving,
among the rows that the caller does not rule out. From the store of the oldest id on every row may name the message,
unless the caller leaves it out.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from cmqd_reading.births import birth_in, received_under
from cmqd_reading.events import Event, stored_in
from cmqd_reading.life import Life
from cmqd_reading.life_events import FindActor, unnamed, unnamed_actor
from cmqd_segment.records import (
    AnyRecord,
    MessagesPublished,
    MessagesReceived,
    MessagesSent,
    TransactionsEnded,
)
from cmqd_segment.rows import decode_records
from cmqd_types.histories import MessageHistory

MAX_EVENTS: Final = 500
"""Events of an answer; of more the first and the last half are kept."""

Row: TypeAlias = tuple[int, int, bytes]
"""(LSN, time, encoded records)"""


class HolderWanted(NamedTuple):
    """Ask which rows surely do not store a message, or do not give out a lease. The answer is their ranges (first,
    last), ascending; it may be empty."""

    number: int
    """The id of the message, or the lease."""
    is_lease: bool = False


class RowsWanted(NamedTuple):
    """Ask for rows from ``first_lsn`` up to ``last_lsn``, as many of the first ones as can be decoded between other
    work. The answer is ``Rows``."""

    first_lsn: int
    last_lsn: int
    is_of_stores: bool
    """Only rows that store messages are wanted, and the first of them is enough."""
    life: Life | None = None
    """Only rows that may name this message are wanted; the others may be left out, which ``are_left_out`` tells."""
    is_store_gone: bool = False
    """The store of the message is not readable: a row that moves or copies a message from a row that is gone may be
    the one that names the message."""


class Rows(NamedTuple):
    """Readable rows, ascending."""

    rows: Sequence[Row]
    upto_lsn: int
    """The answer covers the rows up to here; those that it lacks are reclaimed or damaged. At least the first that was
    wanted."""
    are_left_out: bool = False
    """The rows are not missing: none of them names the message."""


class IdWanted(NamedTuple):
    """Ask for the id of the message at a position of a queue. The answer is the id; 0 = the row is not readable."""

    queue_id: int
    position: int


class Extent(NamedTuple):
    """The rows of a log, from 1 on."""

    last_lsn: int
    last_ms: int
    """Time of the last row."""
    missing: Sequence[tuple[int, int]] = ()
    """Ranges (first, last) of rows that were reclaimed or lost."""

    def lacks(self, first_lsn: int, last_lsn: int) -> bool:
        """Return whether a range has a row that was reclaimed or lost."""
        return any(first <= last_lsn and last >= first_lsn for first, last in self.missing)


class FoundHistory(NamedTuple):
    """The life of a message, and the ids of the queues and topics that the message was in."""

    history: MessageHistory
    sources: Sequence[int]


Question: TypeAlias = HolderWanted | RowsWanted | IdWanted
Search: TypeAlias = Generator[Question, Any, FoundHistory | None]
_Holder: TypeAlias = tuple[int, int, Sequence[AnyRecord]]
"""(LSN, lowest number of a row, records)"""
_NumberOf: TypeAlias = Callable[[Sequence[AnyRecord]], int | None]


class Told(NamedTuple):
    """The texts of a history, and its length."""

    find_name: Callable[[int], str] = unnamed
    """Finds the name of a queue, topic, subscription or schedule by its id; empty = not known."""
    find_actor: FindActor = unnamed_actor
    """Finds a client by its number."""
    max_events: int = MAX_EVENTS
    """Of more events the first and the last half are kept."""


def search_by_id(message_id: int, extent: Extent, told: Told) -> Search:
    """Find the life of a message; None = no readable row tells of it.

    Args:
        message_id: the id, or that of any queue that the message was in.
        extent: the rows that can be read.
        told: the texts of the history.
    """
    path = [message_id]
    start, before = 0, extent.last_lsn
    while True:
        holder = yield from _find_holder(HolderWanted(path[0]), extent, before)
        birth = None if holder is None else birth_in(holder[2], path[0])
        if holder is None or birth is None:
            break
        start = holder[0]
        if not birth.parent_id:
            return (yield from _life(path, start, extent, told, is_stored=True))
        path.insert(0, birth.parent_id)
        before = start
    if start:
        # The former id is of a row that is not readable. The moved message tells of it.
        return (yield from _life(path[1:], start, extent, told, is_stored=True))
    if not extent.missing:
        return None
    below = yield from _holder(message_id, _lowest_id, 1, extent.last_lsn, is_of_stores=True)
    first_lsn = 1 if below is None else below[0] + 1
    after = yield from _next(first_lsn, extent.last_lsn, _lowest_id, is_of_stores=True)
    if not extent.lacks(first_lsn, extent.last_lsn if after is None else after[0]):
        return None
    # The store was reclaimed or lost. Later rows may name the id as the former id of a moved message.
    return (yield from _life(path, first_lsn, extent, told, is_stored=False))


def search_by_lease(lease: int, extent: Extent, told: Told) -> Search:
    """Find the life of the message that was given out under a lease; None = no readable row tells of it."""
    place = yield from search_place(lease, extent)
    if place is None:
        return None
    message_id: int = yield IdWanted(*place)
    return (yield from search_by_id(message_id, extent, told)) if message_id else None


def search_place(lease: int, extent: Extent) -> Generator[Question, Any, tuple[int, int] | None]:
    """Find queue and position of the message that was given out under a lease; None = no readable row tells."""
    holder = yield from _find_holder(HolderWanted(lease, is_lease=True), extent, extent.last_lsn)
    return None if holder is None else received_under(holder[2], lease)


def _life(path: Sequence[int], start: int, extent: Extent, told: Told, *, is_stored: bool) -> Search:
    life = Life(path, told.find_name, told.find_actor)
    expected = start
    while expected <= extent.last_lsn and not life.is_over:
        answer: Rows = yield RowsWanted(expected, extent.last_lsn, False, life, not is_stored)
        for lsn, time_ms, meta in answer.rows:
            if lsn > expected:
                life.miss(expected, lsn - 1)
            expected = lsn + 1
            if life.may_name(meta):
                try:
                    life.feed(lsn, time_ms, decode_records(meta))
                except msgspec.MsgspecError:
                    life.miss(lsn, lsn)
        if answer.upto_lsn >= expected:
            if not answer.are_left_out:
                life.miss(expected, answer.upto_lsn)
            expected = answer.upto_lsn + 1
    history = life.result(extent.last_lsn, extent.last_ms)
    return FoundHistory(_cut(history, told.max_events), list(life.positions)) if history.events else None


def _cut(history: MessageHistory, max_events: int) -> MessageHistory:
    """Return a history without the middle of very many events."""
    events = history.events
    lacking = len(events) - max_events
    if lacking <= 0:
        return history
    kept = [*events[: max_events // 2], *events[-max_events // 2 :]]
    return structs.replace(history, events=kept, left_out=history.left_out + lacking)


def _find_holder(wanted: HolderWanted, extent: Extent, last_lsn: int) -> Generator[Question, Any, _Holder | None]:
    """Return the row up to ``last_lsn`` that stores a message, or gives out a lease; None if no readable row does."""
    lowest = _lowest_lease if wanted.is_lease else _lowest_id
    without: Sequence[tuple[int, int]] = yield wanted
    # Halved in each range alone: a row of another range would have to be read from a segment that is left out.
    for first, last in _left_by([*without, *extent.missing], last_lsn):
        holder = yield from _holder(wanted.number, lowest, first, last, is_of_stores=not wanted.is_lease)
        if holder is not None and (
            received_under(holder[2], wanted.number) if wanted.is_lease else birth_in(holder[2], wanted.number)
        ):
            return holder
    return None


def _left_by(without: Iterable[tuple[int, int]], last_lsn: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows from 1 to ``last_lsn`` that other ranges (first, last) leave."""
    first = 1
    for below, above in sorted(without):
        if below > last_lsn:
            break
        if first < below:
            yield first, below - 1
        first = max(first, above + 1)
    if first <= last_lsn:
        yield first, last_lsn


def _holder(
    number: int, lowest: _NumberOf, first_lsn: int, last_lsn: int, *, is_of_stores: bool
) -> Generator[Question, Any, _Holder | None]:
    """Return the last row with a lowest number of at most ``number``; None if there is none."""
    found: _Holder | None = None
    while first_lsn <= last_lsn:
        middle = (first_lsn + last_lsn) // 2
        row = yield from _next(middle, last_lsn, lowest, is_of_stores=is_of_stores)
        if row is None or row[1] > number:
            last_lsn = middle - 1
        else:
            found = row
            first_lsn = row[0] + 1
    return found


def _next(
    first_lsn: int, last_lsn: int, lowest: _NumberOf, *, is_of_stores: bool
) -> Generator[Question, Any, _Holder | None]:
    """Return the first row of a range that takes numbers."""
    while first_lsn <= last_lsn:
        answer: Rows = yield RowsWanted(first_lsn, last_lsn, is_of_stores)
        for lsn, _, meta in answer.rows:
            try:
                records = decode_records(meta)
            except msgspec.MsgspecError:
                continue  # damaged, in spite of its checksum
            number = lowest(records)
            if number is not None:
                return lsn, number, records
        first_lsn = answer.upto_lsn + 1
    return None


def _lowest_id(records: Sequence[AnyRecord]) -> int | None:
    """Return the lowest id that a row has given to a message; None = it has given none.

    A committed message has the id of its half message, which stands in an earlier row.
    """
    if any(isinstance(record, TransactionsEnded) and record.committed for record in records):
        ids = [stored.run.first_message_id for stored in stored_in(records) if stored.event is not Event.COMMITTED]
    else:
        # The copies of a publish have higher ids than its messages.
        ids = [record.first_message_id for record in records if isinstance(record, MessagesSent | MessagesPublished)]
    return min(ids, default=None)


def _lowest_lease(records: Sequence[AnyRecord]) -> int | None:
    """Return the lowest lease that a row has given; None = it has given none."""
    return min((record.first_lease for record in records if isinstance(record, MessagesReceived)), default=None)
