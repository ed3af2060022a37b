"""A substitute for the pusher: keeps the pushes, and a test decides their results."""

from collections.abc import Callable, Sequence
from typing import Any

from cmqd.core.outcome import Push, PushResult
from cmqd.server.push.webhooks import request_of


class FakePusher:
    """Keeps the pushes; see the module."""

    def __init__(
        self,
        *,
        secrets_of: Callable[[int], Sequence[str]],
        on_results: Callable[[list[PushResult]], None],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int] = lambda: 0,
        **named: Any,
    ) -> None:
        self.named = named
        """The other arguments of the server."""
        self.pushes: list[Push] = []
        """Under way, oldest first."""
        self.signed_with: list[list[str]] = []
        """The secrets in force at the begin of the pushes."""
        self.ends_with: str | None = "cut off"
        """The result of the pushes that are under way at ``close``."""
        self.closed_within_s: float | None = None
        self._secrets_of = secrets_of
        self._on_results = on_results
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self.requests: list[tuple[dict[str, str], bytes]] = []
        """Headers and bodies of the pushes, as the pusher makes them."""

    @property
    def under_way(self) -> int:
        return len(self.pushes)

    def push(self, push: Push) -> None:
        assert self.closed_within_s is None
        self.pushes.append(push)
        secrets = list(self._secrets_of(push.subscription_id))
        self.signed_with.append(secrets)
        wall_ms = self._wall_ms()
        self.requests.append(request_of(push, secrets, wall_ms // 1000, "fake", wall_ms - self._now_ms()))

    def end(self, error: str | None = None, count: int | None = None) -> list[Push]:
        """End the oldest ``count`` pushes (None = all) with this result, together; returns these pushes."""
        count = len(self.pushes) if count is None else count
        ended = self.pushes[:count]
        del self.pushes[:count]
        now_ms = self._now_ms()
        if ended:
            self._on_results([PushResult(push.subscription_id, push.message.position, now_ms, error) for push in ended])
        return ended

    async def close(self, within_s: float) -> None:
        self.closed_within_s = within_s
        if self.ends_with is None:
            self.end()
        self.pushes.clear()
