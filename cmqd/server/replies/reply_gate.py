"""The reply gate: no reply leaves before the state that it depends on is durable.

A reply comes with the LSN that the log had reached when the reply was decided. The gate releases the reply when that
LSN is durable: at once, or when the log reports the LSN. LSNs arrive in ascending order, because the log only grows; so
the gate is a plain queue, and a durable LSN releases a prefix. Pushes to clients pass the gate by the same rule.
``answering`` chooses the LSN of each reply. Refusals of ``request_admission`` and the ends of handshakes
depend on no row, and wait only for the lead (``when_led``).

The gate does not know the meaning of replies, nor connections beyond the method that takes a reply.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from cmqd_protocol.messages import AnyReply, Push

Outgoing: TypeAlias = AnyReply | Push
"""A message to a client: a reply, or a push."""


class Answerable(Protocol):
    """The receiver of replies."""

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        """Take a reply or a push. ``queue`` is set for a reply with messages: the messages go back to that queue if the
        reply cannot be sent. "" stands for peeked messages, which are not leased and need not go back.
        """
        ...


Held: TypeAlias = tuple[int, Answerable, Outgoing, str | None]
"""A reply at the gate: the LSN, the receiver, the reply, and the queue of its messages."""


CLOSED: Final = -1
"""A durable LSN below all LSNs: the gate holds every reply."""


class Gate(Protocol):
    """The gate that a reply passes on its way out: a :class:`ReplyGate`, or with redundancy a gate before it."""

    def hold(self, lsn: int, asker: Answerable, reply: Outgoing, queue: str | None = None) -> None:
        """Send a reply when ``lsn`` is durable."""
        ...

    def hold_all(self, held: list[Held]) -> None:
        """Hold the replies of a group, which have the same LSN, in their order."""
        ...

    def when_led(self, step: Callable[[], None]) -> None:
        """Take a step that depends on no row, but tells a client what only the leader may tell."""
        ...

    def forget(self, step: Callable[[], None]) -> None:
        """Do not take a step that waits for the lead."""
        ...

    def open_to(self, durable_lsn: int) -> None:
        """Release the replies up to ``durable_lsn``."""
        ...


class ReplyGate:
    """Replies that wait for the disk.

    Invariant: held replies are in ascending order of LSN, and all LSNs are above the durable LSN. Replies that were
    given up come before all other replies.
    """

    __slots__ = ("_given_up", "_held", "durable_lsn", "is_for_lone_client", "let_go_so_far")

    def __init__(self, durable_lsn: int = 0) -> None:
        self.durable_lsn = durable_lsn
        """A reply up to this LSN leaves at once; ``CLOSED`` = no reply does."""
        self._held: deque[Held] = deque()
        self._given_up: deque[Held] = deque()
        """Replies to requests that were answered ``outcome_unknown``; a stand-in takes them."""
        self.let_go_so_far = 0
        """Number of replies released or given up since the start."""
        self.is_for_lone_client = True
        """True if no reply is held, and the last commit released at most one: the usual state while a single client
        waits for the answer to each request. Set by a hold and by ``open_to``, so False may outlast replies that were
        given up: the next I/O batch polls once more. An attribute, because each I/O batch reads it."""

    def __len__(self) -> int:
        return len(self._held) + len(self._given_up)

    def __repr__(self) -> str:
        return f"<ReplyGate held={len(self)} durable_lsn={self.durable_lsn}>"

    @property
    def held_so_far(self) -> int:
        """Number of replies held since the start. A reply that was counted here has left the gate once
        ``let_go_so_far`` has reached the count, so the age of replies is known without a time for each reply.
        """
        return self.let_go_so_far + len(self._held)

    def hold(self, lsn: int, asker: Answerable, reply: Outgoing, queue: str | None = None) -> None:
        """Send a reply when ``lsn`` is durable."""
        if lsn <= self.durable_lsn:
            asker.answer(reply, queue)
        else:
            self._held.append((lsn, asker, reply, queue))
            self.is_for_lone_client = False

    def hold_all(self, held: list[Held]) -> None:
        """Hold the replies of a group, which have the same LSN, in their order."""
        if not held:
            return
        if held[0][0] <= self.durable_lsn:
            for _, asker, reply, queue in held:
                asker.answer(reply, queue)
        else:
            self._held.extend(held)
            self.is_for_lone_client = False

    def when_led(self, step: Callable[[], None]) -> None:
        """Take a step that depends on no row, but tells a client what only the leader may tell: at once."""
        step()

    def forget(self, step: Callable[[], None]) -> None:
        """Do not take a step that waits for the lead."""

    def open_to(self, durable_lsn: int) -> None:
        """Release the replies up to ``durable_lsn``."""
        self.durable_lsn = durable_lsn
        if self._given_up:
            self.release_given_up(durable_lsn)
        held = self._held
        count = 0
        while held and held[0][0] <= durable_lsn:
            _, asker, reply, queue = held.popleft()
            count += 1
            asker.answer(reply, queue)
        self.let_go_so_far += count
        self.is_for_lone_client = count <= 1 and not held

    def release_first(self, durable_lsn: int, held_so_far: int) -> None:
        """Release the replies up to ``durable_lsn`` that are among the first ``held_so_far`` of all replies."""
        held = self._held
        while held and held[0][0] <= durable_lsn and self.let_go_so_far < held_so_far:
            _, asker, reply, queue = held.popleft()
            self.let_go_so_far += 1
            asker.answer(reply, queue)

    def release_given_up(self, durable_lsn: int) -> None:
        """Release the replies up to ``durable_lsn`` that stand-ins take."""
        given_up = self._given_up
        while given_up and given_up[0][0] <= durable_lsn:
            _, asker, reply, queue = given_up.popleft()
            asker.answer(reply, queue)

    @property
    def holds_any(self) -> bool:
        """True if replies wait here for their own clients."""
        return bool(self._held)

    @property
    def has_given_up(self) -> bool:
        """True if replies wait for a stand-in."""
        return bool(self._given_up)

    def with_messages(self) -> Iterator[tuple[Answerable, Outgoing]]:
        """Yield the replies with messages, and their askers."""
        for entries in (self._given_up, self._held):
            for _, asker, reply, queue in entries:
                if queue is not None:
                    yield asker, reply

    def replace(self, change: Callable[[Answerable, Outgoing], Outgoing]) -> None:
        """Replace each reply with messages by the result of ``change``."""
        for entries in (self._given_up, self._held):
            for place, (lsn, asker, reply, queue) in enumerate(list(entries)):
                if queue is not None and (changed := change(asker, reply)) is not reply:
                    entries[place] = (lsn, asker, changed, queue)

    def replace_askers(
        self, held_so_far: int, limit: int, change: Callable[[Answerable, Outgoing, str | None], Answerable]
    ) -> int:
        """Give held replies to the results of ``change``, in their places: the number of replies stays.

        Args:
            held_so_far: leave the replies out that were held up to this number of ``held_so_far``.
            limit: replies of one call; the oldest first.
            change: returns the new receiver of a reply.

        Returns:
            The number of ``held_so_far`` for the next call, which goes on behind the replies of this call.
        """
        held = self._held
        start = max(held_so_far - self.let_go_so_far, 0)
        count = max(min(limit, len(held) - start), 0)
        if count:
            # Not by index: an index into the middle of a long queue is a walk.
            held.rotate(-start)
            for _ in range(count):
                lsn, asker, reply, queue = held.popleft()
                held.append((lsn, change(asker, reply, queue), reply, queue))
            held.rotate(start + count)
        return self.let_go_so_far + start + count

    def give_up(
        self, held_so_far: int, limit: int, stand_in: Callable[[Answerable], Answerable]
    ) -> list[tuple[Answerable, AnyReply, str | None]]:
        """Give up replies: the caller answers the requests, and stand-ins take the replies once these are durable.

        A reply is not dropped, because its row was handed over: the messages of a receive are leased as soon as the row
        is durable, and only the reply says which messages the stand-in must put back.

        Args:
            held_so_far: give up replies up to this number of ``held_so_far``.
            limit: entries of one call. Pushes count and stay as they are, because no request waits for a push.
            stand_in: makes the stand-in for a client.
        """
        taken: list[tuple[Answerable, AnyReply, str | None]] = []
        held = self._held
        # From the front, so that the replies that were given up stay before all held replies.
        for _ in range(min(limit, len(held), held_so_far - self.let_go_so_far)):
            lsn, asker, reply, queue = held.popleft()
            self.let_go_so_far += 1
            if not isinstance(reply, Push):
                taken.append((asker, reply, queue))
                asker = stand_in(asker)
            self._given_up.append((lsn, asker, reply, queue))
        return taken

    def take_all(self) -> list[tuple[Answerable, AnyReply]]:
        """Empty the gate after a failure, and return the replies, oldest first. Replies that were given up are dropped:
        the requests have an answer, and after a failure no call of the core can put messages back.
        """
        taken = [(asker, reply) for _, asker, reply, _ in self._held if not isinstance(reply, Push)]
        self._held.clear()
        self._given_up.clear()
        return taken

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        lsns = [entry[0] for entry in (*self._given_up, *self._held)]
        assert lsns == sorted(lsns), lsns
        assert not lsns or lsns[0] > self.durable_lsn, (lsns[0], self.durable_lsn)
