"""Consumers of a queue: a handler that runs for each message, or an iteration over the messages.

    @queue.consumer(concurrency=8)                async for message in queue.consume():
    async def handle(message): ...                    async with message.process():
                                                          ...
    await client.run(handle)

Both receive ahead as far as the handlers are fast, keep the leases of everything they hold, settle in batches, and
survive outages of any length. ``consumption`` decides, ``intake`` carries out; this module runs the handlers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias

from cmqd_client.consumers.consumption import DELETE, ConsumerStatistics, Lease
from cmqd_client.consumers.handling import decodes, settle
from cmqd_client.consumers.intake import Intake, MessageT, Source
from cmqd_client.consumers.options import ConsumerOptions

Handler: TypeAlias = Callable[[MessageT], Coroutine[Any, Any, object]]
"""Handles a message; ``handling`` shows how the message ends."""

TURN_SECONDS = 0.002
"""Longest time for which handlers that never wait keep the event loop to themselves."""


class Consumer(Generic[MessageT]):
    """A handler that runs for each message of a queue; get the consumer from :meth:`Queue.consumer`.

    Calling the consumer calls the handler, for tests.
    """

    __slots__ = ("_intake", "_options", "_source", "_workers", "handler", "queue_name")

    def __init__(self, source: Source[MessageT], handler: Handler[MessageT], options: ConsumerOptions) -> None:
        """Make a consumer.

        Raises:
            TypeError: the handler is no async function.
        """
        if not iscoroutinefunction(handler) and not iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
            raise TypeError(f"{handler!r} is no async function; a handler is defined with async def")
        self.queue_name: str = source.name
        self._source = source
        self.handler: Handler[MessageT] = handler
        self._options = options
        self._intake: Intake | None = None
        self._workers: _Workers | None = None

    def __call__(self, message: MessageT) -> Awaitable[object]:
        """Call the handler."""
        return self.handler(message)

    async def run(self) -> None:
        """Handle messages until :meth:`stop`, then finish the handlers in progress and settle their messages.

        Usually called by :meth:`Client.run`. Cancelling cancels the handlers, makes their messages active again at
        once, and gives back uncounted the messages that are not begun; a second cancellation skips that, and the
        messages are delivered again when their leases end.

        Raises:
            RuntimeError: the consumer runs already.
            CmqError: the consumer cannot go on: the queue is gone, the key is refused, or an argument is out of range.
                Messages in progress were finished first.
        """
        if self._workers is not None:
            raise RuntimeError(f"{self!r} runs already")
        workers = self._workers = _Workers(self.handler, self._options)
        intake = workers.intake = self._intake = Intake(self._source, self._options, workers.wake, workers.cancel_lost)
        try:
            intake.open()
            try:
                await workers.wait_stopped()
            except asyncio.CancelledError:
                workers.cancel()
                raise
            finally:
                intake.stop()
                try:
                    await workers.wait_idle()
                except asyncio.CancelledError:
                    workers.cancel()
                    await workers.wait_idle()
                    raise
                finally:
                    await intake.close()
        finally:
            self._workers = None
        if intake.failure is not None:
            raise intake.failure

    def stop(self, *, cancel_handlers: bool = False) -> None:
        """End :meth:`run`: receive no more, and give back uncounted the messages that are not begun. Harmless when
        repeated.

        Args:
            cancel_handlers: also cancel the handlers in progress; their messages are active again at once.
        """
        if self._workers is not None:
            self._workers.intake.stop()
            if cancel_handlers:
                self._workers.cancel()

    def statistics(self) -> ConsumerStatistics:
        """Return the counters of the current run, or of the last.

        Raises:
            RuntimeError: the consumer has not run yet.
        """
        if self._intake is None:
            raise RuntimeError(f"{self!r} has not run yet")
        return self._intake.statistics()

    def __repr__(self) -> str:
        name = getattr(self.handler, "__qualname__", repr(self.handler))
        return f"<Consumer {name} of {self.queue_name!r}>"


class _Workers:
    """The tasks that run a handler, at most ``concurrency``, made as they are needed.

    A worker handles message after message: a task for each message would cost more than the rest of the client. The
    worker ends after a handler that changed a context variable, so that no message sees the variables of another.
    """

    intake: Intake

    def __init__(self, handler: Handler[Any], options: ConsumerOptions) -> None:
        self._handler = handler
        self._concurrency = options.limits.concurrency or 1  # Consumer has checked that there is a limit
        self._context: Context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked = _Parked()
        """Workers without a message."""
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------ called by the intake

    def wake(self) -> None:
        """Let another worker ask for a message; after a stop, let all workers ask."""
        if self.intake.core.stopping:
            if not self._stopped.done():
                self._stopped.set_result(None)
            self._parked.wake_all()
        elif not self._parked.wake_last() and len(self._tasks) < self._concurrency:
            self._start()

    def cancel_lost(self, lease: Lease) -> None:
        """Cancel the handler of a message with a lost lease."""
        task = self.intake.running.get(lease.handle)
        if task is not None:
            task.cancel(lease.lost)

    # ------------------------------------------------------------------ called by the consumer

    async def wait_stopped(self) -> None:
        """Return after a stop."""
        await asyncio.shield(self._stopped)

    async def wait_idle(self) -> None:
        """Return when no worker is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel all workers; the messages of their handlers are active again at once."""
        for task in self._tasks:
            task.cancel("the consumer stops")

    # ------------------------------------------------------------------ inside

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work(), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self.intake.core.has_waiting:
            self.wake()

    async def _work(self) -> None:
        intake, handler, running = self.intake, self._handler, self.intake.running
        source = intake.source
        tracing, is_typed = source.channel.tracing, source.poison is not None
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # a worker is a task
        has_others = self._concurrency > 1
        unchanged = copy_context()
        turn_ends = loop.time() + TURN_SECONDS
        while True:
            lease = intake.begin()
            if lease is None:
                if intake.core.stopping:
                    return
                await self._parked.wait()
                turn_ends = loop.time() + TURN_SECONDS
                continue
            if has_others and intake.core.has_waiting:
                self.wake()
            handle = lease.received.receipt_handle
            running[handle] = task
            message = source.message(intake, lease)
            try:
                if not is_typed or decodes(intake, lease, message):
                    if tracing is None:
                        await handler(message)
                    else:
                        with tracing.process(source.name, message):
                            await handler(message)
            except BaseException as error:
                if not self._survives(task, lease, error):
                    raise
            else:
                intake.settle(lease, DELETE)
            finally:
                del running[handle]
            if lease.lost is not None:
                while task.cancelling():
                    task.uncancel()
            if _differs(copy_context(), unchanged):
                return
            if loop.time() > turn_ends:
                # A handler that never waits would keep the loop for as long as messages wait.
                await asyncio.sleep(0)
                turn_ends = loop.time() + TURN_SECONDS

    def _survives(self, task: "asyncio.Task[None]", lease: Lease, error: BaseException) -> bool:
        """Settle a failed message; True if the worker goes on."""
        if isinstance(error, asyncio.CancelledError):
            if lease.lost is not None:
                return True
            if not task.cancelling():
                # Not this task was cancelled: the handler awaited something that was.
                return settle(self.intake, lease, RuntimeError("the handler awaited a task that was cancelled"))
        return settle(self.intake, lease, error)


class MessageStream(Generic[MessageT]):
    """The messages of a queue, in turn; get the stream from :meth:`Queue.consume`.

    Iterating opens the stream, and the end of the loop closes it. Several tasks may iterate over one stream inside
    ``async with stream``, which opens and closes it.
    """

    __slots__ = ("_intake", "_options", "_parked", "_source")

    def __init__(self, source: Source[MessageT], options: ConsumerOptions) -> None:
        self._source = source
        self._options = options
        self._intake: Intake | None = None
        self._parked = _Parked()
        """Tasks that wait for a message."""

    async def __aenter__(self) -> Self:
        if self._intake is not None:
            raise RuntimeError("a stream of messages is opened once")
        self._intake = Intake(self._source, self._options, self._wake, self._cancel_lost)
        self._intake.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[MessageT]:
        opened = self._intake is None
        if opened:
            await self.__aenter__()
        try:
            while (message := await self._next()) is not None:
                yield message
        finally:
            if opened:
                await self.close()

    def stop(self) -> None:
        """End the iteration; messages that are not begun go back uncounted. Messages in progress may be finished."""
        if self._intake is not None:
            self._intake.stop()

    async def close(self) -> None:
        """Stop, and settle the processed messages. Harmless when repeated.

        Messages inside :meth:`ConsumedMessage.process` in other tasks are waited for. A message that the program took
        and neither settled nor processes is left to the program, until its lease ends.
        """
        intake = self._intake
        if intake is not None:
            intake.stop()
            intake.abandon_idle(asyncio.current_task())
            await intake.close()

    def statistics(self) -> ConsumerStatistics:
        """Return the counters of now.

        Raises:
            RuntimeError: the stream is not open yet.
        """
        if self._intake is None:
            raise RuntimeError("the stream is not open yet")
        return self._intake.statistics()

    async def _next(self) -> MessageT | None:
        intake = self._intake
        assert intake is not None  # opened by __aiter__
        while True:
            lease = intake.begin()
            if lease is not None:
                if intake.core.has_waiting:
                    self._wake()
                message = self._source.message(intake, lease)
                if decodes(intake, lease, message):
                    return message
                continue
            if intake.core.stopping:
                if intake.failure is not None:
                    raise intake.failure
                return None
            intake.core.asked(intake.now())
            intake.changed()
            try:
                await self._parked.wait()
            except asyncio.CancelledError:
                # The wake-up may have been meant for this task.
                self._wake()
                raise
            finally:
                intake.core.asks_no_more()

    def _wake(self) -> None:
        assert self._intake is not None
        if self._intake.core.stopping:
            self._parked.wake_all()
        else:
            self._parked.wake_first()

    def _cancel_lost(self, lease: Lease) -> None:
        assert self._intake is not None
        task = self._intake.running.get(lease.handle)
        if task is not None:
            task.cancel(lease.lost)


def _differs(context: Context, unchanged: Context) -> bool:
    """True if a handler left a context variable changed."""
    try:
        return context != unchanged
    except Exception:
        return True  # values that cannot be compared


class _Parked:
    """Tasks that wait to be woken in turn."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until woken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future

    def wake_first(self) -> bool:
        """Wake the task that waits for longest, so that tasks go on in turn; False if none waits."""
        return self._wake(self._futures.popleft)

    def wake_last(self) -> bool:
        """Wake the task that waits for the shortest time, so that few tasks do the work; False if none waits."""
        return self._wake(self._futures.pop)

    def wake_all(self) -> None:
        """Wake every task."""
        while self.wake_last():
            pass

    def _wake(self, take: "Callable[[], asyncio.Future[None]]") -> bool:
        while self._futures:
            future = take()
            if not future.done():  # else its task was cancelled
                future.set_result(None)
                return True
        return False
