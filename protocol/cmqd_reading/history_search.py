"""The search for the life of a message, as questions to a caller that has the rows. Pure.

The search is a generator: it yields ``RowsWanted`` and ``IdWanted``, and is sent their answers. So a broker reads some
rows at a time, between other work, from files or from memory.

Ids of messages and leases ascend with the rows, so the row that stored a message, or gave it out, is found by halving.
From the store of the oldest id on all rows are read: every later row may name the message.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from cmqd_reading.births import birth_in, received_under
from cmqd_reading.events import Event, stored_in
from cmqd_reading.life import Life
from cmqd_reading.life_events import unnamed_actor
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


class RowsWanted(NamedTuple):
    """Ask for rows from ``first_lsn`` up to ``last_lsn``, as many of the first ones as can be decoded between other
    work. The answer is ``Rows``."""

    first_lsn: int
    last_lsn: int
    is_of_stores: bool
    """Only rows that store messages are wanted, and the first of them is enough."""
    life: Life | None = None
    """Only rows that may name this message are wanted; the others may be left out, which ``are_left_out`` tells."""


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


Search: TypeAlias = Generator[RowsWanted | IdWanted, Any, FoundHistory | None]
_Holder: TypeAlias = tuple[int, int, Sequence[AnyRecord]]
"""(LSN, lowest number of a row, records)"""
_NumberOf: TypeAlias = Callable[[Sequence[AnyRecord]], int | None]


def search_by_id(message_id: int, extent: Extent, find_name: Callable[[int], str]) -> Search:
    """Find the life of a message; None = no readable row tells of it.

    Args:
        message_id: the id, or that of any queue that the message was in.
        extent: the rows that can be read.
        find_name: finds the name of a queue, topic, subscription or schedule by its id; empty = not known.
    """
    path = [message_id]
    start, before = 0, extent.last_lsn
    while True:
        holder = yield from _holder(path[0], _lowest_id, 1, before, is_of_stores=True)
        birth = None if holder is None else birth_in(holder[2], path[0])
        if holder is None or birth is None:
            break
        start = holder[0]
        if not birth.parent_id:
            return (yield from _life(path, start, extent, find_name, is_stored=True))
        path.insert(0, birth.parent_id)
        before = start
    if start:
        # The former id is of a row that is not readable. The moved message tells of it.
        return (yield from _life(path[1:], start, extent, find_name, is_stored=True))
    first_lsn = 1 if holder is None else holder[0] + 1
    after = yield from _next(first_lsn, extent.last_lsn, _lowest_id, is_of_stores=True)
    if not extent.lacks(first_lsn, extent.last_lsn if after is None else after[0]):
        return None
    # The store was reclaimed or lost. Later rows may name the id as the former id of a moved message.
    return (yield from _life(path, first_lsn, extent, find_name, is_stored=False))


def search_by_lease(lease: int, extent: Extent, find_name: Callable[[int], str]) -> Search:
    """Find the life of the message that was given out under a lease; None = no readable row tells of it."""
    holder = yield from _holder(lease, _lowest_lease, 1, extent.last_lsn, is_of_stores=False)
    place = None if holder is None else received_under(holder[2], lease)
    if place is None:
        return None
    message_id: int = yield IdWanted(*place)
    return (yield from search_by_id(message_id, extent, find_name)) if message_id else None


def _life(
    path: Sequence[int], start: int, extent: Extent, find_name: Callable[[int], str], *, is_stored: bool
) -> Search:
    life = Life(path, find_name, unnamed_actor)
    expected = start
    while expected <= extent.last_lsn and not life.is_over:
        # Without a readable store any row may tell of the message.
        answer: Rows = yield RowsWanted(expected, extent.last_lsn, False, life if is_stored else None)
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
    return FoundHistory(_cut(history), list(life.positions)) if history.events else None


def _cut(history: MessageHistory) -> MessageHistory:
    """Return a history without the middle of very many events."""
    events = history.events
    lacking = len(events) - MAX_EVENTS
    if lacking <= 0:
        return history
    kept = [*events[: MAX_EVENTS // 2], *events[-MAX_EVENTS // 2 :]]
    return structs.replace(history, events=kept, left_out=history.left_out + lacking)


def _holder(
    number: int, lowest: _NumberOf, first_lsn: int, last_lsn: int, *, is_of_stores: bool
) -> Generator[RowsWanted | IdWanted, Any, _Holder | None]:
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
) -> Generator[RowsWanted | IdWanted, Any, _Holder | None]:
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
