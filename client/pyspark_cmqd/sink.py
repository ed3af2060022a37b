"""The sink: rows of a DataFrame become messages, ``df.write.format("cmqd")`` and ``df.writeStream.format("cmqd")``.

    orders.write.format("cmqd").mode("append").option("url", url).option("queue", "orders").save()

Each task connects for itself and sends the rows of its partition in batches, several of them under way at once
(``inFlight``). They leave in order; in the queue they stand in the order in which the broker took them, so what was
refused for a moment, or whose answer was lost, comes behind others. With ``ordered=true`` each batch names the last row
of the one before, and the broker stores it only behind that: a partition's order is kept, and what a failed task stored
is the beginning of its partition. One request at a time goes to a broker that is too old for it, and for rows with ids
of their own: an id that the broker remembers of an earlier row does not tell that the batch before is stored.
``uniqueDedupIds=true`` says that no id repeats, and so allows several. A topic remembers no message that matches no
subscription: the batch behind such a message is refused once, and published when the batch before is answered.

A broker that has no memory for more dedup ids of the account refuses them until older ids end. The sink waits for that,
for :data:`MEMORY_PATIENCE_S` with each request, and logs it.

When a write is over, all of its rows are stored, on disk: *at least
once*. Nothing is taken back when it fails.

**What can be sent twice, and when.** A task that fails is run again by Spark, and sends all of its rows again; so does
the batch of a stream after a crash. The broker drops those that it has seen, by the dedup id of each row. That is the
row's own (``dedupIdColumn``), or else a name made of the write and the place of the row:

- of a stream: the query (as its checkpoint names it), the number of the batch, the partition, the row within it. The
  same after any restart from that checkpoint;
- of a batch: a name that the driver gives to this one write (or the option ``writeId``), the partition, the row.

So a row is stored twice if

- it is sent again later than **5 minutes** after the first time, or after 1,000,000 others were sent to that queue (or
  published to that topic) under dedup ids: the broker remembers no more;
- rows have no ids of their own, and the second run puts **other rows, or the same in another order**, into a partition
  (after a shuffle without an order, or from a source that changes: a stream of ``format("cmqd")`` with
  ``failOnDataLoss=false`` does if rows are reclaimed between the runs). Then some are stored twice and others
  **dropped** as repeats of those: such data needs ``dedupIdColumn``, or an order. What comes from a log has
  ``concat(lsn, ':', row_index)``, which names a message of that log for ever;
- a whole batch write is started again without the same ``writeId``: it is another write, with other names;
- it was published and matched no subscription: the topic keeps no such message and remembers no such id.

Two queries must not share a checkpoint (or a copy of one), nor two writes a ``writeId``: their rows would be taken for
repeats of each other.
"""

# pyspark and pyarrow tell pyright little of their types, and are not there without the Spark set.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportMissingModuleSource=false

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
from cmqd_client.errors import NotSupported, OutcomeUnknown, OutOfOrder, ServerUnreachable, TooManyRequests
from pyspark_cmqd.errors import CmqdSourceError, OptionError, masked
from pyspark_cmqd.outgoing import DedupIds, Request, chosen_columns, requests_of
from pyspark_cmqd.pacing import Pace
from pyspark_cmqd.schema import OF_THE_LOG
from pyspark_cmqd.sinkoptions import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties of a task of a stream. Spark does not document them; a test notices if they go."""

MEMORY_PATIENCE_S = 600.0
"""How long a request waits for room for its dedup ids: twice the life of an id."""

_Send: TypeAlias = Callable[[Request, str | None], Awaitable["Delivered"]]
"""Sends a request; only if the queue remembers the dedup id, unless that is None."""

_log = logging.getLogger("pyspark_cmqd")
_sleep = asyncio.sleep


class SendError(CmqdSourceError):
    """The broker refused messages, or could not be asked. What was sent before stays sent; run the write again."""

    def __init__(self, target: str, sent: int, reason: str) -> None:
        super().__init__(target, sent, reason)
        self.target = target
        self.sent = sent
        """Messages of this task that the broker has answered."""
        self.reason = masked(reason)

    def __str__(self) -> str:
        return f"{self.target} did not take the messages ({self.sent} of this task were sent before): {self.reason}"


@dataclass(frozen=True)
class Delivered(WriterCommitMessage):
    """What a task sent; all of it was answered, and so is on disk."""

    messages: int = 0
    bytes: int = 0
    """Of bodies and headers."""
    requests: int = 0
    matched: int = 0
    """Published to a topic: copies that subscriptions got, as far as the broker told."""

    def __add__(self, other: "Delivered") -> "Delivered":
        return Delivered(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.requests + other.requests,
            self.matched + other.matched,
        )


class _Sink:
    """What both writers share: where to, and which columns."""

    def __init__(self, schema: "StructType", given: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", "overwrite", "append: messages are added to what is there")
        self.options: SinkOptions = parse_sink_options(given)
        options = self.options
        roles = ("body", "headers", "delay") if options.queue else ("body", "headers", "tags", "routing_key")
        # The ids of a log's messages repeat over its length; only a writer that names them means them.
        of_the_log = () if "dedup_id" in options.named else ("dedup_id",)
        types = {
            field.name: field.dataType.simpleString()
            for field in schema.fields
            if not (field.name in of_the_log and field.metadata == OF_THE_LOG)
        }
        self.columns: dict[str, str] = chosen_columns(types, options.columns, options.named, (*roles, "dedup_id"))

    def deliver(self, batches: "Iterable[pa.RecordBatch]", dedup_id: DedupIds) -> Delivered:
        """Send all rows; returns when all were answered. Raises RowError, SendError."""
        return asyncio.run(deliver(self.options, self.columns, iter(batches), dedup_id))

    def tell(self, event: str, messages: "Sequence[WriterCommitMessage | None]") -> Delivered:
        """Log what the tasks sent; the sum."""
        total = sum((one for one in messages if isinstance(one, Delivered)), Delivered())
        _log.info("%s: %d messages, %d bytes to %s", event, total.messages, total.bytes, self.options.target)
        return total


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame; see the module."""

    def __init__(self, schema: "StructType", options: Mapping[str, str], overwrite: bool) -> None:
        """Made once for a write, on the driver. Raises OptionError, ColumnError."""
        self._sink = _Sink(schema, options, overwrite)
        self._write_id = self._sink.options.write_id or secrets.token_urlsafe(12)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Delivered:
        """Send the rows of one partition."""
        prefix = f"{self._write_id}:{_task().partitionId()}:"
        return self._sink.deliver(iterator, lambda row: f"{prefix}{row}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All was sent."""
        self._sink.tell("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed; what others sent stays."""
        self._sink.tell("write failed; sent nevertheless", messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a stream; see the module."""

    def __init__(self, schema: "StructType", options: Mapping[str, str], overwrite: bool) -> None:
        """Raises OptionError, ColumnError."""
        self._sink = _Sink(schema, options, overwrite)
        if self._sink.options.write_id:
            raise OptionError("writeId", self._sink.options.write_id, "only for a batch; a stream has its query's id")

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Delivered:
        """Send the rows of one partition of one batch."""
        return self._sink.deliver(iterator, stream_names(_task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All of a batch was sent."""
        self._sink.tell(f"batch {batchId} written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Some task failed; what others sent stays, and is not stored again with the batch's next run."""
        self._sink.tell(f"batch {batchId} failed; sent nevertheless", messages)


def stream_names(task: TaskContext) -> DedupIds:
    """Names of the rows of a stream's task: the same for the same row of the same batch of the same query."""
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if not query or not batch:

        def refuse(_row: int) -> str:
            # Anything else would be another name with each attempt.
            raise CmqdSourceError("this version of Spark does not tell a task its query and batch: use dedupIdColumn")

        return refuse
    # 16 characters instead of 36, so that the whole fits into 64 bytes.
    digest = hashlib.blake2b(query.encode(), digest_size=12).digest()
    prefix = f"{base64.urlsafe_b64encode(digest).decode()}:{batch}:{task.partitionId()}:"
    return lambda row: f"{prefix}{row}"


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only tasks write"
    return task


async def deliver(
    options: SinkOptions, columns: Mapping[str, str], batches: "Iterator[pa.RecordBatch]", dedup_id: DedupIds
) -> Delivered:
    """Send the rows of batches, several requests under way at once; returns when all were answered.

    Raises:
        RowError: a value cannot be sent.
        SendError: the broker refused, or could not be asked however often that was tried.
    """
    batch = next(batches, None)
    while batch is not None and not batch.num_rows:
        batch = next(batches, None)
    if batch is None:
        return Delivered()
    total = Delivered()

    async def one_ended(tasks: "set[asyncio.Task[Delivered]]") -> "set[asyncio.Task[Delivered]]":
        """Wait until one of them ends, and count what was sent; the others. Raises its failure."""
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
                    # Spark may take minutes for the next rows; answers and heartbeats must go on meanwhile.
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
    """A client; a broker that is starting again is waited for here as it is in the middle of the rows."""
    failed = 0
    while True:
        client = connect(
            options.address,
            retries=options.retries,
            request_timeout=options.request_timeout,
            product="pyspark-cmqd",
        )
        try:
            await client.open()
            break
        except ServerUnreachable:
            failed += 1
            if failed > options.retries:
                raise
    try:
        yield client
    finally:
        await client.close()


async def _in_order(
    send: _Send, request: Request, before: "tuple[asyncio.Task[Delivered], str] | None", tied: bool
) -> Delivered:
    """Send a request, so that it is stored behind the one before or not at all.

    ``tied``: a dedup id that the broker remembers shows that its request is stored. Then a request goes while the one
    before is under way, to be stored only if the broker has that one's last message. If it has not, because the one
    before was refused, lost or not even sent yet, nothing of this one is stored; it goes again when the one before is
    stored, and then needs no condition, because all before it are stored. If not ``tied``, it goes only then.
    """
    if before is None:
        return await send(request, None)
    previous, last_dedup_id = before
    if not previous.done():
        try:
            if tied:
                return await send(request, last_dedup_id)
        except (OutOfOrder, NotSupported, OutcomeUnknown):
            # Unknown: an attempt was lost, and the next one refused. If the lost one is stored after all, its rows are
            # in their place, and the next attempt repeats what the broker has.
            pass
        # The task before is not awaited itself: the end of this task must not cancel it.
        await asyncio.wait([previous])
    # Its failure is the failure of all behind it.
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
    """What sends a request to the queue, or publishes it to the topic."""
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
