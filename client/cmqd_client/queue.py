"""The handle of a queue: send, receive, delete, rewind, redrive, transactions and attributes of one queue.

A handle is a name and a client; creating a handle sends no request. Two rules hold for all methods and are not
repeated with every method:

*Durability.* When a call that changes state returns, the server has fsynced the change (unless the server's operator
chose otherwise).

*Time limits and repeats.* An attempt ends after ``request_timeout`` seconds (plus the wait of a receive). A request
that is safe to repeat is repeated up to ``retries`` times, also over a new connection. The error tells the outcome: a
``ServerError`` other than ``OutcomeUnknown`` - refused, no state was changed; ``ServerUnreachable`` or
``ClientClosed`` - not sent; ``OutcomeUnknown`` - the server may have executed the request or not. A cancelled call has
the same unknown outcome, unless its method promises more; calls that only read are safe to cancel.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from time import time as wall_clock
from typing import Any, Generic, TypeAlias, Unpack, cast

from cmqd_client.attributes import QueueAttributes, QueueInfo, queue_attributes, queue_info
from cmqd_client.consumers.acknowledging import Acknowledgement
from cmqd_client.consumers.consumer import Consumer, MessageStream
from cmqd_client.consumers.consumption import Lease
from cmqd_client.consumers.handling import Processing
from cmqd_client.consumers.intake import Intake, Source
from cmqd_client.consumers.options import LEASE, consumer_options
from cmqd_client.consumers.settlements import Settlements
from cmqd_client.durations import Duration, to_datetime, to_moment_ms, to_ms
from cmqd_client.errors import (
    ClientClosed,
    CmqError,
    NotSupported,
    OutcomeUnknown,
    PartialFailure,
    PoisonMessage,
    TimeNotRewindable,
)
from cmqd_client.links.channel import Channel
from cmqd_client.links.locating import Location, ask_location
from cmqd_client.messages.message_ids import MessageId, id_number, printed_id
from cmqd_client.messages.outgoing import CORRELATION_ID, REPLY_TO, Batch, Outgoing, checked_body
from cmqd_client.messages.sending import send, send_in_parts
from cmqd_client.messages.tracing import now_ns
from cmqd_client.messages.typed_bodies import BodyCodec, BodyT, NotDecodable
from cmqd_client.replies.conversions import converted
from cmqd_client.results import (
    BatchResult,
    CopyOf,
    DecisionResult,
    Done,
    HandleResult,
    Listing,
    Origin,
    Peeked,
    PeekPage,
    Redrive,
    RewindPreview,
    Rewound,
    Sent,
    SentBatch,
    TransactionStatus,
    Undecided,
    UndecidedPage,
    redrive,
)
from cmqd_client.subscription import QueueSubscriptionPage
from cmqd_client.transactions.half_requests import decide, send_half
from cmqd_protocol import messages as wire
from cmqd_protocol import operations
from cmqd_types.messages import Headers, ReceivedMessage

ReceiptHandle: TypeAlias = int
Held: TypeAlias = "Message[Any] | ReceiptHandle"
"""A received message, or its receipt handle."""


class Message(Generic[BodyT]):
    """A received message, hidden from other receives until ``next_visible_time``.

    Delete the message after processing. Otherwise the server delivers it again when its visibility timeout ends, with a
    new receipt handle; then the methods of this object fail with ``ReceiptHandleInvalid``.
    """

    __slots__ = ("_body", "_queue", "_received", "request_id")

    def __init__(self, queue: "Queue[BodyT]", received: ReceivedMessage, request_id: int) -> None:
        self._queue = queue
        self._received = received
        self.request_id: int = request_id
        """Number of the receive that returned the message."""

    @property
    def queue(self) -> "Queue[BodyT]":
        """The queue that delivered the message."""
        return self._queue

    @property
    def id(self) -> MessageId:
        """``Msg-`` and 16 hex digits; the same at every receive."""
        return printed_id(self._received.message_id)

    @property
    def body(self) -> BodyT:
        """The body, byte for byte as sent; for a queue handle with a type, the value that the body decodes to.

        The body is decoded at the first use, so that a body that does not decode leaves the other messages of its
        receive untouched.

        Raises:
            PoisonMessage: the body does not decode to the type of the queue handle. The message stays in flight.
        """
        codec = self._queue.codec
        if codec is None:
            return cast("BodyT", self._received.body)
        try:
            return self._body
        except AttributeError:
            pass
        try:
            self._body: BodyT = codec.decode(self._received.body, self._received.headers)
        except NotDecodable as problem:
            raise PoisonMessage(
                f"{self.id} of {self._queue.name!r} does not decode to {codec.type_name}: {problem}",
                self,
                request_id=self.request_id,
            ) from problem
        return self._body

    @property
    def raw_body(self) -> bytes:
        """The body, byte for byte as sent."""
        return self._received.body

    @property
    def headers(self) -> Headers:
        """The headers as sent; empty if the message has none."""
        return self._received.headers or {}

    @property
    def receipt_handle(self) -> int:
        """Proof of this receive; a later receive of the message makes the handle invalid."""
        return self._received.receipt_handle

    @property
    def receive_count(self) -> int:
        """Number of receives of the message, this receive included."""
        return self._received.receive_count

    @property
    def enqueue_time(self) -> datetime:
        """Time of the send (UTC)."""
        return to_datetime(self._received.enqueue_ms)

    @property
    def first_receive_time(self) -> datetime:
        """Time of the first receive (UTC)."""
        return to_datetime(self._received.first_receive_ms)

    @property
    def next_visible_time(self) -> datetime:
        """End of the visibility timeout of this receive (UTC, the server's clock); until then the message is hidden.

        ``change_visibility`` returns the new time and does not update this property.
        """
        return to_datetime(self._received.next_visible_ms)

    @property
    def origin(self) -> Origin | None:
        """Queue, id and receive count before a move as a dead letter or by a redrive; None = never moved."""
        moved = self._received.origin
        return None if moved is None else converted(Origin, moved)

    @property
    def copy_of(self) -> CopyOf | None:
        """The published message that this message is a copy of; None = sent directly to a queue."""
        copied = self._received.copy_of
        return None if copied is None else converted(CopyOf, copied)

    @property
    def wants_reply(self) -> bool:
        """True if the message is a request of :meth:`Client.request`."""
        return REPLY_TO in self.headers and CORRELATION_ID in self.headers

    async def reply(self, body: bytes, *, headers: Mapping[str, str] | None = None) -> Sent:
        """Reply to a request of :meth:`Client.request`; then delete the message.

        The reply is stored once, also if the message is delivered and replied to again within 5 minutes. Guarantees,
        cancellation and errors are as for :meth:`Queue.send`.

        Args:
            body: the body of the reply.
            headers: further headers of the reply.

        Raises:
            ValueError: the message is not a request.
            QueueNotFound: the client that made the request has gone; delete the message.
            CmqError: as for :meth:`Queue.send`.
        """
        own = self.headers
        if not self.wants_reply:
            raise ValueError(
                f"message {self.id} is not a request: it lacks the headers {REPLY_TO!r} and {CORRELATION_ID!r}"
            )
        correlation_id = own[CORRELATION_ID]
        queue = Queue(self._queue.channel, own[REPLY_TO])
        return await queue.send(
            body, headers=dict(headers or {}) | {CORRELATION_ID: correlation_id}, dedup_id=correlation_id
        )

    async def delete(self) -> HandleResult:
        """Delete the message; see :meth:`Queue.delete`."""
        return await self._queue.delete(self)

    async def release(self, *, count_receive: bool = True) -> HandleResult:
        """Return the message to the queue at once; see :meth:`Queue.release`."""
        return await self._queue.release(self, count_receive=count_receive)

    async def reject(self, reason: str = "") -> HandleResult:
        """Move the message to the queue's dead-letter queue; see :meth:`Queue.reject`."""
        return await self._queue.reject(self, reason)

    async def dead_letter(self, reason: str = "") -> HandleResult:
        """Old name of :meth:`reject`, an alias until version 0.3."""
        return await self.reject(reason)

    async def change_visibility(self, timeout: Duration) -> HandleResult:
        """Set how long the message stays hidden; see :meth:`Queue.change_visibility`."""
        return await self._queue.change_visibility(self, timeout)

    def __repr__(self) -> str:
        size = len(self._received.body)
        return f"<Message {self.id} of {self._queue.name!r}, {size} bytes, received {self.receive_count}x>"


class ConsumedMessage(Message[BodyT]):
    """A received message with a lease that a consumer keeps until the message is settled: :meth:`Queue.consumer`."""

    __slots__ = ("_intake", "_lease")

    def __init__(self, queue: "Queue[BodyT]", intake: Intake, lease: Lease) -> None:
        super().__init__(queue, lease.received, lease.request_id)
        self._intake = intake
        self._lease = lease

    @property
    def lost(self) -> str | None:
        """Why the lease was lost, None while it is not. The work on the message is then another consumer's; the server
        refuses to settle the message under this receipt handle."""
        return self._lease.lost

    def process(self) -> Processing:
        """Return an async context manager that settles the message when its body ends, as a handler does:
        see :meth:`Queue.consumer`.

        An ``Exception`` of the body is logged and goes no further, so that a loop over messages continues. A
        ``CancelledError`` for another reason than a lost lease goes on, and the message is delivered again at once. If
        the lease is lost, the task that runs the body is cancelled, with the reason as the argument of the
        ``CancelledError``; the cancellation ends with the body.
        """
        return Processing(self._intake, self._lease, self)

    async def delete(self) -> HandleResult:
        """Delete the message now; see :meth:`Queue.delete`. A handler that returns has the same effect, in a request
        shared with other messages."""
        queue, handle = self.queue, self.receipt_handle
        return await self._intake.settled_by_program(self._lease, lambda: queue.delete(handle))

    async def release(self, *, count_receive: bool = True) -> HandleResult:
        """Return the message to the queue at once; see :meth:`Queue.release`."""
        queue, handle = self.queue, self.receipt_handle
        return await self._intake.settled_by_program(
            self._lease, lambda: queue.release(handle, count_receive=count_receive)
        )

    async def change_visibility(self, timeout: Duration) -> HandleResult:
        """Set how long the message stays hidden, and leave the message to the program: its lease is no longer kept.

        See :meth:`Queue.change_visibility`.
        """
        queue, handle = self.queue, self.receipt_handle
        return await self._intake.settled_by_program(self._lease, lambda: queue.change_visibility(handle, timeout))

    async def reject(self, reason: str = "") -> HandleResult:
        """Move the message to the queue's dead-letter queue now; see :meth:`Queue.reject`.

        After an error the message is held as before.
        """
        queue, handle = self.queue, self.receipt_handle
        return await self._intake.settled_by_program(self._lease, lambda: queue.reject(handle, reason))


MessageHandler: TypeAlias = Callable[[ConsumedMessage[BodyT]], Coroutine[Any, Any, object]]
"""Handles a message; see :meth:`Queue.consumer`."""


class Queue(Generic[BodyT]):
    """A queue of the account; get the handle from ``client.queue(name)``, ``create_queue`` or ``ensure_queue``.

    Any number of tasks can use a handle at once; their requests share the client's connection, and a
    waiting receive blocks no other request. All methods raise ``QueueNotFound`` if the queue does not exist.
    """

    __slots__ = ("_channel", "codec", "name", "request_id")

    def __init__(
        self,
        channel: Channel,
        name: str,
        codec: BodyCodec[BodyT] | None = None,
        request_id: int | None = None,
    ) -> None:
        self._channel = channel
        self.name: str = name
        self.codec: BodyCodec[BodyT] | None = codec
        """Encodes and decodes the bodies; None = bodies are bytes."""
        self.request_id: int | None = request_id
        """Number of the request that created or checked the queue, if ``create_queue`` or ``ensure_queue`` returned
        this handle; else None."""

    @property
    def channel(self) -> Channel:
        """The channel to the server, for other parts of this package."""
        return self._channel

    @property
    def _settlements(self) -> Settlements:
        return Settlements(self._channel, self.name)

    # ------------------------------------------------------------------ send

    async def send(
        self,
        body: BodyT,
        *,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_id: str | None = None,
    ) -> Sent:
        """Send a message.

        Delivered at least once to consumers of the queue, until a consumer deletes the message or its retention ends.
        A task that awaits every send gets its messages stored in that order. Concurrent sends of several tasks are
        usually, but not always, stored in the order of the calls (a repeated send comes later).

        The send is numbered: if the reply is lost, the client repeats the send and the server stores the message once.
        When the repeats are used up, ``OutcomeUnknown`` means that the message may be stored; sending again in a new
        call may store the message twice, unless both calls give the same ``dedup_id``. After a cancellation the message
        may be stored too.

        Args:
            body: 1 byte up to the queue's ``max_message_bytes``; opaque to the server. For a handle with a type, a
                value of the type; the client sets the header ``content-type``.
            delay: time before the message becomes active; None = the queue's own. 0-3,600 s, or more if the server's
                operator allows it (setting ``max_delay_ms``); in any case shorter than the retention of the queue.
            at: time by the server's clock at which the message becomes active, in place of ``delay`` and with the same
                limits: a ``datetime`` with a zone, or seconds since 1970. At a time that has passed the message is
                active at once. A repeat of the send does not move the time.
            headers: at most 32, 16 KiB in all.
            dedup_id: the producer's own name of this message, up to 64 bytes. If the queue has seen the name in the
                last 5 minutes (among the last 1,000,000 sends with a name), the send stores no message and returns the
                id of the first message, regardless of body, producer and crashes of either side.

        Raises:
            QueueNotFound, MessageTooLarge, InvalidArgument: the message was not stored.
            BacklogFull, DiskNearlyFull, Busy: the message was not stored; try again after ``retry_after``.
            NotSupported: the server is too old for ``at``; the message was not sent.
            OutcomeUnknown: the message may be stored.
            ValueError: ``delay`` and ``at`` are both given, or ``at`` names no zone.
        """
        at_ms = None if at is None else _at_ms(at, delay)
        codec = self.codec
        own_headers = None if headers is None else dict(headers)
        reply = await send(
            self._channel,
            self.name,
            [checked_body(cast("bytes", body)) if codec is None else codec.encode(body)],
            [codec.headers(own_headers)] if codec is not None else None if own_headers is None else [own_headers],
            None if delay is None else to_ms(delay, "delay"),
            None if dedup_id is None else [dedup_id],
            at_ms=at_ms,
        )
        return Sent(printed_id(reply.message_ids[0]), reply.request_id)

    async def send_batch(
        self,
        messages: Iterable[BodyT | Outgoing[BodyT]],
        *,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        after: str | None = None,
        split: bool = False,
        all_or_none: bool = False,
    ) -> SentBatch:
        """Send up to 256 messages in one step: all are stored, contiguous and in this order, or none is.

        Guarantees, cancellation and errors are as for :meth:`send`.

        Args:
            messages: bodies, or :class:`Outgoing` for a message with headers or a delay of its own. Bodies and headers
                are at most 1 MiB together (a single larger message is allowed). An empty batch sends no request.
            delay: for messages without a delay of their own; None = the queue's own.
            at: time at which all messages become active, in place of all delays; see :meth:`send`.
            headers: for messages without headers of their own.
            dedup_ids: a name or None per message; see :meth:`send`. Messages with a remembered name are not
                stored again; the other messages of the batch are.
            after: a dedup id that the queue must remember, or the batch is refused. A producer that names the last
                message of the previous batch can send several batches concurrently and keep their order, whichever
                is refused or sent again.
            split: send a batch over the limits in several steps, in order: each step stores all of its messages or
                none. The next step begins when the step before is stored, so a cancellation leaves the first messages
                of the batch stored.
            all_or_none: refuse the batch if some of its dedup ids are remembered and others are not; with ``split``,
                each step by itself. A repeat of a whole batch succeeds.

        Raises:
            PartialFailure: with ``split``, a step after the first failed. ``done`` has the ids of the messages of the
                earlier steps, ``failures`` the error of each other message; of these, only the messages of the failed
                step may be stored, and only after ``OutcomeUnknown``.
            BatchTooLarge: bodies and headers are too large together; no message was stored.
            InvalidArgument: there are more than 256 messages, or ``all_or_none`` refuses the batch; no message was
                stored.
            OutOfOrder: the queue does not remember ``after``; no message was stored.
            NotSupported: the server is too old for ``after``, ``at`` or ``all_or_none``; the batch was not sent.
            CmqError: as for :meth:`send`.
            ValueError: there are not as many dedup ids as messages, or ``at`` stands beside a delay.
        """
        batch = Batch.of(messages, delay, headers, dedup_ids, self.codec)
        own_delay = next((own for own in batch.delays if own is not None), None)
        at_ms = None if at is None else _at_ms(at, delay if own_delay is None else own_delay / 1000)
        return await send_in_parts(
            self._channel,
            self.name,
            batch,
            self._own_delay,
            at_ms,
            after=after,
            split=split,
            all_or_none=all_or_none,
        )

    async def _own_delay(self) -> int:
        """Return the queue's own delay in milliseconds."""
        return to_ms((await self.attributes()).delay, "delay")

    # ------------------------------------------------------------------ receive

    async def receive(
        self,
        max_messages: int = 1,
        *,
        wait: Duration | None = None,
        visibility_timeout: Duration | None = None,
        acknowledge: "Iterable[Held]" = (),
    ) -> list[Message[BodyT]]:
        """Receive messages; wait for the first message if the queue has no active message.

        Returns up to ``max_messages`` active messages at once; never waits to fill a batch. Receives that wait
        are served in the order of their arrival. Messages come in the order of sending as far as redelivery allows.

        If the connection is lost, or the server restarts, during the wait, the client repeats the receive over a new
        connection with the rest of the wait. Messages of a lost reply become active again, at the latest when
        their visibility timeout ends.

        Cancelling is safe: the client tells the server, and messages already on their way are released at once without
        counting the receive. The same happens when an attempt times out. An ``asyncio.timeout`` around the call
        therefore loses no message; ``wait`` is cheaper.

        With ``acknowledge``, handled messages are deleted in the request of the receive: one request and one write to
        the disk in place of two. The deletes come before the receive and are durable while the receive still waits, and
        they stay when the receive ends without messages, with an error, or by a cancellation or the close of the client
        (after which they may also not have happened; :meth:`delete_batch` tells). An error about the arguments, the
        queue or the key comes before the deletes; after an error that comes later, ``details`` of the error has
        ``acknowledged``. A repeat after a lost reply counts a handle that the first attempt made invalid as deleted. A
        server without the feature gets a request for the deletes, then the receive.

        Args:
            max_messages: 1-256; an answer also ends before 1 MiB of bodies and headers.
            wait: how long to wait for the first message, 0-30 s; None = the queue's polling wait.
            visibility_timeout: how long the messages stay hidden, 1 s - 12 h; None = the queue's own.
            acknowledge: up to 256 messages or receipt handles of this queue to delete first.

        Returns:
            The messages; empty if none came in time.

        Raises:
            PartialFailure: messages of ``acknowledge`` failed; ``failures`` has each with its error, ``done`` the
                deleted handles. Received messages were released, uncounted. An error of the receive is the cause.
            OutcomeUnknown: with ``acknowledge``, the server did not answer; the messages may be deleted or not.
            QueueDeleted: the queue was deleted while the receive waited.
            TooManyInFlight: delete or release some first.
            ServerUnreachable, ConnectionLost, RequestTimeout: the server did not answer.
        """
        channel = self._channel
        request = wire.ReceiveMessages(
            channel.next_request_id(),
            self.name,
            max_messages,
            None if wait is None else to_ms(wait, "wait"),
            None if visibility_timeout is None else to_ms(visibility_timeout, "visibility_timeout"),
        )
        tracing = channel.tracing
        handles = _handles_of(acknowledge)
        started_ns = 0 if tracing is None else now_ns()
        reply = await (self._receive_after_deletes(request, handles) if handles else channel.receive(request))
        request_id = reply.request_id
        channel.counters.messages_received += len(reply.messages)
        messages = [Message(self, received, request_id) for received in reply.messages]
        if tracing is not None and messages:
            tracing.received(self.name, messages, started_ns)
        return messages

    async def _receive_after_deletes(self, request: wire.ReceiveMessages, handles: list[int]) -> wire.MessagesReceived:
        channel = self._channel
        if channel.tracing is not None:
            # A request of their own, so that the deletes have their span.
            (await self._settlements.delete(handles)).raise_for_failures()
            return await channel.receive(request)
        deletes = Acknowledgement(handles)
        try:
            reply = await channel.receive(request, deletes)
        except CmqError as error:
            if deletes.failures:
                raise _not_all_deleted(deletes, error.request_id) from error
            if deletes.is_done:
                error.details = {**error.details, "acknowledged": True}
            elif deletes.is_uncertain and not isinstance(error, ClientClosed | OutcomeUnknown):
                text = f"it is not known whether the messages were deleted: {error.text}"
                raise OutcomeUnknown(text, request_id=error.request_id, connection_id=error.connection_id) from error
            raise
        if deletes.failures:
            if reply.messages:
                received = [message.receipt_handle for message in reply.messages]
                # On failure, the visibility timeout makes the messages active again.
                with suppress(CmqError):
                    await self._settlements.release(received, count_receive=False)
            raise _not_all_deleted(deletes, reply.request_id)
        return reply

    async def peek(self, max_messages: int = 16, *, start: int = 0, states: Iterable[str] | None = None) -> PeekPage:
        """Return messages in the order of sending, without receiving them: counts, order and visibility stay.

        Bodies are bytes, also for a handle with a type, so that messages that do not decode can be looked at.

        Args:
            max_messages: 1-256; a page may hold fewer, also none, and yet not be the last.
            start: 0, or ``next_start`` of the page before.
            states: only messages in these states: ``active``, ``in_flight``, ``delayed``, ``half``, ``rewindable``;
                None = all states except ``rewindable`` (deleted messages).

        Raises:
            InvalidArgument: a state is unknown.
        """
        state_names = None if states is None else list(states)
        reply = await self._channel.ask(operations.PEEK_MESSAGES, self.name, max_messages, start, state_names)
        peeked = [converted(Peeked, message, headers=message.headers or {}) for message in reply.messages]
        return PeekPage(peeked, reply.next_start, reply.request_id)

    # ------------------------------------------------------------------ consume

    def consumer(
        self,
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        lease: Duration = LEASE,
        ordered: bool = False,
        first_retry: Duration = 1.0,
        longest_retry: Duration = 600.0,
        wait: Duration = 30.0,
        patience: Duration | None = None,
    ) -> Callable[[MessageHandler[BodyT]], Consumer[ConsumedMessage[BodyT]]]:
        """Make an async function the handler of this queue's messages; run the consumer with :meth:`Client.run`::

            @client.queue("orders").consumer(concurrency=8)
            async def handle(message: ConsumedMessage) -> None: ...


            await client.run(handle)

        A message is deleted when its handler returns. After an exception the message is delivered again, after a pause
        that doubles with every receive; ``Retry`` chooses the pause, and ``Reject`` moves the message to the
        dead-letter queue. A message is handled at least once: again if the process dies, or its lease is lost before
        the delete. Every third of ``lease``, the leases of all held messages are extended. If a lease is lost all the
        same, the handler is cancelled, with the reason as the argument of the ``CancelledError``. An outage of any
        length ends nothing.

        For a handle with a type, bodies are decoded before the handler runs; a body that does not decode is treated by
        the ``poison`` policy of :meth:`Client.queue`.

        Handlers share the event loop: a handler that blocks the loop for longer than ``lease`` loses all leases.

        Args:
            concurrency: handlers in progress at the same time, 1-4,096.
            prefetch: messages that wait here for a handler, 0-4,096. None = as many as the handlers begin within 0.2 s:
                fast handlers never wait for a receive, and slow handlers keep no message from other consumers.
            lease: time after which messages are delivered again if this process dies, 1 s - 12 h. It replaces the
                queue's visibility timeout.
            ordered: keep the order of sending, with concurrency 1 and one consumer at the queue: a message that fails
                is tried again before any later message. Messages are then received only when none is held, so
                ``prefetch`` is the number received together, less 1 (None = 0).
            first_retry: pause after the first failure, shortened at random by up to a half.
            longest_retry: longest such pause; at most 12 h.
            wait: longest wait of a receive, 0-30 s.
            patience: how long receives may fail, beyond the wait of a receive, until the consumer ends with the error;
                None = without end.

        Raises:
            ValueError: a number is out of range.
        """
        options = consumer_options(
            concurrency=concurrency,
            prefetch=prefetch,
            lease=lease,
            ordered=ordered,
            first_retry=first_retry,
            longest_retry=longest_retry,
            wait=wait,
            patience=patience,
        )
        return lambda handler: Consumer(self._source(), handler, options)

    def consume(
        self,
        *,
        concurrency: int | None = 1,
        prefetch: int | None = None,
        lease: Duration = LEASE,
        ordered: bool = False,
        first_retry: Duration = 1.0,
        longest_retry: Duration = 600.0,
        wait: Duration = 30.0,
        patience: Duration | None = None,
    ) -> MessageStream[ConsumedMessage[BodyT]]:
        """Iterate over the messages of the queue, and keep their leases until they are settled::

            async for message in queue.consume():
                async with message.process():
                    ...

        The iteration waits while ``concurrency`` messages are not settled, so settle each: with ``process()``, or with
        ``delete``, ``release``, ``change_visibility`` or ``reject`` of the message. Leaving the loop gives back
        uncounted the messages that were not taken, and settles the processed messages; also if the client is closed
        right after. For several messages at a time, hand the messages to tasks, or iterate in several tasks over one
        stream.

        Args and guarantees are those of :meth:`consumer`, but ``concurrency=None`` sets no limit: messages are received
        as the program asks for them, and ahead only as far as it takes them at once. It suits programs that limit
        themselves, such as a framework with handlers of its own.

        Raises:
            ValueError: a number is out of range.
            CmqError: from the iteration: the queue is gone, the key is refused, or an argument is out of range.
        """
        options = consumer_options(
            concurrency=concurrency,
            prefetch=prefetch,
            lease=lease,
            ordered=ordered,
            first_retry=first_retry,
            longest_retry=longest_retry,
            wait=wait,
            patience=patience,
        )
        return MessageStream(self._source(), options)

    def _source(self) -> Source[ConsumedMessage[BodyT]]:
        return Source(
            channel=self._channel,
            name=self.name,
            poison=None if self.codec is None else self.codec.poison,
            message=lambda intake, lease: ConsumedMessage(self, intake, lease),
        )

    # ------------------------------------------------------------------ received messages

    async def delete(self, message: Held) -> HandleResult:
        """Delete a received message after processing; the server never delivers it again.

        Needs the newest handle of the message, before ``next_visible_time``. If the reply is lost, the client repeats
        the delete and counts an invalid handle as success, because the first attempt is the likely reason. (If the
        visibility timeout ended in between instead, the message is delivered again, as after any late delete.) After a
        cancellation the message may be deleted.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over, or the handle is outdated or of another queue.
        """
        return await self._settlements.delete_one(_handle_of(message))

    async def delete_batch(self, messages: Iterable[Held], *, check: bool = True) -> BatchResult:
        """Delete received messages, with the rules of :meth:`delete`. A message named twice is deleted once and appears
        once in the result.

        More than 256 messages take several requests, in turn. If a request fails, the deletes of earlier requests stay,
        no further request is made, and the remaining messages are failures with the error of that request. If the first
        request fails, its error is raised as it is.

        Args:
            messages: messages or receipt handles.
            check: raise an exception if a message failed; False = return the failures in the result.

        Returns:
            The deleted handles and, with ``check=False``, the failures.

        Raises:
            PartialFailure: a message failed; ``failures`` has each with its error, ``done`` the deleted handles.
        """
        return _checked(await self._settlements.delete(_handles_of(messages)), check=check)

    async def change_visibility(self, message: Held, timeout: Duration) -> HandleResult:
        """Set how long, from now, a received message stays hidden: longer to go on processing, shorter to release it.

        Safe to repeat, so a lost reply goes unnoticed. After a cancellation the timeout may be changed.

        Args:
            message: the message or its receipt handle. The handle stays valid unless ``timeout`` is 0.
            timeout: 0-43,200 s; never beyond the message's retention. 0 makes the message active at once, like
                :meth:`release`.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over, or the handle is outdated or of another queue.
        """
        return await self._settlements.change_visibility_one(_handle_of(message), to_ms(timeout, "timeout"))

    async def change_visibility_batch(
        self, messages: Iterable[Held], timeout: Duration, *, check: bool = True
    ) -> BatchResult:
        """Set the visibility timeout of several messages; slices, result and errors as for :meth:`delete_batch`."""
        timeout_ms = to_ms(timeout, "timeout")
        result = await self._settlements.change_visibility(_handles_of(messages), timeout_ms)
        return _checked(result, check=check)

    async def release(self, message: Held, *, count_receive: bool = True) -> HandleResult:
        """Make a received message active again at once, in its old position by send time.

        A lost reply is treated as in :meth:`delete`. After a cancellation the message may be released.

        Args:
            message: the message or its receipt handle.
            count_receive: whether this receive stays counted. Use False for a message that was not processed at all.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over (the message is active already), or the handle is of
                another queue.
        """
        return await self._settlements.release_one(_handle_of(message), count_receive=count_receive)

    async def release_batch(
        self, messages: Iterable[Held], *, count_receive: bool = True, check: bool = True
    ) -> BatchResult:
        """Release several messages; slices, result and errors as for :meth:`delete_batch`."""
        result = await self._settlements.release(_handles_of(messages), count_receive=count_receive)
        return _checked(result, check=check)

    async def reject(self, message: Held, reason: str = "") -> HandleResult:
        """Move a received message to the queue's dead-letter queue at once, whatever the queue's own rule.

        For a message that no further attempt can process. The move is one step: the message is always in exactly one of
        the two queues. The dead letter has a new id and send time, and an origin with the reason ``rejected`` and, as
        ``rejection``, the reason given here. The move counts as the delete of the message: it cannot be repeated or
        rewound; :meth:`redrive` of the dead-letter queue brings the message back.

        A lost reply is treated as in :meth:`delete`. After a cancellation the message may be moved. If the call fails
        with an error of the server, the message stays in flight under its handle, until its visibility timeout ends.

        Args:
            message: the message or its receipt handle.
            reason: text for readers of the dead letters; at most 256 bytes of UTF-8.

        Raises:
            NoDeadLetterQueue: the queue has no dead-letter queue.
            DeadLettersNotTaken, BacklogFull: the dead-letter queue takes the message later, perhaps.
            MessageTooLarge: the body is over the limit of the dead-letter queue.
            ReceiptHandleInvalid: the visibility timeout is over, or the handle is outdated or of another queue.
            MessagesDamaged: the server cannot read the message from its disk.
            InvalidArgument: the reason is too long.
            DiskNearlyFull, Busy: try again after ``retry_after``.
            UnknownOperation: the server is too old for this call.
        """
        return await self._settlements.reject_one(_handle_of(message), reason)

    async def dead_letter(self, message: Held, reason: str = "") -> HandleResult:
        """Old name of :meth:`reject`, an alias until version 0.3."""
        return await self.reject(message, reason)

    async def reject_batch(
        self, messages: Iterable[Held], reason: str | Sequence[str] = "", *, check: bool = True
    ) -> BatchResult:
        """Move several messages to the dead-letter queue, with the rules of :meth:`reject`.

        Slices, result and errors are as for :meth:`delete_batch`. The messages move independently: a failure does not
        affect the others.

        Args:
            messages: the messages or their receipt handles.
            reason: a reason for all messages, or a reason per message.

        Raises:
            ValueError: there are not as many reasons as messages.
        """
        held = list(messages)
        if isinstance(reason, str):
            return _checked(await self._settlements.reject(_handles_of(held), reason), check=check)
        reasons = list(reason)
        if len(reasons) != len(held):
            raise ValueError(
                f"{len(reasons)} reasons for {len(held)} messages; give a reason per message, or one reason"
            )
        reason_of: dict[int, str] = {}
        for item, its_reason in zip(held, reasons, strict=True):
            # A message that is named twice counts once, with its first reason.
            reason_of.setdefault(_handle_of(item), its_reason)
        return _checked(await self._settlements.reject(list(reason_of), reason_of), check=check)

    async def dead_letter_batch(
        self, messages: Iterable[Held], reason: str | Sequence[str] = "", *, check: bool = True
    ) -> BatchResult:
        """Old name of :meth:`reject_batch`, an alias until version 0.3."""
        return await self.reject_batch(messages, reason, check=check)

    # ------------------------------------------------------------------ rewind

    async def rewind(
        self, time: datetime | float | None = None, *, ago: Duration | None = None, strict: bool = True
    ) -> Rewound:
        """Make deleted messages active again that were sent at or after a time, in the order of sending, for all
        consumers.

        The messages keep id and send time, and count as never received. The server answers at once, regardless of the
        number of messages. Messages in the queue or in flight are not touched. Needs a rewind window (attribute
        ``rewind``).

        Not repeated after a lost reply: a second rewind would also bring back messages deleted in between. That is the
        only harm, so repeat the call if your consumers tolerate duplicates.

        Args:
            time: a ``datetime`` with a zone, or seconds since 1970 (from September 2001 on: a smaller number is likely
                meant as a duration, and is refused). From as long ago as the window to the send time of the oldest
                message that is active or in flight (now, if there is none).
                The server stamps messages with broker time, so the send time of a message always rewinds to that
                message.
            ago: in place of ``time``, how long ago. The server does the subtraction, so the local clock does not matter
                (an older server without ``ago`` is sent a time by the local clock).
            strict: refuse a time before the window; False = use the nearest possible time instead.

        Returns:
            The number of messages that are active again, the time used, and whether that time differs from the request.

        Raises:
            TimeNotRewindable: the time is too late, or (``strict``) before the window, or there is no window;
                ``nearest`` is the nearest possible time. No message was changed.
            TypeError: the time is a duration, or neither a ``datetime`` nor a number; or not exactly one of ``time``
                and ``ago`` is given.
            ValueError: the time has no zone, or is a number that is not a time.
        """
        if (time is None) == (ago is None):
            raise TypeError("rewind takes either time or ago")
        time_ms, ago_ms = _start_of_rewind(time, ago, "rewind(ago=...)")
        ask, rewind = self._channel.ask, operations.REWIND_QUEUE
        try:
            try:
                reply = await ask(rewind, self.name, time_ms, strict, ago_ms)
            except NotSupported:
                reply = await ask(rewind, self.name, time_ms, strict)
        except TimeNotRewindable as error:
            _note_nearest(error)
            raise
        return converted(Rewound, reply)

    async def preview_rewind(
        self, time: datetime | float | None = None, *, ago: Duration | None = None
    ) -> RewindPreview:
        """Count the messages that a rewind would make active again now, and return the times that a rewind may have.
        No message changes. Safe to cancel.

        The count is exact for the moment of the reply; a rewind later also brings back messages deleted in between.

        Args:
            time: as for :meth:`rewind`; neither ``time`` nor ``ago`` = the whole rewind window.
            ago: in place of ``time``, how long ago, by the clock of the server.

        Raises:
            TimeNotRewindable: the time is too late, or there is no window; ``nearest`` is the nearest possible time.
            UnknownOperation: the server is older than this operation.
            TypeError: the time is a duration, or neither a ``datetime`` nor a number; or both ``time`` and ``ago`` are
                given.
            ValueError: the time has no zone, or is a number that is not a time.
        """
        if time is not None and ago is not None:
            raise TypeError("preview_rewind takes time or ago, not both")
        time_ms, ago_ms = None, None
        if time is not None or ago is not None:
            time_ms, ago_ms = _start_of_rewind(time, ago, "preview_rewind(ago=...)")
        try:
            reply = await self._channel.ask(operations.PREVIEW_REWIND, self.name, time_ms, ago_ms)
        except TimeNotRewindable as error:
            _note_nearest(error)
            raise
        return converted(RewindPreview, reply)

    # ------------------------------------------------------------------ dead letters

    async def dead_letter_sources(self) -> Listing[str]:
        """List the names of the queues that use this queue as their dead-letter queue."""
        reply = await self._channel.ask(operations.LIST_DEAD_LETTER_SOURCES, self.name)
        return Listing([name for _, name in reply.queues], reply.request_id)

    async def redrive(self, target: str | None = None, *, max_per_second: int | None = None) -> Redrive:
        """Start to move the messages that are in this queue now to their origins, or all of them to ``target``.

        The server continues by itself, also after a restart; :meth:`redrive_status` returns the progress. A message
        moves in one step: it is always in exactly one of the two queues. After the move it has a new id and send time,
        and this queue as its origin. Messages in flight or delayed stay. Messages without an origin, or with an origin
        that is gone or refuses them, stay too and are counted in ``missing_origins``. A full target pauses the redrive
        until the target has room.

        Not repeated after a lost reply; ask for the status then.

        Args:
            target: name of a queue; None = the origin of the message.
            max_per_second: limit in messages per second; None = unlimited.

        Raises:
            RedriveRunning: the queue is being redriven; the redrive in progress goes on.
            InvalidArgument: the target does not exist or is this queue, or a number is out of range; or the queue has a
                dead-letter queue of its own.
        """
        return redrive(await self._channel.ask(operations.START_REDRIVE, self.name, target, max_per_second))

    async def redrive_status(self) -> Redrive:
        """Return the progress of the current redrive, or the result of the last redrive.

        Raises:
            RedriveNotFound: the queue was never redriven.
        """
        return redrive(await self._channel.ask(operations.GET_REDRIVE, self.name))

    async def cancel_redrive(self) -> Redrive:
        """End the current redrive; messages already moved stay moved.

        Repeated after a lost reply; the repeat would also cancel a redrive that another client started in between.

        Raises:
            RedriveNotFound: the queue was never redriven.
        """
        return redrive(await self._channel.ask(operations.CANCEL_REDRIVE, self.name))

    # ------------------------------------------------------------------ transactions

    async def send_half_batch(
        self,
        messages: Iterable[BodyT | Outgoing[BodyT]],
        *,
        headers: Mapping[str, str] | None = None,
        first_check: Duration | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        all_or_none: bool = False,
    ) -> SentBatch:
        """Store up to 256 half messages in one step; no consumer receives a half message before its commit.

        The first step of :class:`TransactionProducer`, which programs should use. Guarantees, repeats and cancellation
        are as for :meth:`send`: a half message unknown to its producer is decided by a check, or dropped when its
        retention ends.

        Args:
            messages: as for :meth:`send_batch`, without delays.
            headers: for messages without headers of their own.
            first_check: time from now to the first check; None = the queue's own.
            dedup_ids: as for :meth:`send_batch`. A repeat gets the id of the first half message, decided or not.
            all_or_none: as for :meth:`send_batch`.

        Raises:
            NotTransactional: the queue takes no half messages; no message was stored.
            CmqError: as for :meth:`send_batch`.
            ValueError: a message has a delay.
        """
        batch = Batch.of(messages, None, headers, dedup_ids, self.codec)
        if any(delay is not None for delay in batch.delays):
            raise ValueError("a half message takes no delay")
        check_ms = None if first_check is None else to_ms(first_check, "first_check")
        return await send_half(self._channel, self.name, batch, check_ms, all_or_none=all_or_none)

    async def end_transactions(
        self,
        message_ids: Iterable[MessageId | str],
        status: TransactionStatus | Sequence[TransactionStatus],
        *,
        check: bool = True,
    ) -> DecisionResult:
        """Commit half messages or roll them back, independently: a failure does not affect the other messages.

        A committed message counts as sent now: it has the position and send time of its commit, and keeps its id. The
        first decision stays; the same decision again succeeds, so the client repeats the call after a lost reply, and a
        program may. ``UNKNOWN`` decides nothing, but :meth:`half_messages` shows it as the last answer.

        Args:
            message_ids: ids from ``send_half_batch``, :meth:`half_messages` or :meth:`peek`. More than 256 take several
                requests, as for :meth:`delete_batch`.
            status: a status for all messages, or a status per message.
            check: raise an exception if a message failed; False = return the failures in the result.

        Raises:
            PartialFailure: a message was not decided as requested; ``failures`` has each with its error, ``done`` the
                decided ids.
            ValueError: a message id is malformed, or the numbers of statuses and ids differ.
        """
        numbers = [id_number(message_id) for message_id in message_ids]
        if isinstance(status, TransactionStatus):
            decisions = [status.value] * len(numbers)
        else:
            decisions = [decision.value for decision in status]
            if len(decisions) != len(numbers):
                raise ValueError(
                    f"{len(decisions)} statuses for {len(numbers)} messages; give a status per message, or one status"
                )
        result = await decide(self._channel, self.name, numbers, decisions)
        if check and result.failures:
            result.raise_for_failures()
        return result

    async def half_messages(self, max_messages: int = 100, *, start: int = 0) -> UndecidedPage:
        """List half messages that are neither committed nor rolled back, in the order of sending.

        Args:
            max_messages: 1-1,000; a page may hold fewer, also none, and yet not be the last.
            start: 0, or ``next_start`` of the page before.

        Raises:
            NotTransactional, QueueNotFound: the queue is not transactional, or does not exist.
        """
        reply = await self._channel.ask(operations.LIST_HALF_MESSAGES, self.name, start, max_messages)
        messages = [converted(Undecided, half) for half in reply.messages]
        return UndecidedPage(messages, reply.next_start, reply.request_id)

    # ------------------------------------------------------------------ the queue itself

    async def attributes(self) -> QueueInfo:
        """Return attributes, exact counts and facts, as of now."""
        return queue_info(await self._channel.ask(operations.GET_QUEUE_ATTRIBUTES, self.name))

    async def locate(self) -> Location:
        """Return the server that has the queue. The client finds it by itself; this is for operators and tools."""
        return await ask_location(self._channel, self.name, is_topic=False)

    async def set_attributes(self, **attributes: Unpack[QueueAttributes]) -> QueueInfo:
        """Change the given attributes in one step, all or none, and return all attributes; other attributes stay.

        Repeated after a lost reply; the repeat would overwrite another caller's change in between.

        Raises:
            InvalidArgument: a value is out of range, or two values contradict.
        """
        return queue_info(
            await self._channel.ask(operations.SET_QUEUE_ATTRIBUTES, self.name, queue_attributes(attributes))
        )

    async def subscriptions(self, *, offset: int = 0, limit: int = 100) -> QueueSubscriptionPage:
        """List the subscriptions of all topics that deliver to this queue, by topic and name.

        A deleted queue has the subscriptions that outlived it.

        Args:
            offset: number of subscriptions to skip.
            limit: maximum number of subscriptions, 1 to 1000.

        Raises:
            QueueNotFound: neither the queue nor a subscription to it exists.
            UnknownOperation: the server is older than this operation.
        """
        reply = await self._channel.ask(operations.LIST_QUEUE_SUBSCRIPTIONS, self.name, offset, limit)
        return QueueSubscriptionPage(reply.subscriptions, reply.total, reply.request_id)

    async def clear(self) -> Done:
        """Drop every message sent before this call, in every state, in one step; receipt handles become invalid.

        Not repeated after a lost reply, since the repeat would drop later messages too.
        """
        return Done((await self._channel.ask(operations.CLEAR_QUEUE, self.name)).request_id)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


def _handles_of(messages: Iterable[Held]) -> list[int]:
    # No handle twice: an older server reports the second as failed, although the first was carried out.
    return list(dict.fromkeys(map(_handle_of, messages)))


def _checked(result: BatchResult, *, check: bool) -> BatchResult:
    """Return the result; with ``check``, raise its failures."""
    if check and result.failures:
        result.raise_for_failures()
    return result


def _not_all_deleted(deletes: Acknowledgement, request_id: int | None) -> PartialFailure:
    failures = deletes.failures
    text = f"{len(failures)} of {len(deletes.handles)} messages were not deleted; the first, {failures[0]}"
    return PartialFailure(text, failures, done=deletes.done, request_id=request_id)


def _handle_of(item: Held) -> int:
    return item.receipt_handle if isinstance(item, Message) else item


def _start_of_rewind(time: datetime | float | None, ago: Duration | None, hint: str) -> tuple[int, int | None]:
    """Return the wire time of a rewind and, if the server counts back from its own time, the duration.

    Raises:
        TypeError, ValueError: the time or the duration is not valid; ``hint`` is the call for a duration.
    """
    if time is not None:
        return to_moment_ms(time, "time", hint), None
    ago_ms = to_ms(ago or 0, "ago")
    if ago_ms < 0:
        raise ValueError(f"ago is {ago!r}; it must not be negative")
    return max(0, round(wall_clock() * 1000) - ago_ms), ago_ms


def _note_nearest(error: TimeNotRewindable) -> None:
    if error.nearest is not None:
        error.add_note(f"The nearest possible time is {error.nearest}.")


def _at_ms(at: datetime | float, delay: Duration | None) -> int:
    """Return the wire time at which messages become active.

    Raises:
        ValueError: a delay is given too, or the time names no zone.
    """
    if delay is not None:
        raise ValueError("a send has delay or at, not both")
    return to_moment_ms(at, "at", "send(delay=...)")
