"""Refusals before the core: the server shuts down, the storage hangs or cannot follow, an account is over its rate.

A request that is refused here has changed nothing and reads nothing of the index, so the error reply leaves at once and
not through the reply gate.
"""

from collections.abc import Callable

from cmqd.log.interface import Log
from cmqd.server.client import Client
from cmqd.server.counters import Counters
from cmqd.server.rate_limits import RateLimits
from cmqd.server.refusals import BUSY_RETRY_MS, DISK_RETRY_MS, RATE_RETRY_MS, STALLED_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.messages import error


class Admission:
    """Decides which requests reach the core; see the module.

    Invariant: ``is_restricted`` is set if and only if ``refuses`` may refuse a request. The dispatcher reads this
    attribute per request instead of three, and makes no call while it is not set.
    """

    def __init__(
        self,
        *,
        log: Log,
        counters: Counters,
        now_ms: Callable[[], int],
        busy_pending_bytes: int,
        busy_pending_records: int,
        max_requests_per_second: int,
    ) -> None:
        self._log = log
        self._counters = counters
        self._now_ms = now_ms
        self._busy_pending_bytes = busy_pending_bytes
        self._busy_pending_records = busy_pending_records
        self._rates = RateLimits(max_requests_per_second) if max_requests_per_second else None
        self._all_refused: tuple[ErrorCode, str] | None = None
        self._stalled: tuple[ErrorCode, str, int] | None = None
        """Code, text and retry time of refusals while the storage hangs."""
        self._sends_refused: str | None = None
        """The reason why the disk takes no bodies."""
        self.collected_bytes = 0
        """Bytes of requests that were admitted and wait for their decision; kept by ``Collector`` and ``Publishes``.
        Counted as pending, because a flood within one I/O batch would otherwise pass ``busy_pending_bytes`` unseen."""
        self.is_restricted = self._rates is not None

    @property
    def is_stalled(self) -> bool:
        """True if requests are refused because the storage hangs."""
        return self._stalled is not None

    @property
    def stall_refusal(self) -> tuple[ErrorCode, str, int] | None:
        """Code, text and retry time of refusals while the storage hangs."""
        return self._stalled

    def refuse_all(self, code: ErrorCode, text: str) -> None:
        """Refuse every request from now on."""
        self._all_refused = (code, text)
        self.is_restricted = True

    def stall(self, reason: str | None) -> None:
        """Refuse every request except the status, because the storage hangs; None ends the refusals."""
        if reason is None:
            self._stalled = None
        elif self._sends_refused is not None:
            self._stalled = (ErrorCode.DISK_NEARLY_FULL, reason, DISK_RETRY_MS)
        else:
            self._stalled = (ErrorCode.BUSY, reason, STALLED_RETRY_MS)
        self.is_restricted = not (self._all_refused is self._stalled is self._rates is None)

    def refuse_sends(self, reason: str | None) -> None:
        """Refuse requests with bodies because of the disk; None ends the refusals."""
        self._sends_refused = reason

    def refuses(self, client: Client, request: wire.Request) -> bool:
        """Refuse a request that must not reach the core; return True if it was refused."""
        if self._all_refused is not None:
            code, text = self._all_refused
            client.answer(error(request.request_id, code, text))
            return True
        if self._stalled is not None and type(request) is not wire.GetServerStatus:
            code, text, retry_after_ms = self._stalled
            self._counters.busy += 1
            client.answer(error(request.request_id, code, text, retry_after_ms=retry_after_ms))
            return True
        if self._rates is not None and not self._rates.allows(client.account, self._now_ms()):
            text = f"account {client.account!r} is over {self._rates.per_second} requests a second, its limit"
            client.answer(error(request.request_id, ErrorCode.TOO_MANY_REQUESTS, text, retry_after_ms=RATE_RETRY_MS))
            return True
        return False

    def uncount(self, account: str) -> None:
        """Undo the counting of a request that will be dispatched again."""
        self._counters.requests -= 1
        if self._rates is not None:
            self._rates.give_back(account)

    def refuses_bodies(self, client: Client, request_id: int) -> bool:
        """Refuse a request with bodies if the storage is too slow or has no space; return True if it was refused."""
        log = self._log
        pending_bytes = log.pending_bytes + self.collected_bytes
        if pending_bytes >= self._busy_pending_bytes or log.pending_records >= self._busy_pending_records:
            self._counters.busy += 1
            text = f"{pending_bytes} bytes wait for the disk; try again"
            client.answer(error(request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
            return True
        if self._sends_refused is not None:
            self._counters.disk_refusals += 1
            reason = self._sends_refused
            client.answer(error(request_id, ErrorCode.DISK_NEARLY_FULL, reason, retry_after_ms=DISK_RETRY_MS))
            return True
        return False
