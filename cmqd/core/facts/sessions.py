"""Numbered sends: the message ids of each sequence number of a producer session.

A client that lost the answer of a send repeats the send with the same session and sequence and gets the first answer:
the messages are not stored twice. The last 1,024 answers of a session are kept, 24 bytes per answer.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cmqd.core.domain_errors import SequenceTooOld
from cmqd.core.limits import Limits

SESSION_BYTES: Final = 450
"""Memory of a session beside its ring of answers: objects, numbers, its place among the sessions."""
ENDED_A_NOTE: Final = 2
"""Ended sessions of an account that go with each new one."""


class Session:
    """The answers of one session, in a ring by sequence."""

    __slots__ = ("_ring", "_size", "highest", "last_use_ms", "lsn")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = array("Q")
        """(sequence, first message id, count) at ``sequence % size``; grows as it is used."""
        self.highest = 0
        self.last_use_ms = 0
        self.lsn = 0
        """LSN of the checkpoint slice that has this session."""

    def find(self, sequence: int) -> range | None:
        """Return the message ids of a numbered send, or None if the send is new.

        Raises:
            SequenceTooOld: the sequence is older than the remembered answers.
        """
        place = sequence % self._size * 3
        if place < len(self._ring) and self._ring[place] == sequence:
            first = self._ring[place + 1]
            return range(first, first + self._ring[place + 2])
        if sequence + self._size <= self.highest:
            raise SequenceTooOld(sequence, self._size)
        return None

    def note(self, sequence: int, first_message_id: int, count: int, now_ms: int) -> int:
        """Remember an answer, unless its entry in the ring belongs to a later answer; return the growth in bytes.

        A publish that is planned in slices is stored late: ``size`` later numbers of its session can be stored before
        it. A repeat of the publish is then too old (see ``find``). If the publish took the entry, a repeat of the later
        number would be unknown, and stored a second time.
        """
        self.last_use_ms = now_ms
        if sequence + self._size <= self.highest:
            return 0
        grown_bytes = 0
        place = sequence % self._size * 3
        ring = self._ring
        if place >= len(ring):
            # Doubles, because a short-lived session needs only a short ring.
            wanted = min(max(place + 3, 2 * len(ring), 48), self._size * 3)
            grown_bytes = 8 * (wanted - len(ring))
            ring.frombytes(bytes(grown_bytes))
        ring[place] = sequence
        ring[place + 1] = first_message_id
        ring[place + 2] = count
        if sequence > self.highest:
            self.highest = sequence
        return grown_bytes

    @property
    def size_bytes(self) -> int:
        """Return the memory of the session, roughly."""
        return SESSION_BYTES + 8 * len(self._ring)

    def packed(self) -> bytes:
        """Return the ring in the form of a checkpoint."""
        return self._ring.tobytes()

    def load(self, ring: bytes) -> None:
        """Restore a ring made by ``packed``."""
        self._ring = array("Q")
        self._ring.frombytes(ring)


_NONE: Final[OrderedDict[int, Session]] = OrderedDict()
"""The sessions of an account without sessions."""


class Sessions:
    """The producer sessions of each account, least recently used first.

    A session is forgotten when its life after the last use is over, and for no other reason. A tick sweeps, and each
    new session of an account removes ended sessions: a replay, which has no ticks, would otherwise outgrow a live
    broker.
    """

    def __init__(self, limits: Limits, changed: Callable[[str, int], None] | None = None) -> None:
        """``changed`` is called with the growth of the memory of an account's sessions, in bytes."""
        self._limits = limits
        self._changed = changed or _nothing
        self._by_account: dict[str, OrderedDict[int, Session]] = {}
        self._count = 0
        self._slice_lsn = 0
        """LSN of the first checkpoint slice: a session last used before it that is in no slice was forgotten."""

    def __len__(self) -> int:
        return self._count

    def count_of(self, account: str) -> int:
        """Return the number of sessions of an account, ended but unswept sessions included."""
        return len(self._by_account.get(account, ()))

    def oldest_use_ms(self, account: str) -> int | None:
        """Return the last use of the least recently used session of an account; None without a session."""
        sessions = self._by_account.get(account)
        return next(iter(sessions.values())).last_use_ms if sessions else None

    def knows(self, account: str, session: int, now_ms: int) -> bool:
        """Return whether a session exists and its life is not over."""
        found = self.of(account).get(session)
        return found is not None and found.last_use_ms + self._limits.session_life_ms > now_ms

    def of(self, account: str) -> Mapping[int, Session]:
        """Return the sessions of an account by number, with sessions whose life is over until they are swept."""
        return self._by_account.get(account, _NONE)

    def find(self, account: str, session: int, sequence: int) -> range | None:
        """Return the message ids of a numbered send; see :meth:`Session.find`."""
        found = self.of(account).get(session)
        return None if found is None else found.find(sequence)

    def note(self, account: str, numbered: Sequence[int], now_ms: int, lsn: int = 0) -> None:
        """Remember answers, each as session, sequence, first message id and count; in recovery only those above the
        slices of their sessions.
        """
        life_ms = self._limits.session_life_ms
        for at in range(0, len(numbered), 4):
            session, sequence, first_message_id, count = numbered[at : at + 4]
            sessions = self._by_account.get(account, _NONE)
            found = sessions.get(session)
            if found is None:
                if lsn and lsn <= self._slice_lsn:
                    continue
                for _ in range(ENDED_A_NOTE):
                    if not self.forget_ended(account, now_ms):
                        break
                found = self._add(account, session)
            elif lsn and lsn <= found.lsn:
                continue
            elif found.last_use_ms + life_ms <= now_ms:
                # Its life was over, even if no sweep has removed it yet (recovery has no sweeps).
                self._remove(account, session)
                found = self._add(account, session)
            else:
                sessions.move_to_end(session)
            grown_bytes = found.note(sequence, first_message_id, count, now_ms)
            if grown_bytes:
                self._changed(account, grown_bytes)

    def _add(self, account: str, number: int) -> Session:
        session = self._by_account.setdefault(account, OrderedDict())[number] = Session(self._limits.session_answers)
        self._count += 1
        self._changed(account, session.size_bytes)
        return session

    def _remove(self, account: str, number: int) -> None:
        sessions = self._by_account[account]
        session = sessions.pop(number)
        if not sessions:
            del self._by_account[account]
        self._count -= 1
        self._changed(account, -session.size_bytes)

    def forget_ended(self, account: str, now_ms: int) -> bool:
        """Forget the least recently used session of an account if its life is over; return whether a session went."""
        sessions = self._by_account.get(account)
        if not sessions:
            return False
        number, oldest = next(iter(sessions.items()))
        if oldest.last_use_ms + self._limits.session_life_ms > now_ms:
            return False
        self._remove(account, number)
        return True

    def expire(self, now_ms: int, most: int) -> bool:
        """Forget up to ``most`` sessions past their life after the last use; True if there may be more."""
        for account in list(self._by_account):
            while self.forget_ended(account, now_ms):
                most -= 1
                if most <= 0:
                    return True
        return False

    def no_later_than(self, time_ms: int, lsn: int) -> None:
        """Cap the times of last uses at ``time_ms``, to which broker time stepped back in row ``lsn`` (0 = now)."""
        for sessions in self._by_account.values():
            for session in sessions.values():
                if not lsn or lsn > session.lsn:
                    session.last_use_ms = min(session.last_use_ms, time_ms)

    def age(self, aged_ms: int, lsn: int) -> None:
        """Let the last uses be ``aged_ms`` longer ago, in row ``lsn`` (0 = now). The order of uses stays."""
        for sessions in self._by_account.values():
            for session in sessions.values():
                if not lsn or lsn > session.lsn:
                    session.last_use_ms = max(0, session.last_use_ms - aged_ms)

    def sizes_bytes(self) -> dict[str, int]:
        """Return the memory by account."""
        return {
            account: sum(session.size_bytes for session in sessions.values())
            for account, sessions in self._by_account.items()
        }

    def keys(self) -> list[tuple[str, int]]:
        """Return all sessions, the least recently used of an account first."""
        return [(account, number) for account, sessions in self._by_account.items() for number in sessions]

    def packed(self, keys: list[tuple[str, int]]) -> list[tuple[str, int, int, int, bytes]]:
        """Return (account, session, last use, highest sequence, ring) of the sessions in ``keys`` that still exist."""
        found = ((key, self._by_account.get(key[0], _NONE).get(key[1])) for key in keys)
        return [(*key, one.last_use_ms, one.highest, one.packed()) for key, one in found if one is not None]

    def load(self, lsn: int, sessions: list[tuple[str, int, int, int, bytes]]) -> None:
        """Restore sessions made by ``packed``, as of ``lsn``; slices come in the order of their making."""
        self._slice_lsn = self._slice_lsn or lsn
        for account, number, last_use_ms, highest, ring in sessions:
            session = self._add(account, number)
            session.last_use_ms, session.highest, session.lsn = last_use_ms, highest, lsn
            before_bytes = session.size_bytes
            session.load(ring)
            self._changed(account, session.size_bytes - before_bytes)


def _nothing(account: str, grown_bytes: int) -> None:
    """Ignore a change of memory."""
