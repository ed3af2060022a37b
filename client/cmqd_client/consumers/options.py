"""The options of a consumer: defaults, limits and checks."""

from collections.abc import Callable
from math import inf
from typing import Any, Protocol

import msgspec

from cmqd_client.consumers.consumption import ConsumptionLimits
from cmqd_client.durations import Duration, shown_seconds, to_ms, to_patience, to_seconds
from cmqd_client.links.channel import LONGEST_WAIT
from cmqd_client.links.retry import RetryPolicy
from cmqd_types.attributes import QUEUE

LEASE = 30.0
"""Seconds of a consumer's lease: how late a message of a dead consumer is delivered again. The lease is extended every
10 s, so a restart of the server costs no lease."""

LONGEST_PAUSE = QUEUE["visibility_timeout_ms"].high / 1000
"""Longest pause in seconds before a retry: the longest visibility timeout of the protocol."""


class TimerHandle(Protocol):
    """A timer that has been set."""

    def cancel(self) -> None:
        """Never call the callback."""


class Clock(Protocol):
    """Time and timers of a consumer; an event loop is a clock."""

    def time(self) -> float:
        """Return seconds of a monotonic clock."""
        ...

    def call_at(self, when: float, callback: Callable[..., Any], /, *arguments: Any) -> TimerHandle:
        """Call ``callback`` once at that time."""
        ...


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a consumer."""

    limits: ConsumptionLimits
    retry_pauses: RetryPolicy
    """Pauses before the retries of a message; only the delays are used."""
    wait_ms: int
    """Longest wait of a receive."""
    patience: float = inf
    """Seconds for which receives may fail before the consumer ends."""
    clock: Clock | None = None
    """None = the running event loop."""


def consumer_options(
    *,
    concurrency: int | None,
    prefetch: int | None,
    lease: Duration,
    ordered: bool,
    first_retry: Duration,
    longest_retry: Duration,
    wait: Duration,
    patience: Duration | None,
) -> ConsumerOptions:
    """Return the options of a consumer; :meth:`Queue.consumer` explains them.

    Raises:
        TypeError: a duration is neither a number nor a ``timedelta``.
        ValueError: a number is out of range.
    """
    limits = ConsumptionLimits(
        concurrency=concurrency, prefetch=prefetch, lease=to_seconds(lease, "lease"), ordered=ordered
    )
    first, longest = to_seconds(first_retry, "first_retry"), to_seconds(longest_retry, "longest_retry")
    if not 0 <= first <= longest <= LONGEST_PAUSE:
        raise ValueError(
            f"first_retry is {shown_seconds(first)} and longest_retry {shown_seconds(longest)}; "
            "both must be 0 s to 12 h, and the first not the longer"
        )
    wait_ms = to_ms(wait, "wait")
    if not 0 <= wait_ms <= LONGEST_WAIT * 1000:
        raise ValueError(f"wait is {wait!r}; it must be 0 s to {shown_seconds(LONGEST_WAIT)}")
    return ConsumerOptions(
        limits=limits,
        retry_pauses=RetryPolicy(first_delay=first, max_delay=longest),
        wait_ms=wait_ms,
        patience=to_patience(patience),
    )
