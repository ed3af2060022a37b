"""Addresses that may be posted to, and a resolver that returns only allowed addresses.

A subscriber chooses the address that the broker connects to, and the broker's network reaches services that the
subscriber cannot: other services of the host, machines behind the firewall, the cloud's metadata service. Therefore:

- An address is judged on connecting, never earlier, because the address of a name changes.
- A connection goes to exactly the judged address. ``CheckedResolver`` returns numeric addresses and leaves out refused
  addresses; ``refused_literal`` judges an address that stands in the URL itself.
- Only global unicast addresses are allowed. ``push_allow_private`` adds private networks, ``push_allow_loopback`` the
  machine itself. No setting adds link-local addresses (169.254.169.254 tells secrets of the machine), multicast or
  reserved addresses. An IPv6 address that embeds an IPv4 address (mapped, NAT64, 6to4) is judged by the IPv4 address.

The tables are written out here because the range that ``ipaddress`` calls global differs between releases of Python.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

ANSWER_LIFE_S: Final = 10.0
"""Time that a look-up's answer is used, a failure included. Names of services that move have similar times to live."""

QUICK_S: Final = 1.0
"""A name that resolved within this time has separate slots for its look-ups; see ``CheckedResolver``."""

MAX_NAMES: Final = 10_000
"""Limit of remembered names, some 1 KiB for every name."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_KINDS: Final = [
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "unspecified": "0.0.0.0/8 ::/128",
        "loopback": "127.0.0.0/8 ::1/128",
        # With the addresses that the customers of a provider share, and NAT64 of one's own network.
        "private": "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 64:ff9b:1::/48 fc00::/7 fec0::/10",
        "link-local": "169.254.0.0/16 fe80::/10",
        # Documentation, relays of 6to4, measurements of networks, Teredo, ORCHID.
        "reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4"
        " 2001::/23 2001:db8::/32 3fff::/20",
        "multicast": "224.0.0.0/4 ff00::/8",
    }.items()
    for network in networks.split()
]
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4: Final = ipaddress.IPv6Network("2002::/16")


class AddressRefused(OSError):
    """The address may not be posted to; the text names the address and the reason. An OSError, so that clients pass the
    error on."""


class NameNotFound(OSError):
    """A name has no address, or no name server answered."""


class Allowed(NamedTuple):
    """Kinds of addresses that may be posted to beside global addresses."""

    private: bool = False
    loopback: bool = False


@lru_cache(maxsize=4096)
def kind_of(address: Address) -> str | None:
    """Return the kind of an address that is not global unicast, None for a global unicast address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return "link-local"
        if address in _MAPPED or address in _NAT64:
            return kind_of(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address in _6TO4:
            return kind_of(ipaddress.IPv4Address(int(address) >> 80 & 0xFFFF_FFFF))
    kind = next((kind for network, kind in _KINDS if address in network), None)
    is_global = isinstance(address, ipaddress.IPv4Address) or address in _GLOBAL_V6
    return kind if kind is not None or is_global else "reserved"


def refusal(text: str, allowed: Allowed) -> str | None:
    """Return the reason to refuse the address of this text, None if it is allowed."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return f"address {text[:80]} is not written in the usual form"
    kind = kind_of(address)
    if kind is None or (kind == "private" and allowed.private) or (kind == "loopback" and allowed.loopback):
        return None
    setting = f" (the server's setting push_allow_{kind} is off)" if kind in ("private", "loopback") else ""
    return f"address {text} is {kind}{setting}"


def refused_literal(host: str, allowed: Allowed) -> str | None:
    """Return the ``refusal`` of a URL's host that may be read as an address without a look-up; None for a name.

    Clients read any text of digits and dots, or with a colon, as an address, and the system reads even 2130706433 and
    127.1 as an address.
    """
    is_literal = ":" in host or re.fullmatch(r"[0-9.]*", host) is not None or not host.isascii()
    return refusal(host, allowed) if is_literal else None


# ---------------------------------------------------------------------------- look-ups

Lookup: TypeAlias = Callable[[str], Sequence[str]]
"""The addresses of a name, in numbers, in the order of preference; blocks. Raises OSError."""


def system_lookup(name: str) -> list[str]:
    """Look a name up by the system's means: hosts file, name servers."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class _Name:
    """The last answer for a name."""

    __slots__ = ("addresses", "error", "expires", "is_quick", "look_up")

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self.error: str | None = None
        self.expires = 0.0
        self.is_quick = False
        self.look_up: asyncio.Task[None] | None = None
        """Set while the name is being looked up."""


class CheckedResolver:
    """Looks names up for aiohttp (``aiohttp.abc.AbstractResolver``), and returns only allowed addresses.

    An answer serves ``ANSWER_LIFE_S``; requests for a name that is being looked up share the look-up. A look-up blocks
    a thread for many seconds if name servers do not answer, so a few hundred dead names would delay all look-ups:
    therefore names with a quick answer to the last look-up have slots of their own. The threads are daemons, so that a
    hanging look-up does not keep the process from ending.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, allowed: Allowed, *, lookup: Lookup = system_lookup) -> None:
        self._loop = loop
        self._allowed = allowed
        self._lookup = lookup
        self._names: dict[str, _Name] = {}
        self._quick = asyncio.Semaphore(4)
        self._others = asyncio.Semaphore(16)

    def __len__(self) -> int:
        """Return the number of remembered names."""
        return len(self._names)

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[dict[str, Any]]:
        """Return the allowed addresses of a name in aiohttp's form.

        Raises:
            NameNotFound: the name has no address.
            AddressRefused: the name has only refused addresses.
        """
        name = self._names.get(host)
        if name is None:
            self._make_room()
            name = self._names[host] = _Name()
        if name.look_up is None and self._loop.time() >= name.expires:
            name.look_up = self._loop.create_task(self._look_up(host, name))
        if name.look_up is not None:
            # A caller that is cancelled leaves the look-up to the other callers.
            await asyncio.shield(name.look_up)
        if name.error is not None:
            raise NameNotFound(name.error)
        refusals = [refusal(address, self._allowed) for address in name.addresses]
        allowed = [address for address, refused in zip(name.addresses, refusals, strict=True) if refused is None]
        if not allowed:
            raise AddressRefused(refusals[0])
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for address in allowed
            if family in (socket.AF_UNSPEC, socket.AF_INET6 if ":" in address else socket.AF_INET)
        ]

    async def close(self) -> None:
        """Begin no further look-up."""
        for name in self._names.values():
            if name.look_up is not None:
                name.look_up.cancel()

    def _make_room(self) -> None:
        if len(self._names) >= MAX_NAMES:
            now = self._loop.time()
            self._names = {
                host: name for host, name in self._names.items() if name.look_up is not None or name.expires > now
            }
            while len(self._names) >= MAX_NAMES:
                del self._names[next(iter(self._names))]

    async def _look_up(self, host: str, name: _Name) -> None:
        answer: asyncio.Future[tuple[Sequence[str], str | None]] = self._loop.create_future()

        def report(addresses: Sequence[str], error: str | None) -> None:
            if not answer.done():
                answer.set_result((addresses, error))

        def work() -> None:
            result = _looked_up(self._lookup, host)
            # The loop may have ended meanwhile; then no caller waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(report, *result)

        try:
            async with self._quick if name.is_quick else self._others:
                began = self._loop.time()
                threading.Thread(target=work, name="cmqd-lookup", daemon=True).start()
                name.addresses, name.error = await answer
                name.is_quick = name.error is None and self._loop.time() - began < QUICK_S
                name.expires = self._loop.time() + ANSWER_LIFE_S
        finally:
            name.look_up = None


def _looked_up(lookup: Lookup, host: str) -> tuple[Sequence[str], str | None]:
    """Return the addresses of a name, or the reason why there is none; blocks."""
    try:
        addresses = lookup(host)
    except (OSError, ValueError) as failure:
        is_temporary = isinstance(failure, socket.gaierror) and failure.errno == socket.EAI_AGAIN
        return (), f"name {host} cannot be looked up now" if is_temporary else f"name {host} does not resolve"
    return addresses, None if addresses else f"name {host} has no address"
