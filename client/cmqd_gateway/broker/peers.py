"""The brokers of a log with redundancy, as the clients of a gateway find them.

A gateway that a broker started has the address of that broker alone. The pipe from the broker brings the addresses of
the other brokers, and the welcome of a leader names them too. A broker gives secrets of keys only over TLS or loopback,
so a gateway follows to no other address: the gateway could authenticate no request there.

The client with the gateway's own key asks most often, and is the first to find another leader. From then on the
requests of callers get new clients, which begin at the leader; the former clients finish their requests, and look for
the leader on their own.
"""

from collections.abc import Callable, Sequence

import msgspec

from cmqd_client import Client
from cmqd_client.address import Address, host_and_port
from cmqd_client.events import Connected, Event
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.process.gateway_settings import is_loopback

_log = get_logger()


class Peers:
    """Addresses of the brokers; see the module."""

    def __init__(self, broker: Address) -> None:
        """Take the address of the broker of the command line."""
        self._broker = broker
        self._tls = broker.tls
        """Learned addresses take TLS."""
        self.addresses: list[str] = []
        """As last told by the broker."""
        self.leader: Address = broker
        """The address at which a new client begins."""
        self.clients: Callable[[], Sequence[Client]] = tuple
        """Returns the clients to tell of new addresses."""
        self.on_moved: Callable[[], None] | None = None
        """Called when another broker leads."""

    @property
    def is_at_home(self) -> bool:
        """True if the gateway uses the broker of its command line."""
        return (self.leader.host, self.leader.port) == (self._broker.host, self._broker.port)

    def follow(self, named: Address) -> Address | None:
        """Return the address to connect to for an address that a broker names; None = the gateway may not follow."""
        if self._tls:
            return msgspec.structs.replace(named, tls=True)
        return named if is_loopback(named.host) else None

    def use(self, addresses: Sequence[str], *, tls: bool) -> None:
        """Take the addresses that the broker tells."""
        self.addresses = list(addresses)
        self._tls = tls or self._broker.tls
        for client in self.clients():
            client.learn_addresses(self.addresses)

    def event(self, event: Event) -> None:
        """Take an event of the client with the gateway's own key."""
        if not isinstance(event, Connected):
            return
        host, port = host_and_port(event.host)
        if (host, port) == (self.leader.host, self.leader.port):
            return
        hosts = [(address.host, address.port) for address in self._broker.each()]
        if (host, port) in hosts:
            hosts.remove((host, port))
            found = msgspec.structs.replace(self._broker, host=host, port=port, others=tuple(hosts))
        else:
            found = self.follow(msgspec.structs.replace(self._broker, host=host, port=port, others=()))
        if found is not None:
            self.leader = found
            _log.info("broker_followed", broker=event.host)
            if self.on_moved is not None:
                self.on_moved()
