"""Table ``receives``: a row for each receive of a message, in the order in which the receives ended; receives that are
under way come last.

The rows are folded in a single pass (``cmqd_reading.receive_fold``), so a plan has a single task. Its memory has the
receives under way, the leases of the checkpoints, and a batch. Where rows are missing, a checkpoint has the leases
behind them.
"""

# pyarrow tells pyright little of its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from cmqd_log.data_folder.actors import CLIENT_COLUMNS, Clients
from cmqd_log.data_folder.catalog import Catalog, checkpointed, complete, name_ids
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import View, describe, pieces_of, wanted_ids
from cmqd_log.data_folder.rows import remaining
from cmqd_log.errors import BehindError, FolderError, SegmentReclaimedError
from cmqd_log.message_states.states_at import slices_in
from cmqd_log.options import LAST_LSN, Options
from cmqd_log.reading.planning import ATTEMPTS, check_names, has_beginning, needs_names, planned_now, unknown_name
from cmqd_log.reading.stores import Store, Stores
from cmqd_reading.receive_fold import Receive, ReceiveFold
from cmqd_segment.checkpoint_file import CheckpointError
from cmqd_segment.manifest import SourceName, merge_ranges
from cmqd_segment.records import QueueCreated
from cmqd_types.messages import printed_id

_log = logging.getLogger("cmqd_log")

_OF_STORES: Final = frozenset({"msg_id", "enqueue_ts", "lsn", "row_index"})
"""Columns that show the row that stored the message."""


@dataclass(frozen=True)
class ReceivesTask:
    """The read of all receives; a process that does it gets it pickled."""

    options: Options
    columns: tuple[str, ...]
    upto: int
    """The last row of the log to read."""
    above: int
    """Messages of rows above are wanted; 0 = all, those of reclaimed rows too."""
    sources: Mapping[int, SourceName] = field(default_factory=dict[int, SourceName])
    """Names by id; rows may tell more."""
    weight: int = 1
    """Approximate number of bytes to read."""
    may_be_reclaimed: bool = False
    """As of a task of messages."""


def plan_receives(options: Options, columns: Sequence[str], *, asked: Options | None = None) -> list[ReceivesTask]:
    """Plan the read of receives; arguments and errors as for ``planning.plan_batch``."""
    asked = asked or options

    def planned(folder: Folder, view: View, above: int, upto: int) -> list[ReceivesTask]:
        if not view.hi:
            return []
        catalog = Catalog()
        if needs_names(options, columns):
            everything = replace(options, only_lsns=(0, LAST_LSN), starting_ms=None, ending_ms=None)
            pieces = pieces_of(view, everything, 0, upto)
            if folder.is_remote:
                folder.sides.read_ahead(piece.extent for piece in pieces)
            catalog = checkpointed(folder, view)
            name_ids(catalog, folder, view, pieces)
            if unknown_name(options, catalog):
                complete(catalog, folder, view)
                check_names(options, catalog, folder, view)
        weight = sum(extent.bytes for extent in view.extents if extent.first_lsn <= upto)
        is_open = not has_beginning(asked)
        return [ReceivesTask(options, tuple(columns), upto, above, catalog.sources, weight + 1, is_open)]

    return planned_now(options, asked, planned)


def read_receives(task: ReceivesTask, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    """Yield the receives of a task.

    Raises:
        FolderError: a row is damaged, or the rows and checkpoints do not suffice.
        DataLossError: a row is given up as lost, and ``fail_on_data_loss`` is set.
        SegmentReclaimedError: a segment was reclaimed, and no checkpoint that was read covers it.
    """
    try:
        with open_folder(task.options) as folder:
            reading = _Reading(task, schema, folder)
            waiting: list[Receive] = []
            for receive in reading.receives():
                waiting.append(receive)
                if len(waiting) >= task.options.batch_rows:
                    yield from reading.batch(waiting)
                    waiting = []
            yield from reading.batch(waiting)
    except sqlite3.Error as error:
        raise FolderError(f"the segments of {task.options.path} cannot be read: {error}") from error


class _Reading:
    """A pass over the rows, and the values of its receives."""

    def __init__(self, task: ReceivesTask, schema: "pa.Schema", folder: Folder) -> None:
        options = task.options
        self._task = task
        self._schema = schema
        self._folder = folder
        self._catalog = Catalog(dict(task.sources))
        self._wanted = wanted_ids(self._catalog.sources, options)
        self._clients = Clients()
        self._view = self._look()
        self._selects = bool(
            task.above
            or options.starting_ms is not None
            or options.ending_ms is not None
            or options.only_lsns != (0, LAST_LSN)
        )
        needs_stores = self._selects or not _OF_STORES.isdisjoint(task.columns)
        self._stores = Stores(self._folder, self._view) if needs_stores else None

    def _look(self) -> View:
        """Return the view to read, and learn the clients that it names."""
        task, folder = self._task, self._folder
        for attempt in range(ATTEMPTS):
            view = folder.view(include_active=task.options.include_active)
            if view.hi < task.upto:
                raise BehindError(f"{task.options.path} ends at row {view.hi}, and row {task.upto} was to be read")
            view = replace(view, hi=task.upto)
            try:
                if not CLIENT_COLUMNS.isdisjoint(task.columns):
                    self._clients.follow(folder, view, all_rows=True)
                return view
            except SegmentReclaimedError:
                # As for a plan: the view of a moment later has the rest.
                if attempt == ATTEMPTS - 1 or not task.may_be_reclaimed:
                    raise
        raise AssertionError("unreachable")

    # ------------------------------------------------------------------ the pass

    def receives(self) -> Iterator[Receive]:
        """Yield the receives of the wanted queues."""
        view, task = self._view, self._task
        fold = ReceiveFold(self._wanted)
        covered = self._load_checkpoints(fold)
        expected = 1
        for extent in view.extents:
            if extent.first_lsn > view.hi:
                break
            try:
                with self._folder.opened(extent) as raw:
                    if extent.first_lsn > expected:
                        yield from self._missed(fold, expected, extent.first_lsn - 1, covered)
                    expected = extent.last_lsn + 1
                    rows = remaining(self._folder, raw, extent, 0, view.hi, fail_on_loss=task.options.fail_on_data_loss)
                    for lsn, time_ms, records in rows:
                        if any(isinstance(record, QueueCreated) for record in records):
                            self._note_names(fold, records)
                        if self._stores is not None:
                            self._stores.note(lsn, records, fold.wanted)
                        yield from fold.apply(lsn, time_ms, records)
            except SegmentReclaimedError as error:
                # A segment is opened before its first row is read, so it is read whole or not at all.
                if not task.may_be_reclaimed or extent.last_lsn > covered:
                    raise
                _log.warning("%s", error)
        if expected <= view.hi:
            yield from self._missed(fold, expected, view.hi, covered)
        yield from fold.finish(view.hi)

    def _missed(self, fold: ReceiveFold, first: int, last: int, covered: int) -> Iterator[Receive]:
        if first <= covered:
            yield from fold.miss(first, min(last, covered))
            first = covered + 1
        lost = merge_ranges((loss.first_lsn, loss.last_lsn) for loss in self._folder.manifest().losses)
        if first <= last and not any(low <= first and last <= high for low, high in lost):
            raise FolderError(
                f"table receives cannot be computed as of row {self._view.hi}: the log no longer has "
                f"{describe([(first, last)])}, and no checkpoint of row {self._view.hi} or before is usable; "
                "includeActive=true reads up to a later row"
            )
        # Rows that were lost to damage were lost to the broker too, which went on with the leases of before.

    def _load_checkpoints(self, fold: ReceiveFold) -> int:
        """Load all checkpoints without rows above the view; return the row that the newest covers."""
        covered = 0
        for entry in self._view.checkpoints:
            if entry.lsn > self._view.hi:
                continue
            try:
                if fold.load(slices_in(self._folder, entry), self._view.hi):
                    covered = max(covered, entry.lsn)
            except (CheckpointError, msgspec.MsgspecError, OSError):
                continue  # replaced meanwhile, or damaged: another checkpoint is there, or the rows are
        return covered

    def _note_names(self, fold: ReceiveFold, records: Sequence[object]) -> None:
        new = Catalog()
        for record in records:
            new.note(record)
        names = {number: name for number, name in new.sources.items() if number not in self._catalog.sources}
        self._catalog.note_names(names.values())
        wanted = wanted_ids(names, self._task.options)
        if wanted is not None and self._wanted is not None:
            # The log may have receives of a queue without having its messages. Only new names are compared: a log may
            # have created tens of thousands of queues.
            self._wanted = fold.wanted = self._wanted | wanted

    # ------------------------------------------------------------------ values

    def batch(self, receives: Sequence[Receive]) -> "Iterator[pa.RecordBatch]":
        """Yield the batch of these receives, without those of messages that are not selected; no empty batch."""
        stores = self._found(receives)
        rows: list[_Row] = []
        for receive in receives:
            store = stores.get((receive.queue_id, receive.position))
            if not self._selects or (store is not None and self._is_selected(store)):
                rows.append((receive, self._catalog.sources.get(receive.queue_id), store))
        if not rows:
            return
        arrays: list[pa.Array] = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            if name in CLIENT_COLUMNS:
                texts = self._clients.texts
                values = [texts.get(getattr(receive, name)) for receive, _, _ in rows]
            elif name == "as_of_lsn":
                values = [self._task.upto] * len(rows)
            else:
                values = [_VALUES[name](*row) for row in rows]
            arrays.append(pa.array(values, kind))
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _found(self, receives: Sequence[Receive]) -> dict[tuple[int, int], Store]:
        found: dict[tuple[int, int], Store] = {}
        if self._stores is not None:
            by_queue: dict[int, set[int]] = {}
            for receive in receives:
                if receive.position >= 0:
                    by_queue.setdefault(receive.queue_id, set()).add(receive.position)
            for queue_id, positions in by_queue.items():
                stores = self._stores.find(queue_id, positions)
                found.update(((queue_id, position), store) for position, store in stores.items())
        return found

    def _is_selected(self, store: Store) -> bool:
        options = self._task.options
        first, last = options.only_lsns
        return (
            max(self._task.above + 1, first) <= store.lsn <= last
            and (options.starting_ms is None or options.starting_ms <= store.enqueue_ms)
            and (options.ending_ms is None or store.enqueue_ms < options.ending_ms)
        )


_Row = tuple[Receive, SourceName | None, Store | None]


def _us(milliseconds: int) -> int | None:
    return milliseconds * 1000 or None


def _place(receive: Receive, store: Store) -> int:
    return receive.position - store.first_position


_VALUES: Final[Mapping[str, Callable[[Receive, SourceName | None, Store | None], Any]]] = {
    "account": lambda receive, source, store: None if source is None else source.account,
    "queue": lambda receive, source, store: None if source is None else source.name,
    "queue_id": lambda receive, source, store: receive.queue_id,
    "position": lambda receive, source, store: None if receive.position < 0 else receive.position,
    "msg_id": lambda receive, source, store: (
        None if store is None else printed_id(store.first_message_id + _place(receive, store))
    ),
    "enqueue_ts": lambda receive, source, store: None if store is None else store.enqueue_ms * 1000,
    "lsn": lambda receive, source, store: None if store is None else store.lsn,
    "row_index": lambda receive, source, store: None if store is None else store.first_index + _place(receive, store),
    "lease": lambda receive, source, store: receive.lease,
    "from_ts": lambda receive, source, store: _us(receive.from_ms),
    "until_ts": lambda receive, source, store: _us(receive.until_ms),
    "ended_ts": lambda receive, source, store: _us(receive.ended_ms),
    "how": lambda receive, source, store: receive.how or None,
    "from_lsn": lambda receive, source, store: receive.from_lsn or None,
    "ended_lsn": lambda receive, source, store: receive.ended_lsn or None,
}
"""Values of the columns but those of clients, by column."""
