"""Consumers run together until a signal: a worker's process without its handlers."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, TypeAlias

from cmqd_client.consumers.consumer import Consumer

_log = logging.getLogger("cmqd_client.consumer")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals of process managers and of Ctrl-C."""


SignalScope: TypeAlias = Callable[
    [Iterable[signal.Signals], Callable[[signal.Signals], None]], AbstractContextManager[None]
]
"""Makes a context manager; inside, these signals call a function in the loop."""


async def run_consumers(
    consumers: Sequence[Consumer[Any]],
    stop_signals: Iterable[signal.Signals],
    grace: float | None,
    scope: SignalScope | None = None,
) -> None:
    """Run consumers until a signal, see :meth:`Client.run`; ``scope`` is another source of signals than the loop."""
    if not consumers:
        raise ValueError("there is no consumer to run")
    loop = asyncio.get_running_loop()
    is_stopping = False
    deadline: asyncio.TimerHandle | None = None

    def stop() -> None:
        nonlocal is_stopping, deadline
        for consumer in consumers:
            consumer.stop(cancel_handlers=is_stopping)
        if not is_stopping and grace is not None:
            deadline = loop.call_later(grace, stop)
        is_stopping = True

    def stop_by_signal(number: signal.Signals) -> None:
        how = "cancels the handlers in progress" if is_stopping else "finishes the handlers in progress"
        _log.info(
            "%s: the worker receives no more and %s",
            number.name,
            how,
            extra={"event": "stopping", "signal": number.name, "cancels": is_stopping},
        )
        stop()

    with (scope or _handled)(stop_signals, stop_by_signal):
        tasks = [loop.create_task(consumer.run()) for consumer in consumers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not is_stopping:
                stop()
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup("consumers could not go on", errors)


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], None]) -> Generator[None]:
    """Call ``handle`` in the event loop for these signals; outside the main thread, leave signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    with chained(numbers, lambda number: loop.call_soon_threadsafe(handle, number)):
        yield


@contextmanager
def chained(numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], object]) -> Generator[None]:
    """Call ``handle`` for these signals, and then the handler that the program had installed; in the main thread only.

    A web server in the same process installs handlers too. Without the call of its handler the consumers would stop at
    SIGTERM, and the web server would run on. ``loop.add_signal_handler`` is not used, because that method replaces a
    handler of the loop for good: it offers no way to read the former handler.
    """
    chain = _Chain(numbers, handle)
    try:
        yield
    finally:
        chain.end()


class _Chain:
    """Handler of signals: calls ``handle``, and then the former handler of the signal."""

    def __init__(self, numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], object]) -> None:
        self._handle = handle
        self._is_over = False
        # None stands for a handler of C code, which Python can neither call nor install again; the handler stays.
        self._former = {number: former for number in numbers if (former := signal.getsignal(number)) is not None}
        for number in self._former:
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        handler = self._former_of(signal.Signals(number))
        if not self._is_over:
            self._handle(signal.Signals(number))
        elif signal.getsignal(number) is self:
            # Installed again by a web server that began during the run and ended later. Without this step the process
            # would lose the default effect of SIGTERM.
            signal.signal(number, handler)
            signal.raise_signal(number)
            return
        if callable(handler) and not _cancels_main_task(handler):
            # Python's handler of Ctrl-C, and that of Spark, would interrupt the clean stop that has begun.
            with suppress(KeyboardInterrupt):
                handler(number, frame)

    def end(self) -> None:
        """Install the former handlers again."""
        self._is_over = True
        for number in self._former:
            # A handler that the program installed meanwhile stays: restoring the former one would drop it.
            if signal.getsignal(number) is self:
                signal.signal(number, self._former_of(number))

    def _former_of(self, number: signal.Signals) -> Any:
        """Return the former handler, behind those of runs that began before this run and ended during it."""
        former = self._former[number]
        while isinstance(former, _Chain) and former._is_over:
            former = former._former[number]
        return former


def _cancels_main_task(handler: Callable[..., object]) -> bool:
    """Return True for the handler of ``asyncio.run``, which cancels the main task instead of a clean stop."""
    return isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
