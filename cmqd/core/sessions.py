"""Numbered sends: which sequence of which producer session got which message ids.

A client that lost the answer of a send repeats it with the same session and sequence and gets the first answer, so
nothing is stored twice. The last 1,024 answers of a session are kept, 24 bytes each.
"""

from array import array
from collections import OrderedDict

from cmqd.core.errors import SequenceTooOld
from cmqd.core.limits import Limits


class Session:
    """One producer's answers, in a ring by sequence."""

    __slots__ = ("_ring", "_size", "highest", "last_use_ms", "lsn")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = array("Q")
        """(sequence, first message id, count) at ``sequence % size``; grows as it is used."""
        self.highest = 0
        self.last_use_ms = 0
        self.lsn = 0
        """LSN of the checkpoint slice that this came from."""

    def find(self, sequence: int) -> range | None:
        """The message ids of a numbered send, or None if it is new.

        Raises:
            SequenceTooOld: it is older than what is remembered.
        """
        place = sequence % self._size * 3
        if place < len(self._ring) and self._ring[place] == sequence:
            first = self._ring[place + 1]
            return range(first, first + self._ring[place + 2])
        if sequence + self._size <= self.highest:
            raise SequenceTooOld(sequence, self._size)
        return None

    def note(self, sequence: int, first_message_id: int, count: int, now_ms: int) -> None:
        """Remember an answer."""
        place = sequence % self._size * 3
        ring = self._ring
        if place >= len(ring):
            # Doubles, so that a short-lived session stays small.
            wanted = min(max(place + 3, 2 * len(ring), 48), self._size * 3)
            ring.frombytes(bytes(8 * (wanted - len(ring))))
        ring[place] = sequence
        ring[place + 1] = first_message_id
        ring[place + 2] = count
        if sequence > self.highest:
            self.highest = sequence
        self.last_use_ms = now_ms

    def packed(self) -> bytes:
        """The ring for a checkpoint."""
        return self._ring.tobytes()

    def load(self, ring: bytes) -> None:
        """Take back what ``packed`` gave."""
        self._ring = array("Q")
        self._ring.frombytes(ring)


class Sessions:
    """All producer sessions, least recently used first."""

    __slots__ = ("_limits", "_sessions", "_slice_lsn")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self._slice_lsn = 0
        """LSN of the first checkpoint slice: a session that was used up to there and is in no slice was forgotten."""

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, account: str, session: int, sequence: int) -> range | None:
        """See :meth:`Session.find`."""
        found = self._sessions.get((account, session))
        return None if found is None else found.find(sequence)

    def note(
        self, account: str, session: int, sequence: int, first_message_id: int, count: int, now_ms: int, lsn: int = 0
    ) -> None:
        """Remember an answer; in recovery only if it lies above the session's slice."""
        key = (account, session)
        found = self._sessions.get(key)
        if found is None:
            if lsn and lsn <= self._slice_lsn:
                return
            found = self._sessions[key] = Session(self._limits.session_answers)
            if len(self._sessions) > self._limits.max_sessions:
                self._sessions.popitem(last=False)
        elif lsn and lsn <= found.lsn:
            return
        else:
            if found.last_use_ms + self._limits.session_life_ms <= now_ms:
                # Its life was over, whether a sweep has come by (as in recovery none does) or not.
                found = self._sessions[key] = Session(self._limits.session_answers)
            self._sessions.move_to_end(key)
        found.note(sequence, first_message_id, count, now_ms)

    def expire(self, now_ms: int, most: int) -> bool:
        """Forget up to ``most`` sessions whose life after the last use has passed; True if there may be more."""
        for _ in range(most):
            key, oldest = next(iter(self._sessions.items()), (None, None))
            if key is None or oldest is None or oldest.last_use_ms + self._limits.session_life_ms > now_ms:
                return False
            del self._sessions[key]
        return True

    def no_later_than(self, time_ms: int, lsn: int) -> None:
        """Take later uses for made at ``time_ms``, to which broker time stepped back in row ``lsn`` (0 = now)."""
        for session in self._sessions.values():
            if not lsn or lsn > session.lsn:
                session.last_use_ms = min(session.last_use_ms, time_ms)

    def keys(self) -> list[tuple[str, int]]:
        """All sessions, least recently used first."""
        return list(self._sessions)

    def packed(self, keys: list[tuple[str, int]]) -> list[tuple[str, int, int, int, bytes]]:
        """(account, session, last use, highest sequence, ring) of those of ``keys`` that still exist."""
        found = ((key, self._sessions.get(key)) for key in keys)
        return [(*key, one.last_use_ms, one.highest, one.packed()) for key, one in found if one is not None]

    def load(self, lsn: int, sessions: list[tuple[str, int, int, int, bytes]]) -> None:
        """Take back what ``packed`` gave, as of ``lsn``; slices in the order in which they were made."""
        self._slice_lsn = self._slice_lsn or lsn
        for account, number, last_use_ms, highest, ring in sessions:
            session = self._sessions[account, number] = Session(self._limits.session_answers)
            session.last_use_ms, session.highest, session.lsn = last_use_ms, highest, lsn
            session.load(ring)
