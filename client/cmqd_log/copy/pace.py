"""The pace of a sink with a rate: sends spread evenly over time. Pure: the caller passes the time."""

import math

STEPS_A_SECOND = 10
"""Minimum number of requests a second: a request has at most a tenth of a second's messages, but at least one."""


class Pace:
    """Computes the wait before each request.

    Unused time is lost: after a pause the rate is not exceeded to catch up. In any T seconds at most ``rate * T``
    messages are sent, plus the messages of a single request.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = -math.inf

    @property
    def most_at_once(self) -> int:
        """Maximum number of messages of a request."""
        return max(1, int(self._rate / STEPS_A_SECOND))

    def wait_seconds(self, messages: int, now: float) -> float:
        """Return the seconds to wait before a request, and count its messages as sent after the wait.

        Args:
            messages: number of messages of the request.
            now: seconds of a clock that never steps.
        """
        at = max(now, self._free_at)
        self._free_at = at + messages / self._rate
        return at - now
