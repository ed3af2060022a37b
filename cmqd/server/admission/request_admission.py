"""Refusals before the core: the server shuts down, the storage hangs or cannot follow, an account is over its rate.

A request that is refused here has changed nothing and reads nothing of the index, so the error reply waits for no row.
With redundancy it waits for a proof that the broker leads (``ReplyGate.when_led``), except the refusals of a broker
that shuts down or whose storage hangs: these would wait for the very storage that they report.

The state of the log holds for all requests until records are appended. Therefore the log is examined for the first
request with bodies, and the requests behind it are compared with the room that was found (``room_bytes``).
"""

from collections.abc import Callable
from functools import partial

from cmqd.log.interface import Log
from cmqd.server.admission.token_bucket import TokenBucket
from cmqd.server.clients.client import Client
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.requests.refusals import BUSY_RETRY_MS, DISK_RETRY_MS, RATE_RETRY_MS, STALLED_RETRY_MS, stalled_error
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.operations import OPERATIONS
from cmqd_protocol.protocol_errors import ErrorCode


@part
class Admission:
    """Decides which requests reach the core; see the module.

    Invariant: ``is_restricted`` is set if and only if ``refuses`` may refuse a request. The dispatcher reads this
    attribute per request instead of three, and makes no call while the attribute is False.
    """

    log: Log
    counters: Counters
    now_ms: Callable[[], int]
    busy_pending_bytes: int
    busy_pending_records: int
    max_requests_per_second: int
    """Rate of an account, with a burst of a second; 0 = no limit."""
    when_led: Callable[[Callable[[], None]], None]
    """Takes a step that only the leader may take; see ``ReplyGate``."""

    def __post_init__(self) -> None:
        self._pending = self.log.pending
        self._buckets: dict[str, TokenBucket] = {}
        """Token buckets by account."""
        self._all_refused: tuple[ErrorCode, str] | None = None
        self.stall_refusal: tuple[ErrorCode, str, int] | None = None
        """Code, text and retry time of refusals while the storage hangs."""
        self._sends_refused: str | None = None
        self.collected_bytes = 0
        """Bytes of requests that were admitted and wait for their decision; kept by ``Collector`` and ``Publishes``.
        Counted as pending, because a flood within one I/O batch would otherwise pass ``busy_pending_bytes`` unseen."""
        self.room_bytes = 0
        """Bodies are admitted without another look at the log while ``collected_bytes`` is below; 0 = the log must be
        examined. Found by ``refuses_bodies``, or known after a commit that leaves no record pending; the decision of a
        group ends it, because its records take up the room."""
        self.room_of_empty_log = self.busy_pending_bytes
        """``room_bytes`` while no record is pending."""
        self.is_restricted = bool(self.max_requests_per_second)

    @property
    def sends_refused(self) -> str | None:
        """The reason why the disk takes no bodies; requests with bodies are refused."""
        return self._sends_refused

    @sends_refused.setter
    def sends_refused(self, reason: str | None) -> None:
        self._sends_refused = reason
        self.room_bytes = 0
        self.room_of_empty_log = self.busy_pending_bytes if reason is None else 0

    def refuse_all(self, code: ErrorCode, text: str) -> None:
        """Refuse every request from now on."""
        self._all_refused = (code, text)
        self.is_restricted = True

    def stall(self, reason: str | None) -> None:
        """Refuse every request that needs the storage, because the storage hangs; None ends the refusals."""
        if reason is None:
            self.stall_refusal = None
        elif self.sends_refused is not None:
            self.stall_refusal = (ErrorCode.DISK_NEARLY_FULL, reason, DISK_RETRY_MS)
        else:
            self.stall_refusal = (ErrorCode.BUSY, reason, STALLED_RETRY_MS)
        self.is_restricted = bool(self._all_refused or self.stall_refusal or self.max_requests_per_second)

    def refuses(self, client: Client, request: wire.Request) -> bool:
        """Refuse a request that must not reach the core; return True after a refusal."""
        if self._all_refused is not None:
            code, text = self._all_refused
            client.answer(error(request.request_id, code, text))
            return True
        if self.stall_refusal is not None and OPERATIONS[type(request)].needs_storage:
            self.counters.busy += 1
            client.answer(stalled_error(request.request_id, *self.stall_refusal))
            return True
        if self.max_requests_per_second and not self._is_within_rate(client.account):
            text = f"account {client.account!r} is over its limit of {self.max_requests_per_second} requests a second"
            self._answer(client, request.request_id, ErrorCode.TOO_MANY_REQUESTS, text, RATE_RETRY_MS)
            return True
        return False

    def uncount(self, account: str) -> None:
        """Undo the counting of a request that will be dispatched again."""
        self.counters.requests -= 1
        if self.max_requests_per_second:
            self._buckets[account].tokens += 1

    @property
    def is_log_behind(self) -> bool:
        """True if so much waits for the disk, or for its decision, that bodies are refused."""
        pending = self._pending
        pending_bytes = pending.bytes + self.collected_bytes
        return pending_bytes >= self.busy_pending_bytes or pending.records >= self.busy_pending_records

    def has_room(self, size: int) -> bool:
        """Return True if requests with bodies of ``size`` bytes may be collected together; refuses no request."""
        if self.collected_bytes + size < self.room_bytes:
            return True
        pending = self._pending
        if self.sends_refused is not None or pending.records >= self.busy_pending_records:
            return False
        self.room_bytes = self.busy_pending_bytes - pending.bytes
        return self.collected_bytes + size < self.room_bytes

    def refuses_bodies(self, client: Client, request_id: int) -> bool:
        """Refuse a request with bodies if the storage is too slow or has no space; return True after a refusal."""
        pending = self._pending
        if self.sends_refused is None and pending.records < self.busy_pending_records:
            self.room_bytes = self.busy_pending_bytes - pending.bytes
            if self.collected_bytes < self.room_bytes:
                return False
        self.room_bytes = 0
        if self.is_log_behind:
            pending_bytes = self._pending.bytes + self.collected_bytes
            self.counters.busy += 1
            text = f"{pending_bytes} bytes wait for the disk; try again"
            self._answer(client, request_id, ErrorCode.BUSY, text, BUSY_RETRY_MS)
            return True
        if self.sends_refused is not None:
            self.counters.disk_refusals += 1
            self._answer(client, request_id, ErrorCode.DISK_NEARLY_FULL, self.sends_refused, DISK_RETRY_MS)
            return True
        return False

    def _answer(self, client: Client, request_id: int, code: ErrorCode, text: str, retry_after_ms: int) -> None:
        """Answer with a refusal, while this broker leads."""
        self.when_led(partial(client.answer, error(request_id, code, text, retry_after_ms=retry_after_ms)))

    def _is_within_rate(self, account: str) -> bool:
        """Take a token of an account; return False if none is left."""
        now_s = self.now_ms() / 1000
        rate = self.max_requests_per_second
        bucket = self._buckets.get(account)
        if bucket is None:
            bucket = self._buckets[account] = TokenBucket(rate, rate, now_s)
        if not bucket.has_token(now_s):
            return False
        bucket.tokens -= 1
        return True
