"""Events of a client: connected, lost, reconnecting, gave up, closed; for logs, hooks and metrics.

    connect(url, on_event=lambda event: print(event))

Each event goes to the hook and to the logger ``cmqd_client.events``. A record of the logger carries ``event`` (the
stable name) and the fields of the event as attributes, so that a log pipeline parses no texts. Names and fields only
grow.

    connected      INFO      a connection is open
    lost           WARNING   a connection takes no more requests, and why
    reconnecting   INFO      the next attempt follows after a pause, and why the last attempt failed
    gave_up        ERROR     the server refuses this client for good; the next call starts again
    closed         INFO      the client was closed
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, TypeAlias

import msgspec

_log = logging.getLogger(__name__)
# A library must not print to a program's standard error on its own, which Python does for loggers without handlers.
_log.addHandler(logging.NullHandler())


class ClientState(StrEnum):
    """State of a client over all of its connections."""

    NEW = "new"
    """Not opened yet."""
    CONNECTED = "connected"
    """At least one connection is up."""
    CONNECTING = "connecting"
    """No connection is up; the client tries to connect, and calls wait."""
    REFUSED = "refused"
    """The server refused this client for good; the next call tries again."""
    CLOSED = "closed"


class Event(msgspec.Struct, frozen=True):
    """Root of the events."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO


class Connected(Event, frozen=True):
    """A connection is open."""

    name: ClassVar[str] = "connected"
    host: str
    connection_id: int
    """The server's number of the connection, as in the server's log."""
    server: str
    """Product and version of the server."""
    opened: int
    """Number of connections that this link has opened; more than 1 = a reconnection."""

    def __str__(self) -> str:
        return f"connected to {self.host} as connection {self.connection_id}"


class Lost(Event, frozen=True):
    """A connection takes no more requests; the client reconnects."""

    name: ClassVar[str] = "lost"
    level: ClassVar[int] = logging.WARNING
    host: str
    connection_id: int
    why: str

    def __str__(self) -> str:
        return f"lost connection {self.connection_id} to {self.host}: {self.why}"


class Reconnecting(Event, frozen=True):
    """The next attempt to connect follows after a pause."""

    name: ClassVar[str] = "reconnecting"
    attempt: int
    """Number of the next attempt, from 1."""
    pause: float
    """Seconds until the attempt."""
    why: str
    """Why the last attempt failed; empty before the first attempt after a loss."""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"reconnecting in {self.pause:.2f} s, attempt {self.attempt}{why}"


class GaveUp(Event, frozen=True):
    """The server refused this client for good, such as a wrong key; the next call starts again."""

    name: ClassVar[str] = "gave_up"
    level: ClassVar[int] = logging.ERROR
    why: str

    def __str__(self) -> str:
        return f"gave up connecting: {self.why}"


class Closed(Event, frozen=True):
    """The client was closed."""

    name: ClassVar[str] = "closed"

    def __str__(self) -> str:
        return "the client was closed"


OnEvent: TypeAlias = Callable[[Event], None]
"""A hook for events: called in the event loop, at once; must not block. An exception of the hook is logged."""


class EventReporter:
    """Logs events, passes them to the hook, and counts connections."""

    __slots__ = ("_on_event", "connections_lost", "connections_opened")

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self._on_event = on_event
        self.connections_opened: int = 0
        self.connections_lost: int = 0

    def report(self, event: Event) -> None:
        """Log the event and call the hook. Never raises, because callers are between two steps of a connection."""
        if isinstance(event, Connected):
            self.connections_opened += 1
        elif isinstance(event, Lost):
            self.connections_lost += 1
        if _log.isEnabledFor(event.level):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            _log.log(event.level, "%s", event, extra={"event": event.name, **fields})
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("the hook on_event failed at %r", event.name, extra={"event": "hook_failed"})


class ClientStatistics(msgspec.Struct, frozen=True):
    """Counters of a client since it was opened; a snapshot, to be given to any metrics library."""

    requests: int
    """Requests made, repeats included."""
    repeats: int
    """Requests made again after a failed attempt."""
    failures: int
    """Calls that ended with an error."""
    messages_sent: int
    messages_received: int
    connections_opened: int
    connections_lost: int
    outstanding: int
    """Requests that wait for their reply now."""
    reads: int
    """Wake-ups by data from the server, of the connections that are up."""
    writes: int
    """Writes to the socket, of the connections that are up."""
    handed_back: int
    """Messages released because their receive was cancelled or timed out, of the connections that are up."""


class CallCounters:
    """Counts the calls of a channel."""

    __slots__ = ("failures", "messages_received", "messages_sent", "repeats", "requests")

    def __init__(self) -> None:
        self.requests: int = 0
        self.repeats: int = 0
        self.failures: int = 0
        self.messages_sent: int = 0
        self.messages_received: int = 0
