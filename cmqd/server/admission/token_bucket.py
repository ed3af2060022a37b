"""A token bucket: a burst, then a steady rate. For the requests of accounts and gateways."""


class TokenBucket:
    """Tokens that return at a rate, up to the burst."""

    __slots__ = ("_burst", "_filled_s", "_per_second", "tokens")

    def __init__(self, burst: float, per_second: float, now_s: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._filled_s = now_s
        self.tokens = burst

    def has_token(self, now_s: float) -> bool:
        """Refill, and return True if there is a token; the caller takes it from ``tokens``."""
        self.tokens = min(self._burst, self.tokens + (now_s - self._filled_s) * self._per_second)
        self._filled_s = now_s
        return self.tokens >= 1
