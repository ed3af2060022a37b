"""Reads the broker's figures for the console: one reading for all pages of an account, by any of its keys.

    a page is open     totals every 2 s, the largest queues every 10 s (every 2 s with few queues), details every 30 s
    no page is open    totals and the largest queues every 30 s, so that the last hours are there for the next page

The account ``admin`` is read with the gateway's own key, if that key has the role ``read`` (the key of a gateway that
the broker starts has it), from the start of the gateway on. Every other account is read with the key of an open page,
and after the last page is closed with the same key, for as long as a session could last. A key that is disabled,
changed or deleted meanwhile reads no more. The number of accounts is bounded, and so is the memory of each account.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from cmqd_client import Client
from cmqd_client.administration.metrics import Metrics, TopMetrics
from cmqd_client.errors import CmqError, PermissionDenied, QueueNotFound
from cmqd_gateway.broker.broker_connections import BrokerConnections, TooManyKeysInUse
from cmqd_gateway.callers.key_secrets import KeySecret, KeySecrets, TooManyUnknownIds
from cmqd_gateway.console.findings import (
    DeadLetterQueue,
    Details,
    Findings,
    HalfDetail,
    OldQueue,
    SubscriptionDetail,
)
from cmqd_gateway.console.forecast import DiskForecast, disk_forecast
from cmqd_gateway.console.history import NAMES, History, shown
from cmqd_gateway.console.series_values import Interval, Reading, age_seconds
from cmqd_gateway.process.gateway_logger import SparseWarning, get_logger
from cmqd_types.metrics import QueueMetrics

_log = get_logger()

ADMIN: Final = "admin"
"""The account with figures of all accounts and of the server."""
MAX_ACCOUNTS: Final = 32
"""Accounts with figures in memory: 300 KB each, and up to 1.5 MB with hundreds of queues and subscriptions."""
TOP: Final = 100
"""Queues and subscriptions that are examined."""
SHOWN_QUEUES: Final = 12
FEW_OBJECTS: Final = 500
"""Queues, topics and subscriptions up to which a ranking costs the broker less than a millisecond."""
DETAILS_OF: Final = 10
"""Queues, and subscriptions, that details are asked for."""
OLD_SECONDS: Final = 30.0
"""Age of an oldest message from which the retention of its queue is looked at; half the shortest retention."""
KEPT_SECONDS: Final = 12 * 3_600.0
"""Time for which an account without a page is read further: the longest life of a session."""
FORECAST_SECONDS: Final = 60.0
MISSED: Final = 3
MISSED_SECONDS: Final = 5.0
"""A gap without readings, of so many pauses and seconds, shows as a gap: the rates within are not known."""
LEAST_SECONDS: Final = 0.5
"""Shortest time that rates are taken over: two readings in a row would show 0 messages a second, or thousands."""
RANKED_SECONDS: Final = 120.0
"""Oldest ranking that rates of queues are differences to."""
REFUSED_SECONDS: Final = 600.0
"""Time after which a refused own key is tried again: its roles may have changed."""


class Pace(msgspec.Struct, frozen=True):
    """Seconds between two readings."""

    watched: float = 2.0
    """While a page is open."""
    unwatched: float = 30.0
    ranking: float = 10.0
    """The largest queues, while a page is open and queues are many."""
    details: float = 30.0


class TooManyAccounts(Exception):
    """Pages of ``MAX_ACCOUNTS`` other accounts are open."""


class Viewer(Protocol):
    """An open page."""

    @property
    def key(self) -> KeySecret:
        """The key of the page's session."""
        ...

    def post(self, kind: str, frame: bytes) -> None:
        """Take a frame; a frame takes the place of an unsent frame of the same kind."""
        ...

    def check(self) -> None:
        """Check the permissions of the key: a reading with the key was refused."""
        ...


# ------------------------------------------------------------------ frames


class Point(msgspec.Struct, frozen=True):
    """The newest bucket of the finest ring."""

    time: int
    values: list[float | None]
    """In the order of the names."""


class Counts(msgspec.Struct, frozen=True):
    """Objects that exist."""

    queues: int
    topics: int
    subscriptions: int


class Server(msgspec.Struct, frozen=True):
    """The server, for ``admin``."""

    version: str
    uptime_s: float
    segments: int
    sends_refused: bool
    schedules: int
    pushes_under_way: int


class FiguresEvent(msgspec.Struct, frozen=True):
    """A reading."""

    time: float
    """By the gateway's clock, in seconds since 1970."""
    now: dict[str, float | None]
    """The values of the series in this reading."""
    point: Point | None
    counts: Counts
    server: Server | None
    forecast: DiskForecast | None


class TopQueue(msgspec.Struct, frozen=True):
    """A queue among the queues with the most messages. Rates are messages a second; None before a second reading."""

    account: str
    queue: str
    active: int
    in_flight: int
    delayed: int
    half: int
    waiting_receives: int
    oldest_s: float
    arrived: float | None
    """Messages sent, copies of published messages, and dead letters that came or came back."""
    received: float | None
    deleted: float | None


class TopEvent(msgspec.Struct, frozen=True):
    """The queues with the most messages."""

    queues: list[TopQueue]


def frame_of(kind: str, content: msgspec.Struct | dict[str, object] | list[msgspec.Struct]) -> bytes:
    """Return an event of an event stream; JSON has no line break."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(content))


# ------------------------------------------------------------------ an account


class Feed:
    """The figures of an account, and the pages that show them."""

    def __init__(self, account: str) -> None:
        """Take the memory of the history."""
        self.account = account
        self.history = History()
        self.findings = Findings()
        self.viewers: dict[Viewer, None] = {}
        """The open pages, the oldest first."""
        self.last: dict[str, bytes] = {}
        """The last frame of each kind, for pages that open."""
        self.left_at: float | None = None
        """Time at which the last page was closed; None = a page is open, or there was none."""
        self.left_with: KeySecret | None = None
        """The key of that page."""
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()
        self.pause = 0.0
        """Seconds of the pause before the next reading."""
        self.reading: Reading | None = None
        self._base: Reading | None = None
        """The reading that rates are differences to."""
        self.details = Details(account)
        self.forecast: DiskForecast | None = None
        self.ranked_at: float | None = None
        self.detailed_at: float | None = None
        self.forecast_at: float | None = None
        self._ranked: tuple[float, dict[int, QueueMetrics]] | None = None

    def note(self, now: float, metrics: Metrics, top: TopMetrics | None, gap_seconds: float) -> None:
        """Take a reading.

        Args:
            now: time in seconds since 1970.
            metrics: the totals.
            top: the largest queues, if they were read.
            gap_seconds: time without a reading from which on no rates are known, and the plots have a gap.
        """
        before = self.reading
        if before is not None and not 0 < now - before.time <= gap_seconds:
            before = None
        if top is not None:
            sums, broker_ms = top.sums, round(top.time.timestamp() * 1_000)
        elif before is not None:
            sums, broker_ms = before.sums, before.broker_ms
        else:
            sums, broker_ms = None, 0
        self.reading = Reading(now, metrics, sums, broker_ms)
        base = self._base
        if base is not None and not 0 < now - base.time <= gap_seconds:
            base = None
        if base is None or now - base.time >= LEAST_SECONDS:
            self._base = self.reading
        else:
            base = None
        interval = Interval(base, self.reading)
        values = interval.values()
        self.history.note(now - interval.seconds, now, values)
        if top is not None:
            self.findings.note(now, metrics, top)
            self._post("top", TopEvent(self._top_queues(now, top)))
        newest = self.history.newest()
        server = metrics.server
        self._post(
            "figures",
            FiguresEvent(
                now,
                {name: shown(value) for name, value in zip(NAMES, values, strict=True)},
                None if newest is None else Point(*newest),
                Counts(metrics.queues, metrics.topics, metrics.subscriptions),
                None
                if server is None
                else Server(
                    server.version,
                    server.uptime_ms / 1_000,
                    server.segments,
                    server.sends_refused,
                    server.schedules,
                    server.pushes_under_way,
                ),
                self.forecast,
            ),
        )

    def forecast_disk(self, now: float) -> None:
        """Forecast the disk from the history."""
        fine = self.history.readings_of("free_bytes", 60, now)
        oldest = fine[0][0] if fine else now
        coarse = [reading for reading in self.history.readings_of("free_bytes", 300, now) if reading[0] < oldest]
        self.forecast = disk_forecast(coarse + fine, now)

    def post_findings(self) -> None:
        """Send the present findings to the pages."""
        self._post("findings", list(self.findings.found(self.details, self.forecast)))

    def _post(self, kind: str, content: msgspec.Struct | list[msgspec.Struct]) -> None:
        # Without a page nothing is encoded; ``last`` is then older than the history, and the next page has a reading
        # of its own at once.
        if not self.viewers:
            self.last.pop(kind, None)
            return
        frame = self.last[kind] = frame_of(kind, content)
        for viewer in self.viewers:
            viewer.post(kind, frame)

    def _top_queues(self, now: float, top: TopMetrics) -> list[TopQueue]:
        before, self._ranked = self._ranked, (now, {queue.queue_id: queue for queue in top.queues})
        earlier: dict[int, QueueMetrics] = {}
        seconds = 0.0
        if before is not None and 0 < now - before[0] <= RANKED_SECONDS:
            seconds, earlier = now - before[0], before[1]
        broker_ms = round(top.time.timestamp() * 1_000)
        listed = top.queues[:SHOWN_QUEUES]
        return [_top_queue(queue, earlier.get(queue.queue_id), seconds, broker_ms) for queue in listed]


def _top_queue(queue: QueueMetrics, before: QueueMetrics | None, seconds: float, broker_ms: int) -> TopQueue:
    def rate(*totals: str) -> float | None:
        if before is None or seconds <= 0:
            return None
        more = sum(getattr(queue.totals, total) - getattr(before.totals, total) for total in totals)
        return shown(max(0.0, more / seconds))

    return TopQueue(
        queue.account,
        queue.queue,
        queue.active,
        queue.in_flight,
        queue.delayed,
        queue.half,
        queue.waiting_receives,
        age_seconds(queue.oldest_message_ms, broker_ms),
        rate("sent", "copied", "dead_letters", "redriven_here"),
        rate("received"),
        rate("deleted"),
    )


# ------------------------------------------------------------------ all accounts


class Sampler:
    """The feeds of all accounts; see the module."""

    def __init__(
        self,
        connections: BrokerConnections,
        secrets: KeySecrets,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pace: Pace = Pace(),  # noqa: B008 - frozen
    ) -> None:
        """Keep the parts of the gateway; nothing is read yet.

        Args:
            connections: the clients of the keys.
            secrets: the secrets of the keys.
            now: the clock, in seconds.
            wall_clock: the time of day, in seconds since 1970.
            pace: the times between readings.
        """
        self._connections = connections
        self._secrets = secrets
        self._now = now
        self._wall_clock = wall_clock
        self.pace = pace
        self.own_keys: list[KeySecret] = []
        """Keys of the gateway that may read the account ``admin``, the preferred key first."""
        self._refused_at: dict[str, float] = {}
        """By id of an own key: when it was refused."""
        self._feeds: OrderedDict[str, Feed] = OrderedDict()
        self._failures = SparseWarning("console_not_read", now)
        self.is_away: Callable[[], bool] = lambda: False
        """Returns True while the broker is known to be away: then nothing is read."""
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of accounts with figures in memory."""
        return len(self._feeds)

    @property
    def feeds(self) -> Iterable[Feed]:
        """The feeds."""
        return self._feeds.values()

    @property
    def reads_unwatched(self) -> bool:
        """True if a key of the gateway may read the account ``admin`` without a page."""
        return any(key.secret_id not in self._refused_at for key in self.own_keys)

    def start(self) -> None:
        """Begin to read the account ``admin`` with the gateway's own keys, if there are any."""
        if self.own_keys:
            self._run_feed(self._feed(ADMIN))

    def find(self, account: str) -> Feed | None:
        """Return the feed of an account, None if the account is not read."""
        return self._feeds.get(account)

    def join(self, account: str, viewer: Viewer) -> Feed:
        """Have a page get the figures of its account, until :meth:`leave`.

        Raises:
            TooManyAccounts: there is no room for another account.
        """
        feed = self._feed(account)
        feed.viewers[viewer] = None
        feed.left_at = None
        for kind, frame in feed.last.items():
            viewer.post(kind, frame)
        # The first page of an account waits for no pause.
        if len(feed.viewers) == 1:
            feed.ranked_at = feed.detailed_at = None
            feed.wake.set()
        self._run_feed(feed)
        return feed

    def leave(self, feed: Feed, viewer: Viewer) -> None:
        """Send no more figures to a page. Harmless when repeated."""
        if viewer not in feed.viewers:
            return
        del feed.viewers[viewer]
        if not feed.viewers:
            feed.left_at, feed.left_with = self._now(), viewer.key
            feed.last.clear()

    def key_changed(self, secret_id: str | None) -> None:
        """Note that a key may have got other roles; None = any key."""
        if secret_id is None:
            self._refused_at.clear()
        else:
            self._refused_at.pop(secret_id, None)

    def wake(self) -> None:
        """Read all accounts with an open page now: the broker is back."""
        for feed in self._feeds.values():
            if feed.viewers:
                feed.wake.set()

    async def close(self) -> None:
        """End all readings."""
        self._is_closed = True
        tasks = [feed.task for feed in self._feeds.values() if feed.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._failures.flush()

    # ------------------------------------------------------------------ inside

    def _feed(self, account: str) -> Feed:
        feed = self._feeds.get(account)
        if feed is not None:
            self._feeds.move_to_end(account)
            return feed
        if len(self._feeds) >= MAX_ACCOUNTS:
            unseen = next((feed for feed in self._feeds.values() if not feed.viewers and feed.account != ADMIN), None)
            if unseen is None:
                raise TooManyAccounts
            del self._feeds[unseen.account]
            if unseen.task is not None:
                unseen.task.cancel()
        feed = self._feeds[account] = Feed(account)
        return feed

    def _run_feed(self, feed: Feed) -> None:
        if not self._is_closed and (feed.task is None or feed.task.done()):
            feed.task = asyncio.create_task(self._run(feed))

    async def _run(self, feed: Feed) -> None:
        """Read an account until no key is left for it."""
        while True:
            feed.wake.clear()
            if not self.is_away():
                key = await self._reader(feed)
                if key is not None:
                    await self._read(feed, key)
                elif not feed.viewers and not (feed.account == ADMIN and self.own_keys):
                    return
            feed.pause = self.pace.watched if feed.viewers else self.pace.unwatched
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(feed.pause):
                    await feed.wake.wait()

    async def _reader(self, feed: Feed) -> KeySecret | None:
        """Return the key to read an account with; None = there is none now."""
        if feed.account == ADMIN:
            for key in self.own_keys:
                refused_at = self._refused_at.get(key.secret_id)
                if refused_at is None or self._now() - refused_at >= REFUSED_SECONDS:
                    return key
        for viewer in feed.viewers:
            return viewer.key
        key = feed.left_with
        if key is None or feed.left_at is None or self._now() - feed.left_at >= KEPT_SECONDS:
            return None
        try:
            present = await self._secrets.find(key.secret_id, None)
        except (TooManyUnknownIds, CmqError):
            # The broker is away: the key is tried again at the next reading.
            return key
        if present is None or not present.enabled or present.secret_key != key.secret_key:
            feed.left_with = None
            return None
        return present

    async def _read(self, feed: Feed, key: KeySecret) -> None:
        """Read an account once. A failure leaves a gap in the plots."""
        begun = self._now()
        wants_top = not feed.viewers or self._is_due(feed, begun)
        has_details = False
        try:
            async with self._connections.client(key) as client:
                if wants_top:
                    metrics, top = await asyncio.gather(client.metrics(), client.top_metrics(TOP))
                else:
                    metrics, top = await client.metrics(), None
                if feed.viewers and _is_past(feed.detailed_at, self.pace.details, begun) and feed.reading is not None:
                    feed.detailed_at, has_details = begun, True
                    feed.details = await self._details(feed, client)
        except PermissionDenied:
            self._refused(feed, key)
            return
        except (TooManyKeysInUse, CmqError) as failure:
            # Without the traceback, whose frames hold the error.
            self._failures.note(account=feed.account, reason=str(failure.with_traceback(None)))
            return
        except Exception as bug:
            # The pages wait for the next reading; without this line the account would never be read again.
            _log.error("console_read_failed", account=feed.account, error=type(bug).__name__, exc_info=bug)
            return
        if top is not None:
            feed.ranked_at = begun
        now = self._wall_clock()
        if _is_past(feed.forecast_at, FORECAST_SECONDS, begun):
            feed.forecast_at = begun
            feed.forecast_disk(now)
        feed.note(now, metrics, top, MISSED * feed.pause + MISSED_SECONDS)
        if feed.viewers and (top is not None or has_details):
            if feed.detailed_at is None:
                # With the names of this reading: the first page of an account sees last errors at once.
                feed.wake.set()
            feed.post_findings()

    def _is_due(self, feed: Feed, now: float) -> bool:
        counts = None if feed.reading is None else feed.reading.metrics
        if counts is None or counts.queues + counts.topics + counts.subscriptions <= FEW_OBJECTS:
            return True
        return _is_past(feed.ranked_at, self.pace.ranking, now)

    def _refused(self, feed: Feed, key: KeySecret) -> None:
        if any(own.secret_id == key.secret_id for own in self.own_keys) and feed.account == ADMIN:
            self._refused_at[key.secret_id] = self._now()
            # At once with the next key.
            feed.wake.set()
        for viewer in list(feed.viewers):
            if viewer.key.secret_id == key.secret_id:
                viewer.check()
        if feed.left_with is not None and feed.left_with.secret_id == key.secret_id:
            feed.left_with = None

    async def _details(self, feed: Feed, client: Client) -> Details:
        """Ask for details of the few queues and subscriptions that need them, one after the other."""
        old_queues: list[OldQueue] = []
        dead_letter_queues: list[DeadLetterQueue] = []
        half: list[HalfDetail] = []
        subscriptions: list[SubscriptionDetail] = []
        # An object may be gone since the list, and a broker may be older than the lists.
        with contextlib.suppress(CmqError):
            page = await client.queue_summaries(sort="age", descending=True, limit=DETAILS_OF)
            now_ms = round(page.time.timestamp() * 1_000)
            for queue in page.queues:
                age = age_seconds(queue.oldest_message_ms, now_ms)
                if age >= OLD_SECONDS:
                    with contextlib.suppress(QueueNotFound):
                        retention = (await client.queue(queue.queue).attributes()).retention
                        old_queues.append(OldQueue(queue.queue, age, retention))
            page = await client.queue_summaries(
                sort="active", descending=True, selection="dead_letter_queues", limit=DETAILS_OF
            )
            dead_letter_queues.extend(
                DeadLetterQueue(queue.queue, queue.active, age_seconds(queue.oldest_message_ms, now_ms))
                for queue in page.queues
            )
            page = await client.queue_summaries(
                sort="half", descending=True, selection="transactional", limit=DETAILS_OF
            )
            for queue in page.queues:
                if queue.half:
                    with contextlib.suppress(QueueNotFound):
                        half.append(await _half_detail(client, queue.queue, now_ms / 1_000))
        for topic, name in feed.findings.failing_subscriptions(feed.account)[:DETAILS_OF]:
            with contextlib.suppress(CmqError):
                info = await client.topic(topic).subscription(name).info()
                attempt = None if info.next_attempt_time is None else info.next_attempt_time.timestamp()
                subscriptions.append(SubscriptionDetail(topic, name, info.endpoint, info.last_error or "", attempt))
        return Details(feed.account, old_queues, dead_letter_queues, half, subscriptions)


async def _half_detail(client: Client, queue: str, now: float) -> HalfDetail:
    page = await client.queue(queue).half_messages(100)
    used_up = [message for message in page.messages if message.checks and message.next_check_time is None]
    oldest = min((message.enqueue_time.timestamp() for message in used_up), default=now)
    return HalfDetail(queue, len(used_up), max(0.0, now - oldest))


def _is_past(last: float | None, seconds: float, now: float) -> bool:
    return last is None or now - last >= seconds
