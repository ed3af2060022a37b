"""Numbers for sends, so that one whose answer was lost can be repeated without being stored twice.

A send carries a session (random, 64 bits) and its number in it. The server remembers the answers of the last 1,024
numbers of a session; so a number must be answered before the session has moved that far on. A producer with more
sends under way than that goes on in a new session, while the old one's are still answered.
"""

from collections.abc import Callable

WINDOW = 1024
"""Answers that the server remembers for each session (part of the protocol)."""

_CHECK_EVERY = 64
"""Looking for the oldest unanswered number costs a microsecond or so; once in this many sends is enough, as long as
the margin below covers what happens in between."""


class Session:
    """The sends of one session that have not been answered."""

    __slots__ = ("last", "number", "unanswered")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.last: int = 0
        self.unanswered: dict[int, None] = {}
        """Sequences under way, oldest first."""

    def answered(self, sequence: int) -> None:
        """The send was answered, or given up: it will not be repeated."""
        self.unanswered.pop(sequence, None)


class SendNumbering:
    """Gives each send of a client its session and sequence.

    Invariant: no unanswered sequence is ever ``WINDOW`` or more behind the last one of its session.
    """

    __slots__ = ("_random", "_session")

    def __init__(self, random_64_bits: Callable[[], int]) -> None:
        self._random = random_64_bits
        self._session = Session(self._new_number())

    def next(self) -> tuple[Session, int]:
        """Session and sequence of a new send; call ``session.answered(sequence)`` when it has ended."""
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
