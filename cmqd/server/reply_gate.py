"""The reply gate: no reply leaves before everything that it depends on is durable.

Whoever answers a request names the LSN that the log had reached when the answer was decided. The gate lets the
answer go once that LSN is durable: at once if it is, else when the storage process says so. LSNs are handed in
ascending (the log only grows), so the gate is a plain queue. The same holds for what is pushed to a client unasked.

It must not know what a reply means; a connection is to it whatever takes answers.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from cmqd_protocol.messages import AnyPush, AnyReply, TransactionCheck

Outgoing: TypeAlias = AnyReply | AnyPush
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

    Invariant: held replies are in ascending order of LSN, and the LSN of each is above the durable one. Replies that
    were given up come before all others.
    """

    __slots__ = ("_durable_lsn", "_given_up", "_held", "let_go_so_far")

    def __init__(self, durable_lsn: int = 0) -> None:
        self._durable_lsn = durable_lsn
        self._held: deque[tuple[int, Answerable, Outgoing, str | None]] = deque()
        self._given_up: deque[tuple[int, Answerable, Outgoing, str | None]] = deque()
        """Replies whose clients were told that the outcome is unknown; they are let go to a stand-in."""
        self.let_go_so_far = 0
        """Replies that left the gate or were given up, since the start."""

    def __len__(self) -> int:
        return len(self._held) + len(self._given_up)

    def __repr__(self) -> str:
        return f"<ReplyGate held={len(self)} durable_lsn={self._durable_lsn}>"

    @property
    def held_so_far(self) -> int:
        """Replies that were ever held, since the start: with ``let_go_so_far`` it tells how old a held reply is."""
        return self.let_go_so_far + len(self._held)

    def hold(self, lsn: int, asker: Answerable, reply: Outgoing, queue: str | None = None) -> None:
        """Answer once ``lsn`` is durable."""
        if lsn <= self._durable_lsn:
            asker.answer(reply, queue)
        else:
            self._held.append((lsn, asker, reply, queue))

    def open_to(self, durable_lsn: int) -> None:
        """Everything up to ``durable_lsn`` is on disk: let go what waited for it."""
        self._durable_lsn = durable_lsn
        given_up = self._given_up
        while given_up and given_up[0][0] <= durable_lsn:
            _, asker, reply, queue = given_up.popleft()
            asker.answer(reply, queue)
        held = self._held
        count = 0
        while held and held[0][0] <= durable_lsn:
            _, asker, reply, queue = held.popleft()
            count += 1
            asker.answer(reply, queue)
        self.let_go_so_far += count

    @property
    def has_given_up(self) -> bool:
        """Whether replies wait for a stand-in."""
        return bool(self._given_up)

    def with_messages(self) -> Iterator[tuple[Answerable, Outgoing]]:
        """Yield the askers and replies with a queue: those with messages."""
        for entries in (self._given_up, self._held):
            for _, asker, reply, queue in entries:
                if queue is not None:
                    yield asker, reply

    def replace(self, change: Callable[[Answerable, Outgoing], Outgoing]) -> None:
        """Put what ``change`` returns in the place of each reply with messages."""
        for entries in (self._given_up, self._held):
            for place, (lsn, asker, reply, queue) in enumerate(list(entries)):
                if queue is not None and (changed := change(asker, reply)) is not reply:
                    entries[place] = (lsn, asker, changed, queue)

    def give_up(
        self, held_so_far: int, limit: int, stand_in: Callable[[Answerable], Answerable]
    ) -> list[tuple[Answerable, AnyReply, str | None]]:
        """Return replies for the caller to answer otherwise, and let them go to stand-ins when they are durable.

        Args:
            held_so_far: replies up to this count of those that were ever held.
            limit: at most so many in one call, what is pushed included, which stays as it is: nobody waits for it.
            stand_in: makes what takes the reply in place of its client.
        """
        taken: list[tuple[Answerable, AnyReply, str | None]] = []
        held = self._held
        for _ in range(min(limit, len(held), held_so_far - self.let_go_so_far)):
            lsn, asker, reply, queue = held.popleft()
            self.let_go_so_far += 1
            if not isinstance(reply, TransactionCheck):
                taken.append((asker, reply, queue))
                asker = stand_in(asker)
            self._given_up.append((lsn, asker, reply, queue))
        return taken

    def take_all(self) -> list[tuple[Answerable, AnyReply]]:
        """Give up: nothing more will become durable. Returns the replies that were held, oldest first."""
        taken = [(asker, reply) for _, asker, reply, _ in self._held if not isinstance(reply, TransactionCheck)]
        self._held.clear()
        self._given_up.clear()
        return taken

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        lsns = [entry[0] for entry in (*self._given_up, *self._held)]
        assert lsns == sorted(lsns), lsns
        assert not lsns or lsns[0] > self._durable_lsn, (lsns[0], self._durable_lsn)
