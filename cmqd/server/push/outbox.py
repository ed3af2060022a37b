"""Pushes to URLs on the way from the core to the pusher.

Rules:

- A push waits until the records of its outcome are durable. Otherwise a subscriber could get a message of a publish
  that a crash undid. After a failure of the log nothing more is posted.
- A push waits until the secret of its subscription is written, because an unsigned post would be refused. If the
  subscription ends meanwhile, the attempt is reported as failed.
- ``pusher`` makes the posts and reports the results; the core decides when an attempt is due.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from cmqd.core.outcome import Push, PushResult


class Pushing(Protocol):
    """Makes the posts: the ``Pusher``, or a fake in tests."""

    @property
    def under_way(self) -> int:
        """Number of posts under way."""
        ...

    def push(self, push: Push) -> None:
        """Begin a post; the result is reported later."""
        ...

    async def close(self, within_s: float) -> None:
        """Wait for the posts under way, then cancel them; take no more."""
        ...


class Outbox:
    """Pushes that wait for the disk or for a secret; see the module.

    Invariant: held pushes are in ascending order of LSN, and their LSNs are above the durable LSN.
    """

    __slots__ = ("_durable_lsn", "_has_secret", "_pusher", "_stopped", "_unsigned", "held")

    def __init__(self, durable_lsn: Callable[[], int], has_secret: Callable[[int], bool]) -> None:
        """Join the outbox to the log and to the accounts.

        Args:
            durable_lsn: returns the LSN up to which all rows are durable.
            has_secret: returns True if pushes of a subscription can be signed.
        """
        self._durable_lsn = durable_lsn
        self._has_secret = has_secret
        self.held: deque[tuple[int, Sequence[Push]]] = deque()
        """LSNs and pushes that wait for the disk. Read-only outside: ``open_to`` is called only if the deque has
        entries, because most commits have no pushes."""
        self._unsigned: dict[int, list[Push]] = {}
        """Pushes that wait for a secret, by subscription."""
        self._pusher: Pushing | None = None
        self._stopped = False

    def __len__(self) -> int:
        return sum(len(pushes) for _, pushes in self.held) + sum(map(len, self._unsigned.values()))

    def __repr__(self) -> str:
        return f"<Outbox held={len(self.held)} unsigned={len(self._unsigned)} durable_lsn={self._durable_lsn()}>"

    @property
    def can_push(self) -> bool:
        """True if posts can be made."""
        return self._pusher is not None

    @property
    def under_way(self) -> int:
        """Number of posts under way."""
        return 0 if self._pusher is None else self._pusher.under_way

    def use(self, pusher: Pushing) -> None:
        """Set the part that makes the posts."""
        self._pusher = pusher

    def hold(self, lsn: int, pushes: Sequence[Push]) -> None:
        """Post when ``lsn`` is durable."""
        if lsn <= self._durable_lsn():
            self._post(pushes)
        else:
            self.held.append((lsn, pushes))

    def open_to(self, durable_lsn: int) -> None:
        """Post the pushes up to ``durable_lsn``."""
        held = self.held
        while held and held[0][0] <= durable_lsn:
            self._post(held.popleft()[1])

    def secret_made(self, subscription_id: int) -> None:
        """Post the pushes that waited for the secret of a subscription."""
        waiting = self._unsigned.pop(subscription_id, None)
        if waiting:
            self._post(waiting)

    def forget(self, subscription_id: int, now_ms: int) -> list[PushResult]:
        """Drop the pushes that wait for the secret of a subscription that ended; return the results of the attempts
        never made."""
        unsigned = self._unsigned.pop(subscription_id, None)
        if not unsigned or self._stopped:
            return []
        return [PushResult(subscription_id, push.message.position, now_ms, "unsubscribed") for push in unsigned]

    def stop(self) -> None:
        """Begin no more posts. Held pushes are left to the next start: no record of their attempts exists."""
        self._stopped = True
        self.held.clear()
        self._unsigned.clear()

    async def close(self, within_s: float) -> None:
        """Begin no more posts, and wait for the posts under way."""
        self.stop()
        if self._pusher is not None:
            await self._pusher.close(within_s)

    def _post(self, pushes: Sequence[Push]) -> None:
        pusher = self._pusher
        if self._stopped or pusher is None:
            return
        for push in pushes:
            if self._has_secret(push.subscription_id):
                pusher.push(push)
            else:
                self._unsigned.setdefault(push.subscription_id, []).append(push)
