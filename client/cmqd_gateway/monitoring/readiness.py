"""Readiness of the broker: one probe a second at most, shared by all requests.

``/readyz`` needs no key, so strangers can send requests by the thousand. A request that finds a fresh result costs the
broker no work, and requests during a probe wait for that probe. The probe uses the connection for the gateway's
questions about secrets, because the gateway can authenticate requests only while the broker answers there. A probe is a
small request that the broker answers without waiting for its disk, so that a probe a second delays no authentication.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from cmqd_client.errors import CmqError
from cmqd_gateway.process.gateway_logger import get_logger

PROBE_SECONDS: Final = 2.0
"""Time in which the broker must answer a probe."""
KEPT_SECONDS: Final = 1.0
"""Time for which the result of a probe is used."""

SILENT_SECONDS: Final = 10.0
"""Age of the last line of the broker at which its loop counts as standing still."""
LEADER: Final = "leader"
"""Role of a broker that answers requests."""

Probe: TypeAlias = Callable[[], Awaitable[object]]
"""Asks the broker; raises CmqError if the broker does not answer."""

_log = get_logger()


class _Told(msgspec.Struct, frozen=True):
    role: str
    reason: str
    """Empty = ready."""


class _Line(msgspec.Struct, frozen=True):
    readiness: _Told


_decoder = msgspec.json.Decoder(_Line)


class Readiness:
    """Probes the broker on demand, and logs a line for each change of the result."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: the clock, in seconds."""
        self._now = now
        self.probe: Probe | None = None
        """None = the broker counts as ready: a gateway of a test."""
        self._is_ready = True
        self._known_since: float | None = None
        """Time of the last result; None = no result yet."""
        self._told: _Told | None = None
        """The last line of the broker; None = the gateway is no child of a broker that tells."""
        self._told_at = 0.0
        self.has_followed = False
        """True while the gateway uses another broker than the broker that runs it, and the lines do not count."""
        self._probing: asyncio.Task[None] | None = None

    def take(self, line: bytes) -> bool:
        """Take a line of the broker; return False if the line is about another subject than readiness."""
        try:
            self._told = _decoder.decode(line).readiness
        except msgspec.MsgspecError:
            return False
        self._told_at = self._now()
        return True

    @property
    def role(self) -> str:
        """Role of the broker. A broker that answers requests is a leader."""
        return LEADER if self._told is None else self._told.role

    @property
    def is_silent(self) -> bool:
        """True if the broker that runs this gateway has told nothing for ``SILENT_SECONDS``."""
        return self._told is not None and self._now() - self._told_at >= SILENT_SECONDS

    async def reason(self) -> str:
        """Return why the broker is not ready; empty of a ready broker. Safe to cancel, as ``is_ready``.

        Without the text of an error, because strangers may ask, and errors name hosts and keys.
        """
        if self.is_silent:
            return "the broker stands still"
        if self._told is not None and self._told.reason and not self.has_followed:
            return self._told.reason
        return "" if await self.is_ready() else "the broker does not answer"

    async def is_ready(self) -> bool:
        """Return True if the broker answers. Safe to cancel: the probe goes on for other requests."""
        if self._known_since is None or self._now() - self._known_since >= KEPT_SECONDS:
            if self._probing is None:
                self._probing = asyncio.create_task(self._ask())
            await asyncio.shield(self._probing)
        return self._is_ready

    async def close(self) -> None:
        """Cancel the probe that is under way."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _ask(self) -> None:
        reason = ""
        try:
            if self.probe is not None:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self.probe()
        except (TimeoutError, CmqError) as failure:
            reason = str(failure) or type(failure).__name__
        finally:
            self._probing = None
        was_ready, self._is_ready = self._is_ready, not reason
        self._known_since = self._now()
        if was_ready and reason:
            _log.warning("not_ready", reason=reason)
        elif not was_ready and not reason:
            _log.info("ready_again")
