"""State and settings that all connections of a listener share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.memory_budget import MemoryBudget
from cmqd.server.clients.client import Client
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connections import Connection, Connections
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.monitoring.counters import Counters
from cmqd.server.replies.reply_gate import Gate
from cmqd.server.requests.collecting import LoneSends
from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.messages import Request
from cmqd_protocol.server_connection import ServerConnection
from cmqd_types.actors import Actor

MAX_PRODUCTS: Final = 100
"""Products that are kept; a client may state any text."""
MAX_ACTORS: Final = 1_000
"""Actors that are kept, about 300 bytes each."""


class VisitedConnection(Client, Connection, Protocol):
    """A connection, as its listener sees it."""

    def visit(self) -> int | None:
        """Do the work that is due; return the time of the next visit, None if the connection is closed."""
        ...

    def check_slow(self) -> None:
        """Take the waiting requests of a slow connection off the lines, or close it; called a few times a second."""
        ...

    def go_on(self) -> None:
        """Read from the connection again after the storage has caught up."""
        ...


class RestingInput(Protocol):
    """The input of a connection that is not read from after a turn; see ``input_turns``."""

    def rest_with_others(self) -> None:
        """Rest only until the I/O batch ends from now on, because the coarse time has moved on."""
        ...


@dataclass(slots=True, kw_only=True)
class Shared:
    """State and settings shared by all connections of a listener."""

    dispatch: Callable[[Client, Request], None]
    dispatch_run: Callable[[Client, Sequence[Any]], int]
    """Dispatches requests of a kind until the connection is held; returns their number."""
    events: ClientEvents
    decide_collected: Callable[[Client], None]
    lone_sends: LoneSends
    io_batch: IoBatch
    budget: MemoryBudget
    connections: Connections
    counters: Counters
    make_wire: Callable[[int], ServerConnection]
    """Makes the protocol object of a connection that begins at the time given."""
    permissions_of: Callable[[str], Permissions | None]
    """Returns the permissions of an enabled key, None for an unrestricted key."""
    on_made: Callable[[VisitedConnection], None]
    on_login_failed: Callable[[str, str, ConnectionEnded], None]
    """Called with the peer, the key id that the client named, and the reason of the close."""
    gate: Gate
    slow_reader_bytes: int
    max_unread_bytes: int
    max_unread_receives: int
    time_ms: int
    """Coarse local time, advanced by the listener every tenth of a second; no use needs a finer time."""
    overloaded: bool = False
    """The storage is so far behind that the server reads no more from clients."""
    stalled: list[VisitedConnection] = field(default_factory=list[VisitedConnection])
    """Connections that are not read from while the server is overloaded."""
    idle: list[RestingInput] = field(default_factory=list[RestingInput])
    """Input that rests until the next step of ``time_ms``, because the last input of the connection held no request."""
    products: dict[str, str] = field(default_factory=dict[str, str])
    """Products of clients, each once: thousands of connections have the same product."""
    actors: dict[Actor, Actor] = field(default_factory=dict[Actor, Actor])
    """Actors of clients, each once: most clients open several connections, one after the other."""
    slow: set[VisitedConnection] = field(default_factory=set[VisitedConnection])
    """Connections with a socket buffer over its mark."""

    def product_of(self, product: str) -> str:
        """Return a product of a client, as the same object for equal products while the table has room."""
        if len(self.products) >= MAX_PRODUCTS:
            return self.products.get(product, product)
        return self.products.setdefault(product, product)

    def kept_actor(self, actor: Actor) -> Actor:
        """Return an actor as the same object for equal actors while the table has room."""
        if len(self.actors) >= MAX_ACTORS:
            return self.actors.get(actor, actor)
        return self.actors.setdefault(actor, actor)
