"""A broker in the process of the test: the product's server over a log in memory, in a thread with a loop of its own.

The thread makes the broker the same for synchronous tests and for tests of any event loop, and lets the clock be turned
in one call: the broker works on while the caller waits. Clients connect through a real socket on 127.0.0.1, so that
handshake, framing and reconnection are the product's own too.
"""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from cmqd.log.values import LogState
from cmqd.memory_log import MemoryDisk
from cmqd.server.admission.core_limits import limits_of
from cmqd.server.log_upkeep.disk_state import DiskState
from cmqd.server.push.outbox import Pushing
from cmqd.server.push.pusher import Pusher
from cmqd.settings import Settings
from cmqd.testing.accepting import finish_accepts
from cmqd.testing.clock import Clock, TurnedTime
from cmqd.testing.clones import Clone, read_clone
from cmqd.testing.server_in_memory import ServerInMemory, server_in_memory
from cmqd_segment.manifest import SEGMENTS

T = TypeVar("T")

DRAIN_S = 0.2
"""Time that connected clients have at the end to read that the broker shuts down."""

GRAIN_MS = 100
"""The widest bucket of deadlines of seconds (``cmqd.core.facts.queues``), and a multiple of the narrower buckets."""

QUICK_TURNS = 200
"""Turns of the loop for which the end of due work is awaited without sleeping: more than any work but posts to URLs."""
PAUSE_S = 0.001
"""Pause between two polls after that."""


class BrokerFailedError(Exception):
    """The broker halted by a bug; the cause is chained."""


class LocalBroker:
    """A broker in this process; a context manager, plain or async::

        with LocalBroker() as broker:
            with cmqd_client.sync.connect(broker.url) as client:
                queue = client.create_queue("orders", visibility_timeout=30)
                queue.send(b"one espresso")
                queue.receive()
                broker.clock.advance(seconds=30)
                assert queue.receive()[0].receive_count == 2

    The broker begins empty, or with the messages of a clone, and with the account ``admin``. Nothing is written to a
    disk but the accounts, into a temporary folder, and there the files of a clone until they are read. A restart is
    tested with :class:`~cmqd.testing.BrokerProcess`. Several brokers can run in one process. The broker is to be
    started once.
    """

    def __init__(
        self,
        *,
        clone: Clone | str | os.PathLike[str] | None = None,
        make_pusher: Callable[..., Pushing] = Pusher,
        **settings: Any,
    ) -> None:
        """Keep the settings; the broker starts with ``start`` or ``with``.

        Args:
            clone: a data folder or backup: the broker begins with its queues and the messages that wait in them, as
                ``cmqd clone`` takes them, and with the time of the last row. A :class:`~cmqd.testing.Clone` selects
                queues, and masks bodies and headers.
            make_pusher: makes the part that posts to URLs, with the arguments of ``Pusher``, in the broker's thread. A
                part of the test's own can keep the posts instead: no name is looked up, and no connection made.
            **settings: as of a real broker (``docs/settings.md``), such as ``max_in_flight_per_queue=10``.

        Different from a real broker, unless given: the port is free (``listen="127.0.0.1:0"``), and posts to URLs of
        this machine and of private networks are allowed.

        Raises:
            TypeError: a setting does not exist.
        """
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        defaults: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "ephemeral": True,
            "push_allow_private": True,
            "push_allow_loopback": True,
        }
        self._settings = Settings(**(defaults | settings))
        self._clone = clone if clone is None or isinstance(clone, Clone) else Clone(clone)
        self._make_pusher = make_pusher
        self._time = TurnedTime()
        self._thread: threading.Thread | None = None
        self._started: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._parts: ServerInMemory
        self.clock: Clock = Clock(
            self._begin_advance,
            lambda: self._in_loop(lambda: self._parts.clock.now_ms()),
            lambda is_running: self._in_loop(lambda: self._time.run(is_running)),
            lambda: self._in_loop(lambda: self._parts.server.agenda_timer.next_work_ms()),
        )
        """Broker time, which the test turns."""

    # ------------------------------------------------------------------ opening and closing

    def start(self) -> None:
        """Start the broker and wait until it listens; ``with`` calls this on entering.

        Raises:
            RuntimeError: the broker was started before.
            CloneError: the clone cannot be made.
            CloneTimeoutError: the clone was not made within its limit.
            OSError: the address cannot be used.
        """
        self._start_thread()
        try:
            self._started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the broker and its connections; ``with`` calls this on leaving. Harmless when repeated.

        Raises:
            BrokerFailedError: the broker halted by a bug while it ran.
        """
        self._request_stop()
        if self._thread is not None:
            self._thread.join()
        self._check_end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._start_thread()
        try:
            # A cancellation ends the wait alone: the thread could not tell the end of its start otherwise.
            await asyncio.shield(asyncio.wrap_future(self._started))
        except BaseException:
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # Not blocking: clients in the caller's loop read meanwhile that the broker shuts down.
        self._request_stop()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._check_end()

    # ------------------------------------------------------------------ for the test

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self._started.result()

    @property
    def url(self) -> str:
        """URL of the broker with the first key of ``admin``, for ``connect``."""
        host, port = self.address
        key = self._parts.accounts.first_key("admin")
        return f"cmq://{key.secret_id}:{key.secret_key}@{host}:{port}"

    def drop_connections(self) -> None:
        """Close all connections at once, as a lost network does; clients reconnect by themselves."""

        def drop() -> None:
            for connection in self._parts.server.connections.current():
                connection.abort()

        self._in_loop(drop)

    def refuse_sends(self, reason: str = "disk nearly full") -> None:
        """Refuse sends and publishes with ``DiskNearlyFull``, as on a full disk, until :meth:`accept_sends`."""
        self._in_loop(lambda: self._parts.server.part(DiskState).reported(LogState(True, reason, 0, 0, 0)))

    def accept_sends(self) -> None:
        """End :meth:`refuse_sends`."""
        self._in_loop(lambda: self._parts.server.part(DiskState).reported(LogState(False, "", 0, 0, 0)))

    def __repr__(self) -> str:
        if self._thread is None:
            return "<LocalBroker, not started>"
        return f"<LocalBroker, {'running' if self._thread.is_alive() else 'ended'}>"

    # ------------------------------------------------------------------ the thread

    def _start_thread(self) -> None:
        if self._thread is not None:
            raise RuntimeError("the LocalBroker was started before; make a new LocalBroker")
        self._folder = tempfile.TemporaryDirectory(prefix="cmqd-testing-")
        self._settings = dataclasses.replace(self._settings, data=Path(self._folder.name))
        # A daemon: a test that is ended without ``close`` must not keep the process.
        self._thread = threading.Thread(target=self._run, name="cmqd-local-broker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            disk = await self._read_clone()
            self._parts = parts = await server_in_memory(
                self._settings,
                wall_ms=self._time.wall_ms,
                monotonic_ns=self._time.monotonic_ns,
                limits=limits_of(self._settings),
                make_pusher=self._make_pusher,
                disk=disk,
            )
        except BaseException as failure:
            self._started.set_exception(failure)
            return
        try:
            address = await parts.server.start()
        except BaseException as failure:
            await parts.server.outbox.close(0)
            self._started.set_exception(failure)
            return
        self._started.set_result(address)
        await self._stop.wait()
        await finish_accepts(self._parts.server.listener.sockets)
        await parts.server.drain(DRAIN_S)
        parts.stop_timers()
        await self._loop.shutdown_default_executor()

    async def _read_clone(self) -> MemoryDisk | None:
        """Make the clone, and set the clock to its time; return its log."""
        if self._clone is None:
            return None
        data = self._settings.data
        # The loop of the thread has no other work yet.
        self._clone.make(data)
        disk = await read_clone(data)
        shutil.rmtree(data / SEGMENTS)
        if disk.restored is not None:
            # The wall clock of the broker too: beside a wall clock of today, broker time would run faster to reach it.
            self._time = TurnedTime(start_ms=disk.restored.time_ms)
        return disk

    def _request_stop(self) -> None:
        if self._thread is not None and self._thread.is_alive() and self._started.exception() is None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def _check_end(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        if self._thread is not None and self._started.exception() is None and self._parts.failures:
            raise BrokerFailedError("the broker halted by a bug") from self._parts.failures[0]

    def _in_loop(self, function: Callable[[], T]) -> T:
        """Call a function in the broker's thread and return its result."""

        loop = self._running_loop()

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        thread = self._thread
        if thread is None or not self._started.done() or not thread.is_alive():
            raise RuntimeError("the broker is not running; use it in `with`")
        if thread is threading.current_thread():
            raise RuntimeError("the broker's own thread cannot wait for the broker")
        return self._loop

    # ------------------------------------------------------------------ the clock

    def _begin_advance(self, ms: int, stepwise: bool) -> "Future[None]":
        loop = self._running_loop()
        return asyncio.run_coroutine_threadsafe(self._turn(ms, stepwise), loop)

    async def _turn(self, ms: int, stepwise: bool) -> None:
        now_ms = self._parts.clock.now_ms
        next_work_ms = self._parts.server.agenda_timer.next_work_ms
        # Before the jump, so that what is already due happens at its own time.
        await self._finish_due_work()
        # Deadlines come due at the ends of buckets: what ends at the target must not be left for the next turn.
        target_ms = -(-(now_ms() + ms) // GRAIN_MS) * GRAIN_MS
        while stepwise and (deadline_ms := next_work_ms()) is not None and deadline_ms <= target_ms:
            self._time.move(max(0, deadline_ms - now_ms()))
            await self._finish_due_work()
        self._time.move(max(0, target_ms - now_ms()))
        await self._finish_due_work()

    async def _finish_due_work(self) -> None:
        """Wait until nothing is due any more, and everything decided is committed and posted."""
        server, log = self._parts.server, self._parts.log
        turns = 0
        while not self._parts.failures:
            if is_due := self._is_due():
                # At each turn: an I/O batch under way keeps the time of its begin.
                server.agenda_timer.clock_moved()
            elif not (
                log.pending.records
                or log.pages_asked > log.pages_answered
                or len(server.replies)
                or server.outbox.under_way
            ):
                break
            turns += 1
            await asyncio.sleep(0 if is_due or turns < QUICK_TURNS else PAUSE_S)

    def _is_due(self) -> bool:
        deadline_ms = self._parts.server.agenda_timer.next_work_ms()
        return deadline_ms is not None and deadline_ms <= self._parts.clock.now_ms()
