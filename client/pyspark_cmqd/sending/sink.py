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
:data:`MEMORY_PATIENCE_S` with a request, and logs the wait.

When a write ends, all of its rows are stored, on disk: *at least once*. A failed write takes nothing back.

**What can be sent twice, and when.** Spark runs a failed task again, with all of its rows, and the batch of a stream
after a crash. The broker drops the repeats by the dedup id of a row. The id comes from the column ``dedupIdColumn``, or
else is a name made of the write and the place of the row:

- for a stream: the query (named by its checkpoint), the number of the batch, the partition, the row within the
  partition. The name is the same after any restart from that checkpoint;
- for a batch: a name that the driver gives to this write (or the option ``writeId``), the partition, the row.

So a row is stored twice if

- the repeat comes more than **5 minutes** after the first send, or after 1,000,000 other dedup ids of that queue or
  topic: the broker remembers no more;
- rows have no ids of their own, and the second run puts **different rows, or the same rows in a different order**, into
  a partition (after a shuffle without an order, or from a source that changes: a stream of ``format("cmqd")`` with
  ``failOnDataLoss=false`` does if rows are reclaimed between the runs). Then some rows are stored twice and other rows
  are **dropped** as repeats: such data needs ``dedupIdColumn``, or an order. Rows from a log have ``concat(lsn, ':',
  row_index)``, a permanent name of a message of that log;
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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cmqd_client import Client, CmqError, Outgoing, connect
from cmqd_client.client_names import default_name
from cmqd_client.errors import NotSupported, OutcomeUnknown, OutOfOrder, TooManyRequests
from cmqd_log.errors import CmqdSourceError, OptionError, masked
from cmqd_log.schema import OF_THE_LOG
from pyspark_cmqd.sending.sink_options import SinkOptions, parse_sink_options
from pyspark_cmqd.sending.sink_pace import Pace
from pyspark_cmqd.sending.sink_requests import DedupIds, Request, chosen_columns, requests_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties of a task of a stream. Spark does not document these properties; a test notices if they go."""

MEMORY_PATIENCE_S = 600.0
"""Time for which a request waits for memory for its dedup ids: twice the life of an id."""

_Send: TypeAlias = Callable[[Request, str | None], Awaitable["Delivered"]]
"""Sends a request; a dedup id is the condition that the queue remembers it, None is not a condition."""

_log = logging.getLogger("pyspark_cmqd")
_sleep = asyncio.sleep


class SendError(CmqdSourceError):
    """The broker refused messages, or could not be reached. Earlier messages stay stored; run the write again."""

    def __init__(self, target: str, sent: int, reason: str) -> None:
        super().__init__(target, sent, reason)
        self.target = target
        self.sent = sent
        """Number of this task's messages with an answer of the broker."""
        self.reason = masked(reason)

    def __str__(self) -> str:
        return f"messages cannot be sent to {self.target} (this task sent {self.sent} before): {self.reason}"


@dataclass(frozen=True)
class Delivered(WriterCommitMessage):
    """Result of a task; the broker has stored all of these messages on disk."""

    messages: int = 0
    bytes: int = 0
    """Bytes of bodies and headers."""
    requests: int = 0
    matched: int = 0
    """Number of copies, for a topic; publishes that were repeated after a lost reply do not count."""

    def __add__(self, other: "Delivered") -> "Delivered":
        return Delivered(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.matched + other.matched,
        )


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

    def deliver(self, batches: "Iterable[pa.RecordBatch]", dedup_id: DedupIds) -> Delivered:
        """Send all rows; return when the broker has answered every request.

        Raises:
            RowError: a value cannot be sent.
            SendError: the broker refused messages, or could not be reached.
        """
        return asyncio.run(deliver(self.options, self.columns, iter(batches), dedup_id))

    def tell(self, event: str, messages: "Sequence[WriterCommitMessage | None]") -> Delivered:
        """Log and return the sum of the tasks' results."""
        total = sum((one for one in messages if isinstance(one, Delivered)), Delivered())
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
        prefix = f"{self._write_id}:{_task().partitionId()}:"
        return self._sink.deliver(iterator, lambda row: f"{prefix}{row}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the end of a write; all rows are stored."""
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
        return self._sink.deliver(iterator, stream_names(_task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the end of a batch; all rows are stored."""
        self._sink.tell(f"batch {batchId} written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log the failure of a batch.

        The messages of tasks that succeeded stay stored, and the next run of the batch does not store them again.
        """
        self._sink.tell(f"batch {batchId} failed after sending", messages)


def stream_names(task: TaskContext) -> DedupIds:
    """Return the dedup ids of a stream's task: a row of a batch of a query has the same id in every attempt."""
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if not query or not batch:

        def refuse(_row: int) -> str:
            # A made-up id would differ in every attempt, and the broker would store repeated rows twice.
            raise CmqdSourceError(
                "this version of Spark does not pass the query and batch to a task; set dedupIdColumn"
            )

        return refuse
    # 16 characters instead of 36, so that the whole fits into 64 bytes.
    digest = hashlib.blake2b(query.encode(), digest_size=12).digest()
    prefix = f"{base64.urlsafe_b64encode(digest).decode()}:{batch}:{task.partitionId()}:"
    return lambda row: f"{prefix}{row}"


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a sink writes inside of a Spark task"
    return task


async def deliver(
    options: SinkOptions, columns: Mapping[str, str], batches: "Iterator[pa.RecordBatch]", dedup_id: DedupIds
) -> Delivered:
    """Send the rows of batches, with several requests in progress; return when the broker has answered all of them.

    Raises:
        RowError: a value cannot be sent.
        SendError: the broker refused messages, or could not be reached with all repeats.
    """
    batch = next(batches, None)
    while batch is not None and not batch.num_rows:
        batch = next(batches, None)
    if batch is None:
        return Delivered()
    total = Delivered()

    async def one_ended(tasks: "set[asyncio.Task[Delivered]]") -> "set[asyncio.Task[Delivered]]":
        """Wait until a request ends, and count its messages; return the requests still in progress. Raises the failure
        of a request.
        """
        nonlocal total
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        total = sum((task.result() for task in done if task.exception() is None), total)
        for task in done:
            task.result()
        return others

    try:
        async with _connected(options) as client:
            send = _patient(_sender(client, options))
            tied = options.unique_ids or "dedup_id" not in columns
            pace = Pace(options.max_rate) if options.max_rate else None
            most = options.batch_size if pace is None else min(options.batch_size, pace.most_at_once)
            under_way: set[asyncio.Task[Delivered]] = set()
            before: tuple[asyncio.Task[Delivered], str] | None = None
            first_row = 0
            try:
                while batch is not None:
                    for request in requests_of(batch, columns, dedup_id, first_row, most):
                        if pace is not None:
                            await asyncio.sleep(pace.wait_seconds(len(request.bodies), time.monotonic()))
                        while len(under_way) >= options.in_flight:
                            under_way = await one_ended(under_way)
                        sending = _in_order(send, request, before, tied) if options.ordered else send(request, None)
                        before = asyncio.ensure_future(sending), request.dedup_ids[-1]
                        under_way.add(before[0])
                    first_row += batch.num_rows
                    # In a thread, because Spark may need minutes for the next rows: in this thread replies would not
                    # be read meanwhile, and without heartbeats the broker would close the connection.
                    batch = await asyncio.to_thread(next, batches, None)
                while under_way:
                    under_way = await one_ended(under_way)
            finally:
                for task in under_way:
                    task.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
    except CmqError as error:
        raise SendError(options.target, total.messages, f"{type(error).__name__}: {error}") from error
    return total


@asynccontextmanager
async def _connected(options: SinkOptions) -> AsyncGenerator[Client]:
    """Yield a connected client. A broker that is restarting gets as much time as for a request during the write."""
    client = connect(
        options.address,
        patience=(options.retries + 1) * options.request_timeout,
        retries=options.retries,
        request_timeout=options.request_timeout,
        product="pyspark-cmqd",
        name=default_name("spark") if options.address.name is None else None,
    )
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def _in_order(
    send: _Send, request: Request, before: "tuple[asyncio.Task[Delivered], str] | None", tied: bool
) -> Delivered:
    """Send a request; store it behind the request before, or not at all.

    ``tied``: a remembered dedup id proves that its request is stored. Then a request is sent while the request before
    is in progress, on the condition that the broker has the last message of the request before. If the broker has not,
    because that request was refused, lost or not sent yet, this request stores nothing. It is sent again without the
    condition when the request before is stored, because then all earlier requests are stored. If not ``tied``, a
    request is sent only then.
    """
    if before is None:
        return await send(request, None)
    previous, last_dedup_id = before
    if not previous.done():
        try:
            if tied:
                return await send(request, last_dedup_id)
        except (OutOfOrder, NotSupported, OutcomeUnknown):
            # OutcomeUnknown: an attempt was lost, and its repeat refused. If the lost attempt is stored after all, its
            # rows are in order, and the broker drops the rows of the next attempt by their dedup ids.
            pass
        # ``wait`` instead of an await of the task: a cancel of this task must not cancel the task before.
        await asyncio.wait([previous])
    # Raises the failure of the request before: a request behind a failed request must not be stored.
    previous.result()
    return await send(request, None)


def _patient(send: _Send) -> _Send:
    """Return ``send`` with pauses while the account has no memory for more dedup ids."""

    async def patient(request: Request, after: str | None) -> Delivered:
        waited_s = 0.0
        while True:
            try:
                return await send(request, after)
            except TooManyRequests as refusal:
                pause_s = refusal.retry_after or 0.0
                if "oldest_ends_ms" not in refusal.details or waited_s + pause_s > MEMORY_PATIENCE_S:
                    raise
                _log.warning("waiting %.0f s for room for dedup ids: %s", pause_s, refusal.text)
                await _sleep(pause_s)
                waited_s += max(pause_s, 1.0)

    return patient


def _sender(client: Client, options: SinkOptions) -> _Send:
    """Return the function that sends a request to the queue, or publishes it to the topic."""
    if options.queue:
        queue = client.queue(options.queue)

        async def send(request: Request, after: str | None) -> Delivered:
            await queue.send_batch(_messages(request), dedup_ids=request.dedup_ids, after=after)
            return Delivered(len(request.bodies), request.size, 1)

        return send
    topic = client.topic(options.topic)

    async def publish(request: Request, after: str | None) -> Delivered:
        published = await topic.publish_batch(
            request.bodies,
            tags=request.tags,
            routing_keys=request.routing_keys,
            headers=request.headers,
            dedup_ids=request.dedup_ids,
            after=after,
        )
        return Delivered(len(request.bodies), request.size, 1, sum(one.matched or 0 for one in published))

    return publish


def _messages(request: Request) -> "Sequence[bytes | Outgoing]":
    if request.headers is None and request.delays is None:
        return request.bodies
    count = len(request.bodies)
    headers = request.headers or [None] * count
    delays = request.delays or [None] * count
    return [Outgoing(*one) for one in zip(request.bodies, headers, delays, strict=True)]
