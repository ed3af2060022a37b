"""Handshakes from vectors."""

from collections.abc import Callable
from typing import Any

from cmqd_protocol.handshake import AccessKey
from support.protocol.connection_pair import (
    SECRET_ID,
    ConnectionPair,
    whole,
)
from support.protocol.vectors import load

HANDSHAKES = load("handshake")

GOOD = [vector for vector in HANDSHAKES if vector["error"] is None]


def pair_of(vector: dict[str, Any], cut: Callable[[bytes], Any] = whole) -> ConnectionPair:
    def find_key(secret_id: str) -> AccessKey | None:
        return AccessKey(vector["account"], vector["server_secret_key"]) if secret_id == SECRET_ID else None

    return ConnectionPair(
        server={"nonce": bytes.fromhex(vector["server_nonce"]), "find_key": find_key, **vector["server"]},
        client={"nonce": bytes.fromhex(vector["client_nonce"]), **vector["client"]},
        cut=cut,
    )
