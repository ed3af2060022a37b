"""Computations of the handshake: version, negotiated limits and the two proofs. Nonces and keys are arguments.

Both proofs are HMAC-SHA256 with the secret key over all earlier bytes of the handshake, which are sent in the clear. So
an attacker between client and server cannot lower the version, change the limits or replay the proof of a side as the
proof of the other side:

    transcript   = client preamble (8) | server preamble (8)
                 | server nonce (32) | client nonce (32)
                 | u32 server max_frame_bytes | u32 server heartbeat_ms
                 | u32 client max_frame_bytes | u32 client heartbeat_ms
                 | text secret_id | text server region | text client region ("" for none)
    client proof = HMAC(secret key, "cmqd 1 client" | 0x00 | transcript)
    server proof = HMAC(secret key, "cmqd 1 server" | 0x00 | transcript
                        | u32 max_frame_bytes | u32 heartbeat_ms | u64 connection_id | text account)
    text         = u16 number of bytes | UTF-8
"""

import hmac
from struct import pack
from typing import Final

from msgspec import Struct

from cmqd_protocol.limits import (
    MAX_HEARTBEAT_MS,
    MAX_MAX_FRAME_BYTES,
    MIN_HEARTBEAT_MS,
    MIN_MAX_FRAME_BYTES,
    OLDEST_VERSION,
    VERSION,
)
from cmqd_protocol.messages import ClientHello, ServerHello, Welcome

CLIENT_LABEL: Final = b"cmqd 1 client\0"
SERVER_LABEL: Final = b"cmqd 1 server\0"


class AccessKey(Struct, frozen=True, gc=False):
    """Access key of a secret id."""

    account: str
    secret_key: str

    def __repr__(self) -> str:
        return f"AccessKey(account={self.account!r}, secret_key=...)"


NO_KEY: Final = AccessKey(account="", secret_key="x" * 40)
"""Replaces the key of an unknown id, so that refusing the id costs the same work as refusing a wrong proof."""


def choose_version(highest: int, lowest: int) -> int:
    """Return the highest version that both sides speak, or 0."""
    version = min(highest, VERSION)
    return version if version >= max(lowest, OLDEST_VERSION) else 0


def tune_max_frame_bytes(server: int, client: int) -> int:
    """Return the smaller proposal, clamped to ``MIN_MAX_FRAME_BYTES`` and ``MAX_MAX_FRAME_BYTES``."""
    return min(max(min(server, client), MIN_MAX_FRAME_BYTES), MAX_MAX_FRAME_BYTES)


def tune_heartbeat_ms(server: int, client: int) -> int:
    """Return the smaller non-zero proposal, clamped to the permitted range; 0 (no heartbeats) if both propose 0."""
    wished = min(server, client) or max(server, client)
    return min(max(wished, MIN_HEARTBEAT_MS), MAX_HEARTBEAT_MS) if wished else 0


def _text(value: str) -> bytes:
    encoded = value.encode()
    return pack(">H", len(encoded)) + encoded


def transcript(client_preamble: bytes, server_preamble: bytes, server: ServerHello, client: ClientHello) -> bytes:
    """Return the bytes that both proofs cover; see the module. ``client.proof`` is not included."""
    return b"".join(
        (
            client_preamble,
            server_preamble,
            server.nonce,
            client.nonce,
            pack(">IIII", server.max_frame_bytes, server.heartbeat_ms, client.max_frame_bytes, client.heartbeat_ms),
            _text(client.secret_id),
            _text(server.region),
            _text(client.region or ""),
        )
    )


def client_proof(secret_key: str, said: bytes) -> bytes:
    """Return the client's proof over the transcript ``said``."""
    return hmac.digest(secret_key.encode(), CLIENT_LABEL + said, "sha256")


def server_proof(secret_key: str, said: bytes, welcome: Welcome) -> bytes:
    """Return the server's proof over the transcript and the fields of ``welcome`` except ``proof`` and ``facts``."""
    added = pack(">IIQ", welcome.max_frame_bytes, welcome.heartbeat_ms, welcome.connection_id)
    return hmac.digest(secret_key.encode(), SERVER_LABEL + said + added + _text(welcome.account), "sha256")


def same(proof: bytes, expected: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(proof, expected)
