"""The configuration that subscribers and publishers share with their broker."""

from dataclasses import dataclass, field

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState

from cmqd_client import Client

LEASE = 30.0
"""Default lease in seconds: how late the messages of a killed process are delivered again."""


class Connection:
    """The client of a broker, None while the broker is not connected."""

    def __init__(self) -> None:
        self.open_client: Client | None = None

    @property
    def client(self) -> Client:
        """The open client.

        Raises:
            IncorrectState: the broker is not connected.
        """
        if self.open_client is None:
            raise IncorrectState("the broker is not connected; call connect() or start() first")
        return self.open_client


@dataclass(kw_only=True)
class CmqBrokerConfig(BrokerConfig):
    """Configuration of a broker, or of a router, which reads the options of its broker."""

    connection: Connection = field(default_factory=Connection)
    create: bool = True
    """Create queues and topics that do not exist."""
    lease: float = LEASE
