"""The sink: rows of a DataFrame become messages, ``df.write.format("cmqd")`` and ``df.writeStream.format("cmqd")``.

    orders.write.format("cmqd").mode("append").option("url", url).option("queue", "orders").save()

A task connects on its own and sends the rows of its partition in batches, several requests at once (``inFlight``).
Requests leave in order. The queue has the rows in the order in which the broker stored them, so a request that was
refused for a moment, or had its reply lost, is stored behind later requests. With ``ordered=true`` a batch names the
last row of the batch before, and the broker stores the batch only behind that row: the order of a partition is kept,
and a failed task has stored a beginning of its partition. Only a single request at a time is sent to a broker without
this feature, and for rows with dedup ids of their own: an id that the broker remembers from an earlier row does not
prove that the batch before is stored. ``uniqueDedupIds=true`` promises that no id repeats, and so allows several
requests. A topic remembers no message that matches no subscription: the batch behind a message like that is refused
once, and published after the reply to the batch before.

A broker without memory for more dedup ids of the account refuses new ids until older ids end. The sink waits up to
:data:`cmqd_log.copy.sending.MEMORY_PATIENCE_S` with a request, and logs the wait.

When a write ends, all of its rows are stored, on disk: *at least once*. A failed write takes nothing back.

**What can be sent twice, and when.** Spark runs a failed task again, with all of its rows, and the batch of a stream
after a crash. The broker drops the repeats by the dedup id of a row. The id comes from the column ``dedupIdColumn``, or
else is a name made of the write and the row. The name of the write:

- for a stream: the query (named by its checkpoint) and the number of the batch, the same after any restart from that
  checkpoint;
- for a batch: a name that the driver gives to this write, or the option ``writeId``.

A row of a log, with the columns ``lsn`` and ``row_index``, is named by the log and these columns; another row by its
partition and its number within the partition. See :mod:`pyspark_cmqd.sending.default_ids`, also for a write that has a
row of a log twice, which fails.

So a row is stored twice if

- the repeat comes more than **5 minutes** after the first send, or after 1,000,000 other dedup ids of that queue or
  topic: the broker remembers no more;
- rows are neither of a log nor have ids of their own, and the second run puts **different rows, or the same rows in a
  different order**, into a partition (after a shuffle without an order, or from a source that changes). Then some rows
  are stored twice and other rows are **dropped** as repeats: such data needs ``dedupIdColumn``, or an order;
- a whole batch write is started again without the same ``writeId``: a new write has new names;
- the message was published and matched no subscription: the topic keeps neither the message nor the id.

Two queries must not share a checkpoint (or a copy of a checkpoint), nor two writes a ``writeId``: their rows would be
taken for repeats.
"""

# pyspark and pyarrow tell pyright little of their types.
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

import asyncio
import base64
import hashlib
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cmqd_log.copy import sending
from cmqd_log.errors import CmqdSourceError, OptionError
from cmqd_log.schema import LOG_ID, OF_THE_LOG
from pyspark_cmqd.sending.default_ids import DIGITS, NO_LOG, DefaultIds, LogRows, check_disjoint
from pyspark_cmqd.sending.sink_options import SinkOptions, parse_sink_options
from pyspark_cmqd.sending.sink_requests import chosen_columns, requests_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties of a task of a stream. Spark does not document these properties; a test notices if they go."""

_log = logging.getLogger("pyspark_cmqd")


@dataclass(frozen=True)
class Delivered(sending.Delivered, WriterCommitMessage):
    """Result of a task; the broker has stored all of these messages on disk."""

    rows: LogRows | None = None
    """The rows of a log that have a default id."""


class _Sink:
    """Base of both writers: the target and the columns."""

    def __init__(self, schema: "StructType", given: Mapping[str, str], overwrite: bool) -> None:
        # The target first: an INSERT OVERWRITE without a target means a table of a log, and append would not help.
        self.options: SinkOptions = parse_sink_options(given)
        if overwrite:
            raise OptionError("mode", "overwrite", "a queue or topic is never overwritten; use append")
        options = self.options
        roles = ("body", "headers", "delay") if options.queue else ("body", "headers", "tags", "routing_key")
        # Dedup ids repeat over the length of a log; only a writer that names the column means the ids.
        of_the_log = () if "dedup_id" in options.named else ("dedup_id",)
        types = {
            field.name: field.dataType.simpleString()
            for field in schema.fields
            if not (field.name in of_the_log and field.metadata == OF_THE_LOG)
        }
        self.columns: dict[str, str] = chosen_columns(types, options.columns, options.named, (*roles, "dedup_id"))
        log_ids = (str(field.metadata.get(LOG_ID, "")) for field in schema.fields if field.name == "lsn")
        self.log: str = next((log_id[:DIGITS] for log_id in log_ids if len(log_id) >= DIGITS), NO_LOG)

    def deliver(self, batches: "Iterable[pa.RecordBatch]", defaults: DefaultIds) -> Delivered:
        """Send all rows; return when the broker has answered every request.

        Raises:
            RowError, DoubledRowsError: a row cannot be sent.
            SendError: the broker refused messages, or could not be reached.
        """
        return asyncio.run(deliver(self.options, self.columns, iter(batches), defaults))

    def check(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Compare the rows of all tasks.

        Raises:
            DoubledRowsError: two tasks have sent the same row of a log under the same default id.
        """
        check_disjoint(one.rows for one in messages if isinstance(one, Delivered) and one.rows is not None)

    def tell(self, event: str, messages: "Sequence[WriterCommitMessage | None]") -> sending.Delivered:
        """Log and return the sum of the tasks' results."""
        total = sum((one for one in messages if isinstance(one, Delivered)), sending.Delivered())
        _log.info("%s: %d messages, %d bytes to %s", event, total.messages, total.bytes, self.options.target)
        return total


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame; see the module."""

    def __init__(self, schema: "StructType", options: Mapping[str, str], overwrite: bool) -> None:
        """Check options and columns; runs on the driver, once per write.

        Raises:
            OptionError: an option cannot be used.
            ColumnError: a column is missing or has a wrong type.
        """
        self._sink = _Sink(schema, options, overwrite)
        self._write_id = self._sink.options.write_id or secrets.token_urlsafe(12)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Delivered:
        """Send the rows of a partition."""
        by_place = f"{self._write_id}:{_task().partitionId()}:"
        return self._sink.deliver(iterator, DefaultIds(by_place, self._write_id, self._sink.log))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the end of a write; all rows are stored.

        Raises:
            DoubledRowsError: two partitions have the same row of a log.
        """
        self._sink.check(messages)
        self._sink.tell("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the failure of a write; the messages of tasks that succeeded stay stored."""
        self._sink.tell("write failed after sending", messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a stream; see the module."""

    def __init__(self, schema: "StructType", options: Mapping[str, str], overwrite: bool) -> None:
        """Check options and columns, as for :class:`BatchSink`."""
        self._sink = _Sink(schema, options, overwrite)
        if self._sink.options.write_id:
            raise OptionError(
                "writeId", self._sink.options.write_id, "the option is for batches; a stream uses the id of its query"
            )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Delivered:
        """Send the rows of a partition of a batch."""
        return self._sink.deliver(iterator, stream_ids(_task(), self._sink.log))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the end of a batch; all rows are stored.

        Raises:
            DoubledRowsError: two partitions have the same row of a log.
        """
        self._sink.check(messages)
        self._sink.tell(f"batch {batchId} written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure of a batch.

        The messages of tasks that succeeded stay stored, and the next run of the batch does not store them again.
        """
        self._sink.tell(f"batch {batchId} failed after sending", messages)


class _NoIds(DefaultIds):
    """In place of default ids in a stream that cannot be named."""

    def take(self, rows: Iterable[tuple[int, int | None, int | None]]) -> list[str]:
        """Refuse all rows; see the base."""
        if any(True for _ in rows):
            # A made-up id would differ in every attempt, and the broker would store repeated rows twice.
            raise CmqdSourceError(
                "this version of Spark does not pass the query and batch to a task; set dedupIdColumn"
            )
        return []


def stream_ids(task: TaskContext, log: str = NO_LOG) -> DefaultIds:
    """Return the default ids of a stream's task: a row of a batch of a query has the same id in every attempt."""
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if not query or not batch:
        return _NoIds("", "")
    # 16 characters instead of 36, so that the whole fits into 64 bytes.
    digest = hashlib.blake2b(query.encode(), digest_size=12).digest()
    by_place = f"{base64.urlsafe_b64encode(digest).decode()}:{batch}:{task.partitionId()}:"
    # The batch is part of the write: a join with a log can send a row again in a later batch, and that is no repeat.
    return DefaultIds(by_place, f"{query}:{batch}", log)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a sink writes inside of a Spark task"
    return task


async def deliver(
    options: SinkOptions, columns: Mapping[str, str], batches: "Iterator[pa.RecordBatch]", defaults: DefaultIds
) -> Delivered:
    """Send the rows of batches, with several requests in progress; return when the broker has answered all of them.

    Raises:
        RowError, DoubledRowsError: a row cannot be sent.
        SendError: the broker refused messages, or could not be reached with all repeats.
    """
    batch = next(batches, None)
    while batch is not None and not batch.num_rows:
        batch = next(batches, None)
    if batch is None:
        return Delivered()
    target = sending.Target(
        address=options.address,
        queue=options.queue,
        topic=options.topic,
        retries=options.retries,
        request_timeout=options.request_timeout,
        in_flight=options.in_flight,
        batch_size=options.batch_size,
        max_rate=options.max_rate,
        ordered=options.ordered,
        tied=options.unique_ids or "dedup_id" not in columns,
    )
    async with sending.sender_to(target, product="pyspark-cmqd", name="spark") as sender:
        first_row = 0
        while batch is not None:
            for request in requests_of(batch, columns, defaults, first_row, sender.most):
                await sender.add(request)
            first_row += batch.num_rows
            # In a thread, because Spark may need minutes for the next rows: in this thread replies would not be read
            # meanwhile, and without heartbeats the broker would close the connection.
            batch = await asyncio.to_thread(next, batches, None)
        await sender.drain()
    rows = defaults.rows.compact() if len(defaults.rows) else None
    return Delivered(**vars(sender.total), rows=rows)
