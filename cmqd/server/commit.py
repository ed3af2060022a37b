"""The reply gate: no reply leaves before everything that it depends on is durable.

Whoever answers a request names the LSN that the log had reached when the answer was decided. The gate lets the
answer go once that LSN is durable: at once if it is, else when the storage process says so. LSNs are handed in
ascending (the log only grows), so the gate is a plain queue. The same holds for what is pushed to a client unasked.

It must not know what a reply means; a connection is to it whatever takes answers.
"""

from collections import deque
from typing import Protocol, TypeAlias

from cmqd_protocol.messages import AnyPush, Reply

Outgoing: TypeAlias = Reply | AnyPush
"""What goes to a client: an answer, or what it has signed up for."""


class Answerable(Protocol):
    """Who asked."""

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        """Take the reply to a request; with ``queue``, one with messages, which must not get lost (unless it is "").
        Or a push.
        """
        ...


class ReplyGate:
    """Replies that wait for the disk.

    Invariant: held replies are in ascending order of LSN, and the LSN of each is above the durable one.
    """

    __slots__ = ("_durable_lsn", "_held")

    def __init__(self, durable_lsn: int = 0) -> None:
        self._durable_lsn = durable_lsn
        self._held: deque[tuple[int, Answerable, Outgoing, str | None]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<ReplyGate held={len(self._held)} durable_lsn={self._durable_lsn}>"

    def hold(self, lsn: int, asker: Answerable, reply: Outgoing, queue: str | None = None) -> None:
        """Answer once ``lsn`` is durable."""
        if lsn <= self._durable_lsn:
            asker.answer(reply, queue)
        else:
            self._held.append((lsn, asker, reply, queue))

    def open_to(self, durable_lsn: int) -> None:
        """Everything up to ``durable_lsn`` is on disk: let go what waited for it."""
        self._durable_lsn = durable_lsn
        held = self._held
        while held and held[0][0] <= durable_lsn:
            _, asker, reply, queue = held.popleft()
            asker.answer(reply, queue)

    def take_all(self) -> list[tuple[Answerable, Reply]]:
        """Give up: nothing more will become durable. Returns the replies that were held, oldest first."""
        taken = [(asker, reply) for _, asker, reply, _ in self._held if isinstance(reply, Reply)]
        self._held.clear()
        return taken

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        lsns = [entry[0] for entry in self._held]
        assert lsns == sorted(lsns), lsns
        assert not lsns or lsns[0] > self._durable_lsn, (lsns[0], self._durable_lsn)
