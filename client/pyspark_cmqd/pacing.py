"""So many messages a second, evenly. Pure: the time is given."""

import math

STEPS_A_SECOND = 10
"""Requests a second, at least: what is sent at once is a tenth of a second's worth, or one message."""


class Pace:
    """When the next messages may go.

    A place in time is kept for each message, and time that passed unused is gone: after a pause nothing is made up for.
    So in any T seconds at most ``rate * T`` messages go, and those of one request.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = -math.inf

    @property
    def most_at_once(self) -> int:
        """Messages in a request."""
        return max(1, int(self._rate / STEPS_A_SECOND))

    def wait_seconds(self, messages: int, now: float) -> float:
        """How long to wait before sending so many; they count as sent then. ``now``: seconds of any steady clock."""
        at = max(now, self._free_at)
        self._free_at = at + messages / self._rate
        return at - now
