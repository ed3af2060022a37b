"""Dedup ids of one queue: which message was sent under which id, for a few minutes and a bounded number of them."""

from collections import OrderedDict

from cmqd.core.limits import Limits


class DedupIds:
    """Oldest first. A remembered id is found until its time has passed, whether a sweep has come by or not."""

    __slots__ = ("_limits", "_sent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """(message id, time of sending in ms) by dedup id."""

    def __len__(self) -> int:
        return len(self._sent)

    def find(self, dedup_id: str, now_ms: int) -> int | None:
        """The id of the message that was sent under this dedup id."""
        found = self._sent.get(dedup_id)
        if found is None or found[1] + self._limits.dedup_life_ms <= now_ms:
            return None
        return found[0]

    def note(self, dedup_id: str, message_id: int, sent_ms: int) -> None:
        """A message was sent under this id; the oldest id is forgotten when there are too many."""
        self._sent[dedup_id] = (message_id, sent_ms)
        self._sent.move_to_end(dedup_id)
        if len(self._sent) > self._limits.max_dedup_ids:
            self._sent.popitem(last=False)

    def expire(self, now_ms: int, most: int) -> bool:
        """Forget up to ``most`` whose time has passed; True if there may be more."""
        for _ in range(most):
            dedup_id, (_, sent_ms) = next(iter(self._sent.items()), ("", (0, now_ms)))
            if sent_ms + self._limits.dedup_life_ms > now_ms:
                return False
            del self._sent[dedup_id]
        return True

    def entries(self) -> list[tuple[str, int, int]]:
        """(dedup id, message id, time of sending in ms), oldest first."""
        return [(dedup_id, message_id, sent_ms) for dedup_id, (message_id, sent_ms) in self._sent.items()]
