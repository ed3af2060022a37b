"""The search for messages by dedup id or header, as questions to a caller that has the rows. Pure.

The search is a generator as in ``history_search``: it yields ``RowsWanted`` and ``SourceWanted``, and is sent their
answers. Nothing indexes headers, so the search reads the rows of a range of time, in the order of the log. A row is
decoded only if the encoded id, or the encoded header, is among its bytes.

A search ends after some rows, and says where the next search goes on. So the work and the answer of each are bounded.
"""

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from cmqd_reading.events import Event, stored_in
from cmqd_reading.history_search import Rows, RowsWanted
from cmqd_segment.records import AnyRecord
from cmqd_segment.rows import decode_records

TIME_SLACK_MS: Final = 10_000
"""Margin for leaving out rows by their time. The time of a row is the time of its newest record, and times do not
decrease along the log, so a message sent before a moment stands at most a little behind the first row of the moment."""
MAX_FOUND: Final = 256
"""Messages of an answer."""
MAX_MISSING: Final = 100
"""Ranges of missing rows of an answer."""
SEARCHED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of rows behind which a search ends: less than 0.1 s."""
ROW_OVERHEAD_BYTES: Final = 512
"""Bytes that take as long to search as an empty row."""
_LATEST_MS: Final = 1 << 63
"""Behind all times."""

_encode: Final = msgspec.msgpack.Encoder().encode


class MessageQuery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages that a search finds, and the place where it begins."""

    dedup_id: str | None = None
    """The id that the producer gave."""
    header: tuple[str, str] | None = None
    """Name and value of a header, in place of a dedup id."""
    account: str = ""
    """Account of the queues and topics to which the messages were sent; empty = any."""
    source: str = ""
    """Name of the queue or topic; empty = any."""
    from_ms: int = 0
    """Only messages sent at or after this time."""
    to_ms: int | None = None
    """Only messages sent before this time."""
    start_lsn: int = 0
    """First row, of the answer before; 0 = the begin of the log."""
    start_index: int = 0
    """First message within this row, counted as in ``events``."""
    decided: dict[int, bool] = {}
    """Whether messages of queues and topics are wanted, by id; the search asks for other ids."""

    def may_be_of(self, account: str, source: str) -> bool:
        """Return whether a queue or topic is one to which the messages were sent."""
        return self.account in ("", account) and self.source in ("", source)

    def decides(self, owner: tuple[str, str] | None) -> bool | None:
        """Return whether messages of a queue or topic with this account and name are wanted; None if an unknown owner
        counts.
        """
        if owner is None:
            return self.may_be_of("", "") or None
        return self.may_be_of(*owner)

    def may_lie_between(self, first_ms: int, last_ms: int) -> bool:
        """Return whether rows between two times may have a message of the range of time."""
        return last_ms >= self.from_ms and (self.to_ms is None or first_ms - TIME_SLACK_MS < self.to_ms)


class SentMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that a search found. Moved messages and copies are found under the id of their first store."""

    source_id: int
    """Id of the queue or topic."""
    message_id: int
    sent_ms: int
    lsn: int
    row_index: int
    """Number of the message within its row, counted as in ``events``."""


class FoundMessages(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a search."""

    messages: list[SentMessage]
    """In the order of the log, so the oldest first."""
    missing: list[tuple[int, int]]
    """Ranges (first, last) of rows that were reclaimed, lost or damaged, and may have had messages of the range of
    time."""
    next_lsn: int = 0
    """``start_lsn`` of the next search; 0 = all rows were searched."""
    next_index: int = 0
    """``start_index`` of the next search."""
    undecided: frozenset[int] = frozenset()
    """Ids of queues and topics that the caller of the search did not know. ``messages`` has their messages."""

    @property
    def is_full(self) -> bool:
        """True if later messages were left out. If some of the messages are not wanted, the search must be repeated
        without their queues: the end of the answer would otherwise tell that these messages exist."""
        return len(self.messages) >= MAX_FOUND


class Stretch(NamedTuple):
    """Rows without a gap between them, as the rows of a segment."""

    first_lsn: int
    last_lsn: int
    first_ms: int
    last_ms: int


class SourceWanted(NamedTuple):
    """Ask whether messages of a queue or topic are wanted. The answer is a boolean, or None if the caller does
    not know the queue: it looks later."""

    source_id: int


MessageSearch: TypeAlias = Generator[RowsWanted | SourceWanted, Any, FoundMessages]


def search_messages(query: MessageQuery, stretches: Sequence[Stretch], last_lsn: int) -> MessageSearch:
    """Find messages by dedup id or header.

    Args:
        query: the messages.
        stretches: the rows that can be read, ascending.
        last_lsn: last row of the log. Rows behind it are not searched.
    """
    search = _Search(query)
    expected, before_ms = max(1, query.start_lsn), 0
    for stretch in (*stretches, Stretch(last_lsn + 1, last_lsn + 1, _LATEST_MS, _LATEST_MS)):
        if stretch.last_lsn >= expected:
            if search.is_over:
                return search.result(expected)
            # Rows between two segments have times between theirs.
            if query.may_lie_between(before_ms, stretch.first_ms):
                search.miss(expected, min(stretch.first_lsn - 1, last_lsn))
            expected = max(expected, stretch.first_lsn)
            upto_lsn = min(stretch.last_lsn, last_lsn)
            if not query.may_lie_between(stretch.first_ms, stretch.last_ms):
                expected = upto_lsn + 1
            while expected <= upto_lsn:
                if search.is_over:
                    return search.result(expected)
                answer: Rows = yield RowsWanted(expected, upto_lsn, is_of_stores=False)
                expected = yield from search.take(expected, answer)
        before_ms = stretch.last_ms
    return search.result(0)


class _Search:
    """The messages that were found so far."""

    def __init__(self, query: MessageQuery) -> None:
        self._query = query
        self._needle = _needle(query)
        self._wanted: dict[int, bool | None] = dict(query.decided)
        """Whether messages of a queue or topic are wanted; None = the caller does not know."""
        self._undecided: set[int] = set()
        """The queues and topics that the caller does not know."""
        self._found: list[SentMessage] = []
        self._missing: list[tuple[int, int]] = []
        self._left = SEARCHED_BYTES
        self._place: tuple[int, int] | None = None
        """Where the next search goes on, if it is within a row."""

    @property
    def is_over(self) -> bool:
        """True if the answer is full, or the rows were many.

        A full answer of a repeated search with messages of unknown queues is no end: the search notes all unknown
        queues, so that one more search is enough to leave out those that are not wanted.
        """
        is_full = len(self._found) >= MAX_FOUND and not (self._undecided and self._query.decided)
        return is_full or self._left <= 0 or len(self._missing) >= MAX_MISSING

    def miss(self, first_lsn: int, last_lsn: int) -> None:
        """Note rows that cannot be read, behind the rows of earlier calls."""
        if first_lsn <= last_lsn:
            missing = self._missing
            missing.append((missing.pop()[0] if missing and missing[-1][1] == first_lsn - 1 else first_lsn, last_lsn))

    def take(self, expected: int, answer: Rows) -> Generator[SourceWanted, Any, int]:
        """Search the rows of an answer, and return the first row behind them that was not searched."""
        for lsn, _, meta in answer.rows:
            self.miss(expected, lsn - 1)
            expected = lsn + 1
            self._left -= ROW_OVERHEAD_BYTES + len(meta)
            if self._needle in meta:
                try:
                    records = decode_records(meta)
                except msgspec.MsgspecError:
                    self.miss(lsn, lsn)
                    continue
                yield from self._take_row(lsn, records)
                if self.is_over:
                    return expected
        self.miss(expected, answer.upto_lsn)
        return answer.upto_lsn + 1

    def _take_row(self, lsn: int, records: Sequence[AnyRecord]) -> Generator[SourceWanted, Any, None]:
        query = self._query
        start_index = query.start_index if lsn == query.start_lsn else 0
        for message in sent_with(lsn, records, dedup_id=query.dedup_id, header=query.header):
            if message.row_index < start_index or message.sent_ms < query.from_ms:
                continue
            if query.to_ms is not None and message.sent_ms >= query.to_ms:
                continue
            source_id = message.source_id
            if source_id not in self._wanted:
                self._wanted[source_id] = yield SourceWanted(source_id)
                if self._wanted[source_id] is None:
                    self._undecided.add(source_id)
            if self._wanted[source_id] is False:
                continue
            if len(self._found) < MAX_FOUND:
                self._found.append(message)
            elif self._place is None:
                self._place = lsn, message.row_index

    def result(self, expected: int) -> FoundMessages:
        """Return the answer; ``expected``: the first row that was not searched, 0 = all were."""
        return FoundMessages(
            self._found, self._missing, *(self._place or (expected, 0)), undecided=frozenset(self._undecided)
        )


def _needle(query: MessageQuery) -> bytes:
    """Return bytes that the encoded records of a row have if the row has a message."""
    if query.dedup_id is not None:
        return _encode(query.dedup_id)
    # The value of a header stands behind its name.
    return b"" if query.header is None else b"".join(map(_encode, query.header))


def sent_with(
    lsn: int, records: Sequence[AnyRecord], *, dedup_id: str | None = None, header: tuple[str, str] | None = None
) -> list[SentMessage]:
    """Return the messages of a row with a dedup id, or with the value of a header.

    A moved message and the copy of a published message are found under the id of their first store.
    """
    found: list[SentMessage] = []
    for stored in stored_in(records):
        run = stored.run
        if stored.event in (Event.MOVED, Event.COPIED, Event.COMMITTED):
            continue
        if dedup_id is not None:
            places = [index for index, each in enumerate(stored.dedup_ids or ()) if each == dedup_id]
        elif header is not None:
            name, value = header
            places = [index for index, each in enumerate(run.headers or ()) if each and each.get(name) == value]
        else:
            places = []
        found += [
            SentMessage(stored.source_id, run.first_message_id + index, run.enqueue_ms, lsn, stored.first_index + index)
            for index in places
        ]
    return found
