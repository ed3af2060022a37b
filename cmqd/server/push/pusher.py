"""Pushes to URLs: attempts in the loop's process, started on the core's request, with results returned in batches.

    push(Push) ──► task: headers, body, signature ──► Poster.post ──► result ──► on_results([...]), once per turn
                     └── push_timeout_ms after push(), in any state: cancelled, "timed out after 15 s"

Rules:

- Any 2xx in time is success, every other end a failure. The time counts from ``push`` to the headers of the answer and
  includes the look-up, the connection and TLS; the body of an answer has no meaning.
- Every push that is started has exactly one result, unless ``close`` cuts it short: then it has none. A failure would
  count an attempt that no endpoint judged; without a result the core starts the push again after the restart.
- A result comes when the connection is free again, so that the limit of pushes in progress bounds the connections too.
  An endpoint that answers 200 and then never ends its body therefore costs itself ``poster.DRAIN_S`` per message.
- Errors are a line for the operator: no header, no body, no secret.

aiohttp is the extra ``http``. Without it this module still imports, and ``Pusher.available()`` is False.
"""

import asyncio
import importlib
import importlib.util
import itertools
import os
import ssl
from collections.abc import Callable, Sequence

from cmqd.core.outcome import Push, PushResult
from cmqd.server.broker_logger import get_logger
from cmqd.server.part import part
from cmqd.server.push.allowed_addresses import Allowed, Lookup, system_lookup
from cmqd.server.push.webhooks import USER_AGENT, request_of

_log = get_logger()


@part
class Pusher:
    """Starts pushes and reports their results; see the module. Made and called on the loop alone.

    ``timeout_ms``, ``allow_private``, ``allow_loopback`` and ``user_agent`` are the settings ``push_...``.
    """

    loop: asyncio.AbstractEventLoop
    timeout_ms: int
    allow_private: bool
    allow_loopback: bool
    secrets_of: Callable[[int], Sequence[str]]
    """Returns the valid secrets of a subscription, newest first."""
    on_results: Callable[[list[PushResult]], None]
    """Called with all results of a turn of the loop."""
    now_ms: Callable[[], int]
    """Broker time."""
    wall_ms: Callable[[], int]
    """The wall clock."""
    user_agent: str = ""
    lookup: Lookup = system_lookup
    """Looks a name up; it blocks, and is called in threads."""
    tls: ssl.SSLContext | None = None
    """The trusted certificates; None = the system's."""

    def __post_init__(self) -> None:
        # Here and not above: the import takes a tenth of a second and some 15 MiB, and aiohttp may not be installed.
        from cmqd.server.push.poster import Poster

        allowed = Allowed(self.allow_private, self.allow_loopback)
        self._poster = Poster(self.loop, allowed, lookup=self.lookup, tls=self.tls)
        self._attempts: set[asyncio.Task[None]] = set()
        self._results: list[PushResult] = []
        self._closed = False
        self._request_ids = map("{}-{:x}".format, itertools.repeat(os.urandom(8).hex()), itertools.count(1))

    @staticmethod
    def available() -> bool:
        """Return True if the extra ``http`` is installed; without it a Pusher cannot be made."""
        return importlib.util.find_spec("aiohttp") is not None

    @staticmethod
    def load() -> None:
        """Import the packages of the extra ``http``, a tenth of a second and more, at a time that the caller chooses.

        Raises:
            ModuleNotFoundError: the extra is not installed.
        """
        importlib.import_module("cmqd.server.push.poster")

    @property
    def under_way(self) -> int:
        """Return the number of pushes without a collected result."""
        return len(self._attempts)

    def __repr__(self) -> str:
        return f"<Pusher under_way={len(self._attempts)}{' closed' if self._closed else ''}>"

    def push(self, push: Push) -> None:
        """Start an attempt now; its result comes later, never within this call. No effect after ``close``."""
        if self._closed:
            return
        deadline = self.loop.time() + self.timeout_ms / 1000
        attempt = self.loop.create_task(self._carry_out(push, self.now_ms(), self.wall_ms(), deadline))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)

    async def close(self, within_s: float) -> None:
        """Start no further push, wait this long for pushes in progress, cancel the rest, close all connections.

        The results of all pushes that ended in time have been reported when this returns.
        """
        self._closed = True
        try:
            if self._attempts and within_s > 0:
                await asyncio.wait(set(self._attempts), timeout=within_s)
        finally:
            for attempt in self._attempts:
                attempt.cancel()
            if self._attempts:
                await asyncio.wait(set(self._attempts))
                await asyncio.sleep(0)  # for the callbacks of pushes that had ended just before
            self._hand_over()
            await self._poster.close()

    async def _carry_out(self, push: Push, started_ms: int, started_wall_ms: int, deadline: float) -> None:
        """Make an attempt and note its result.

        Args:
            push: the push.
            started_ms: the start in broker time; the core counts the time to the next attempt from it.
            started_wall_ms: the start by the wall clock; the receiver compares the signed time with its own.
            deadline: the end of the attempt, in the time of the loop.
        """
        error: str | None = None
        is_answered = False
        try:
            async with asyncio.timeout_at(deadline):
                headers, body = request_of(
                    push,
                    self.secrets_of(push.subscription_id),
                    started_wall_ms // 1000,
                    next(self._request_ids),
                    started_wall_ms - started_ms,
                    self.user_agent or USER_AGENT,
                )
                error, response = await self._poster.post(push.url, headers, body)
                is_answered = True
                await self._poster.drain(response)
        except TimeoutError:
            if not is_answered:
                error = f"timed out after {self.timeout_ms / 1000:g} s"
        except asyncio.CancelledError:
            # Cut short by ``close``: an attempt without an answer has no result.
            if not is_answered:
                raise
        except Exception as failure:
            # A mistake of ours, or of aiohttp: this message is tried again like any other, and the log says why.
            _log.error("push_failed", subscription=push.subscription, reason=repr(failure), exc_info=failure)
            error = f"failed: {type(failure).__name__}"
        if not self._results:
            self.loop.call_soon(self._hand_over)
        self._results.append(PushResult(push.subscription_id, push.message.position, started_ms, error))

    def _hand_over(self) -> None:
        results, self._results = self._results, []
        if results:
            self.on_results(results)
