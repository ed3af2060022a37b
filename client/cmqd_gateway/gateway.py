"""The gateway's parts, for the modules with routes."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from cmqd_gateway.broker.broker_connections import BrokerConnections, MakeClient, TooManyKeysInUse
from cmqd_gateway.callers.key_secrets import KeySecret, KeySecrets, KeySource
from cmqd_gateway.callers.new_ids import NEW_IDS_PER_SECOND
from cmqd_gateway.callers.rates import KeyRates, Rates
from cmqd_gateway.cmq.api2.repeats import DeleteAnswers, Deletes
from cmqd_gateway.cmq.ignored_keys import IgnoredKeys
from cmqd_gateway.console.sampler import Sampler
from cmqd_gateway.console.sessions import Sessions
from cmqd_gateway.console.streams import Streams
from cmqd_gateway.http.connection_guard import ConnectionGuards
from cmqd_gateway.http.hand_over import HandOver, TakeBack
from cmqd_gateway.http.request_bodies import RequestBodies
from cmqd_gateway.http.turns import MAX_HASHES, HashThreads
from cmqd_gateway.monitoring.collector import exposition
from cmqd_gateway.monitoring.metrics_readings import FigureCache
from cmqd_gateway.monitoring.readiness import Readiness
from cmqd_gateway.process.gateway_logger import SparseWarning
from cmqd_gateway.process.gateway_settings import Settings, split_address

if TYPE_CHECKING:
    from cmqd_gateway.cmq.tcp.connections import Connections
    from cmqd_gateway.processes.further_processes import FurtherProcesses
    from cmqd_gateway.processes.share import Share

HANDLERS_SECONDS: Final = 1.0
"""Time for cancelled handlers to end: far more than the few turns of the loop that they take."""

UNDO_ATTEMPTS: Final = 50
UNDO_PAUSE_SECONDS: Final = 0.1
"""Attempts to take messages back while all connections to the broker are in use, and the pause between them: 5 s."""


class Gateway:
    """The parts of a gateway; a module with routes gets the gateway as argument."""

    def __init__(
        self,
        settings: Settings,
        source: KeySource,
        make_client: MakeClient,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        share: "Share | None" = None,
    ) -> None:
        """Make the parts.

        Args:
            settings: the settings.
            source: the origin of secrets.
            make_client: makes the native client of a key.
            now: the clock of all parts, in seconds.
            wall_clock: the time of day, in seconds since 1970.
            share: the share of this process in the state of several; None = a gateway of a single process.
        """
        part_of: Callable[[int], int] = int if share is None else share.part_of
        connections, heads, bodies = (None,) * 3 if share is None else (share.connections, share.heads, share.bodies)
        self.share: Share | None = share
        """The share of this process in the state of several; None = a gateway of a single process."""
        self.now: Callable[[], float] = now
        """The clock."""
        self.wall_clock: Callable[[], float] = wall_clock
        """The time of day, for the time stamps of requests."""
        self.settings: Settings = settings
        self.secrets: KeySecrets = KeySecrets(source, now, part_of(NEW_IDS_PER_SECOND))
        """Secrets of keys; forget a key here when the broker reports a change."""
        self.sessions: Sessions = Sessions(self.secrets, wall_clock)
        """Sessions of browsers."""
        self.connections: BrokerConnections = BrokerConnections(
            make_client, part_of(settings.gateway_connections), settings.key_idle_seconds, now
        )
        """Clients of keys."""
        self.bodies: RequestBodies = RequestBodies(
            settings.max_request_bytes, settings.body_memory_bytes, settings.slow_client_seconds, bodies
        )
        """Reads the bodies of requests."""
        self.hashes: HashThreads = HashThreads(part_of(MAX_HASHES))
        """Threads for the signatures of large requests."""
        self.rates: Rates = KeyRates(settings.max_requests_per_second_per_key, now) if share is None else share.rates
        """Rates of keys."""
        self.guards: ConnectionGuards = ConnectionGuards(
            settings.max_connections,
            settings.slow_client_seconds,
            now,
            settings.keep_alive_seconds,
            connections,
            heads,
        )
        """The HTTP connections."""
        self.figures: FigureCache = FigureCache(settings.metrics_top, settings.metrics_cache_seconds, exposition, now)
        """The figures of ``/metrics`` as text."""
        self.metrics_key: KeySecret | None = None
        """The key that reads the figures; None = the key of the request."""
        self.readiness: Readiness = Readiness(now)
        """The readiness of the broker; its probe uses the gateway's own key."""
        self.sampler: Sampler = Sampler(self.connections, self.secrets, now, wall_clock)
        """The figures of the console."""
        self.streams: Streams = Streams(self.sampler, self.readiness.is_ready, wall_clock)
        """The event streams of the console."""
        self.is_draining = False
        """True while the gateway is ending: no more connections are accepted, and answers close their connections."""
        self.paused_refusals: int = 0
        """Refusals of wrong keys that wait now."""
        self.ignored_keys: IgnoredKeys = IgnoredKeys(now)
        """Binding and routing keys that CMQ's doors ignored."""
        self.deletes: Deletes = DeleteAnswers(now)
        """The remembered deletes of CMQ's API 2.0."""
        self.api3_answers: Counter[tuple[str, str]] = Counter()
        """Answers of API 3.0 by action and error code."""
        self.cmq_tcp: Connections | None = None
        """The connections of CMQ's TCP protocol; None = the gateway does not serve it."""
        self.further: FurtherProcesses | None = None
        """The further processes, for the first of several."""
        self._not_given_back = SparseWarning("messages_not_given_back", now)
        self._undoing: set[asyncio.Task[object]] = set()
        self._hand_overs: set[HandOver] = set()
        """The requests in progress that may hold messages."""
        self._no_hand_overs = asyncio.Event()
        self._no_hand_overs.set()

    def key_changed(self, secret_id: str | None) -> None:
        """Forget a key that the broker reports as changed, and check its open connections; None = all keys."""
        self.secrets.forget(secret_id)
        self.streams.key_changed(secret_id)
        if self.cmq_tcp is not None:
            self.cmq_tcp.key_changed(secret_id)

    async def end_polls(self) -> None:
        """End the long polls and event streams, and answer further polls as ended. Other requests are served."""
        self.is_draining = True
        self.streams.end_all()
        await self.connections.end_polls()

    async def close(self) -> None:
        """Take back the messages of answers that were not written, then close the connections to the broker.

        To be called when no HTTP connection is open: a request would fail, and its messages would not come back.
        """
        self.is_draining = True
        # Cancelled handlers end in one of the next turns of the loop.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDLERS_SECONDS):
                await self._no_hand_overs.wait()
        while self._undoing:
            await asyncio.wait(self._undoing)
        self._not_given_back.flush()
        self.ignored_keys.flush()
        await self.streams.stop()
        await self.sampler.close()
        await self.readiness.close()
        await self.figures.close()
        await self.connections.close()
        await self.secrets.close()

    async def pause_refusal(self, request: web.BaseRequest, refusal: Exception) -> None:
        """Wait before the refusal of a wrong key, so that a connection gets few such refusals a second.

        A program with a wrong secret in a tight loop, or a stranger, would otherwise take a core of the machine, which
        native clients may share. A connection with pipelined requests gets its answers one after the other.
        """
        self.bodies.release(request)
        # The frames of the error hold the form of the request.
        refusal.__traceback__ = None
        await self.pause_wrong_key()

    async def pause_wrong_key(self) -> None:
        """Wait as :meth:`pause_refusal` does, for a request that is not of HTTP."""
        self.paused_refusals += 1
        try:
            await asyncio.sleep(self.settings.wrong_key_pause_seconds)
        finally:
            self.paused_refusals -= 1

    def port_of(self, request: web.BaseRequest) -> int:
        """Return the port of the listener that a request came to; 0 if the connection is lost."""
        transport = request.transport
        name = None if transport is None else transport.get_extra_info("sockname")
        return int(name[1]) if name else 0

    @property
    def shares_ports(self) -> bool:
        """True if other processes listen at the ports of this gateway, or hold them."""
        return self.settings.reuse_port or self.share is not None

    @property
    def cmq_tcp_port(self) -> int | None:
        """Port of CMQ's TCP protocol; None = not served."""
        if self.cmq_tcp is not None:
            return self.cmq_tcp.address[1]
        # The first process of several serves the protocol for all.
        address = self.settings.listen_cmq_tcp
        return split_address("listen_cmq_tcp", address)[1] if address else None

    def hand_over(self) -> HandOver:
        """Return the context of a request that may receive messages: see :mod:`cmqd_gateway.http.hand_over`."""
        return HandOver(self)

    def begun(self, hand_over: HandOver) -> None:
        """Note that a request begins; for ``HandOver``."""
        self._hand_overs.add(hand_over)
        self._no_hand_overs.clear()

    def ended(self, hand_over: HandOver) -> None:
        """Note that a request ended; for ``HandOver``."""
        self._hand_overs.discard(hand_over)
        if not self._hand_overs:
            self._no_hand_overs.set()

    def undo_later(self, key: KeySecret, take_back: TakeBack) -> None:
        """Take back messages that were not handed over, in a task of its own: the request may be cancelled. The end of
        the gateway waits for the task.
        """

        async def undoing() -> None:
            failure: Exception | None = None
            for _ in range(UNDO_ATTEMPTS):
                try:
                    async with self.connections.client(key) as client:
                        await take_back(client)
                    return
                except TooManyKeysInUse as full:
                    failure = full.with_traceback(None)
                    # The loss of a load balancer ends the polls of more keys than there are connections.
                    await asyncio.sleep(UNDO_PAUSE_SECONDS)
                except Exception as error:
                    failure = error.with_traceback(None)
                    break
            # The messages come back when their visibility timeout ends, and count as received once more. A loss of the
            # broker fails the undoing of all answers in progress at once, so the lines are few.
            self._not_given_back.note(key=key.secret_id, reason=str(failure) or type(failure).__name__)

        task: asyncio.Task[object] = asyncio.create_task(undoing())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
