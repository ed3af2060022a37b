"""The broker as the origin of secrets, over a connection with the gateway's own key.

The connection watches changes of keys. While the connection is lost, no request can be authenticated, because the
gateway may have missed a change of a key.
"""

from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from cmqd_client import Client
from cmqd_client.errors import KeyNotFound
from cmqd_gateway.key_secrets import KeySecret
from cmqd_gateway.log_lines import get_logger

Forget: TypeAlias = Callable[[str | None], None]
"""Forgets a key; None = all keys."""

_log = get_logger()


class BrokerKeys:
    """Reads secrets of keys, a key per request."""

    def __init__(self, client: Client) -> None:
        """Keep the client. The client has the gateway's own key and is not open yet."""
        self._client = client
        self._readings = count(1)

    async def open(self, forget: Forget) -> None:
        """Connect without a time limit; from then on every change of a key calls ``forget``. Safe to cancel.

        Raises:
            CmqError: the broker refuses the gateway's own key, or the key has not the role ``gateway``.
        """
        await self._client.open(patience=None)
        await self._client.accounts.watch_keys(lambda change: forget(change.secret_id))
        _log.info("broker_connected", broker=f"{self._client.address.host}:{self._client.address.port}")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def probe(self) -> None:
        """Ask the broker for its status, which every key may read and which waits for no disk.

        Raises:
            CmqError: the broker did not answer, or the connection was never open.
        """
        await self._client.status()

    async def fetch(self, secret_id: str) -> KeySecret | None:
        """Return the key, enabled or not; None if the broker has no key of this id.

        Raises:
            CmqError: the broker did not answer, or the gateway may not ask.
        """
        # Counted before the request: the broker answers the requests of a connection about a key in their order.
        reading = next(self._readings)
        try:
            secret = await self._client.accounts.key_secret(secret_id)
        except KeyNotFound:
            return None
        return KeySecret(secret.secret_id, secret.secret_key, secret.enabled, reading, secret.account)
