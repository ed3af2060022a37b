"""The bridge between synchronous callers and the asynchronous client: a thread with an event loop, for each client.

:mod:`cmqd_client.sync` is generated; this module holds all that its classes do at run time. Threads may share a client:
their calls run concurrently in its loop, as tasks of the asynchronous client do. The thread is a daemon and belongs to
a process: a forked child has no such thread, and calls there fail at once instead of waiting forever.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import wraps
from inspect import iscoroutinefunction
from queue import SimpleQueue
from threading import Lock, Thread, current_thread, main_thread
from typing import Any, Generic, TypeVar, cast

from cmqd_client.consumers.running import SignalScope, chained
from cmqd_client.errors import ClientClosed
from cmqd_client.queue import ConsumedMessage
from cmqd_client.transactions.check_answers import result_of
from cmqd_types.sentences import missing_extra

try:
    import anyio
    from anyio.from_thread import BlockingPortal
except ModuleNotFoundError as _missing:
    raise missing_extra("cmqd_client.sync", "sync", _missing) from None

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
R = TypeVar("R")

NOTHING: Any = None
"""The argument of a local transaction without an argument."""

_END: Any = object()
"""Behind the last element of an iteration."""


class Portal:
    """Runs coroutines in the event loop of a client's thread; see the module."""

    __slots__ = ("_portal", "_process_id", "_started", "_starting", "_thread")

    def __init__(self) -> None:
        self._starting = Lock()
        self._thread: Thread | None = None
        self._portal: BlockingPortal | None = None
        self._process_id = os.getpid()
        self._started = False

    @property
    def is_open(self) -> bool:
        """True between :meth:`start` and :meth:`stop`, in the process that started the thread."""
        return self._portal is not None and self._process_id == os.getpid()

    def start(self) -> None:
        """Start the thread.

        Raises:
            ClientClosed: the thread was started before.
        """
        with self._starting:
            if self._started:
                raise ClientClosed("the client was opened before; make a new client")
            self._started = True
        ready: Future[BlockingPortal] = Future()
        self._thread = Thread(target=_serve, args=(ready,), name="cmqd-client", daemon=True)
        self._thread.start()
        self._portal = ready.result()
        self._process_id = os.getpid()

    def stop(self) -> None:
        """End the thread; calls in progress end with ``ClientClosed``. Harmless when repeated and in a forked child."""
        portal, self._portal = self._portal, None
        if portal is None or self._process_id != os.getpid():
            return
        try:
            portal.call(portal.stop, True)
        except RuntimeError:
            pass  # another thread has just stopped it
        if self._thread is not None:
            self._thread.join()

    def call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a coroutine in the loop, and wait for its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            ClientClosed: the client is not open, or was closed meanwhile.
            RuntimeError: the calling thread is the client's own, which would wait for itself.
        """
        return self._result(self._begin(function))

    def run(self, function: Callable[[], R]) -> R:
        """Like :meth:`call`, for a plain function."""

        async def run() -> R:
            return function()

        return self.call(run)

    def call_with_signals(
        self, function: Callable[[SignalScope], Awaitable[R]], numbers: Iterable[signal.Signals]
    ) -> R:
        """Like :meth:`call`, with signals that arrive in the waiting thread, if that is the main thread.

        ``function`` is called with a scope for :func:`cmqd_client.consumers.running.run_consumers`.
        """
        signals = _ForwardedSignals()
        if current_thread() is not main_thread():
            return self.call(lambda: function(signals.scope))
        with chained(numbers, signals.arrived):
            return self.call(lambda: function(signals.scope))

    def call_with_callbacks(self, function: "Callable[[CallingThread], Awaitable[R]]") -> R:
        """Like :meth:`call`, with functions that run in the thread of the caller; see :class:`CallingThread`."""
        calling_thread = CallingThread()
        future = self._begin(lambda: function(calling_thread))
        future.add_done_callback(calling_thread.stop)
        try:
            calling_thread.serve()
        except BaseException:
            future.cancel()
            raise
        return self._result(future)

    def iterate(self, iterator: AsyncIterator[A], convert: Callable[[A], R]) -> Iterator[R]:
        """Iterate in the calling thread; the asynchronous iterator is closed at the end, also at an early one."""

        async def next_element() -> A:
            return await anext(iterator, _END)

        try:
            while (element := self.call(next_element)) is not _END:
                yield convert(element)
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None and self._portal is not None:
                self.call(close)

    def context(
        self, manager: AbstractAsyncContextManager[A, bool | None], convert: Callable[[A], R]
    ) -> AbstractContextManager[R, bool | None]:
        """Return the context manager for a ``with`` statement of the calling thread."""
        return _Context(self._running().wrap_async_context_manager(manager), convert)

    def begin(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run a coroutine in the loop without waiting for its end."""
        self._begin(function)

    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise ClientClosed("the client is not open; use it in `with`, or call client.open()")
        if self._process_id != os.getpid():
            raise ClientClosed(
                f"the client was opened in process {self._process_id}, and this is its forked child {os.getpid()};"
                " open a client in each process"
            )
        return self._portal

    def _begin(self, function: Callable[[], Awaitable[R]]) -> "Future[R]":
        portal = self._running()
        try:
            return portal.start_task_soon(function)
        except RuntimeError as problem:
            if self._portal is None:
                raise ClientClosed("the client was closed") from problem
            raise

    def _result(self, future: "Future[R]") -> R:
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        finally:
            # Of a thread that was interrupted while it waited; otherwise the future is done.
            future.cancel()


def _serve(ready: "Future[BlockingPortal]") -> None:
    """Run the loop of a client's thread until its portal is stopped.

    Not by ``start_blocking_portal``: its context manager, collected at the end of a process or in a forked child, would
    wait for a thread that is gone.
    """

    async def serve() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as failure:
        if ready.done():
            raise
        ready.set_exception(failure)


class _Context(AbstractContextManager[R, bool | None], Generic[A, R]):
    """A context manager that yields a different value."""

    __slots__ = ("_convert", "_manager")

    def __init__(self, manager: AbstractContextManager[A, bool | None], convert: Callable[[A], R]) -> None:
        self._manager = manager
        self._convert = convert

    def __enter__(self) -> R:
        return self._convert(self._manager.__enter__())

    def __exit__(self, *error: Any) -> bool | None:
        return self._manager.__exit__(*error)


class _ForwardedSignals:
    """Signals of the main thread, for a coroutine in the client's thread."""

    __slots__ = ("_early", "_handle")

    def __init__(self) -> None:
        self._handle: Callable[[signal.Signals], object] | None = None
        self._early: list[signal.Signals] = []
        """Signals that arrived before the coroutine began."""

    def arrived(self, number: signal.Signals) -> None:
        """Forward a signal, in the main thread."""
        if self._handle is None:
            self._early.append(number)
        else:
            self._handle(number)

    @contextmanager
    def scope(self, numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], None]) -> Generator[None]:
        """Call ``handle`` in the loop for each signal."""
        loop = asyncio.get_running_loop()
        self._handle = lambda number: loop.call_soon_threadsafe(handle, number)
        for number in self._early:
            handle(number)
        try:
            yield
        finally:
            self._handle = _ignore


def _ignore(number: signal.Signals) -> None:
    """Ignore a signal: the consumers have ended."""


def processing(message: ConsumedMessage[Any], portal: Portal) -> AbstractContextManager[None, bool]:
    """Return the context manager of :meth:`ConsumedMessage.process` for a ``with`` statement of the calling thread."""
    return _Processing(message, portal)


class _Processing(AbstractContextManager[None, bool]):
    """Runs the asynchronous context manager in a task of the loop, from the begin to the end of the ``with`` statement.

    In a single task, because the message belongs to the task that processes it.
    """

    __slots__ = ("_ended", "_message", "_portal", "_span", "_swallowed")

    def __init__(self, message: ConsumedMessage[Any], portal: Portal) -> None:
        self._message = message
        self._portal = portal
        self._ended: asyncio.Future[BaseException | None] | None = None
        """The error of the body, set at its end; None before the begin."""
        self._swallowed: Future[bool] = Future()
        self._span: AbstractContextManager[Any] | None = None
        """Makes the span of the work on the message current in the calling thread; None = no spans."""

    def __enter__(self) -> None:
        entered: Future[AbstractContextManager[Any] | None] = Future()
        tracing = self._message.queue.channel.tracing

        async def process() -> None:
            self._ended = asyncio.get_running_loop().create_future()
            error: BaseException | None = None
            try:
                async with self._message.process():
                    entered.set_result(None if tracing is None else tracing.current_elsewhere())
                    error = await self._ended
                    if isinstance(error, Exception):
                        raise error
                    if error is not None:
                        # No task may raise an interrupt of another thread, which would end the loop.
                        raise asyncio.CancelledError
            except BaseException as problem:
                self._swallowed.set_result(False)
                if not entered.done():
                    entered.set_exception(problem)
                if problem is not error and not isinstance(problem, asyncio.CancelledError):
                    raise
            else:
                self._swallowed.set_result(True)

        self._portal.begin(process)
        self._span = entered.result()
        if self._span is not None:
            self._span.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        def end() -> None:
            # Done if the task was cancelled: the lease was lost, or the client is being closed.
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(error)

        if self._span is not None:
            self._span.__exit__(None, None, None)
        self._portal.run(end)
        return self._swallowed.result() and error is not None


def in_threads(
    function: Callable[[Any], object], threads: int, convert: Callable[[Any], object]
) -> Callable[[Any], Coroutine[Any, Any, object]]:
    """Return an async handler that runs a plain handler in one of its own threads, on the converted message.

    Of its own: handlers may take long, and must not wait for threads that other parts of the program use.

    Raises:
        TypeError: the handler is an async function.
    """
    if iscoroutinefunction(function):
        raise TypeError(f"{function!r} is an async function; a handler of the synchronous client is a plain function")
    executor = ThreadPoolExecutor(threads, "cmqd-handler")

    @wraps(function)
    async def run(message: Any) -> object:
        work = executor.submit(copy_context().run, _called, function, convert(message))
        return await asyncio.wrap_future(work)

    return run


def _called(function: Callable[[Any], object], argument: object) -> object:
    """Call a function; exceptions that would end the loop, or that no future takes, become others."""
    try:
        return function(argument)
    except Exception as error:
        if not isinstance(error, StopIteration):
            raise
        raise RuntimeError("the handler raised StopIteration") from error
    except BaseException as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


def plain_handler(handler: Callable[..., object]) -> Callable[[Any], object]:
    """Return the function that :func:`in_threads` was given."""
    return cast("Any", handler).__wrapped__


class CallingThread:
    """Runs functions for the loop in the thread that waits for a call.

    A local transaction uses what belongs to the thread of its caller: the database connection of Django, a lock, a
    context variable. In the loop's thread it would have another connection, and would block all calls of the client.
    """

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def serve(self) -> None:
        """Run functions until :meth:`stop`; an exception that is not an ``Exception`` (Ctrl-C) is passed on."""
        while (work := self._work.get()) is not None:
            work()

    def stop(self, _: object = None) -> None:
        """End :meth:`serve`."""
        self._work.put(None)

    def runs(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return an async function, for the loop, that runs ``function`` in the waiting thread.

        The coroutine of an async function is awaited in the loop.
        """

        async def run(*arguments: object) -> object:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[object] = loop.create_future()

            def work() -> None:
                try:
                    result = function(*arguments)
                except StopIteration as error:
                    # No future takes a StopIteration.
                    ended = RuntimeError("the function raised StopIteration")
                    ended.__cause__ = error
                    loop.call_soon_threadsafe(_set_exception, future, ended)
                except Exception as error:
                    loop.call_soon_threadsafe(_set_exception, future, error)
                else:
                    loop.call_soon_threadsafe(_set_result, future, result)

            self._work.put(work)
            return await result_of(await future)

        return run


def in_worker_thread(function: Callable[..., object] | None) -> Callable[..., Any] | None:
    """Return an async function that runs ``function`` in a worker thread, for calls without a waiting caller.

    The coroutine of an async function is awaited in the loop.
    """
    if function is None:
        return None

    async def run(*arguments: object) -> object:
        return await result_of(await asyncio.to_thread(function, *arguments))

    return run


def _set_result(future: "asyncio.Future[object]", result: object) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[object]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Synchronous(Generic[A_co]):
    """An object of the asynchronous client, for synchronous callers; base of the classes of ``cmqd_client.sync``."""

    __slots__ = ("_asynchronous", "portal")

    def __init__(self, asynchronous: A_co, portal: Portal) -> None:
        self._asynchronous = asynchronous
        self.portal: Portal = portal
        """The thread with that loop."""

    @property
    def asynchronous(self) -> A_co:
        """The object of the asynchronous client; only to be used in its loop."""
        return self._asynchronous

    def __repr__(self) -> str:
        return repr(self._asynchronous)
