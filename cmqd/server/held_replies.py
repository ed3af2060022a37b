"""Memory of large replies that wait at the gate for the disk.

A reply usually leaves the gate within milliseconds, so a reply costs nothing here. Ten times a second a beat looks
whether replies stay: only replies that were there at the beat before are counted, for a disk that is slow or hangs. A
connection can have 64 MiB of bodies at the gate, and its memory budget drops it by the usual rule.

Bodies for a client that is gone are of no use: the messages go back to their queue by their receipt handles alone. So
such replies are replaced by replies without bodies, whether the budget dropped the client, the client left or the
request was given up. Without that a client could fill the memory by receiving and leaving, again and again.
"""

from collections.abc import Iterable
from typing import Protocol, cast

from msgspec.structs import replace

from cmqd.server.memory_budget import LEAST_BYTES
from cmqd.server.reply_gate import Outgoing, ReplyGate
from cmqd_protocol.messages import MessagesPeeked, MessagesReceived


class Holder(Protocol):
    """A client with replies at the gate."""

    @property
    def is_gone(self) -> bool:
        """Whether no reply can reach it any more."""
        ...

    def note_held_replies(self, size: int) -> None:
        """Take note of the bytes of its replies that wait at the gate."""
        ...


class HeldReplies:
    """See the module."""

    __slots__ = ("_gate", "_held_before", "_noted")

    def __init__(self, gate: ReplyGate) -> None:
        self._gate = gate
        self._held_before = 0
        """Replies ever held, at the beat before."""
        self._noted: set[Holder] = set()
        """Clients with noted bytes."""

    def beat(self) -> None:
        """Count the replies that stay at the gate."""
        gate = self._gate
        if gate.let_go_so_far < self._held_before or gate.has_given_up:
            self._count()
        elif self._noted:
            self.forget()
        self._held_before = gate.held_so_far

    def forget(self) -> None:
        """Note nothing more for any client: the gate opened, and a client that does not read is counted elsewhere."""
        noted, self._noted = self._noted, set()
        for holder in noted:
            holder.note_held_replies(0)

    def _count(self) -> None:
        sizes: dict[Holder, int] = {}
        for asker, reply in self._with_bodies():
            holder = cast("Holder", asker)
            sizes[holder] = sizes.get(holder, 0) + _body_bytes(reply)
        large = {holder: size for holder, size in sizes.items() if size >= LEAST_BYTES}
        for holder in self._noted - large.keys():
            holder.note_held_replies(0)
        self._noted = {holder for holder in large if not holder.is_gone}
        for holder in self._noted:
            holder.note_held_replies(large[holder])
        # The budget may have dropped some just now.
        gone = {holder for holder in large if holder.is_gone}
        if gone:
            self._noted -= gone
            self._gate.replace(lambda asker, reply: without_bodies(reply) if cast("Holder", asker) in gone else reply)

    def _with_bodies(self) -> "Iterable[tuple[object, MessagesReceived | MessagesPeeked]]":
        for asker, reply in self._gate.with_messages():
            if isinstance(reply, MessagesReceived | MessagesPeeked):
                yield asker, reply


def _body_bytes(reply: MessagesReceived | MessagesPeeked) -> int:
    return sum([len(message.body) for message in reply.messages])


def without_bodies(reply: Outgoing) -> Outgoing:
    """Return a reply whose messages have receipt handles and no bodies; what holds no messages stays as it is."""
    if isinstance(reply, MessagesReceived):
        return replace(reply, messages=[replace(message, body=b"", headers=None) for message in reply.messages])
    return replace(reply, messages=[]) if isinstance(reply, MessagesPeeked) else reply
