"""The rate of new ids of keys, in fair shares of the client addresses.

Strangers can make up ids, and each new id is a question to the broker, so the addresses together have a rate. In each
second an address may ask while its questions in this second are fewer than the questions left for the gateway:

    flooding addresses     questions of each    left for further addresses
    1                      50                   50
    4                      20                   20
    99                     1                    1

A flood from an address therefore leaves half of the rate to further addresses. A fixed limit for each address would
be simpler, but too low for a proxy with all clients behind its address, or too high for a flood from ten addresses.

An IPv6 address counts with its network of 64 bits, because a single machine has all addresses of such a network.
"""

import ipaddress
import time
from collections.abc import Callable
from typing import Final

NEW_IDS_PER_SECOND: Final = 100
_PERIOD_SECONDS: Final = 1.0
_NETWORK_BITS: Final = 64


class NewIdRate:
    """The rate of new ids; see the module. Keeps at most ``per_second`` addresses."""

    def __init__(self, now: Callable[[], float] = time.monotonic, per_second: int = NEW_IDS_PER_SECOND) -> None:
        self._now = now
        self._per_second = per_second
        self._period_began = now()
        self._left = per_second
        self._taken: dict[str, int] = {}
        """By address: the new ids of this period. An address enters only with a question, which bounds the table."""

    def take(self, address: str | None) -> bool:
        """Count a new id; False if the address is over its share.

        Args:
            address: IP address of the client; clients without an address share an allowance.
        """
        now = self._now()
        if now - self._period_began >= _PERIOD_SECONDS:
            self._period_began = now
            self._left = self._per_second
            self._taken.clear()
        if not self._left:
            return False
        network = _network(address)
        taken = self._taken.get(network, 0)
        if taken >= self._left:
            return False
        self._taken[network] = taken + 1
        self._left -= 1
        return True


def _network(address: str | None) -> str:
    """Return the name under which an address is counted."""
    if address is None or ":" not in address:
        return address or ""
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        # A listener of both families sees IPv4 clients in a single IPv6 network.
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> _NETWORK_BITS:x}::"
