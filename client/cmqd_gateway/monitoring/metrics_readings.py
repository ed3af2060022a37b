"""The figures behind ``/metrics``: read from the broker, made into text, and kept for some seconds.

Requests for metrics at the same time share a reading, and requests within ``cache_seconds`` share its text. A reading
is two requests at once: the totals, and the largest queues with sums over all. The broker does the work in steps.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from cmqd_client import Client
from cmqd_client.administration.metrics import Metrics, TopMetrics
from cmqd_client.errors import CmqError, PermissionDenied
from cmqd_gateway.process.gateway_logger import get_logger

MAX_READERS = 64
"""Keys with a text in memory; the oldest text makes room."""

_log = get_logger()


class Figures(msgspec.Struct, frozen=True):
    """A reading."""

    metrics: Metrics
    top: TopMetrics
    seconds: float
    """Time that the reading took."""

    @property
    def now_ms(self) -> int:
        """Broker time of the reading, for ages."""
        return round(self.top.time.timestamp() * 1000)


OpenClient = Callable[[], AbstractAsyncContextManager[Client]]
"""Opens a client of the key that reads the figures."""
Exposition = Callable[[Figures], bytes]
"""Makes the text of ``/metrics``; called in a thread."""


async def read_figures(client: Client, shown: int, now: Callable[[], float] = time.monotonic) -> Figures:
    """Read the figures that the client's key may read: of all accounts for a key of ``admin``, else of its account.

    Args:
        client: the client.
        shown: most queues, topics, and subscriptions with figures of their own.
        now: the clock, in seconds.

    Raises:
        CmqError: the broker refused or did not answer.
    """
    begun = now()
    # Both at once: each reply waits for the disk.
    metrics, top = await asyncio.gather(client.metrics(), client.top_metrics(shown))
    return Figures(metrics, top, now() - begun)


class FigureCache:
    """The last texts by key; see the module."""

    def __init__(
        self, shown: int, cache_seconds: float, exposition: Exposition, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Make an empty cache; for ``shown`` see :func:`read_figures`."""
        self._shown = shown
        self._cache_seconds = cache_seconds
        self._exposition = exposition
        self._now = now
        self._read: dict[str, tuple[float, bytes | CmqError]] = {}
        """By key: when the reading ended, and its text or its failure; in the order of the endings."""
        self._reading: dict[str, asyncio.Task[bytes]] = {}

    async def get(self, key: str, open_client: OpenClient) -> bytes:
        """Return a text with figures of a key that are at most ``cache_seconds`` old. Safe to cancel.

        A failure is used for as long as a text: requests while the broker is away cost no reading each, and no line in
        the log each.

        Raises:
            TooManyKeysInUse, CmqError: the broker was not reached, or refused.
        """
        read = self._read.get(key)
        if read is not None and self._now() - read[0] < self._cache_seconds:
            if isinstance(read[1], bytes):
                return read[1]
            # Without the traceback, which would grow with each raise.
            raise read[1].with_traceback(None)
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read_anew(key, open_client))
            # The exception is for the requests that wait. Read here, because these requests may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: the reading goes on for other requests, and for the cache, when this request is cancelled.
        return await asyncio.shield(task)

    def drop_old(self) -> None:
        """Drop the texts that may no longer be used, some megabytes each; to be called about once a second."""
        latest = self._now() - self._cache_seconds
        for key in [key for key, (ended_at, _) in self._read.items() if ended_at <= latest]:
            del self._read[key]

    def __len__(self) -> int:
        """Return the number of texts and failures in memory."""
        return len(self._read)

    async def close(self) -> None:
        """Cancel the readings that are under way."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read_anew(self, key: str, open_client: OpenClient) -> bytes:
        try:
            async with open_client() as client:
                figures = await read_figures(client, self._shown, self._now)
            # Off the loop: the text of thousands of series takes tens of milliseconds.
            text = await asyncio.to_thread(self._exposition, figures)
        except CmqError as failure:
            if not isinstance(failure, PermissionDenied):
                _log.warning("metrics_not_read", reason=str(failure))
            self._keep(key, failure)
            raise
        finally:
            del self._reading[key]
        self._keep(key, text)
        return text

    def _keep(self, key: str, read: bytes | CmqError) -> None:
        self._read.pop(key, None)
        self._read[key] = (self._now(), read)
        if len(self._read) > MAX_READERS:
            del self._read[next(iter(self._read))]
