"""The client of a request, as the core's side of the server sees the client: an interface for every wire protocol."""

from typing import Protocol, TypeAlias

from cmqd.server.access.permissions import Permissions
from cmqd.server.replies.reply_gate import Answerable
from cmqd_protocol import messages as wire
from cmqd_types.actors import Actor


class Client(Answerable, Protocol):
    """A connection with an account; see ``binary.accepted_connection``.

    The numbers and tables below belong to the rooms that keep them. They are attributes of the connection, because a
    table by connection in each room would cost ten thousand idle connections a look-up and an entry per room.
    """

    account: str
    secret_id: str
    """Id of the key that authenticated the connection."""
    product: str
    """Software of the client as the client states, without proof; empty if not stated."""
    actor: Actor
    """The client as lists and the history of messages show it. ``Actor.stating`` makes the actor of a request that
    states another client."""
    permissions: Permissions | None
    """Permissions of that key; None = unrestricted. Changed while the connection is open, by ``use_permissions``."""
    waiting: dict[int, int] | None
    """Waiter ids by request id; kept by ``WaitingRequests``."""
    checked_queues: set[str] | None
    """Queues that the connection checks transactions for; kept by ``TransactionCheckers``."""
    unread_receives: int
    """Replies with bodies that are decided and not yet handed to the socket, receives that are collected, and peeks
    that wait for bodies. The connection subtracts a reply with a queue when handing over or dropping the reply."""

    understands_stalls: bool
    """The client named ``stalled_receives``: its waiting receives may end with ``busy`` and ``stalled``."""

    @property
    def is_held(self) -> bool:
        """True while a request of the connection is carried out in slices."""
        ...

    @property
    def peer(self) -> str:
        """Address of the client, for logs."""
        ...

    @property
    def connection_id(self) -> int:
        """Number of the connection, unique among the connections of the server."""
        ...

    @property
    def is_private(self) -> bool:
        """True if no other machine can read the bytes of the connection: TLS, loopback or a Unix socket."""
        ...

    def use_permissions(self, permissions: Permissions | None) -> None:
        """Check requests by changed permissions of the key from now on."""
        ...

    @property
    def is_slow(self) -> bool:
        """True if the client leaves replies unread."""
        ...

    @property
    def is_gone(self) -> bool:
        """True if the connection is closed, so that replies are dropped."""
        ...

    def note_held_replies(self, size: int) -> None:
        """Note the bytes of the client's replies at the gate; see ``held_reply_memory``."""
        ...

    def hold(self) -> None:
        """Dispatch no further request of the connection before ``release``."""
        ...

    def put_back(self, request: wire.Request) -> None:
        """Dispatch a request again, before all others, after ``release``."""
        ...

    def release(self) -> None:
        """Continue with the requests behind the request that was carried out."""
        ...

    def park(self, request: wire.Request) -> None:
        """Keep a request until the client has read earlier replies."""
        ...


Acting: TypeAlias = (
    wire.SendMessages
    | wire.ReceiveMessages
    | wire.DeleteMessages
    | wire.ChangeVisibility
    | wire.ReleaseMessages
    | wire.DeadLetterMessages
    | wire.PublishMessages
    | wire.SendHalfMessages
    | wire.EndTransactions
)
"""Requests that change messages: a gateway states the client that it makes them for."""


def actor_of(client: Client, request: Acting) -> Actor:
    """Return the client that a request is made for, as records name it."""
    stated = request.on_behalf_of
    return client.actor if stated is None else client.actor.stating(stated)
