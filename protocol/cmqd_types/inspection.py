"""The inside of a running server for operators: its connections, waiting receives and settings.

Times are broker time in milliseconds. Nothing here survives the connection, the receive or the start that it describes.
"""

from typing import Final, Literal, TypeAlias, get_args

import msgspec

ConnectionSort: TypeAlias = Literal[
    "since",
    "account",
    "secret_id",
    "product",
    "last_request",
    "requests",
    "bytes_in",
    "bytes_out",
    "unanswered",
    "waiting",
    "unread_bytes",
]
"""Orders of a list of connections. Equal connections are listed in the order of their numbers."""
CONNECTION_SORTS: Final[tuple[ConnectionSort, ...]] = get_args(ConnectionSort)


class ConnectionInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A connection that has authenticated. Figures count from its first byte on."""

    connection_id: int
    """Number of the connection, as in its welcome and in the server's log."""
    account: str
    secret_id: str
    """Id of the key of the connection."""
    peer: str
    """Address of the client as ``host:port``. Behind a gateway or proxy, the address of that process."""
    product: str
    """Software of the client as the client states, without proof; empty if not stated."""
    is_tls: bool
    since_ms: int
    """Time at which the connection was accepted."""
    last_request_ms: int
    """Time of the last request, exact to 100 ms; ``since_ms`` before the first request."""
    requests: int
    bytes_in: int
    bytes_out: int
    unanswered: int
    """Requests without a reply so far; waiting receives are included."""
    waiting: int
    """Requests that wait for messages, or for messages to be read from the log."""
    unread_bytes: int
    """Bytes of replies in the server's socket buffer that the client has not read."""
    checked_queues: int
    """Queues for which the connection answers transaction checks."""
    name: str = ""
    """Name of the client as the client states, without proof; empty if not stated."""


class WaitingReceiveInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A receive that waits for messages (a long poll)."""

    account: str
    queue: str
    connection_id: int
    secret_id: str
    peer: str
    product: str
    max_messages: int
    since_ms: int
    until_ms: int
    """Time at which the receive ends without messages."""
    name: str = ""
    """Name of the client that receives, as stated in the request, or with its connection."""


class ConsumerInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client that receives from a queue, or did so within the last hour. Figures count since the server's start."""

    account: str
    queue: str
    secret_id: str
    """Id of the key of the client."""
    name: str
    """Name of the client as the client states, without proof; empty if not stated."""
    host: str
    """Address of the client's machine; ``(hidden)`` for keys that may not see hosts."""
    stated_by: str
    """Address of the gateway that stated ``host``; empty if the server saw ``host`` itself."""
    since_ms: int
    """Time of the first request for messages."""
    asked_ms: int
    """Time of the last request for messages, answered with messages or not."""
    last_receive_ms: int | None
    """Time of the last receive with messages; None = there was none."""
    waiting: int | None
    """Receives that wait for messages now; None = not counted, because the queue has very many."""
    in_flight: int | None
    """Messages that the client has received and not settled. None = not counted, because the queue has very many."""
    received: int
    failed: int
    """Messages that the client gave back (counted), rejected, or did not settle within the visibility timeout."""


class SettingInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A setting in force. No setting holds a secret: keys and certificates are named by their files."""

    name: str
    section: str
    """Heading of the setting, and its table in the TOML file."""
    value: str | int | bool | None
    """Durations are milliseconds, sizes are bytes, as the end of the name says."""
    default: str | int | bool | None
    origin: str
    """``default``, ``file``, ``environment``, ``flag``, or ``program``: given by the code that started the server."""
    place: str
    """Path of the file, name of the variable or the flag; empty for other origins."""
    meaning: str
    allowed: str
    """The allowed values, in words."""


ORIGINS: Final = ("default", "file", "environment", "flag", "program")
"""Origins of a value."""
