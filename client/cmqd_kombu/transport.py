# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false
# (kombu has no types; its names begin here and in channel.py, and nowhere else.)
"""kombu's transport: opens sessions and names their errors."""

import ssl
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from kombu.exceptions import ChannelError
from kombu.transport import base

from cmqd_client.address import DEFAULT_PORT, Address, parse_address
from cmqd_client.errors import (
    Busy,
    ClientClosed,
    CmqError,
    ConnectionLost,
    ConnectionRefused,
    Elsewhere,
    OutcomeUnknown,
    ProtocolViolation,
    RequestTimeout,
    ServerUnreachable,
    ShuttingDown,
)
from cmqd_kombu.channel import Channel
from cmqd_kombu.options import parse_options
from cmqd_kombu.session import Session

_OUTAGES = (
    *(ServerUnreachable, ConnectionLost, RequestTimeout, OutcomeUnknown, ShuttingDown, Busy, ClientClosed),
    Elsewhere,
)
"""Errors after which a new attempt may succeed."""


class Transport(base.Transport):
    """The transport of ``cmq://ID:KEY@host[:5680][,host[:5680]...]``."""

    Channel = Channel

    can_parse_url = True
    """kombu's own parser takes the hosts of a service for one host."""
    default_port = DEFAULT_PORT
    driver_type = "cmqd"
    driver_name = "cmqd"

    connection_errors = (OSError, *_OUTAGES, ConnectionRefused, ProtocolViolation)
    recoverable_connection_errors = (OSError, *_OUTAGES)
    channel_errors = (ChannelError, CmqError)
    recoverable_channel_errors = ()

    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )

    def driver_version(self) -> str:
        """Return the version of the distribution."""
        return version("cmqd")

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """Host and port of a URL without a host or port."""
        return {"hostname": "localhost", "port": self.default_port}

    def establish_connection(self) -> Session:
        """Connect.

        Raises:
            ValueError: the URL names no key or has a path, or an option is unknown or out of range.
            OSError: nothing listens at any address.
            CmqError: the server refused the client.
        """
        client: Any = self.client
        address = self._address()
        tls = client.ssl if isinstance(client.ssl, ssl.SSLContext) else None
        if isinstance(client.ssl, dict):
            tls = _context(client.ssl)
        return Session(client, address, tls, parse_options(client.transport_options), client.connect_timeout or 5)

    def _address(self) -> Address:
        """Return the server's address, from the URL or from the parts that a program or a switch to another URL gave.

        Raises:
            ValueError: there is no key, or a path, or the URL is malformed.
        """
        client: Any = self.client
        hosts: str = client.hostname or "localhost"
        path: str = client.virtual_host or ""
        key, query = "", ""
        if "://" in hosts:
            parts = urlsplit(hosts)
            key, _, hosts = parts.netloc.rpartition("@")
            path, query = parts.path or path, parts.query
        elif client.port:
            hosts = f"{hosts}:{client.port}"
        if path not in ("", "/"):
            raise ValueError(
                f"the broker's URL has the path {path!r}; it must have none, since a key belongs to an account. Use "
                "the option queue_prefix to separate programs"
            )
        if not key:
            password: Any = client.password() if callable(client.password) else client.password
            key = f"{quote(client.userid or '', safe='')}:{quote(password or '', safe='')}"
        address = parse_address(f"cmq://{key}@{hosts}?{query}")
        return msgspec.structs.replace(address, tls=address.tls or bool(client.ssl))

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for logs."""
        try:
            address = self._address()
        except ValueError:
            raise NotImplementedError from None  # kombu hides the key of a text by its own rules
        return address.url() if include_password else str(address).replace(":***@", f":{mask}@", 1)

    def create_channel(self, connection: Session) -> Channel:
        """Make a channel. No request is sent."""
        return self.Channel(connection)

    def close_channel(self, channel: Channel) -> None:
        """Close a channel."""
        channel.close()

    def close_connection(self, connection: Session) -> None:
        """Close a session and its channels."""
        connection.close()

    def verify_connection(self, connection: Session) -> bool:
        """False if the session was closed, or opened by another process."""
        return connection.usable

    def drain_events(self, connection: Session, timeout: float | None = None, **options: Any) -> None:
        """Hand a batch of messages to their callbacks, see :meth:`Session.drain_events`."""
        connection.drain_events(timeout)

    def register_with_event_loop(self, connection: Session, loop: Any) -> None:
        """Hand messages over in the callbacks of kombu's hub."""
        connection.watch(loop)

    def unregister_from_event_loop(self, connection: Session, loop: Any) -> None:
        """Undo :meth:`register_with_event_loop`."""
        connection.unwatch(loop)


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    """Return the TLS context of kombu's ``ssl`` options (``ca_certs``, ``certfile``, ``keyfile``, ``cert_reqs``).

    Raises:
        ValueError: an option is unknown.
    """
    unknown = set(options) - {"ca_certs", "certfile", "keyfile", "cert_reqs"}
    if unknown:
        raise ValueError(f"the option {min(unknown)!r} of ssl is unknown; give an ssl.SSLContext instead")
    context = ssl.create_default_context(cafile=options.get("ca_certs"))
    if options.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.get("certfile"):
        context.load_cert_chain(options["certfile"], options.get("keyfile"))
    return context
