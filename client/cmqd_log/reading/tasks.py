"""Tasks of a read: the rows of a piece as Arrow batches of the requested columns.

Rows without wanted messages are skipped by their ``queues`` and ``time_ms``, before records and bodies are read; bodies
are read only if the column is requested. Every row read is checked by its checksums. A segment is open as long as its
piece is read, but statements are short and end before a batch is handed out: between batches no transaction is open,
for which the broker would have to wait.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false

import logging
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from cmqd_log.data_folder.actors import CLIENT_COLUMNS, shown
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import TIME_SLACK_MS, Task, is_sealed
from cmqd_log.data_folder.rows import decoded, is_given_up, summaries
from cmqd_log.errors import DataLossError, FolderError, SegmentReclaimedError
from cmqd_log.options import Mode
from cmqd_log.reading.arrow_batches import Batch, Facts
from cmqd_reading.events import Stored, stored_in
from cmqd_segment.rows import Run, data_checksum, meta_checksum
from cmqd_segment.schema import read_actors
from cmqd_segment.sparse import sparse_queue

if TYPE_CHECKING:
    from cmqd_log.message_states.shown import StateReader

ROWS_A_PAGE = 500
"""Number of rows that are examined before the first row with wanted messages is read."""
ROWS_A_STATEMENT = 64
"""Most rows that a statement reads."""
STATEMENT_BYTES = 4 << 20
"""Bytes that a statement reads, about: a row has up to some MiB of bodies."""
FEW_QUEUES = 8
"""Number of wanted queues up to which a segment is read queue by queue; for more queues all rows are examined."""
MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Limit of the bodies in an Arrow batch, far below the 2 GiB that 32-bit offsets can address."""

_log = logging.getLogger("cmqd_log")


def read_task(task: Task, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    """Yield the messages of a piece, in the order of the log.

    Raises:
        FolderError: a row is damaged, or the segment cannot be read.
        DataLossError: a row is given up as lost, and ``fail_on_data_loss`` is set.
        SegmentReclaimedError: likewise, unless the task may be reclaimed.
    """
    batch = Batch(schema)
    piece = task.piece
    folder = open_folder(task.options)
    needs_bodies = "body" in task.columns
    selector = Selector(task)
    try:
        with folder, folder.opened(piece.extent) as raw:
            selector.note_actors(raw)
            for above, upto in _ranges(raw, task):
                for lsn, meta, data in _rows(folder, raw, task, above, upto, needs_bodies):
                    for one in stored_in(decoded(piece.extent, lsn, meta)):
                        for facts, run, start, stop in selector.selected(lsn, one):
                            while start < stop:
                                room = max(task.options.batch_rows - batch.rows, 1)
                                end = min(stop, start + room)
                                batch.append(facts, run, data, one.first_index, start, end)
                                if batch.rows >= task.options.batch_rows or batch.bytes >= MAX_BATCH_BYTES:
                                    yield batch.take()
                                start = end
    except SegmentReclaimedError as error:
        # The segment is opened before its first row is read, so it is read whole or not at all.
        if task.options.fail_on_data_loss and not task.may_be_reclaimed:
            raise
        _log.warning("%s", error)
    except sqlite3.Error as error:
        raise FolderError(f"segment {piece.extent.file} cannot be read: {error}") from error
    if batch.rows:
        yield batch.take()


class Stretch(NamedTuple):
    """Messages ``start`` to below ``stop`` of a run."""

    facts: Facts
    run: Run
    start: int
    stop: int
    data: bytes
    """The bodies of the row, at the offset of the run; empty without bodies."""


def read_stretches(task: Task, *, bodies: bool = False) -> Iterator[Stretch]:
    """Yield the messages of a task in the order of the log, without a column of Arrow.

    Raises:
        FolderError, DataLossError: as for :func:`read_task`.
        SegmentReclaimedError: the broker reclaimed the segment.
    """
    folder = open_folder(task.options)
    selector = Selector(task)
    try:
        with folder, folder.opened(task.piece.extent) as raw:
            for above, upto in _ranges(raw, task):
                for lsn, meta, data in _rows(folder, raw, task, above, upto, bodies):
                    for one in stored_in(decoded(task.piece.extent, lsn, meta)):
                        for facts, run, start, stop in selector.selected(lsn, one):
                            yield Stretch(facts, run, start, stop, data)
    except sqlite3.Error as error:
        raise FolderError(f"segment {task.piece.extent.file} cannot be read: {error}") from error


def routing_pattern(binding_key: str) -> "re.Pattern[str]":
    """Return the pattern for the whole of ``"." + routing_key``.

    A word ``*`` is exactly one non-empty word, a word ``#`` any number of words; other words are literal.
    """
    words = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
    parts: list[str] = []
    for word in binding_key.split("."):
        part = words.get(word) or rf"\.{re.escape(word)}"
        # Two neighbouring ``#`` match the same keys as a single ``#``, and take much longer.
        if word != "#" or not parts or parts[-1] != part:
            parts.append(part)
    return re.compile("".join(parts))


class Selector:
    """Selection of the wanted messages of a run, with their states."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tags = frozenset(task.options.tags)
        self._segment = f"{task.piece.extent.number:08d}"
        self._pattern = routing_pattern(task.options.routing_key) if task.options.routing_key else None
        self._states: dict[int, StateReader] = {}
        self._shows_clients = not CLIENT_COLUMNS.isdisjoint(task.columns)
        self._actors = dict(task.actors)
        if task.options.mode is not Mode.EVENTS:
            # Imported here, because only the modes about states need sets of positions.
            from cmqd_log.message_states import shown as module

            self._states = {
                number: module.StateReader(states, task.options.mode) for number, states in task.states.items()
            }

    def note_actors(self, raw: sqlite3.Connection) -> None:
        """Take the table of actors of the segment, if columns show clients."""
        if self._shows_clients and is_sealed(self._task.piece.extent):
            self._actors.update((number, shown(actor)) for number, actor in read_actors(raw).items())

    def selected(self, lsn: int, stored: Stored) -> Iterator[tuple[Facts, Run, int, int]]:
        """Yield the wanted stretches ``start`` to below ``stop`` of the run, each with its facts."""
        task, run = self._task, stored.run
        if task.wanted is not None and stored.source_id not in task.wanted:
            return
        if task.options.starting_ms is not None and run.enqueue_ms < task.options.starting_ms:
            return
        if task.options.ending_ms is not None and run.enqueue_ms >= task.options.ending_ms:
            return
        source = task.sources.get(stored.source_id)
        topic = task.sources.get(stored.topic_id) if stored.topic_id else None
        is_topic = stored.source_id == stored.topic_id
        facts = Facts(
            lsn,
            self._segment,
            stored.event,
            None if source is None or is_topic else source.name,
            None if topic is None else topic.name,
            account=None if source is None else source.account,
            as_of_lsn=task.as_of_lsn,
            dedup_ids=stored.dedup_ids,
            sent_by=[self._actors.get(number) for number in stored.actors] if self._shows_clients else (),
            queue_id=stored.source_id,
        )
        if task.options.mode is Mode.EVENTS:
            for start, stop in self._labelled(run):
                yield facts, run, start, stop
            return
        states = self._states.get(stored.source_id)
        if states is None:
            return
        labelled = self._labelled(run)
        for start, stop, said in states.stretches(run):
            its = facts._replace(
                event=said.state,
                ended_ms=said.ended_ms,
                receive_count=said.receive_count,
                received_by=self._actors.get(said.received_by),
                left_by=self._actors.get(said.left_by),
            )
            for low, high in labelled:
                if max(low, start) < min(high, stop):
                    yield its, run, max(low, start), min(high, stop)

    def _labelled(self, run: Run) -> Sequence[tuple[int, int]]:
        """Select the messages with a wanted tag or routing key."""
        count = len(run.sizes)
        if not self._tags and self._pattern is None:
            return ((0, count),)
        labels = run.labels
        if not labels:
            return ()
        if len(labels) == 1:
            return ((0, count),) if self._fits(labels[0]) else ()
        return neighbours([place for place, label in enumerate(labels) if self._fits(label)])

    def _fits(self, label: Sequence[str]) -> bool:
        if isinstance(label, str):
            return self._pattern is not None and self._pattern.fullmatch(f".{label}") is not None
        return not self._tags.isdisjoint(label)


def neighbours(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as half-open ranges of neighbours."""
    ranges: list[tuple[int, int]] = []
    for place in places:
        if ranges and ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], place + 1)
        else:
            ranges.append((place, place + 1))
    return ranges


def _ranges(raw: sqlite3.Connection, task: Task) -> list[tuple[int, int]]:
    """Return the ranges ``above < lsn <= upto`` that may hold wanted messages, ascending, without overlap."""
    above, upto = task.piece.above, task.piece.upto
    if task.options.starting_ms is not None:
        above = max(above, _first_at(raw, task, task.options.starting_ms) - 1)
    if task.options.ending_ms is not None:
        # The time of a row is the time of its newest record, so the rows after the end may begin with older messages.
        upto = min(upto, _first_at(raw, task, task.options.ending_ms + TIME_SLACK_MS))
    if above >= upto:
        return []
    return [(above, upto)]


def _first_at(raw: sqlite3.Connection, task: Task, time_ms: int) -> int:
    """Return the first row of the piece at or after a time, or the last row + 1. Times ascend."""
    low, high = task.piece.above + 1, task.piece.upto + 1
    while low < high:
        middle = (low + high) // 2
        row = raw.execute("SELECT time_ms FROM log WHERE lsn = ?", (middle,)).fetchone()
        if row is None or row[0] >= time_ms:
            high = middle
        else:
            low = middle + 1
    return low


def _rows(
    folder: Folder, raw: sqlite3.Connection, task: Task, above: int, upto: int, bodies: bool
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield LSN, records and bodies of the rows with wanted messages, after a check of their checksums."""
    if task.wanted is None:
        spans: Iterator[tuple[int, int]] = iter([(above, upto)])
    else:
        spans = _spans(raw, task, above, upto)
    data = "data" if bodies else "x''"
    file = task.piece.extent.file
    limit = 1 if bodies else ROWS_A_STATEMENT
    for low, high in spans:
        while rows := raw.execute(
            f"SELECT lsn, time_ms, messages, queues, meta_crc, data_crc, meta, {data} FROM log"
            " WHERE lsn > ? AND lsn <= ? ORDER BY lsn LIMIT ?",
            (low, high, limit),
        ).fetchall():
            if bodies:
                # Neighbours are of a size: as many rows as the last ones suggest.
                size = sum(len(row[6]) + len(row[7]) for row in rows)
                limit = max(1, min(ROWS_A_STATEMENT, 2 * limit, STATEMENT_BYTES * len(rows) // max(size, 1)))
            for lsn, time_ms, messages, queues, meta_crc, data_crc, meta, bytes_ in rows:
                # Before the columns are used: the checksum also covers ``messages`` and ``queues``.
                if meta_checksum(lsn, time_ms, messages, queues, meta) != meta_crc:
                    _damaged(folder, task, lsn)
                    continue
                if not messages:
                    continue
                if bodies and data_checksum(bytes_) != data_crc:
                    raise FolderError(f"row {lsn} of {file} is damaged: its bodies do not match their checksum")
                yield lsn, meta, bytes_
            low = rows[-1][0]


def _damaged(folder: Folder, task: Task, lsn: int) -> None:
    """Handle a row with a wrong checksum; returns if the row may be left out.

    Raises:
        FolderError: the row is damaged.
        DataLossError: the row is given up as lost, and missing rows are an error.
    """
    row = f"row {lsn} of {task.piece.extent.file}"
    if not is_given_up(folder, lsn):
        raise FolderError(f"{row} is damaged: its records do not match their checksum")
    text = f"{row} is damaged, and the broker was started with the loss of this row accepted"
    if task.options.fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false leaves the row out")
    _log.warning("%s; the row is left out", text)


def _spans(raw: sqlite3.Connection, task: Task, above: int, upto: int) -> Iterator[tuple[int, int]]:
    """Return the ranges ``above < lsn <= upto`` of rows with wanted ids in ``queues``."""
    wanted = task.wanted or frozenset[int]()
    if is_sealed(task.piece.extent):
        held = raw.execute(
            "SELECT queue_id FROM sparse WHERE queue_id IN (SELECT value FROM json_each(?))", (str(sorted(wanted)),)
        ).fetchall()
        if len(held) <= FEW_QUEUES:
            found = {lsn for (number,) in held for lsn in _rows_of(raw, task, number, above, upto)}
            for first, stop in neighbours(sorted(found)):
                yield first - 1, stop - 1
            return
    contents = summaries(raw, task.piece.extent, above, upto)
    named = (lsn for lsn, queues in contents if any(queue[0] in wanted for queue in queues))
    while page := list(islice(named, ROWS_A_PAGE)):
        for first, stop in neighbours(page):
            yield first - 1, stop - 1


def _rows_of(raw: sqlite3.Connection, task: Task, number: int, above: int, upto: int) -> Iterator[int]:
    """Return the rows of a sealed segment with messages of a queue, by the sparse index.

    An entry gives the row of some of the queue's messages, and the next entry the row of the positions after them.
    Between two entries rows are examined only until those positions are reached.
    """
    row = raw.execute(
        "SELECT first_position, stop_position, bytes, positions, lsns FROM sparse WHERE queue_id = ?", (number,)
    ).fetchone()
    index = sparse_queue(*row)
    lsns, positions = index.lsns, index.positions
    for place in range(max(bisect_right(lsns, above) - 1, 0), len(lsns)):
        lsn = lsns[place]
        if lsn > upto:
            return
        is_last = place + 1 == len(lsns)
        stop = index.stop_position if is_last else positions[place + 1]
        end = task.piece.extent.last_lsn + 1 if is_last else lsns[place + 1]
        for row_lsn, queues in summaries(raw, task.piece.extent, lsn - 1, min(end - 1, upto)):
            held = next((queue for queue in queues if queue[0] == number), None)
            if held is not None and above < row_lsn:
                yield row_lsn
            if held is not None and held[2] >= stop:
                break
