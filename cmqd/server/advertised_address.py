"""The address at which clients reach this server, a fact of queues and topics."""

from collections.abc import Callable
from typing import Final

from cmqd.settings import parse_address

WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
"""Hosts that name all interfaces of the machine. A client elsewhere cannot connect to a wildcard."""


def advertised_address(advertise: str, bound: tuple[str, int], machine_name: Callable[[], str]) -> str:
    """Return the fact ``address``, ``host:port``.

    Args:
        advertise: the setting. Empty: use ``bound``. A lone host gets the port of ``bound``.
        bound: host and port of the listening socket.
        machine_name: returns the name of this machine, in place of a wildcard.
    """
    host, port = bound
    if advertise:
        host, port = parse_address(advertise, default_port=port)
    elif host in WILDCARDS:
        host = machine_name()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
