"""The servers that an ``engine_url`` names, as parameters of libpq."""

import socket
from collections.abc import Iterable, Mapping
from typing import Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from cmqd.engine.database import ConnectionLost

_DEFAULT_PORT: Final = 5432

_CONNECTION_PARAMETERS: Final = {
    "application_name": "cmqd",
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "4000",
}
"""Defaults of libpq's parameters; the URL overrules them."""


def resolved(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """Look up the name of the server, for which libpq would keep all threads of the process waiting.

    Raises:
        ConnectionLost: the name has no address.
    """
    host, port = parameters["host"], parameters["port"]
    if not host or host.startswith(("/", "@")) or "hostaddr" in parameters:
        return parameters
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(str(error)) from error
    addresses = [str(address[4][0]) for address in found]
    return {**parameters, "host": ",".join([host] * len(addresses)), "hostaddr": ",".join(addresses)}


_URL_HELP: Final = (
    "it is no URL of libpq, postgresql://role:password@first,second:5433/database with % codes for special characters"
    " of the password, and no name=value pairs"
)


def servers_of(url: str) -> Iterable[dict[str, str]]:
    """Yield libpq's parameters for each server of a URL. Raises ValueError."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        # Without libpq's text, which quotes the piece that it could not read: the piece may be part of a password.
        raise ValueError(_URL_HELP) from None
    hosts = given.pop("host", "").split(",")
    addresses = given.pop("hostaddr", "").split(",")
    ports = given.pop("port", "").split(",")
    # The engine itself looks for the primary.
    given.pop("target_session_attrs", None)
    given.pop("load_balance_hosts", None)
    for number, host in enumerate(hosts):
        port = ports[number % len(ports)] or str(_DEFAULT_PORT)
        if not (port.isascii() and port.isdigit()):
            # A ``/`` or ``@`` in a password moves its rest to the place of the port.
            raise ValueError(_URL_HELP)
        parameters = _CONNECTION_PARAMETERS | given | {"host": host, "port": port}
        if addresses[number % len(addresses)]:
            parameters["hostaddr"] = addresses[number % len(addresses)]
        yield parameters
