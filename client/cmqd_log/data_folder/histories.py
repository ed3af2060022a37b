"""Histories of messages, read from the files of a data folder: the search for a message, and the rows of its life.

The life is read in the order of the log, from the store of the message up to the last readable row. Of a message whose
store is not readable any more, later rows may tell: a dead letter names its former id, and a copy its original.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from cmqd_fold.receipts import ReceiptHandles
from cmqd_log.data_folder.catalog import read_catalog
from cmqd_log.data_folder.folder import Folder
from cmqd_log.data_folder.plan import describe, is_sealed
from cmqd_log.data_folder.rows import METAS_A_STATEMENT, decoded, metas, metas_page
from cmqd_log.errors import CmqdSourceError, FolderError, NewerFolderError
from cmqd_reading.births import id_at, store_ids
from cmqd_reading.history_search import (
    Extent,
    HolderWanted,
    IdWanted,
    Question,
    Rows,
    RowsWanted,
    Told,
    search_by_id,
    search_place,
)
from cmqd_reading.life_events import MAX_EVENTS
from cmqd_reading.message_search import FoundMessages, MessageQuery, SourceWanted, search_messages
from cmqd_reading.named_segments import NamedSegments, stretches_of
from cmqd_segment.checkpoint import ActorsSlice, QueueSlice, ScheduleSlice, SubscriptionSlice, TopicSlice
from cmqd_segment.checkpoint_file import CheckpointError, decode_part, read_payloads
from cmqd_segment.manifest import SegmentEntry
from cmqd_segment.newer import NewerFormatError, raw_items, tag_number, tag_of
from cmqd_segment.records import ActorSeen, AnyRecord, QueueCreated, ScheduleSet, Subscribed, TopicCreated
from cmqd_segment.schema import read_actors, read_names
from cmqd_types.actors import Actor
from cmqd_types.histories import MessageHistory
from cmqd_types.messages import printed_id
from cmqd_types.shards import SHARD_SHIFT

ACCOUNTS_FILE = "accounts.json"
_NAMED_SLICES = frozenset(map(tag_number, (QueueSlice, TopicSlice, SubscriptionSlice, ScheduleSlice, ActorsSlice)))

_NAMED_RECORDS = frozenset(map(tag_number, (QueueCreated, TopicCreated, Subscribed, ScheduleSet)))


class NoMessageError(CmqdSourceError):
    """The log does not tell of the message; the text says whether rows that may tell are gone."""


_Found = TypeVar("_Found")


class _Accounts(msgspec.Struct):
    """The part of the file of accounts that receipt handles need."""

    handle_key: tuple[int, int, int, int]


class HistoryReader:
    """Reads histories from a folder, as of the moment of its creation."""

    def __init__(self, path: str) -> None:
        """Look at the folder; a URL has sealed segments alone.

        Raises:
            FolderError: the folder cannot be read.
        """
        self._path = path
        self._folder = Folder(path)
        self._view = self._folder.view(include_active=not self._folder.is_remote)
        self._names = {source.id: source.name for source in self._view.names}
        self._named = NamedSegments(self._folder.sides.named)
        self._actors: dict[int, Actor] = {}
        self._has_read_checkpoints = self._has_searched = self._has_met_actors = False
        self.opened = 0
        """Number of times that a segment was opened."""

    # ------------------------------------------------------------------ histories

    def history(self, message_id: int) -> MessageHistory:
        """Return the history of a message.

        Raises:
            NoMessageError: no row tells of the message.
            FolderError, DataLossError: a segment cannot be read.
        """
        told = Told(self._name_of, self._actor_of, MAX_EVENTS)
        found = self._searched(search_by_id(message_id, self._extent(), told))
        if found is None:
            raise self._no_message(message_id)
        return found.history

    def _extent(self) -> Extent:
        last_ms = max((extent.last_ms for extent in self._view.extents), default=0)
        return Extent(self._view.hi, last_ms, self._view.gaps(1, self._view.hi))

    def _searched(
        self, search: Generator[Question | SourceWanted, Any, _Found], sources: frozenset[int] | None = None
    ) -> _Found:
        """Answer the questions of a search, and return its result; ``sources``: those that are searched, None = all."""
        answer: Any = None
        with _Segments(self._opened) as segments:
            while True:
                try:
                    wanted = search.send(answer)
                except StopIteration as end:
                    return end.value
                except NewerFormatError as error:
                    raise NewerFolderError(f"{self._path} cannot be read: {error}") from error
                match wanted:
                    case HolderWanted():
                        answer = self._named.without_holder(self._view.extents, wanted)
                    case IdWanted(queue_id, position):
                        answer = self._id_at(queue_id, position)
                    case SourceWanted(source_id):
                        answer = sources is None or source_id in sources
                    case RowsWanted():
                        answer = self._rows_wanted(wanted, segments)

    def _rows_wanted(self, wanted: RowsWanted, segments: "_Segments") -> Rows:
        extents = self._view.extents
        index = bisect_left(extents, wanted.first_lsn, key=lambda extent: extent.last_lsn)
        if index == len(extents):
            return Rows([], wanted.last_lsn)
        extent = extents[index]
        if wanted.life is not None and (left_out := self._named.left_out(extents[index:], wanted)) is not None:
            return left_out
        upto_lsn = min(extent.last_lsn, wanted.last_lsn)
        raw = segments.raw_of(extent)
        limit = 1 if wanted.is_of_stores else METAS_A_STATEMENT
        found = metas_page(
            self._folder, raw, extent, wanted.first_lsn - 1, upto_lsn, limit, is_of_stores=wanted.is_of_stores
        )
        return Rows(found.rows, found.last_lsn if found.is_full else upto_lsn)

    # ------------------------------------------------------------------ searches

    def id_of_handle(self, handle: int) -> int:
        """Return the id of the message that was received under a receipt handle.

        Raises:
            NoMessageError: no readable row has the receive.
            FolderError: the folder has no key for handles, or cannot be read.
        """
        lease = ReceiptHandles(self._handle_key()).lease(handle)
        place = self._searched(search_place(lease, self._extent()))
        if place is None:
            raise NoMessageError(
                f"no readable row of {self._path} has a receive with this receipt handle{self._gone()}"
            )
        message_id = self._id_at(*place)
        if not message_id:
            raise NoMessageError(f"{self._path} has the receive with this handle, but not the message{self._gone()}")
        return message_id

    def _id_at(self, queue_id: int, position: int) -> int:
        """Return the id of the message at a position of a queue; 0 = no readable row tells."""
        for extent in self._view.extents:
            contents = self._folder.sides.contents(extent)
            if contents is not None:
                held = contents.held.get(queue_id)
                if held is None or not held.first_position <= position < held.stop_position:
                    continue
            for _, _, records in self._rows(extent, 0):
                message_id = id_at(records, queue_id, position)
                if message_id is not None:
                    return message_id
        return 0

    def _handle_key(self) -> tuple[int, int, int, int]:
        if self._folder.is_remote:
            raise FolderError(
                "a receipt handle is read with the key in the broker's file accounts.json, which is not beside the "
                "segments of a URL: give the id, a dedup id or a header of the message"
            )
        file = Path(self._path.removeprefix("file://").removeprefix("file:")) / ACCOUNTS_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=_Accounts).handle_key
        except FileNotFoundError:
            raise FolderError(
                f"a receipt handle is read with the key in {ACCOUNTS_FILE}, which {self._path} does not have: give the "
                "id, a dedup id or a header of the message"
            ) from None
        except (OSError, msgspec.MsgspecError) as error:
            raise FolderError(f"{file} cannot be read: {error}") from error

    def search(
        self,
        *,
        dedup_id: str | None = None,
        header: tuple[str, str] | None = None,
        queue: str = "",
        account: str = "",
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int = 20,
    ) -> list[int]:
        """Return the ids of messages with a dedup id or with the value of a header, oldest first.

        Args:
            dedup_id: the id that the producer gave.
            header: name and value of a header, in place of a dedup id.
            queue: name of the queue, or of the topic, to which the messages were sent; empty = any.
            account: the account of the queue; empty = any.
            from_ms: only messages sent at or after this time.
            to_ms: only messages sent before this time.
            limit: the search ends with this number of messages.

        Raises:
            NoMessageError: no readable row has a message of this kind.
            FolderError, DataLossError: a segment cannot be read.
        """
        wanted = self._ids_of(queue, account) if queue or account else None
        query = MessageQuery(dedup_id, header, from_ms=from_ms or 0, to_ms=to_ms)
        stretches = stretches_of(self._view.extents)
        found: list[int] = []
        while len(found) < limit:
            part: FoundMessages = self._searched(search_messages(query, stretches, self._view.hi), wanted)
            found += [message.message_id for message in part.messages]
            if not part.next_lsn:
                break
            query = msgspec.structs.replace(query, start_lsn=part.next_lsn, start_index=part.next_index)
        if not found:
            asked = f"the dedup id {dedup_id!r}" if header is None else f"{header[0]}={header[1]!r} as a header"
            raise NoMessageError(f"no message in the readable rows of {self._path} has {asked}{self._gone()}")
        return found[:limit]

    def _ids_of(self, name: str, account: str) -> frozenset[int]:
        """Return the ids of the queues and topics of a name, of deleted ones too."""
        sources = read_catalog(self._folder, self._view).sources.values()
        ids = frozenset(
            source.id
            for source in sources
            if (not name or source.name == name) and (not account or source.account == account)
        )
        if not ids:
            raise NoMessageError(f"{self._path} has no queue or topic {name!r}" + (f" of {account!r}" * bool(account)))
        return ids

    # ------------------------------------------------------------------ rows and names

    def _rows(
        self, extent: SegmentEntry, above: int, upto: int | None = None
    ) -> Iterator[tuple[int, int, list[AnyRecord]]]:
        for lsn, time_ms, meta in self._metas(extent, above, upto):
            yield lsn, time_ms, decoded(extent, lsn, meta)

    def _metas(self, extent: SegmentEntry, above: int, upto: int | None = None) -> Iterator[tuple[int, int, bytes]]:
        with self._opened(extent) as raw:
            yield from metas(self._folder, raw, extent, above, extent.last_lsn if upto is None else upto)

    @contextmanager
    def _opened(self, extent: SegmentEntry) -> Generator[sqlite3.Connection]:
        with self._folder.opened(extent) as raw:
            self.opened += 1
            if is_sealed(extent):
                for number, _, name, _ in read_names(raw):
                    self._names.setdefault(number, name)
                self._actors.update(read_actors(raw))
            yield raw

    def _name_of(self, number: int) -> str:
        if number not in self._names and not self._has_read_checkpoints:
            self._has_read_checkpoints = True
            self._read_checkpoints()
        if number not in self._names and not self._has_searched:
            # The row of a creation may be among the rows that do not name the message.
            self._has_searched = True
            for extent in self._view.extents:
                for lsn, _, meta in self._metas(extent, 0):
                    if any(tag_of(memoryview(raw)) in _NAMED_RECORDS for raw in raw_items(meta)):
                        for record in decoded(extent, lsn, meta):
                            self._note_name(record)
        return self._names.get(number, "")

    def _actor_of(self, number: int) -> Actor | None:
        if number not in self._actors and not self._has_met_actors:
            # A sealed segment has a table of its clients. Of unsealed rows, a checkpoint or an earlier row has them.
            self._has_met_actors = True
            self._has_read_checkpoints = True
            self._read_checkpoints()
            for extent in self._view.extents:
                if not is_sealed(extent):
                    for _, _, records in self._rows(extent, 0):
                        self._actors.update(
                            (each.number, each.actor) for each in records if isinstance(each, ActorSeen)
                        )
        return self._actors.get(number)

    def _read_checkpoints(self) -> None:
        for entry in self._view.checkpoints:
            try:
                for payload in read_payloads(self._folder.checkpoint_path(entry)):
                    if tag_of(payload) in _NAMED_SLICES:
                        self._note_name(decode_part(payload))
            except (CheckpointError, msgspec.MsgspecError, OSError):
                continue  # replaced meanwhile, or damaged: the names stay unknown

    def _note_name(self, part: object) -> None:
        match part:
            case QueueSlice() | QueueCreated():
                self._names.setdefault(part.queue_id, part.name)
            case TopicSlice() | TopicCreated():
                self._names.setdefault(part.topic_id, part.name)
            case SubscriptionSlice() | Subscribed():
                self._names.setdefault(part.subscription_id, part.name)
            case ScheduleSlice() | ScheduleSet():
                self._names.setdefault(part.schedule_id, part.name)
            case ActorsSlice():
                self._actors.update(part.actors)
            case _:
                pass

    # ------------------------------------------------------------------ no message

    def _gone(self) -> str:
        """Return the end of a sentence: the rows that are not readable."""
        missing = self._view.gaps(1, self._view.hi)
        return f"; {describe(missing)} are reclaimed or lost" if missing else ""

    def _no_message(self, message_id: int) -> NoMessageError:
        """Return the reason why no row tells of an id, by the nearest ids in the log."""
        below, above = (-1, 0), (-1, self._view.hi + 1)
        for extent in self._view.extents:
            for lsn, first, last in self._stores(extent, message_id):
                if below[0] < last < message_id:
                    below = last, lsn
                elif first > message_id and (above[0] < 0 or first < above[0]):
                    above = first, lsn
        name = printed_id(message_id)
        shards = {number >> SHARD_SHIFT for number, _ in (below, above) if number >= 0}
        if shards and message_id >> SHARD_SHIFT not in shards:
            return NoMessageError(
                f"{name} is of shard {message_id >> SHARD_SHIFT}, and {self._path} is the log of shard {min(shards)}"
            )
        missing = self._view.gaps(below[1] + 1, above[1] - 1)
        if missing:
            return NoMessageError(
                f"{self._path} does not tell of {name} any more: {describe(missing)} are reclaimed or lost"
                " (the setting keep_history_ms keeps rows)"
            )
        if above[0] < 0 and below[0] < 0:
            return NoMessageError(f"{self._path} has no message")
        if above[0] < 0:
            return NoMessageError(f"no message of {self._path} has the id {name}: the newest is {printed_id(below[0])}")
        return NoMessageError(
            f"no message of {self._path} has the id {name}; a publish that matched no subscription is not kept"
        )

    def _stores(self, extent: SegmentEntry, message_id: int) -> Iterator[tuple[int, int, int]]:
        """Yield a row, and the first and last id that it stores: of the whole segment, if its side file tells that all
        ids are on one side of an id."""
        ids = self._named.ids_of(extent)
        if ids is None or ids.may_store(message_id):
            for lsn, _, records in self._rows(extent, 0):
                for first, last in store_ids(records):
                    yield lsn, first, last
        elif ids.lowest_message_id is not None and ids.highest_message_id is not None:
            lsn = extent.last_lsn if ids.highest_message_id < message_id else extent.first_lsn
            yield lsn, ids.lowest_message_id, ids.highest_message_id


class _Segments:
    """The segment that a search reads: halving reads many rows of a segment, then the life begins there."""

    def __init__(self, opened: Callable[[SegmentEntry], AbstractContextManager[sqlite3.Connection]]) -> None:
        self._open = opened
        self._stack = ExitStack()
        self._number = -1
        self._raw: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def raw_of(self, extent: SegmentEntry) -> sqlite3.Connection:
        """Return a connection to a segment; that of the segment before is closed."""
        if self._raw is None or self._number != extent.number:
            self._stack.close()
            self._raw = self._stack.enter_context(self._open(extent))
            self._number = extent.number
        return self._raw
