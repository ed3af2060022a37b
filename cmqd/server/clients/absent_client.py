"""A stand-in for the client of a request that was given up: takes the late reply.

The client has had the answer ``outcome_unknown``, so a late reply must not reach the client. The messages of a late
receive go back to their queue.
"""

from collections.abc import Callable, Sequence

from cmqd.server.access.permissions import Permissions
from cmqd.server.replies.reply_gate import Outgoing
from cmqd_protocol import messages as wire
from cmqd_types.actors import Actor
from cmqd_types.messages import ReceivedMessage


class AbsentClient:
    """Takes late replies in place of a client; see the module."""

    def __init__(self, account: str, put_back: Callable[[str, str, Sequence[ReceivedMessage]], None]) -> None:
        self.account = account
        self.secret_id = ""
        self.permissions: Permissions | None = None
        self.peer = "gone"
        self.connection_id = 0
        self.product = ""
        self.actor = Actor(account, "")
        self.waiting: dict[int, int] | None = None
        self.checked_queues: set[str] | None = None
        self.unread_receives = 0
        self.is_held = self.is_slow = False
        self.is_gone = True
        self.is_private = self.understands_stalls = False
        self._put_back = put_back

    def answer(self, reply: Outgoing, queue: str | None = None) -> None:
        """Put the messages of a late receive back."""
        if queue and isinstance(reply, wire.MessagesReceived):
            self._put_back(self.account, queue, reply.messages)

    def note_held_replies(self, size: int) -> None:
        """Ignore the size: a stand-in holds bodies only for a moment."""

    def park(self, request: wire.Request) -> None:
        """Drop a request: no client waits for the reply."""

    def put_back(self, request: wire.Request) -> None:
        """Drop a request, like ``park``."""

    def use_permissions(self, permissions: Permissions | None) -> None:
        """Ignore the call: the request was admitted before it was given up."""

    def hold(self) -> None:
        """Ignore the call: a stand-in has no further request."""

    def release(self) -> None:
        """Ignore the call, like ``hold``."""
