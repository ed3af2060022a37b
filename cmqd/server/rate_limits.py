"""Request rates of accounts: a token bucket per account, with a burst of a second."""


class RateLimits:
    """The buckets of all accounts; see the module."""

    __slots__ = ("_buckets", "per_second")

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._buckets: dict[str, tuple[float, int]] = {}
        """(tokens, as of when in ms) by account."""

    def allows(self, account: str, now_ms: int) -> bool:
        """Return True and count the request if it is within the limit."""
        tokens, then_ms = self._buckets.get(account, (float(self.per_second), now_ms))
        tokens = min(float(self.per_second), tokens + (now_ms - then_ms) * self.per_second / 1000)
        allowed = tokens >= 1
        self._buckets[account] = (tokens - 1 if allowed else tokens, now_ms)
        return allowed

    def give_back(self, account: str) -> None:
        """A request that was counted is not carried out yet, and will be counted again."""
        tokens, then_ms = self._buckets[account]
        self._buckets[account] = (tokens + 1, then_ms)
