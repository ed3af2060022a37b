"""Memory of large replies that wait at the gate for the disk.

A reply usually leaves the gate within milliseconds and is never counted. A beat, ten times a second, counts the replies
that were at the gate at the beat before: the disk is slow or hangs. A connection can have 64 MiB of bodies at the gate.
Over the budget the connection is dropped by the rule of ``memory_budget``.

The messages of a closed connection go back to their queue by receipt handle, without their bodies. So the bodies are
removed from replies at the gate if the budget dropped the connection, the client left, or the request was given up.
Otherwise a client could fill the memory by receiving and leaving, again and again.
"""

from typing import cast

from msgspec.structs import replace

from cmqd.server.admission.memory_budget import LEAST_BYTES
from cmqd.server.clients.client import Client
from cmqd.server.replies.reply_gate import Outgoing, ReplyGate
from cmqd_protocol.messages import MessagesPeeked, MessagesReceived


class HeldReplyMemory:
    """Notes the bytes of held replies in the memory budget; see the module."""

    __slots__ = ("_gate", "_held_before", "noted")

    def __init__(self, gate: ReplyGate) -> None:
        self._gate = gate
        self._held_before = 0
        """Replies ever held, at the beat before."""
        self.noted: set[Client] = set()
        """Clients with noted bytes. Read-only outside: every durable LSN reads the set, and ``forget`` is called only
        if the set has clients."""

    def beat(self) -> None:
        """Count the replies that stay at the gate."""
        gate = self._gate
        if gate.let_go_so_far < self._held_before or gate.has_given_up:
            self._count()
        elif self.noted:
            self.forget()
        self._held_before = gate.held_so_far

    def forget(self) -> None:
        """Note 0 bytes for all clients: the gate opened, and unread replies are counted by their connections."""
        noted, self.noted = self.noted, set()
        for holder in noted:
            holder.note_held_replies(0)

    def _count(self) -> None:
        sizes: dict[Client, int] = {}
        for asker, reply in self._gate.with_messages():
            holder = cast("Client", asker)
            sizes[holder] = sizes.get(holder, 0) + body_bytes(reply)
        large = {holder: size for holder, size in sizes.items() if size >= LEAST_BYTES}
        for holder in self.noted - large.keys():
            holder.note_held_replies(0)
        self.noted = {holder for holder in large if not holder.is_gone}
        for holder in self.noted:
            holder.note_held_replies(large[holder])
        # The notes above can make the budget drop connections.
        gone = {holder for holder in large if holder.is_gone}
        if gone:
            self.noted -= gone
            self._gate.replace(lambda asker, reply: without_bodies(reply) if cast("Client", asker) in gone else reply)


def body_bytes(reply: Outgoing) -> int:
    """Return the bytes of all bodies in a reply."""
    if isinstance(reply, MessagesReceived | MessagesPeeked):
        return sum([len(message.body) for message in reply.messages])
    return 0


def without_bodies(reply: Outgoing) -> Outgoing:
    """Return a reply with receipt handles and without bodies; other replies are returned unchanged."""
    if isinstance(reply, MessagesReceived):
        return replace(reply, messages=[replace(message, body=b"", headers=None) for message in reply.messages])
    return replace(reply, messages=[]) if isinstance(reply, MessagesPeeked) else reply
