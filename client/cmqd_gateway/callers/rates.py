"""Rates of requests per key: a bucket of tokens for every key in use."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

_MAX_KEYS: Final = 10_000


class Rates(Protocol):
    """The rates of all keys."""

    def take(self, secret_id: str) -> bool:
        """Count a request; False if the key is over its rate."""
        ...


class KeyRates:
    """Counts the requests of keys; a key may use a second's worth of requests at once."""

    def __init__(self, requests_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = float(requests_per_second)
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens left, and the time of their count; the least recently used key first."""

    def take(self, secret_id: str) -> bool:
        """Count a request; False if the key is over its rate."""
        if not self._rate:
            return True
        now = self._now()
        tokens, counted_at = self._buckets.pop(secret_id, (self._rate, now))
        tokens, is_allowed = taken(tokens, (now - counted_at) * self._rate, self._rate)
        self._buckets[secret_id] = (tokens, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return is_allowed


def taken(tokens: float, refill: float, size: float) -> tuple[float, bool]:
    """Return the tokens of a bucket after a refill and a request, and whether the request is within the rate."""
    tokens = min(size, tokens + refill)
    return (tokens - 1, True) if tokens >= 1 else (tokens, False)
