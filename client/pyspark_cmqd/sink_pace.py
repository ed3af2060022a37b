"""So many messages a second, evenly. Pure: the time is given."""

import math

STEPS_A_SECOND = 10
"""Minimum of requests a second: a burst is a tenth of a second's worth, or a message."""


class Pace:
    """Pacer of sends: tells when the next messages may go.

    Every message takes a slot in time, and unused slots are lost: after a pause the rate is not exceeded to catch up.
    In any T seconds at most ``rate * T`` messages and the messages of a single request go.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = -math.inf

    @property
    def most_at_once(self) -> int:
        """Messages in a request."""
        return max(1, int(self._rate / STEPS_A_SECOND))

    def wait_seconds(self, messages: int, now: float) -> float:
        """Return the wait before sending ``count`` messages, which count as sent then. ``now``: seconds of any steady
        clock.
        """
        at = max(now, self._free_at)
        self._free_at = at + messages / self._rate
        return at - now
