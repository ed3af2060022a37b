"""Limits of the protocol, with their reasons. Limits of queues and accounts belong to the core.

Sizes are bytes and times are milliseconds unless the name says otherwise.
"""

from typing import Final

MAGIC: Final = b"CMQD"
"""First bytes in both directions. No HTTP method, TLS record or AMQP header starts with these bytes, and the magic is
readable in a dump."""

VERSION: Final = 1
OLDEST_VERSION: Final = 1
"""A server speaks its own and the previous version. Version 1 is the first."""

PREAMBLE_BYTES: Final = 8

HEADER_BYTES: Final = 4

MAX_REQUEST_ID: Final = 2**32 - 1
"""Fits msgpack's 5-byte integer. At 100,000 requests a second the numbers of a connection start again after 12 hours,
and only numbers of outstanding requests are in use."""

MIN_MAX_FRAME_BYTES: Final = 1024 * 1024 + 64 * 1024
"""Minimum of the negotiated frame size. A body of 1 MiB with 16 KiB of headers, or a batch of 256 messages with 1 MiB
of bodies and headers, must fit with the msgpack framing (under 52 KiB; a test builds the worst batches)."""

DEFAULT_MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""More than any reply of this version needs, with room for the lists of the largest account."""

MAX_MAX_FRAME_BYTES: Final = 2**28 - 1
"""The upper four bits of a length are reserved for flags (compression). A length with a flag is over this maximum, so a
peer that does not know the flag refuses the frame as too large."""

LARGE_PAYLOAD_BYTES: Final = 64 * 1024
"""Longest payload that a server examines whole (0.1 ms with elements of a byte), and the most bytes that a server skips
behind the last known element. Less than the smallest negotiated frame size."""

HANDSHAKE_FRAME_BYTES: Final = 4096
"""Largest frame before authentication. A hello needs about 300 bytes, and an unauthenticated peer can make the server
store no more than this frame and a single read of the socket."""

HANDSHAKE_BYTES: Final = 16_384
"""Bytes that a server reads from a client before the end of the hello, heartbeats included. A hello of 4 KiB and a
preamble fit almost four times, and an unauthenticated peer cannot keep a server busy with heartbeats."""

AUTHENTICATION_TIMEOUT_MS: Final = 5_000
"""From the accepted connection to the proof. PostgreSQL allows 60 s, RabbitMQ 10 s; 5 s are enough for a round trip."""

DEFAULT_HEARTBEAT_MS: Final = 30_000
"""The loss of a peer is detected within a minute. RabbitMQ proposes 60 s, NATS pings every 120 s. A long poll takes at
most 30 s, and an idle connection costs four small packets a minute."""

MIN_HEARTBEAT_MS: Final = 1_000
"""With a shorter heartbeat, a garbage collection or high load on either side would end the connection."""

MAX_HEARTBEAT_MS: Final = 3_600_000
"""Longer proposals are reduced to an hour: a rarer heartbeat is of no use."""

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
"""An HMAC-SHA256. A nonce of the same length adds as much entropy as the proof can carry."""

MAX_SECRET_ID_BYTES: Final = 128
MAX_CLIENT_FEATURES: Final = 64
"""Words of a hello: far more than there are, and the frame of a hello bounds their length."""
MAX_NAME_BYTES: Final = 128
"""Region, product and account in the handshake."""

MAX_BATCH: Final = 256
"""Messages or receipt handles of a request. With bodies of 256 bytes a batch is 64 KiB, a row of the log."""
MAX_BATCH_BYTES: Final = 1024 * 1024
"""Bodies and headers of a batch together."""

MAX_DEDUP_ID_BYTES: Final = 64
MAX_REJECTION_BYTES: Final = 256
MAX_TAGS: Final = 64
MAX_TAG_CHARS: Final = 128
MAX_ROUTING_KEY_BYTES: Final = 512
"""Limits of decoding, several times the limits of a topic, so that the core can name the tag or key in its error."""
MAX_HEADERS: Final = 32
MAX_HEADERS_BYTES: Final = 16 * 1024
"""Names and values of all headers of a message."""
MAX_ATTRIBUTES: Final = 64
"""Names in an attribute map; several times the number of attributes, so that the core can name an unknown attribute."""

DEFAULT_MAX_WAITING_REQUESTS: Final = 4_096
"""Outstanding requests of a connection; a request above the limit gets ``TOO_MANY_REQUESTS``. A waiting receive costs
the server about a kilobyte, so a connection can occupy some 4 MiB. The welcome announces the limit in force."""

JOIN_BYTES: Final = 128 * 1024
"""Pieces of output are joined into a single buffer up to this size. Above, a join no longer fits the cache and costs
three times the encoding of the bytes, so the pieces go to the socket unjoined."""
