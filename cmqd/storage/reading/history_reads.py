"""Lives of messages, and messages by dedup id or header, read from the segments (``cmqd_reading.history_search``,
``cmqd_reading.message_search``).

One search reads at a time, through the connections of the pages. The statements run in the threads of the connections.
The loop takes a few rows, then does its other work, as for a page.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cmqd.log.values import HistoryAnswer, MessagesAnswer
from cmqd.storage import ipc
from cmqd.storage.durable_lsn import DurableLsn
from cmqd.storage.folder.catalog import Catalog, SealedFile
from cmqd.storage.reading.pager import Pager, RawRow
from cmqd.storage.reading.segment_reader import DECODED_AT_A_TIME, ROW_OVERHEAD_BYTES
from cmqd_reading.history_search import (
    Extent,
    FoundHistory,
    HolderWanted,
    IdWanted,
    Question,
    Row,
    Rows,
    RowsWanted,
    Told,
    search_by_id,
    search_by_lease,
)
from cmqd_reading.life_events import unnamed_number
from cmqd_reading.message_search import (
    FoundMessages,
    MessageQuery,
    MessageSearch,
    SourceWanted,
    search_messages,
)
from cmqd_reading.named_segments import NamedSegments, stretches_of
from cmqd_segment.manifest import SegmentEntry, SourceName, merge_ranges
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.rows import meta_checksum
from cmqd_segment.side import SideError, SideHistory, SideIds, check_segment, decode_named
from cmqd_types.actors import Actor
from cmqd_types.histories import MessageHistory

LEAST_ROWS = 64
MOST_ROWS = 512
"""Rows of the first and of later statements; see also ``ROWS_BYTES``."""

NOTHING = HistoryAnswer(None, [], [])

_T = TypeVar("_T")
_Request = TypeVar("_Request", ipc.FindHistory, ipc.FindMessages)


class HistoryReads:
    """Answers the requests for lives and for messages; see the module."""

    def __init__(self, catalog: Catalog, pager: Pager, durable: DurableLsn) -> None:
        self._catalog = catalog
        self._pager = pager
        self._durable = durable
        self._one = asyncio.Lock()
        self._named = NamedSegments(partial(_read_side, catalog.folder.path))
        self._wanted: set[int] = set()
        """Requests whose answer is needed."""

    async def answer(self, request: ipc.FindHistory) -> HistoryAnswer:
        """Read the life of a message. Raises sqlite3.Error, OSError as a page does."""
        return await self._alone(request, self._read)

    async def found(self, request: ipc.FindMessages) -> MessagesAnswer:
        """Search for messages. Raises sqlite3.Error, OSError as a page does."""
        return await self._alone(request, self._find)

    async def _alone(self, request: _Request, read: Callable[[_Request], Awaitable[_T]]) -> _T:
        self._wanted.add(request.request_id)
        try:
            await self._durable.reached(request.last_lsn)
            async with self._one:
                return await read(request)
        finally:
            self._wanted.discard(request.request_id)

    def stop(self, request_id: int) -> None:
        """End the reading for a request; it is answered without a result."""
        self._wanted.discard(request_id)

    async def _read(self, request: ipc.FindHistory) -> HistoryAnswer:
        catalog = self._catalog
        missing = merge_ranges([*catalog.dropped, *((loss.first_lsn, loss.last_lsn) for loss in catalog.losses)])
        ends = [
            *(file.entry.last_ms for file in catalog.sealed.values()),
            *(one.last_ms for one in catalog.open.values()),
        ]
        last_ms = max(ends, default=0)
        extent = Extent(request.last_lsn, last_ms, missing)
        if request.lease:
            search = search_by_lease(request.lease, extent, Told())
        else:
            search = search_by_id(request.message_id, extent, Told())
        found: FoundHistory | None = await self._drive(search, request.request_id)
        if found is None:
            return NOTHING
        owners, actors = await self._owners(found.sources), await self._actors(found.history)
        return HistoryAnswer(found.history, list(found.sources), owners, actors)

    async def _find(self, request: ipc.FindMessages) -> MessagesAnswer:
        query = request.query
        segments = [
            each.entry if isinstance(each, SealedFile) else each.entry() for each in list(self._catalog.segments())
        ]
        search: MessageSearch = search_messages(query, stretches_of(segments), request.last_lsn)
        found = await self._drive(search, request.request_id, query) or FoundMessages([], [])
        sources = {message.source_id for message in found.messages}
        return MessagesAnswer(found, await self._owners(list(sources)))

    async def _drive(
        self, search: Generator[Question | SourceWanted, Any, _T], request_id: int, query: MessageQuery | None = None
    ) -> _T | None:
        """Answer the questions of a search, and return its result; None if the answer is not needed any more."""
        reading = _Reading(self._catalog, self._pager, self._named)
        answer: Any = None
        while request_id in self._wanted:
            try:
                wanted = search.send(answer)
            except StopIteration as end:
                return end.value
            match wanted:
                case HolderWanted():
                    answer = await reading.without(wanted)
                case IdWanted(queue_id, position):
                    answer = await self._pager.id_at(queue_id, position)
                case SourceWanted(source_id):
                    # Unsealed rows may be of queues that the loop process alone knows. It looks at the answer.
                    assert query is not None
                    owners = await self._owners([source_id])
                    answer = query.decides((owners[0].account, owners[0].name) if owners else None)
                case RowsWanted():
                    answer = await reading.rows(wanted)
            # The rows of the answer take up to a millisecond. Control frames have their turn before.
            await asyncio.sleep(0)
        search.close()
        return None

    async def _actors(self, history: MessageHistory) -> dict[int, Actor]:
        """Return the clients whose numbers stand in a history. A sealed segment has a table of the clients in its rows;
        those of other rows are known to the core.
        """
        numbers = {unnamed_number(event.actor) for event in history.events if event.actor is not None} - {0}
        lsns = sorted(event.lsn for event in history.events)
        known: dict[int, Actor] = {}
        for segment in list(self._catalog.segments()):
            lacking = numbers - known.keys()
            if not lacking:
                break
            # Searched by halving: a log has thousands of segments.
            if isinstance(segment, SealedFile) and bisect_right(lsns, segment.last_lsn) > bisect_left(
                lsns, segment.entry.first_lsn
            ):
                known |= await self._pager.actors_in(segment, lacking)
        return known

    async def _owners(self, sources: Sequence[int]) -> list[SourceName]:
        """Return the queues and topics that are known here: of deleted ones, segments have the names.

        Those of unsealed rows are left out, because the loop process knows them all. They may be thousands, and a look
        into each of thousands of segments for each of them would take minutes.
        """
        catalog = self._catalog
        known = {number: catalog.names[number] for number in sources if number in catalog.names}
        unsealed = list(catalog.open.values())
        lacking = {
            number
            for number in sources
            if number not in known and not any(segment.positions_of(number) for segment in unsealed)
        }
        for segment in list(catalog.segments()) if lacking else ():
            if isinstance(segment, SealedFile) and any(map(segment.positions_of, lacking)):
                known |= {name.id: name for name in await self._pager.names_in(segment) if name.id in lacking}
                lacking -= known.keys()
        return list(known.values())


class _Reading:
    """Hands on some of the rows that were read together at a time."""

    def __init__(self, catalog: Catalog, pager: Pager, named: NamedSegments) -> None:
        self._catalog = catalog
        self._pager = pager
        self._named = named
        self._raw: deque[RawRow] = deque()
        self._next_lsn = self._upto_lsn = 0
        """The rows from the first to the second LSN are in ``_raw``, as far as they can be read."""
        self._segment_upto = 0
        """Last row of the segment that is read."""
        self._limit = LEAST_ROWS

    async def rows(self, wanted: RowsWanted) -> Rows:
        """Answer a question of the search."""
        if wanted.is_of_stores:
            raw, upto_lsn = await self._pager.rows(wanted, 1)
            return Rows(
                [(row[0], row[1], row[5]) for row in raw if meta_checksum(*row[:4], row[5]) == row[4]], upto_lsn
            )
        if not self._next_lsn == wanted.first_lsn <= self._upto_lsn:
            if wanted.first_lsn > self._segment_upto:
                if (left_out := await self._left_out(wanted)) is not None:
                    return left_out
                self._segment_upto = self._last_of_segment(wanted.first_lsn)
            raw, self._upto_lsn = await self._pager.rows(wanted, self._limit)
            self._raw = deque(raw)
            self._limit = MOST_ROWS
        return self._some(self._upto_lsn)

    def _last_of_segment(self, lsn: int) -> int:
        """Return the last row that is now in the segment of a row; 0 = no segment has the row, or later rows."""
        return next((each.last_lsn for each in self._catalog.segments() if each.last_lsn >= lsn), 0)

    async def without(self, wanted: HolderWanted) -> list[tuple[int, int]]:
        """Return the rows that surely do not hold an id or lease."""
        entries = [file.entry for file in self._sealed()]
        return await asyncio.to_thread(self._named.without_holder, entries, wanted)

    async def _left_out(self, wanted: RowsWanted) -> Rows | None:
        """Return the rows of sealed segments as left out, if their side files say that none names the message."""
        if wanted.life is None:
            return None
        entries = [file.entry for file in self._sealed() if file.last_lsn >= wanted.first_lsn]
        if not entries:
            return None
        # In one call, and not in a call for each: a hop to a thread costs more than a small file. The search waits for
        # the answer, so no other thread uses the life.
        return await asyncio.to_thread(self._named.left_out, entries, wanted)

    def _sealed(self) -> list[SealedFile]:
        return [segment for segment in self._catalog.segments() if isinstance(segment, SealedFile)]

    def _some(self, upto_lsn: int) -> Rows:
        rows: list[Row] = []
        size = 0
        raw = self._raw
        while raw:
            lsn, time_ms, messages, queues, meta_crc, meta = raw[0]
            size += ROW_OVERHEAD_BYTES + len(meta)
            if size > DECODED_AT_A_TIME and rows:
                upto_lsn = lsn - 1
                break
            raw.popleft()
            if meta_checksum(lsn, time_ms, messages, queues, meta) == meta_crc:
                rows.append((lsn, time_ms, meta))
        self._next_lsn = upto_lsn + 1
        return Rows(rows, upto_lsn)


def _read_side(folder: Path, entry: SegmentEntry) -> tuple[SideIds, SideHistory] | None:
    try:
        ids, history = decode_named((folder / entry.side_file).read_bytes())
        check_segment(ids, entry.number, entry.sha256)
    except (OSError, SideError, NewerFormatError):
        return None  # the segment tells
    return ids, history
