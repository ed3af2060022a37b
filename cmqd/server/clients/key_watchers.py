"""Connections that watch keys: gateways remember secrets, and forget a secret when the broker reports a change.

Pushes and replies of a connection leave in the order of decision. Therefore a gateway that read a secret just before a
change gets the secret first and the push second, and does not keep the former secret. With redundancy both wait for a
proof that this broker leads (``ReplyGate.when_led``).
"""

from collections.abc import Callable
from functools import partial

from cmqd.server.clients.client import Client
from cmqd_protocol.messages import KeyChanged


class KeyWatchers:
    """The connections that watch keys."""

    __slots__ = ("_clients", "_when_led")

    def __init__(self, when_led: Callable[[Callable[[], None]], None]) -> None:
        """Take the call that takes a step once this broker leads, in the order of the calls."""
        self._when_led = when_led
        self._clients: dict[Client, None] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return f"<KeyWatchers {len(self)}>"

    def add(self, client: Client) -> None:
        """Push the changes of keys to a client from now on; a second call changes nothing."""
        self._clients[client] = None

    def discard(self, client: Client) -> None:
        """Push no more changes to a client that disconnected or lost the role."""
        self._clients.pop(client, None)

    def changed(self, secret_id: str, change: str) -> None:
        """Push a change that is on disk and in effect."""
        for client in list(self._clients):
            self._when_led(partial(client.answer, KeyChanged(secret_id, change)))
