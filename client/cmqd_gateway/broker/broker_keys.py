"""The broker as the origin of secrets, over a connection with the gateway's own key.

The connection watches changes of keys. While the connection is lost, no request can be authenticated, because the
gateway may have missed a change of a key.
"""

from collections.abc import Callable
from itertools import count
from typing import Final, TypeAlias

from cmqd_client import Client
from cmqd_client.errors import (
    ConnectionLost,
    KeyNotFound,
    OutcomeUnknown,
    PermissionDenied,
    RequestTimeout,
    ServerUnreachable,
)
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.process.gateway_logger import get_logger

Forget: TypeAlias = Callable[[str | None], None]
"""Forgets a key; None = all keys."""

STALLED_MS: Final = 3_000
"""Longest wait of a ready broker for its log."""

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

    @property
    def client(self) -> Client:
        """The client with the gateway's own key."""
        return self._client

    async def probe(self) -> None:
        """Ask the broker for its status, which every key may read and which waits for no disk. The status tells whether
        the broker waits for its log: a broker that is cut off answers no other request.

        Raises:
            CmqError: the broker did not answer, or waits for its log, or the connection was never open.
        """
        status = await self._client.status()
        # Older brokers do not tell.
        stalled_ms = status.get("stalled_ms", 0)
        if stalled_ms >= STALLED_MS:
            raise ServerUnreachable(f"the broker has waited for its log for {stalled_ms / 1000:.1f} s")

    async def fetch(self, secret_id: str) -> KeySecret | None:
        """Return the key, enabled or not; None if the broker has no key of this id.

        Raises:
            ServerUnreachable: the broker did not answer, or the gateway may not ask.
            CmqError: the broker refused for now.
        """
        # Counted before the request: the broker answers the requests of a connection about a key in their order.
        reading = next(self._readings)
        try:
            secret = await self._client.accounts.key_secret(secret_id)
        except KeyNotFound:
            return None
        except (RequestTimeout, OutcomeUnknown, ConnectionLost, PermissionDenied) as error:
            # The same for every caller of the gateway: no key can be looked up now. A caller that reads "timeout" would
            # take a request for executed, and one that reads "denied" would take its own key for the cause.
            raise ServerUnreachable(f"the gateway cannot ask the broker for keys: {error.text}") from error
        return KeySecret(secret.secret_id, secret.secret_key, secret.enabled, reading, secret.account)
