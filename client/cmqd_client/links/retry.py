"""Repeats of failed requests and the pauses before them: pure decisions, without clock, socket or random number.

Two questions decide. *May the request have been executed?* An error reply says no (no state was changed); a lost
connection or a time-out says perhaps. *Is a repeat harmless?* The declaration of each operation has the answer
(``cmqd_protocol.operations``): a ``READ`` changes no state, and a receive is one, because messages of a lost reply
become active again. A ``SAFE`` operation leaves the same state again; of a delete, the success of the first attempt
only makes the handle invalid (see ``cmqd_client.queue``). ``ONCE`` is repeated only if the server did not execute the
request; else the caller gets OutcomeUnknown.

Waits grow exponentially from ``first_delay`` to ``max_delay``, shortened at random by up to a half, so that the
clients of a restarted server do not all come back in step ("equal jitter").
"""

import msgspec

from cmqd_client.errors import (
    CmqError,
    ConnectionLost,
    OutcomeUnknown,
    RequestCancelled,
    RequestTimeout,
    SequenceTooOld,
)
from cmqd_protocol.operations import Repeat


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Number of repeats and pauses; all times in seconds. The time for all attempts together is the caller's."""

    retries: int | None = None
    """Most repeats after the first attempt. None = as many as the time allows; 0 = never repeat."""
    first_delay: float = 0.05
    """Wait before the first repeat or reconnection: longer than a scheduling hiccup, too short to be noticed."""
    max_delay: float = 2.0
    """Longest wait between two attempts to connect: how late a client notices that its server is back."""
    max_retry_after: float = 10.0
    """Longest suggested pause that a reconnection waits for."""

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait before attempt ``attempt + 1``.

        Args:
            attempt: number of failed attempts, from 1.
            chance: a random number in [0, 1).
        """
        # min() on the exponent as well: 2.0 ** 1024 would overflow after a night without a server.
        full = min(self.max_delay, self.first_delay * 2.0 ** min(attempt - 1, 30))
        return full * (1 - chance / 2)

    def next_attempt(
        self,
        error: CmqError,
        repeat: Repeat,
        attempt: int,
        remaining: float,
        chance: float,
        *,
        spent: int | None = None,
    ) -> float | None:
        """Return the seconds to wait before a repeat of the request, or None for no repeat.

        Args:
            error: the error of this attempt.
            repeat: whether a repeat is harmless.
            attempt: number of attempts made, from 1.
            remaining: seconds in which the next attempt must begin.
            chance: a random number in [0, 1).
            spent: number of attempts that count for ``retries``; None = all. An attempt at a server that the client
                doubts does not count: it tells nothing of the server that leads.
        """
        if self.retries is not None and (not self.retries or (attempt if spent is None else spent) > self.retries):
            return None
        if may_have_happened(error):
            if repeat is Repeat.ONCE:
                return None
        elif not error.retryable:
            return None
        wait = self.delay(attempt, chance)
        if error.retry_after is not None:
            wait = max(wait, error.retry_after)
        # A pause that outlasts the caller's patience would only delay the error.
        return wait if wait < remaining else None


def may_have_happened(error: CmqError) -> bool:
    """True if the request may have been executed although the attempt failed with ``error``."""
    return isinstance(error, (ConnectionLost, RequestTimeout, OutcomeUnknown, RequestCancelled, SequenceTooOld))


def final_error(error: CmqError, repeat: Repeat) -> CmqError:
    """Return the error for the caller when no further attempt is made.

    For a request that changes the server's state and may have been executed: :class:`OutcomeUnknown`, with ``error``
    as its cause; else ``error`` itself.
    """
    if repeat is Repeat.READ or isinstance(error, OutcomeUnknown) or not may_have_happened(error):
        return error
    unknown = OutcomeUnknown(
        f"it is not known whether the request was carried out: {error.text}",
        request_id=error.request_id,
        connection_id=error.connection_id,
    )
    unknown.__cause__ = error
    return unknown
