"""The address at which clients reach this server, a fact of queues and topics; and the addresses of a pair."""

from collections.abc import Callable, Sequence
from typing import Final

from cmqd.log.values import BrokerSeen, EngineView
from cmqd.settings import parse_address

WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
"""Hosts that name all interfaces of the machine. A client elsewhere cannot connect to a wildcard."""

MAX_ADDRESSES: Final = 4
"""Addresses of a pair that are kept: two, and as many of before, because a broker that is away comes back."""
SESSION_NAME_BYTES: Final = 63
"""PostgreSQL cuts the name of a session, in which a broker states its address last, at this length."""


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


def addresses_of_pair(leader: Sequence[str], own: str, view: EngineView | None, shard: int) -> list[str]:
    """Return the addresses of the brokers of a log, the leader's first.

    Args:
        leader: addresses of the leader, as the accounts of the log have them.
        own: address of this broker.
        view: the engine's view of the brokers, which only a leader has.
        shard: number of the shard.
    """
    seen = [] if view is None else [broker for broker in view.brokers if broker.address]
    whole = [
        broker.address
        for broker in sorted(seen, key=lambda broker: not broker.leads)
        if _session_name_bytes(broker, shard) < SESSION_NAME_BYTES
    ]
    return list(dict.fromkeys([*leader, own, *whole]))[:MAX_ADDRESSES]


def _session_name_bytes(broker: BrokerSeen, shard: int) -> int:
    offset = "" if broker.clock_offset_ms is None else f"/{broker.clock_offset_ms // 100}"
    return len(f"cmqd {shard} {broker.lsn} {broker.process}{offset} {broker.address}".encode())
