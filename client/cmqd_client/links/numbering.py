"""Numbers for sends, so that a send can be repeated after a lost reply without being stored twice.

A send carries a session (random, 64 bits) and its sequence number in the session. The server remembers the replies of
the last 1,024 numbers of a session; so a number must be answered before the session is 1,024 numbers further. A
producer with more sends in progress starts a new session, while sends of the old session are still answered.
"""

from collections.abc import Callable

WINDOW = 1024
"""Replies that the server remembers per session (part of the protocol)."""

_CHECK_EVERY = 64
"""Number of sends between two checks for the oldest unanswered number. A check costs about a microsecond; the margin
below covers the sends in between."""


class Session:
    """The unanswered sends of a session."""

    __slots__ = ("last", "number", "unanswered")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.last: int = 0
        self.unanswered: dict[int, None] = {}
        """Sequences in progress, oldest first."""

    def answered(self, sequence: int) -> None:
        """Remove a send that was answered or given up, and will not be repeated."""
        self.unanswered.pop(sequence, None)


class SendNumbering:
    """Gives every send of a client a session and a sequence.

    Invariant: no unanswered sequence is ``WINDOW`` or more behind the last sequence of its session.
    """

    __slots__ = ("_random", "_session")

    def __init__(self, random_64_bits: Callable[[], int]) -> None:
        self._random = random_64_bits
        self._session = Session(self._new_number())

    def next(self) -> tuple[Session, int]:
        """Return session and sequence of a new send; call ``session.answered(sequence)`` at the end of the send."""
        session = self._session
        sequence = session.last + 1
        if sequence % _CHECK_EVERY == 0 and session.unanswered:
            oldest = next(iter(session.unanswered))
            if sequence - oldest >= WINDOW - 2 * _CHECK_EVERY:
                session = self._session = Session(self._new_number())
                sequence = 1
        session.last = sequence
        session.unanswered[sequence] = None
        return session, sequence

    def _new_number(self) -> int:
        # 0 means "not numbered" on the wire.
        return self._random() or 1
