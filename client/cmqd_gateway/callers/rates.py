"""Rates of requests per key: a bucket of tokens for every key in use."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MAX_KEYS: Final = 10_000


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
        tokens = min(self._rate, tokens + (now - counted_at) * self._rate)
        is_allowed = tokens >= 1
        self._buckets[secret_id] = (tokens - 1 if is_allowed else tokens, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return is_allowed
