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
from cmqd_log.errors import DataLossError, OptionError, OtherLogError, UnknownNameError
from cmqd_log.options import Mode, Options
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
from pyspark_cmqd.reading.columns import check_columns
from pyspark_cmqd.reading.partition import CmqdPartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("pyspark_cmqd")


class CmqdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: lives in a single process on the driver; ``read`` runs on pickled copies."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check options and columns.

        Raises:
            OptionError: an option or a column cannot be used.
        """
        check_columns(schema)
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
        self._has_checked_names = False

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
        return offset_at(view, first_offset(view, self.options))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the last row of the next batch: as far as the limit allows, and at least a row, if there are rows.

        Raises:
            OtherLogError: the query is beyond the end of the log, or at a row of a different log. Without the error the
                query would wait until the log reaches its position, and so leave rows out.
        """
        self._seen = view = self._view()
        starting = self.options.starting_lsn
        above = int(start["lsn"])
        if above > view.hi and not (isinstance(starting, int) and above == starting - 1):
            raise self._another_log(above, view)
        is_proven = self._is_proven(view, start)
        self._warn_unknown(view)
        most = self._end(view)
        if most <= above:
            # An offset without the id of its log is followed by an offset with the id, even without new rows.
            return start if is_proven else offset_at(view, above)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        if isinstance(limit, ReadMaxRows | ReadMaxBytes):
            # Spark passes a single limit; the limit of the other option is added here.
            messages = messages or self.options.max_messages
            size = size or self.options.max_bytes
        if not messages and not size:
            return offset_at(view, most)
        folder = open_folder(self.options)
        wanted = wanted_ids(self._names(folder, view).sources, self.options)
        return offset_at(
            view,
            limited_offset(
                folder=folder, view=view, wanted=wanted, above=above, most=most, messages=messages, size=size
            ),
        )

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
        """Return the last row of the log; Spark shows how far the query is behind it."""
        view = self._seen or self._view()
        return offset_at(view, view.hi)

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
        """Do nothing: the reader holds nothing open."""

    def _planned(self, view: View, start: Offset, end: Offset) -> list[InputPartition]:
        above, upto = int(start["lsn"]), int(end["lsn"])
        if view.hi < upto:
            raise self._another_log(upto, view)
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
        if "log_id" not in offset and self._has_warned:
            return not view.log_id
        is_proven = check_offset(view, offset, self.options.path)
        self._has_warned = self._has_warned or not is_proven
        return is_proven or not view.log_id

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
        warned = {"_has_warned": True, "_has_checked_names": True}
        return {**kept, **warned, "_target": None, "_catalog": None, "_seen": None}
