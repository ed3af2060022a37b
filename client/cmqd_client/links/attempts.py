"""Count the attempts of a call, and choose the pauses behind them.

``retry`` decides about a single repeat; this module remembers the attempts of a call, also over a change of its server.
"""

from random import random

from cmqd_client.connection import Connection
from cmqd_client.errors import CmqError
from cmqd_client.links.retry import RetryPolicy
from cmqd_protocol.operations import Repeat


class Attempts:
    """Failed attempts of a call.

    An attempt at a doubted server does not count for ``retries``: the server may be cut off, and then tells nothing of
    the leader. Once the client has left the server, the pauses begin anew.
    """

    __slots__ = ("_counted", "_in_a_row", "_policy", "all")

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0
        """Attempts since the last change of the server; the pauses grow with them."""
        self._counted = 0
        """Attempts that count for ``retries``."""
        self.all: int = 0
        """Number of failed attempts."""

    def failed(self, error: CmqError, repeat: Repeat, remaining: float, connection: Connection | None) -> float | None:
        """Note a failed attempt; return the seconds to wait before the next attempt, None = no further attempt.

        Args:
            error: the error of the attempt.
            repeat: whether a repeat is harmless.
            remaining: seconds in which the next attempt must begin.
            connection: the connection of the attempt; None = the link was down.
        """
        self.all += 1
        self._in_a_row += 1
        if connection is None or not connection.is_doubted:
            self._counted += 1
        elif not connection.usable:
            self._in_a_row = 1
        return self._policy.next_attempt(error, repeat, self._in_a_row, remaining, random(), spent=self._counted)

    def interrupted(self, error: CmqError, remaining: float) -> float:
        """Note an attempt of a receive that ended during its wait, and counts for nothing; return the pause."""
        self.all += 1
        self._in_a_row = self._counted = 0
        return min(max(self._policy.delay(1, random()), error.retry_after or 0.0), remaining)
