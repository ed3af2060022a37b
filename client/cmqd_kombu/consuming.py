"""Receives of a channel, their leases, acknowledgements and releases.

Runs in the event loop of :mod:`cmqd_kombu.loop_thread`; only :class:`Consumer`'s ``take`` is called from other threads.

A received message is *held* until its delete or release; the leases of all held messages are extended together, every
third of a lease. A held message is *buffered* until a callback takes the message. Cancelling a consumer releases its
buffered messages, without counting the receive, because the program did not process these messages.

Prefetch. The limit of a channel counts its held messages. Every consumer asks for as many messages as the channel may
still hold: with a share each, a busy queue would wait for the shares of idle queues. When the limit is reached, the
waiting receives of the channel are cancelled, and messages above the limit go back uncounted at once, so no message
lies idle in a process while other processes could work.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec
from kombu.exceptions import ChannelError

from cmqd_client import Client, Message, Queue
from cmqd_client.errors import (
    AuthenticationFailed,
    CmqError,
    NoDeadLetterQueue,
    QueueDeleted,
    QueueNotFound,
    ReceiptHandleInvalid,
    UnknownOperation,
    WrongRegion,
)
from cmqd_kombu import envelope
from cmqd_kombu.options import BUFFER, LONGEST_LEASE, LONGEST_POLL, Options
from cmqd_kombu.routing import Routing

_log = logging.getLogger(__name__)

_MOST = 256
_PAUSE = 1.0
"""Seconds between attempts while the server is away, after the pauses of the client."""
_CLOSE = 5.0
"""Seconds that closing a channel waits for the server. Leases end by themselves."""
_REJECTION = "rejected without requeue"
"""Reason in the origin of a dead letter."""


class Delivery(msgspec.Struct):
    """A received message on its way to a callback."""

    tag: str
    consumer: "Consumer | None"
    content: envelope.Envelope
    receive_count: int


class _Held(msgspec.Struct):
    """A message under a lease of this process."""

    queue: Queue
    handle: int
    counts: bool
    """True if the message counts towards the prefetch limit, because its consumer acknowledges."""


class Consumer:
    """A consumer of a queue; ``take`` hands every message over once."""

    __slots__ = ("_buffered", "_lock", "no_ack", "queue", "tag", "task")

    def __init__(self, tag: str, queue: str, no_ack: bool) -> None:
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._buffered: set[str] = set()

    def put(self, tag: str) -> None:
        """Buffer a message."""
        with self._lock:
            self._buffered.add(tag)

    def take(self, tag: str) -> bool:
        """Return True if the caller may process the message, False if it was withdrawn. From any thread."""
        with self._lock:
            if tag not in self._buffered:
                return False
            self._buffered.discard(tag)
            return True

    def withdraw(self) -> list[str]:
        """Withdraw all buffered messages and return their tags."""
        with self._lock:
            tags = list(self._buffered)
            self._buffered.clear()
            return tags

    def buffered(self) -> set[str]:
        """Return the tags of the buffered messages."""
        with self._lock:
            return set(self._buffered)

    def __len__(self) -> int:
        return len(self._buffered)


class Consuming:
    """The receiving half of a channel."""

    __slots__ = (
        "_acknowledged",
        "_client",
        "_consumers",
        "_deliver",
        "_fail",
        "_flush_task",
        "_held",
        "_keeper",
        "_limit",
        "_numbers",
        "_options",
        "_receives",
        "_room",
        "_routing",
    )

    def __init__(
        self,
        client: Client,
        routing: Routing,
        options: Options,
        deliver: Callable[[list[Delivery]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """``deliver`` and ``fail`` are called in the event loop and must neither block nor raise."""
        self._client = client
        self._routing = routing
        self._options = options
        self._deliver = deliver
        self._fail = fail
        self._consumers: dict[str, Consumer] = {}
        self._held: dict[str, _Held] = {}
        self._acknowledged: list[_Held] = []
        """Messages to delete, not deleted yet."""
        self._limit = 0
        """Prefetch limit; 0 = none."""
        self._room = asyncio.Event()
        self._receives: set[asyncio.Task[list[Message]]] = set()
        self._flush_task: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._numbers = 0

    # ------------------------------------------------------------------ consumers

    def start(self, consumer: Consumer) -> None:
        """Begin to receive for a consumer."""
        self._consumers[consumer.tag] = consumer
        consumer.task = asyncio.get_running_loop().create_task(self._consume(consumer))

    async def cancel(self, tag: str) -> None:
        """End a consumer; its buffered messages go back uncounted, and messages with the program stay held."""
        consumer = self._consumers.pop(tag, None)
        if consumer is None:
            return
        if consumer.task is not None:
            consumer.task.cancel()
            await asyncio.wait({consumer.task})
        withdrawn = [self._held.pop(number) for number in consumer.withdraw() if number in self._held]
        await self._release(withdrawn, count_receive=False)
        self.room_changed()

    def set_limit(self, prefetch_count: int) -> None:
        """Change the prefetch limit; 0 = none."""
        self._limit = prefetch_count
        self.room_changed()

    def _credit(self, consumer: Consumer) -> int:
        """Return how many messages a consumer may receive now."""
        ahead = BUFFER - len(consumer)
        if not self._limit or consumer.no_ack:
            return max(min(ahead, _MOST), 0)
        counted = sum(1 for held in self._held.values() if held.counts)
        free = self._limit - counted
        return max(min(free, _MOST), 0)

    def room_changed(self) -> None:
        """Wake the consumers that wait for room, or cancel waiting receives without room."""
        self._room.set()
        self._room.clear()
        if self._limit and all(not self._credit(consumer) for consumer in self._consumers.values()):
            for receive in self._receives:
                receive.cancel()

    async def _consume(self, consumer: Consumer) -> None:
        """Receive until cancelled; an outage of any length pauses the consumer."""
        away = False
        while True:
            credit = self._credit(consumer)
            if not credit:
                await self._room.wait()
                continue
            try:
                messages = await self._receive(consumer.queue, credit, LONGEST_POLL)
                if away:
                    away = False
                    _log.info("consuming from queue %r again", consumer.queue)
                await self._whole(self._accept(consumer, messages))
            except (QueueNotFound, QueueDeleted) as error:
                try:
                    restored = await self._routing.restore_queue(consumer.queue)
                except CmqError as problem:
                    restored = problem.retryable
                    await asyncio.sleep(_PAUSE)
                if not restored:
                    self._fail(
                        ChannelError(
                            f"NOT_FOUND - the queue {consumer.queue!r} is gone: {error}", (60, 20), "Consume", "404"
                        )
                    )
                    return
            except (AuthenticationFailed, WrongRegion) as error:
                self._fail(error)
                return
            except CmqError as error:
                if not away:
                    away = True
                    _log.warning("cannot consume from queue %r, trying again: %s", consumer.queue, error)
                await asyncio.sleep(error.retry_after or _PAUSE)
            except Exception as error:
                # Raised in the program: a defect here must not become a worker that is silently idle.
                _log.exception("the consumer of queue %r failed", consumer.queue)
                self._fail(error)
                return

    async def _whole(self, accepting: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, even if this task is cancelled: only held messages can be withdrawn."""
        task = asyncio.get_running_loop().create_task(accepting)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise

    async def _receive(self, queue: str, most: int, wait: float) -> list[Message]:
        """Receive from all levels of a queue, highest priority first; wait only if all are empty."""
        handles = [self._client.queue(name) for name in self._routing.declared(queue).names()]
        if len(handles) == 1:
            return await self._one_receive(handles[0], most, wait)
        messages: list[Message] = []
        for handle in handles:
            if len(messages) < most:
                messages += await self._one_receive(handle, most - len(messages), 0)
        if messages or not wait:
            return messages
        loop = asyncio.get_running_loop()
        polls = [loop.create_task(self._one_receive(handle, 1, wait)) for handle in handles]
        try:
            await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for poll in polls:
                poll.cancel()
            results = await asyncio.gather(*polls, return_exceptions=True)
        failures = [result for result in results if isinstance(result, CmqError)]
        for result in results:
            if not isinstance(result, BaseException):
                messages += result
        if failures and not messages:
            raise failures[0]
        return messages

    async def _one_receive(self, handle: Queue, most: int, wait: float) -> list[Message]:
        """Receive from a queue of the broker; empty if the prefetch limit was reached meanwhile."""
        receive = asyncio.get_running_loop().create_task(
            handle.receive(most, wait=wait, visibility_timeout=self._options.lease)
        )
        self._receives.add(receive)
        try:
            await asyncio.wait({receive})
        except asyncio.CancelledError:
            # The client hands messages that are already on their way back to the queue.
            receive.cancel()
            raise
        finally:
            self._receives.discard(receive)
        return [] if receive.cancelled() else receive.result()

    async def _accept(self, consumer: Consumer, messages: list[Message]) -> None:
        """Hold received messages and hand them over, as far as the limit allows."""
        ready = await self._ready(messages)
        credit = self._credit(consumer)
        if len(ready) > credit:
            surplus = [self._hold(message, counts=False)[1] for message in ready[credit:]]
            await self._release(surplus, count_receive=False)
        deliveries: list[Delivery] = []
        for message in ready[:credit]:
            tag, held = self._hold(message, counts=not consumer.no_ack)
            self._held[tag] = held
            consumer.put(tag)
            content = envelope.unpack(message.body, message.headers)
            deliveries.append(Delivery(tag, consumer, content, message.receive_count))
        if deliveries:
            self._keep()
            self._deliver(deliveries)
            self.room_changed()

    async def _ready(self, messages: Iterable[Message]) -> list[Message]:
        """Return the due messages; hide early messages again, and delete expired messages.

        The broker's time of the receive is the end of the lease less its length. So the clock of this machine does not
        matter; the ETA itself is a time of the sender's clock.
        """
        ready: list[Message] = []
        for message in messages:
            now_ms = int(message.next_visible_time.timestamp() * 1000 - self._options.lease * 1000)
            if envelope.expired(message.headers, int(message.enqueue_time.timestamp() * 1000), now_ms):
                await _ignore_lost(message.delete())
                continue
            remaining_ms = envelope.remaining_ms(message.headers, now_ms)
            if remaining_ms > 1000:
                await _ignore_lost(message.change_visibility(min(remaining_ms / 1000, LONGEST_LEASE)))
                continue
            ready.append(message)
        return ready

    def _hold(self, message: Message, *, counts: bool) -> tuple[str, _Held]:
        self._numbers += 1
        return f"{self._numbers}.{message.receipt_handle}", _Held(message.queue, message.receipt_handle, counts)

    async def get(self, queue: str, no_ack: bool) -> Delivery | None:
        """Receive a message without waiting; None = the queue is empty.

        Raises:
            ChannelError: the queue does not exist.
        """
        while True:
            try:
                messages = await self._receive(queue, 1, 0)
            except QueueNotFound as error:
                raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (60, 70), "Basic.get", "404") from error
            if not messages:
                return None
            for message in await self._ready(messages):
                content = envelope.unpack(message.body, message.headers)
                tag, held = self._hold(message, counts=not no_ack)
                if no_ack:
                    await message.delete()
                else:
                    self._held[tag] = held
                    self._keep()
                return Delivery(tag, None, content, message.receive_count)

    # ------------------------------------------------------------------ acknowledgements

    def acknowledge(self, tag: str) -> None:
        """Delete a message soon, in a batch; a tag that is no longer held is ignored."""
        held = self._held.pop(tag, None)
        if held is None:
            return
        self._delete_soon(held)
        self.room_changed()

    def _delete_soon(self, held: _Held) -> None:
        self._acknowledged.append(held)
        if self._flush_task is None:
            self._flush_task = asyncio.get_running_loop().create_task(self._flush())

    async def reject(self, tag: str, requeue: bool) -> None:
        """Release a message (``requeue``), or move it to the dead-letter queue; without such a queue, delete it.

        A message that the dead-letter queue does not take is delivered again when its lease ends. A tag that is no
        longer held is ignored.
        """
        held = self._held.pop(tag, None)
        if held is None:
            return
        if requeue:
            await self._release([held], count_receive=True)
        else:
            await self._discard(held)
        self.room_changed()

    async def _discard(self, held: _Held) -> None:
        try:
            await held.queue.reject(held.handle, _REJECTION)
        except (NoDeadLetterQueue, UnknownOperation):
            self._delete_soon(held)
            await self.flushed()
        except QueueNotFound:
            pass  # the message went with its queue
        except CmqError as error:
            _log.warning("a rejected message of queue %r comes again: %s", held.queue.name, error)

    async def recover(self) -> None:
        """Release all messages that the program holds and has not acknowledged."""
        buffered = {tag for consumer in self._consumers.values() for tag in consumer.buffered()}
        released = [self._held.pop(tag) for tag in list(self._held) if tag not in buffered]
        await self._release(released, count_receive=True)
        self.room_changed()

    async def flushed(self) -> None:
        """Wait until all acknowledged messages are deleted."""
        while self._flush_task is not None:
            await asyncio.wait({self._flush_task})

    async def _flush(self) -> None:
        """Delete the acknowledged messages; while the server is away, try again as long as their leases may last."""
        try:
            while self._acknowledged:
                batch, self._acknowledged = self._acknowledged, []
                for queue, group in _by_queue(batch):
                    try:
                        result = await queue.delete_batch([held.handle for held in group], check=False)
                    except QueueNotFound:
                        continue
                    except CmqError as error:
                        _log.warning("cannot delete %d messages of %r, trying again: %s", len(group), queue.name, error)
                        self._acknowledged += group
                        await asyncio.sleep(error.retry_after or _PAUSE)
                        continue
                    for failure in result.failures:
                        _log.warning(
                            "a processed message of queue %r comes again: its lease had ended (%s)",
                            queue.name,
                            failure.error.text,
                        )
        finally:
            self._flush_task = None

    async def _release(self, messages: Iterable[_Held], *, count_receive: bool) -> None:
        for queue, group in _by_queue(messages):
            try:
                # Failures are handles of ended leases: their messages are active already.
                await queue.release_batch([held.handle for held in group], count_receive=count_receive, check=False)
            except CmqError as error:
                _log.warning("messages of queue %r become active when their lease ends: %s", queue.name, error)

    # ------------------------------------------------------------------ leases

    def _keep(self) -> None:
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._extend())

    async def _extend(self) -> None:
        """Extend all leases after each third of a lease, until no message is held."""
        try:
            while self._held:
                await asyncio.sleep(self._options.lease / 3)
                await self.extend_leases()
        finally:
            self._keeper = None

    async def extend_leases(self) -> None:
        """Extend the leases of all held messages once; a message with an ended lease is no longer held."""
        for queue, group in _by_queue(self._held.values()):
            await self._extend_group(queue, group)

    async def _extend_group(self, queue: Queue, group: list[_Held]) -> None:
        try:
            result = await queue.change_visibility_batch(
                [held.handle for held in group], self._options.lease, check=False
            )
        except QueueNotFound:
            return
        except CmqError as error:
            _log.warning("cannot extend %d leases of queue %r: %s", len(group), queue.name, error)
            return
        lost = {failure.receipt_handle for failure in result.failures}
        if not lost:
            return
        # A message that was acknowledged meanwhile is no longer held, and its failure is ignored.
        tags = [tag for tag, held in self._held.items() if held.queue.name == queue.name and held.handle in lost]
        for tag in tags:
            del self._held[tag]
        if tags:
            _log.warning("the leases of %d messages of queue %r ended: they are delivered again", len(tags), queue.name)
            self.room_changed()

    # ------------------------------------------------------------------ close

    async def close(self) -> None:
        """Cancel the consumers, delete what is acknowledged, release the rest; at most some seconds."""
        try:
            async with asyncio.timeout(_CLOSE):
                for tag in list(self._consumers):
                    await self.cancel(tag)
                await self.flushed()
                held = list(self._held.values())
                self._held.clear()
                await self._release(held, count_receive=True)
        except TimeoutError:
            _log.warning("closed without the server: messages become active when their leases end")
        for task in (self._flush_task, self._keeper):
            if task is not None:
                task.cancel()


def _by_queue(messages: Iterable[_Held]) -> list[tuple[Queue, list[_Held]]]:
    groups: dict[str, tuple[Queue, list[_Held]]] = {}
    for held in messages:
        groups.setdefault(held.queue.name, (held.queue, []))[1].append(held)
    return list(groups.values())


async def _ignore_lost(change: Awaitable[object]) -> None:
    """Wait for a change of a lease; an ended lease is ignored."""
    try:
        await change
    except ReceiptHandleInvalid:
        pass
