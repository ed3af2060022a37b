"""The streaming source: a position is a row of the log, ``{"lsn": n, ...}``; all messages up to row *n* were read. The
position also names the log (see :mod:`cmqd_log.data_folder.positions`).

Positions and limits go by whole rows, and rows never change. So two positions define a batch, and a batch that is run
again after a crash is the same batch. Spark keeps the positions in its checkpoint; the connector never trims the data
of the broker. Between two batches no file is held open.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cmqd_log.data_folder.catalog import Catalog, checkpointed, follow
from cmqd_log.data_folder.folder import Folder, open_folder
from cmqd_log.data_folder.plan import View, gathered, is_choosing, wanted_ids
from cmqd_log.data_folder.positions import Offset, check_offset, offset_at
from cmqd_log.data_folder.selections import check_selection, selection_of, warn_unnamed
from cmqd_log.errors import (
    BehindError,
    CmqdSourceError,
    DataLossError,
    OptionError,
    OtherLogError,
    UnknownNameError,
)
from cmqd_log.options import Mode, Options
from cmqd_log.reading.lag import lag_of
from cmqd_log.reading.planning import (
    check_loss,
    check_start,
    first_offset,
    limited_offset,
    missing_rows,
    needs_names,
    plan_range,
    unknown_name,
)
from cmqd_log.schema import Table
from pyspark_cmqd.reading.columns import check_columns
from pyspark_cmqd.reading.partition import CmqdPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_STEP_S = 0.5

_log = logging.getLogger("pyspark_cmqd")


class CmqdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: lives in a single process on the driver; ``read`` runs on pickled copies."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check options and columns.

        Raises:
            OptionError: an option or a column cannot be used.
        """
        if options.table is not Table.LOG:
            raise OptionError(
                "table",
                str(options.table),
                "a stream reads the table log; a receive ends later than it begins, so read receives as a batch",
            )
        check_columns(schema, options.table)
        if options.mode is not Mode.EVENTS:
            raise OptionError(
                "mode",
                str(options.mode),
                "a stream reads events; the other modes describe one moment, so read them as a batch",
            )
        self.options = options
        self.columns = schema
        self._target: int | None = None
        """The last row of the query, with Trigger.AvailableNow; None = no last row."""
        self._catalog: Catalog | None = None
        self._seen: View | None = None
        """View of :meth:`latestOffset`, kept for the rest of the trigger: the folder is read once."""
        self._has_warned = False
        """True after the warning about an offset that does not name its log."""
        self._has_warned_selection = False
        self._has_checked_names = False
        self._kept: Folder | None = None
        """Keeps the fetched segment in which a limited batch ends: the next batch begins there."""
        self._end_lsn: int | None = None
        """Last row of the batch that was planned last."""

    # ------------------------------------------------------------------ positions

    def initialOffset(self) -> Offset:
        """Return the position at which a query without a checkpoint begins.

        Raises:
            OptionError: the first row is beyond the row to be written next.
            DataLossError: requested rows are missing.
        """
        view = self._view()
        check_start(open_folder(self.options), view, self.options)
        if self.options.starting_ms is not None:
            # Later batches check their own rows.
            check_loss(view, self.options, missing_rows(view, self.options))
        return self._offset(view, first_offset(view, self.options))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the last row of the next batch: as far as the limit allows, and at least a row, if there are rows.

        Raises:
            OptionError: the position belongs to another selection.
            OtherLogError: the query is beyond the end of the log, or at a row of a different log. Without the error the
                query would wait until the log reaches its position, and so leave rows out.
            BehindError: the query is beyond the end of a copy of its log.
        """
        starting = self.options.starting_lsn
        above = int(start["lsn"])
        is_to_come = isinstance(starting, int) and above == starting - 1
        self._seen = view = self._view() if is_to_come else self._view_with(start)
        is_proven = self._is_proven(view, start)
        self._warn_unknown(view)
        self._end_lsn = above
        end = self._next_offset(view, above, limit)
        self._end_lsn = int(end["lsn"])
        # An offset that does not name its log and selection is followed by an offset that does, even without new rows.
        names = selection_of(self.options)["selection_digest"] == start.get("selection_digest")
        return start if end["lsn"] == above and is_proven and names else end

    def _next_offset(self, view: View, above: int, limit: ReadLimit) -> Offset:
        most = self._end(view)
        if most <= above:
            return self._offset(view, above)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            # Spark passes a single limit; the limit of the other option is added here.
            messages = messages or self.options.max_messages
            size = size or self.options.max_bytes
        if not messages and not size:
            return self._offset(view, most)
        folder = open_folder(self.options)
        wanted = wanted_ids(self._names(folder, view).sources, self.options)
        end = limited_offset(
            folder=folder, view=view, wanted=wanted, above=above, most=most, messages=messages, size=size
        )
        # Not beyond the end of a segment: the fetched files would grow with the stream.
        self._kept = None if any(above < extent.last_lsn <= end for extent in view.extents) else folder
        return self._offset(view, end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch, from the options."""
        if self.options.max_messages:
            return ReadMaxRows(self.options.max_messages)
        if self.options.max_bytes:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the rows of this moment (``Trigger.AvailableNow``)."""
        self._target = self._view().hi

    def reportLatestOffset(self) -> Offset:
        """Return the last row of the log, with the lag of the batch that was planned last; Spark shows both."""
        view = self._seen or self._view()
        newest = self._offset(view, view.hi)
        if self._end_lsn is None:
            return newest
        folder = open_folder(self.options)
        try:
            wanted = None
            if is_choosing(self.options) and view.hi > self._end_lsn:
                wanted = wanted_ids(self._names(folder, view).sources, self.options)
            lag = lag_of(folder, view, wanted, self._end_lsn)
        except DataLossError:
            return newest  # a segment was reclaimed meanwhile; the figures are not worth another view
        return {**newest, **{f"{name}_behind": value for name, value in lag._asdict().items()}}

    # ------------------------------------------------------------------ a batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of a batch: the rows above ``start`` up to ``end``.

        Raises:
            CmqdSourceError: the folder or requested rows cannot be read.
        """
        above, upto = int(start["lsn"]), int(end["lsn"])
        if above >= upto:
            return []
        seen, self._seen = self._seen, None
        if seen is not None and seen.hi >= upto:
            try:
                return self._planned(seen, start, end)
            except DataLossError:
                # A segment was reclaimed after the view was made. Perhaps it had no requested rows: plan with a new
                # view, which raises the error if it had.
                pass
        return self._planned(self._view(), start, end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of a partition.

        Raises:
            FolderError, DataLossError: a segment cannot be read, or was reclaimed.
        """
        return read_partition(partition, self.columns)

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark keeps the positions, and the broker reclaims the rows."""

    def stop(self) -> None:
        """Let go of the fetched files."""
        self._kept = None

    def _planned(self, view: View, start: Offset, end: Offset) -> list[InputPartition]:
        above, upto = int(start["lsn"]), int(end["lsn"])
        if view.hi < upto:
            view = self._view_with(end)
        self._is_proven(view, start)
        self._is_proven(view, end)
        check_loss(view, self.options, view.gaps(above + 1, upto))
        folder = open_folder(self.options)
        names = self._names(folder, view)
        tasks = plan_range(folder, view, self.options, self.columns.names, above, upto, known=names)
        return [CmqdPartition(each) for each in gathered(tasks, self.options.min_partitions)]

    def _is_proven(self, view: View, offset: Offset) -> bool:
        """True if the offset certainly belongs to this log.

        Raises:
            OtherLogError: the offset belongs to a different log.
        """
        check_selection(offset, self.options)
        if "selection_digest" not in offset and int(offset["lsn"]) and not self._has_warned_selection:
            self._has_warned_selection = True
            warn_unnamed(offset, self.options)
        if "log_id" not in offset and self._has_warned:
            return not view.log_id
        is_proven = check_offset(view, offset, self.options.path)
        self._has_warned = self._has_warned or not is_proven
        return is_proven or not view.log_id

    def _offset(self, view: View, lsn: int) -> Offset:
        return {**offset_at(view, lsn), **selection_of(self.options)}

    def _view_with(self, offset: Offset) -> View:
        """Return a view with the row of an offset; of a copy of the same log, wait for the row as long as allowed.

        Raises:
            BehindError: the copy still lacks the row.
            OtherLogError: the rows may belong to another log.
        """
        lsn = int(offset["lsn"])
        view = self._view()
        stop_at = time.monotonic() + self.options.wait_for_rows
        while view.hi < lsn:
            if not view.log_id or offset.get("log_id") != view.log_id:
                raise self._another_log(lsn, view)
            if time.monotonic() >= stop_at:
                rows = "1 row" if lsn == view.hi + 1 else f"{lsn - view.hi} rows"
                raise BehindError(
                    f"{self.options.path} is a copy that is behind by {rows}: the query has "
                    f"read up to row {lsn}, and the readable rows end at row {view.hi}. Copy the newer segments, or "
                    "let the option 'waitForRows' wait for the rows. Without 'includeActive', rows are readable once "
                    "they are sealed"
                )
            time.sleep(WAIT_STEP_S)
            view = self._view()
        return view

    def _another_log(self, lsn: int, view: View) -> OtherLogError:
        return OtherLogError(
            f"the query has read up to row {lsn} of {self.options.path}, and the readable rows end at row {view.hi}: "
            f"the folder holds another log or an older copy, or the query was restarted without 'includeActive' while "
            f"its last rows are not sealed; in that case set the option again, or wait until the rows are sealed"
        )

    def _view(self) -> View:
        return open_folder(self.options).view(include_active=self.options.include_active)

    def _names(self, folder: Folder, view: View) -> Catalog:
        """Return the catalog of names, brought up to date."""
        if not needs_names(self.options, self.columns.names):
            return Catalog()
        if self._catalog is None:
            self._catalog = checkpointed(folder, view)
        follow(self._catalog, folder, view)
        return self._catalog

    def _warn_unknown(self, view: View) -> None:
        """Log, in the first trigger alone, a queue, topic, account or pattern that the log does not know: perhaps it is
        misspelt, and perhaps it is created later.
        """
        if self._has_checked_names or not is_choosing(self.options):
            return
        self._has_checked_names = True
        folder = open_folder(self.options)
        # Mostly the manifest and the checkpoints know the name, and no segment is opened before the batch is planned.
        unknown = unknown_name(self.options, checkpointed(folder, view))
        if unknown is not None:
            unknown = unknown_name(self.options, self._names(folder, view))
        if unknown is not None:
            _log.warning(
                "%s; the stream waits for it",
                UnknownNameError(*unknown, f"the log of {self.options.path} has none up to row {view.hi}"),
            )

    def _end(self, view: View) -> int:
        most = view.hi if self._target is None else min(view.hi, self._target)
        return min(most, self.options.ending_lsn)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"options": self.options, "columns": self.columns}
        warned = {"_has_warned": True, "_has_warned_selection": True, "_has_checked_names": True}
        return {**kept, **warned, "_target": None, "_catalog": None, "_seen": None, "_kept": None, "_end_lsn": None}


class RefusedStream(DataSourceStreamReader):
    """Reader of a stream whose options cannot be used. Its first call raises the error.

    If the reader itself could not be made, Spark would raise another error after it, and show that as the last line.
    """

    def __init__(self, error: CmqdSourceError) -> None:
        """Take the error."""
        self._error = error

    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Raise the error."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Raise the error."""
        raise self._error
