"""A queue's handle: send, receive and everything that is done with one queue.

The handle is a name and a client; making one costs nothing and asks nothing of the server. Two rules hold for all
methods and are not repeated with each:

*Answered means on disk.* When a call that changes something returns, the server has fsynced it (unless its operator
chose otherwise).

*Time limits and repeats.* Each attempt is given up ``request_timeout`` seconds (beyond the wait, for a receive) after
it was made. What is safe to repeat is repeated, ``retries`` times, also over a new connection. An error therefore
means: a ``ServerError`` other than ``OutcomeUnknown`` - it was refused and nothing was changed; ``ServerUnreachable``,
``ClientClosed`` - it was not sent; ``OutcomeUnknown`` - it may have been carried out or not. Cancelling a call
leaves open whether it was carried out, as ``OutcomeUnknown`` does; the exceptions are said with the method.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from time import time as wall_clock
from typing import TypeAlias, Unpack

from cmqd_client.attributes import QueueAttributes, QueueInfo, from_wire, to_wire
from cmqd_client.channel import Channel
from cmqd_client.durations import Duration, to_datetime, to_epoch_ms, to_ms
from cmqd_client.errors import DecisionFailure, NotSupported
from cmqd_client.message_ids import MessageId, id_number, printed_id
from cmqd_client.outgoing import Outgoing, checked_body
from cmqd_client.results import (
    BatchResult,
    CopyOf,
    DecisionResult,
    HandleResult,
    Origin,
    Peeked,
    PeekPage,
    Redrive,
    Rewound,
    Sent,
    SentBatch,
    TransactionStatus,
    UndecidedPage,
    copy_of,
    decision_failure,
    failure,
    is_invalid_handle,
    origin,
    redrive,
    undecided,
)
from cmqd_client.retry import Repeat
from cmqd_protocol import messages as wire
from cmqd_protocol.limits import MAX_BATCH
from cmqd_types.messages import Headers, ReceivedMessage

ReceiptHandle: TypeAlias = int
Held: TypeAlias = "Message | ReceiptHandle"
"""A received message, or its receipt handle."""


class Message:
    """A message received and not yet deleted: this receiver's until ``next_visible_time``.

    Delete it when it is dealt with. Otherwise it is delivered again when its visibility timeout ends, with a new
    receipt handle; then the methods of this object fail with ``ReceiptHandleInvalid``.
    """

    __slots__ = ("_queue", "_received", "request_id")

    def __init__(self, queue: "Queue", received: ReceivedMessage, request_id: int) -> None:
        self._queue = queue
        self._received = received
        self.request_id: int = request_id
        """Number of the receive that brought it."""

    @property
    def queue(self) -> "Queue":
        """The queue it was received from."""
        return self._queue

    @property
    def id(self) -> MessageId:
        """``Msg-`` and 16 hex digits; the same at every receive."""
        return printed_id(self._received.message_id)

    @property
    def body(self) -> bytes:
        """The body, byte for byte as it was sent."""
        return self._received.body

    @property
    def headers(self) -> Headers:
        """The headers as they were sent; empty if there were none."""
        return self._received.headers or {}

    @property
    def receipt_handle(self) -> int:
        """Proof of this very receive."""
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
        """Until when it is hidden from others because of this receive (UTC, the server's clock).

        ``change_visibility`` does not change it here: its result has the new time.
        """
        return to_datetime(self._received.next_visible_ms)

    @property
    def origin(self) -> Origin | None:
        """Where it stood before it was moved here, as a dead letter or by a redrive; None = it was sent here."""
        return origin(self._received.origin)

    @property
    def copy_of(self) -> CopyOf | None:
        """The message published to a topic that it is a copy of; None = it was sent to a queue."""
        return copy_of(self._received.copy_of)

    async def delete(self) -> HandleResult:
        """Delete it; see :meth:`Queue.delete`."""
        return await self._queue.delete(self)

    async def release(self, *, count_receive: bool = True) -> HandleResult:
        """Hand it back at once; see :meth:`Queue.release`."""
        return await self._queue.release(self, count_receive=count_receive)

    async def change_visibility(self, timeout: Duration) -> HandleResult:
        """Set how long it stays hidden; see :meth:`Queue.change_visibility`."""
        return await self._queue.change_visibility(self, timeout)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self._queue.name!r}, {len(self.body)} bytes, received {self.receive_count}x>"


class Queue:
    """One queue of the account; get it from ``client.queue(name)``, ``create_queue`` or ``ensure_queue``.

    It may be used by any number of tasks at once; their requests travel together over the client's connection, and a
    waiting receive blocks no other request.
    """

    __slots__ = ("_channel", "name")

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self.name: str = name

    @property
    def channel(self) -> Channel:
        """The way to the server, for other parts of this package."""
        return self._channel

    # ------------------------------------------------------------------ send

    async def send(
        self,
        body: bytes,
        *,
        delay: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_id: str | None = None,
    ) -> Sent:
        """Send one message.

        Delivered at least once to consumers of the queue, until a consumer deletes it or its retention ends.
        Messages of one task that awaits each send are stored in that order; sends made at once by several tasks are
        usually, but not always, stored in the order in which they were made (a repeated one comes later).

        The send is numbered: if its answer is lost, the client repeats it and the server stores it once. When the
        repeats are used up, ``OutcomeUnknown`` says that it may be stored; sending it again by a new call may store it
        twice, unless both calls give the same ``dedup_id``. Cancelling leaves open whether it was stored.

        Args:
            body: 1 byte up to the queue's ``max_message_bytes``; never changed or looked into.
            delay: how long it stays invisible, 0-3,600 s; None = the queue's own.
            headers: at most 32, 16 KiB in all.
            dedup_id: your own name of this message, up to 64 bytes. A send with a name that the queue has seen in the
                last 5 minutes (of the last 1,000,000 such sends) stores nothing and returns the id of the first one,
                whatever its body, also if it comes from another producer or after a crash of either side.

        Returns:
            The message's id.

        Raises:
            QueueNotFound, MessageTooLarge, InvalidArgument: nothing was stored.
            BacklogFull, DiskNearlyFull, Busy: nothing was stored; try again after ``retry_after``.
            OutcomeUnknown: it may be stored.
        """
        reply = await self._send(
            [checked_body(body)],
            None if headers is None else [dict(headers)],
            None if delay is None else to_ms(delay, "delay"),
            None if dedup_id is None else [dedup_id],
        )
        return Sent(printed_id(reply.message_ids[0]), reply.request_id)

    async def send_batch(
        self,
        messages: Iterable[bytes | Outgoing],
        *,
        delay: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        after: str | None = None,
    ) -> SentBatch:
        """Send up to 256 messages in one step: all are stored, side by side and in this order, or none is.

        Guarantees, cancellation and errors are those of :meth:`send`.

        Args:
            messages: bodies, or :class:`Outgoing` where one has headers or a delay of its own. Bodies and headers are
                at most 1 MiB together (a single larger message is allowed). An empty batch sends nothing.
            delay: of those that name none; None = the queue's own.
            headers: of those that name none.
            dedup_ids: one (or None) for each message; see :meth:`send`. Of a batch, those that the queue remembers are
                not stored again, and the others are.
            after: a dedup id that the queue must remember for this batch to be stored. A producer that names the last
                message of the batch before can have several batches under way, and none overtakes another, whichever
                is refused or sent again.

        Returns:
            The ids, in the same order.

        Raises:
            BatchTooLarge: bodies and headers are too large together; nothing was stored.
            OutOfOrder: the queue does not remember ``after``; nothing was stored.
            NotSupported: the server is older than ``after``; nothing was sent.
            CmqError: as for :meth:`send`.
            ValueError: there are not as many dedup ids as messages.
        """
        batch = _Batch(messages, delay, headers, dedup_ids)
        if not batch.bodies:
            return SentBatch([], 0)
        delays = await self._delays(batch.delays)
        reply = await self._send(batch.bodies, batch.headers, delays, batch.dedup_ids, after)
        return SentBatch([printed_id(number) for number in reply.message_ids], reply.request_id)

    async def _delays(self, delays: list[int | None]) -> int | list[int] | None:
        """The delays as the wire has them: one for all (None = the queue's), or one each."""
        first = delays[0]
        if all(delay == first for delay in delays):
            return first
        named = [delay for delay in delays if delay is not None]
        if len(named) < len(delays):
            # The wire has no "the queue's own" for a part of a batch.
            own = to_ms((await self.attributes()).delay, "delay")
            return [own if delay is None else delay for delay in delays]
        return named

    async def _send(
        self,
        bodies: list[bytes],
        headers: list[Headers | None] | None,
        delay_ms: int | list[int] | None,
        dedup_ids: list[str | None] | None,
        after: str | None = None,
    ) -> wire.MessagesSent:
        channel = self._channel
        session, sequence = channel.numbering.next()
        request = wire.SendMessages(
            channel.next_request_id(), self.name, bodies, headers, delay_ms, session.number, sequence, dedup_ids, after
        )
        try:
            return await channel.call(request, wire.MessagesSent, Repeat.SAFE)
        finally:
            session.answered(sequence)

    # ------------------------------------------------------------------ receive

    async def receive(
        self,
        max_messages: int = 1,
        *,
        wait: Duration | None = None,
        visibility_timeout: Duration | None = None,
    ) -> list[Message]:
        """Receive messages, waiting for the first one if there is none.

        Returns at once with what there is, up to ``max_messages``; it never waits to fill a batch. Receives that wait
        are served in the order of their arrival. Messages come in the order of sending as far as redelivery allows.

        If the connection is lost, or the server restarts, while it waits, the receive is made again over a new
        connection with what is left of its wait. Messages in a lost answer come back by themselves, at the latest when
        their visibility timeout ends.

        Cancelling is safe: the server is told, and messages that were already on their way are handed back at once
        without counting the receive. The same happens when an attempt is given up. So ``asyncio.timeout`` around it
        loses nothing; ``wait`` is cheaper.

        Args:
            max_messages: 1-256; an answer also ends before 1 MiB of bodies and headers.
            wait: how long to wait for the first message, 0-30 s; None = the queue's polling wait.
            visibility_timeout: how long they stay hidden from others, 1 s - 12 h; None = the queue's own.

        Returns:
            The messages; empty if none came in time.

        Raises:
            QueueNotFound: there is no such queue.
            QueueDeleted: it was deleted while the receive waited.
            TooManyInFlight: delete or release some first.
            ServerUnreachable, ConnectionLost, RequestTimeout: the server could not be asked.
        """
        channel = self._channel
        request = wire.ReceiveMessages(
            channel.next_request_id(),
            self.name,
            max_messages,
            None if wait is None else to_ms(wait, "wait"),
            None if visibility_timeout is None else to_ms(visibility_timeout, "visibility_timeout"),
        )
        reply = await channel.receive(request)
        request_id = reply.request_id
        return [Message(self, received, request_id) for received in reply.messages]

    async def peek(self, max_messages: int = 16, *, start: int = 0, states: Iterable[str] | None = None) -> PeekPage:
        """Look at messages without receiving them: no count, order or visibility changes. Safe to cancel.

        Args:
            max_messages: 1-256; a page may hold fewer, also none, and yet not be the last.
            start: 0, or ``next_start`` of the page before.
            states: only messages in one of these: ``active``, ``in_flight``, ``delayed``, ``half``, ``rewindable``;
                None = in any but the last, which are deleted.

        Returns:
            A page, in the order of sending.

        Raises:
            QueueNotFound: there is no such queue.
            InvalidArgument: there is no such state.
        """
        wanted = None if states is None else list(states)
        request = wire.PeekMessages(self._channel.next_request_id(), self.name, max_messages, start, wanted)
        reply = await self._channel.call(request, wire.MessagesPeeked, Repeat.READ)
        peeked = [
            Peeked(
                printed_id(one.message_id),
                one.state,
                one.body,
                one.headers or {},
                to_datetime(one.enqueue_ms),
                to_datetime(one.visible_ms) if one.visible_ms else None,
                one.receive_count,
                origin(one.origin),
                copy_of(one.copy_of),
            )
            for one in reply.messages
        ]
        return PeekPage(peeked, reply.next_start, reply.request_id)

    # ------------------------------------------------------------------ received messages

    async def delete(self, message: Held) -> HandleResult:
        """Delete a message that was received: it is dealt with and never delivered again.

        Needs the newest handle of the message, before its ``next_visible_time``. If the answer is lost the delete is
        repeated, and then a handle that is no longer valid counts as success, since the first attempt is the likely
        reason. (If the visibility timeout ended in between instead, the message is delivered again, as always when one
        is deleted too late.) Cancelling leaves open whether it was deleted.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over, or the handle is an older or foreign one.
            OutcomeUnknown: it may be deleted.
        """
        return _single(await self.delete_batch([message]))

    async def delete_batch(self, messages: Iterable[Held]) -> BatchResult:
        """Delete messages that were received; like :meth:`delete` for each of them. One named twice counts once.

        More than 256 are deleted in several requests, one after the other; if one of those cannot be made, the error is
        raised, and what was deleted before it stays so.

        Returns:
            What was deleted and what failed; ``raise_for_failures()`` makes an exception of the latter.
        """
        return await self._each_256(
            messages,
            lambda handles: wire.DeleteMessages(self._channel.next_request_id(), self.name, handles),
            ends_lease=True,
        )

    async def change_visibility(self, message: Held, timeout: Duration) -> HandleResult:
        """Set how long, from now, a received message stays hidden: to work on it longer, or to give it up earlier.

        Safe to repeat, so a lost answer is not noticed. Cancelling leaves open whether it was changed.

        Args:
            message: the message or its receipt handle, which stays valid unless ``timeout`` is 0.
            timeout: 0-43,200 s; never beyond the message's retention. 0 hands it back at once, as :meth:`release` does.

        Returns:
            ``next_visible_time`` says until when it is hidden.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over, or the handle is an older or foreign one.
            OutcomeUnknown: it may be changed.
        """
        return _single(await self.change_visibility_batch([message], timeout))

    async def change_visibility_batch(self, messages: Iterable[Held], timeout: Duration) -> BatchResult:
        """Like :meth:`change_visibility` for each; like :meth:`delete_batch` in all else."""
        timeout_ms = to_ms(timeout, "timeout")
        return await self._each_256(
            messages,
            lambda handles: wire.ChangeVisibility(self._channel.next_request_id(), self.name, handles, timeout_ms),
            ends_lease=timeout_ms == 0,
        )

    async def release(self, message: Held, *, count_receive: bool = True) -> HandleResult:
        """Hand a received message back: it can be received again at once, in its old place by send time.

        A lost answer is treated as in :meth:`delete`. Cancelling leaves open whether it was handed back.

        Args:
            message: the message or its receipt handle.
            count_receive: whether this receive stays counted. Use False for one that was not even looked at.

        Raises:
            ReceiptHandleInvalid: the visibility timeout is over (so it is back already), or the handle is a foreign
            one. OutcomeUnknown: it may be handed back.
        """
        return _single(await self.release_batch([message], count_receive=count_receive))

    async def release_batch(self, messages: Iterable[Held], *, count_receive: bool = True) -> BatchResult:
        """Like :meth:`release` for each; like :meth:`delete_batch` in all else."""
        return await self._each_256(
            messages,
            lambda handles: wire.ReleaseMessages(self._channel.next_request_id(), self.name, handles, count_receive),
            ends_lease=True,
        )

    async def _each_256(
        self, messages: Iterable[Held], request: Callable[[list[int]], wire.Request], *, ends_lease: bool
    ) -> BatchResult:
        """Make the request for all handles, in slices that the server takes."""
        # Each handle once: an older server reports the second naming as failed, although the first one was done.
        handles = list(dict.fromkeys(held.receipt_handle if isinstance(held, Message) else held for held in messages))
        reply = wire.HandlesDone(0, [])
        failed: list[wire.HandleFailure] = []
        next_visible_ms = 0
        connection_id = self._channel.connection_id
        for start in range(0, len(handles), MAX_BATCH):
            part = handles[start : start + MAX_BATCH]
            reply, uncertain = await self._channel.call_noting_repeats(request(part), wire.HandlesDone)
            failed += [one for one in reply.failures if not (uncertain and ends_lease and is_invalid_handle(one))]
            if reply.next_visible_ms:
                next_visible_ms = min(next_visible_ms or reply.next_visible_ms, reply.next_visible_ms)
        lost = {one.receipt_handle for one in failed}
        return BatchResult(
            [handle for handle in handles if handle not in lost] if lost else handles,
            [failure(one, reply.request_id, connection_id) for one in failed],
            reply.request_id,
            to_datetime(next_visible_ms) if next_visible_ms else None,
        )

    # ------------------------------------------------------------------ rewind

    async def rewind(
        self, time: datetime | float | None = None, *, ago: Duration | None = None, strict: bool = False
    ) -> Rewound:
        """Make deleted messages active again that were sent at or after a time, in the order of sending, for all
        consumers.

        They keep id and send time, and count as never received. It answers at once, however many they are. Messages
        that are in the queue or in flight are not touched. Needs a rewind window (attribute ``rewind``).

        Not repeated after a lost answer, since that would bring back what was deleted in between as well. That is the
        only harm, so repeat it by hand if you can bear that.

        Args:
            time: a ``datetime`` with a zone, or seconds since 1970. From as long ago as the window to the send time of
                the oldest message that is active or in flight (now, if there is none).
                The server's messages have broker time, so the send time of a message always rewinds to that message.
            ago: in place of ``time``, how long ago. The server counts it, so this machine's clock does not matter (an
                older server that cannot is sent the time by this machine's clock).
            strict: refuse a time before the window instead of taking the nearest one.

        Returns:
            How many messages are active again, from which time on, and whether that is not the one asked for.

        Raises:
            TimeNotRewindable: the time is too late, or (``strict``) before the window, or there is no window;
                ``nearest`` is the nearest time. Nothing was changed.
            QueueNotFound: there is no such queue.
            OutcomeUnknown: it may be rewound.
            TypeError, ValueError: it is no time, or names no zone; or not exactly one of ``time`` and ``ago`` is given.
        """
        if (time is None) == (ago is None):
            raise TypeError("rewind takes either time or ago")
        ago_ms = None
        if time is None:
            ago_ms = to_ms(ago or 0, "ago")
            if ago_ms < 0:
                raise ValueError(f"ago is {ago!r}; it must not be negative")
            time = max(0.0, wall_clock() - ago_ms / 1000)
        time_ms = to_epoch_ms(time, "time")
        request = wire.RewindQueue(self._channel.next_request_id(), self.name, time_ms, strict, ago_ms)
        try:
            reply = await self._channel.call(request, wire.Rewound, Repeat.ONCE)
        except NotSupported:
            request = wire.RewindQueue(self._channel.next_request_id(), self.name, time_ms, strict)
            reply = await self._channel.call(request, wire.Rewound, Repeat.ONCE)
        return Rewound(reply.messages, to_datetime(reply.time_ms), reply.clamped, reply.request_id)

    # ------------------------------------------------------------------ dead letters

    async def dead_letter_sources(self) -> list[str]:
        """The queues whose dead-letter queue this one is, by name. Safe to cancel.

        Raises:
            QueueNotFound: there is no such queue.
        """
        request = wire.ListDeadLetterSources(self._channel.next_request_id(), self.name)
        reply = await self._channel.call(request, wire.QueueList, Repeat.READ)
        return [name for _, name in reply.queues]

    async def redrive(self, target: str | None = None, *, max_per_second: int | None = None) -> Redrive:
        """Start to move what is in this queue now to where it came from, or all of it to ``target``.

        The server goes on with it by itself, also after a restart; :meth:`redrive_status` tells how far it is. Each
        message is moved in one step: it is never in both queues, or in none. It arrives with a new id and send time,
        with this queue as its origin. Messages in flight or delayed stay; those that were sent here directly, or whose
        origin is gone or does not take them, stay and are counted in ``missing_origins``. A full target holds it up
        until it has room.

        Not repeated after a lost answer; ask for the status then.

        Args:
            target: name of a queue; None = each message's origin.
            max_per_second: messages a second at most; None = as fast as it goes.

        Raises:
            RedriveRunning: one is under way; nothing was changed.
            QueueNotFound: there is no such queue.
            InvalidArgument: the target does not exist or is this queue, or a number is out of range; or the queue has a
                dead-letter queue of its own.
            OutcomeUnknown: it may have started.
        """
        request = wire.StartRedrive(self._channel.next_request_id(), self.name, target, max_per_second)
        return redrive(await self._channel.call(request, wire.RedriveStatus, Repeat.ONCE))

    async def redrive_status(self) -> Redrive:
        """Return the progress of the redrive that is under way, or the result of the last redrive. Safe to cancel.

        Raises:
            InvalidArgument: the queue was never redriven.
            QueueNotFound: there is no such queue.
        """
        request = wire.GetRedrive(self._channel.next_request_id(), self.name)
        return redrive(await self._channel.call(request, wire.RedriveStatus, Repeat.READ))

    async def cancel_redrive(self) -> Redrive:
        """End the redrive that is under way; what it has moved stays moved.

        Repeated after a lost answer; a redrive that another client started in between would then be cancelled too.

        Raises:
            InvalidArgument: the queue was never redriven.
            QueueNotFound: there is no such queue.
            OutcomeUnknown: it may be cancelled.
        """
        request = wire.CancelRedrive(self._channel.next_request_id(), self.name)
        return redrive(await self._channel.call(request, wire.RedriveStatus, Repeat.SAFE))

    # ------------------------------------------------------------------ transactions

    async def send_half_batch(
        self,
        messages: Iterable[bytes | Outgoing],
        *,
        headers: Mapping[str, str] | None = None,
        first_check: Duration | None = None,
        dedup_ids: Sequence[str | None] | None = None,
    ) -> SentBatch:
        """Store up to 256 half messages, which no consumer receives until they are committed, in one step.

        What :class:`TransactionProducer` does first; use that. Guarantees, repeats and cancellation are those of
        :meth:`send`: a half message that no producer knows is decided by a check, or dropped with its retention.

        Args:
            messages: as for :meth:`send_batch`, without delays.
            headers: of those that name none.
            first_check: from now to the first check; None = the queue's own.
            dedup_ids: as for :meth:`send_batch`. A repeat gets the id of the first one, decided or not.

        Raises:
            NotTransactional: the queue takes none; nothing was stored.
            CmqError: as for :meth:`send_batch`.
            ValueError: a message has a delay.
        """
        batch = _Batch(messages, None, headers, dedup_ids)
        if any(delay is not None for delay in batch.delays):
            raise ValueError("a half message takes no delay")
        if not batch.bodies:
            return SentBatch([], 0)
        channel = self._channel
        check_ms = None if first_check is None else to_ms(first_check, "first_check")
        session, sequence = channel.numbering.next()
        request = wire.SendHalfMessages(
            channel.next_request_id(),
            self.name,
            batch.bodies,
            batch.headers,
            check_ms,
            session.number,
            sequence,
            batch.dedup_ids,
        )
        try:
            reply = await channel.call(request, wire.MessagesSent, Repeat.SAFE)
        finally:
            session.answered(sequence)
        return SentBatch([printed_id(number) for number in reply.message_ids], reply.request_id)

    async def end_transactions(
        self, message_ids: Iterable[MessageId | str], status: TransactionStatus | Sequence[TransactionStatus]
    ) -> DecisionResult:
        """Commit half messages or roll them back; each by itself: what can be decided is, the rest is listed.

        A committed message is sent now: it has the place and send time of its commit, and keeps its id. The first
        decision stays; the same one again succeeds, so this is repeated after a lost answer and may be by you.
        ``UNKNOWN`` decides nothing, but shows in :meth:`half_messages` as the last answer.

        Args:
            message_ids: as ``send_half_batch``, :meth:`half_messages` or :meth:`peek` give them. More than 256 take
                several requests; should one of these fail, those before it are done.
            status: one for each, or one for all.

        Raises:
            QueueNotFound: there is no such queue.
            OutcomeUnknown: they may be decided.
            ValueError: it is no message id, or there are not as many statuses as ids.
        """
        numbers = [id_number(one) for one in message_ids]
        if isinstance(status, TransactionStatus):
            decisions = [status.value] * len(numbers)
        else:
            decisions = [one.value for one in status]
            if len(decisions) != len(numbers):
                raise ValueError(f"{len(decisions)} statuses for {len(numbers)} messages; give one for each or one")
        failed: list[DecisionFailure] = []
        request_id = 0
        channel = self._channel
        for start in range(0, len(numbers), MAX_BATCH):
            request = wire.EndTransactions(
                channel.next_request_id(),
                self.name,
                numbers[start : start + MAX_BATCH],
                decisions[start : start + MAX_BATCH],
            )
            connection_id = channel.connection_id
            reply = await channel.call(request, wire.TransactionsEnded, Repeat.SAFE)
            request_id = reply.request_id
            failed += [decision_failure(one, request_id, connection_id) for one in reply.failures]
        refused = {one.id for one in failed}
        done = [printed_id(number) for number in numbers]
        return DecisionResult([one for one in done if one not in refused], failed, request_id)

    async def half_messages(self, max_messages: int = 100, *, start: int = 0) -> UndecidedPage:
        """Half messages that are neither committed nor rolled back, in the order of sending. Safe to cancel.

        Args:
            max_messages: 1-1,000; a page may hold fewer, also none, and yet not be the last.
            start: 0, or ``next_start`` of the page before.

        Raises:
            NotTransactional, QueueNotFound: there is no such transactional queue.
        """
        request = wire.ListHalfMessages(self._channel.next_request_id(), self.name, start, max_messages)
        reply = await self._channel.call(request, wire.HalfMessages, Repeat.READ)
        return UndecidedPage([undecided(one) for one in reply.messages], reply.next_start, reply.request_id)

    # ------------------------------------------------------------------ the queue itself

    async def attributes(self) -> QueueInfo:
        """Attributes, exact counts and facts, as of now. Safe to cancel.

        Raises:
            QueueNotFound: there is no such queue.
        """
        request = wire.GetQueueAttributes(self._channel.next_request_id(), self.name)
        return from_wire(await self._channel.call(request, wire.QueueInfo, Repeat.READ))

    async def set_attributes(self, **attributes: Unpack[QueueAttributes]) -> QueueInfo:
        """Change attributes; those not named stay. All are changed in one step or none is.

        Repeated after a lost answer; another caller's change in between would then be overwritten.

        Returns:
            All attributes as they are now.

        Raises:
            QueueNotFound: there is no such queue.
            InvalidArgument: a value is out of range, or two contradict one another.
            OutcomeUnknown: they may be changed.
        """
        request = wire.SetQueueAttributes(self._channel.next_request_id(), self.name, to_wire(attributes))
        return from_wire(await self._channel.call(request, wire.QueueInfo, Repeat.SAFE))

    async def clear(self) -> None:
        """Drop every message sent before this call, in whatever state, in one step; their handles become invalid.

        Not repeated after a lost answer, since that would drop later messages too.

        Raises:
            QueueNotFound: there is no such queue.
            OutcomeUnknown: it may be cleared.
        """
        request = wire.ClearQueue(self._channel.next_request_id(), self.name)
        await self._channel.call(request, wire.Done, Repeat.ONCE)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class _Batch:
    """The messages of a batch as the wire has them, field by field."""

    __slots__ = ("bodies", "dedup_ids", "delays", "headers")

    def __init__(
        self,
        messages: Iterable[bytes | Outgoing],
        delay: Duration | None,
        headers: Mapping[str, str] | None,
        dedup_ids: Sequence[str | None] | None,
    ) -> None:
        common_headers = None if headers is None else dict(headers)
        common_delay = None if delay is None else to_ms(delay, "delay")
        self.bodies: list[bytes] = []
        self.delays: list[int | None] = []
        all_headers: list[Headers | None] = []
        all_ids: list[str | None] = []
        for message, dedup_id in zip(messages, chain(dedup_ids or (), repeat(None)), strict=False):
            if isinstance(message, Outgoing):
                self.bodies.append(checked_body(message.body))
                all_headers.append(common_headers if message.headers is None else dict(message.headers))
                self.delays.append(common_delay if message.delay is None else to_ms(message.delay, "delay"))
                all_ids.append(dedup_id if message.dedup_id is None else message.dedup_id)
            else:
                self.bodies.append(checked_body(message))
                all_headers.append(common_headers)
                self.delays.append(common_delay)
                all_ids.append(dedup_id)
        if dedup_ids is not None and len(dedup_ids) != len(self.bodies):
            raise ValueError(f"{len(dedup_ids)} dedup_ids for {len(self.bodies)} messages; give one (or None) for each")
        self.headers: list[Headers | None] | None = all_headers if any(all_headers) else None
        self.dedup_ids: list[str | None] | None = all_ids if any(one is not None for one in all_ids) else None


def _single(result: BatchResult) -> HandleResult:
    """The result for the one handle of a batch of one.

    Raises:
        ServerError: that one failed.
    """
    if result.failures:
        raise result.failures[0].error
    return HandleResult(result.request_id, result.next_visible_time)
