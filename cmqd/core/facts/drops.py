"""Drops of one subscription: the messages that the subscription did not get, by reason.

A message for the subscription waits (:class:`~cmqd.core.facts.subscription_backlog.Deliveries` has the waiting
messages), was dropped or was delivered. Waiting and dropped messages are known, so delivered messages need no table: a
publish and a delivery have no cost here.

Drops are few. Retries are used up under backoff only, four attempts and 30 s per message; damage is rare; an operator
drops a backlog as ranges, some bytes for each 65,536 messages. Expired messages are left out: a message below the floor
of its topic is older than a day, and a report does not tell its deliveries any more.

Two generations, a day or longer, bound the memory: the first drop after a day begins a new generation and forgets the
generation before the last. Therefore a drop is known for at least a day, the longest life of its message.
"""

from pyroaring import BitMap64

GENERATION_MS = 86_400_000
"""A message of a topic lives a day."""

Reasons = dict[str, BitMap64]


class Drops:
    """Positions of dropped messages, by reason; changed by records alone."""

    __slots__ = ("_begun_ms", "_newer", "_older", "known_from")

    def __init__(self) -> None:
        self.known_from: int | None = 0
        """Position from which all drops are known; None until the end of recovery, after a checkpoint of a version
        without drops."""
        self._newer: Reasons = {}
        self._older: Reasons = {}
        self._begun_ms = 0
        """Time of the first drop of ``_newer``."""

    def note(self, reason: str, positions: BitMap64, dropped_ms: int) -> None:
        """Add dropped messages."""
        if not positions:
            return
        if dropped_ms - self._begun_ms >= GENERATION_MS:
            # After two days without a drop the newer generation is too old as well.
            self._older = self._newer if dropped_ms - self._begun_ms < 2 * GENERATION_MS else {}
            self._newer = {}
            self._begun_ms = dropped_ms
        known = self._newer.get(reason)
        if known is None:
            self._newer[reason] = positions
        else:
            known |= positions

    def reason_of(self, position: int) -> str | None:
        """Return the reason why a message was dropped, or None if no drop of the message is known."""
        for reasons in (self._newer, self._older):
            for reason, positions in reasons.items():
                if position in positions:
                    return reason
        return None

    def packed(self) -> tuple[int, list[tuple[str, bytes]], list[tuple[str, bytes]]]:
        """Return (time of the first drop of the newer generation, newer generation, older generation) for a
        checkpoint."""
        return self._begun_ms, _packed(self._newer), _packed(self._older)

    def load(
        self,
        known_from: int | None,
        begun_ms: int,
        newer: list[tuple[str, bytes]],
        older: list[tuple[str, bytes]],
    ) -> None:
        """Restore the values that :meth:`packed` returned."""
        self.known_from = known_from
        self._begun_ms = begun_ms
        self._newer = {reason: BitMap64.deserialize(positions) for reason, positions in newer}
        self._older = {reason: BitMap64.deserialize(positions) for reason, positions in older}


def _packed(reasons: Reasons) -> list[tuple[str, bytes]]:
    return [(reason, positions.serialize()) for reason, positions in reasons.items()]
