"""The numbers of the protocol itself, each with its reason. What a queue or an account may hold is not known here.

Sizes are bytes and times are milliseconds unless the name says otherwise.
"""

from typing import Final

MAGIC: Final = b"CMQD"
"""First bytes in both directions. No HTTP method, TLS record or AMQP header starts so, and a human recognizes it."""

VERSION: Final = 1
OLDEST_VERSION: Final = 1
"""A server speaks its own and the previous version; there is no version before 1."""

PREAMBLE_BYTES: Final = 8

HEADER_BYTES: Final = 4

MAX_REQUEST_ID: Final = 2**32 - 1
"""Fits msgpack's 5-byte integer; at 100,000 requests a second a connection goes round in 12 hours, and only numbers
that still wait for a reply are taken."""

MIN_MAX_FRAME_BYTES: Final = 1024 * 1024 + 64 * 1024
"""No tune goes below: a body of 1 MiB with 16 KiB of headers, or a batch of 256 whose bodies and headers are 1 MiB,
must fit with their msgpack framing (under 52 KiB; a test builds the worst batches)."""

DEFAULT_MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""Larger than any reply of this version needs; leaves room for the lists of the largest account."""

MAX_MAX_FRAME_BYTES: Final = 2**28 - 1
"""The upper four bits of a length are reserved for flags (compression): with one set the length is over this
ceiling, so that a peer that does not know the flag refuses the frame by the rule it has anyway."""

LARGE_PAYLOAD_BYTES: Final = 64 * 1024
"""Longest payload that a server walks over whole, 0.1 ms at one byte an element, and most that it skips behind the last
element that it knows. Below every tune."""

HANDSHAKE_FRAME_BYTES: Final = 4096
"""The largest frame before authentication: a hello needs about 300 bytes, and a stranger can make the server hold no
more than this and one read of the socket."""

HANDSHAKE_BYTES: Final = 16_384
"""Bytes that a server reads of a client up to the end of its hello, heartbeats included. A hello of 4 KiB and a
preamble fit four times over, and a stranger cannot keep a server busy with heartbeats."""

AUTHENTICATION_TIMEOUT_MS: Final = 5_000
"""From the accepted connection to the proof. PostgreSQL gives 60 s, RabbitMQ 10 s; one round trip needs no more."""

DEFAULT_HEARTBEAT_MS: Final = 30_000
"""A vanished peer is noticed within a minute. RabbitMQ proposes 60 s, NATS pings every 120 s; long polls last at
most 30 s, and an idle connection costs four small packets a minute."""

MIN_HEARTBEAT_MS: Final = 1_000
"""Below this a garbage collection or a busy minute on either side would look like death."""

MAX_HEARTBEAT_MS: Final = 3_600_000
"""A longer one is cut: nobody who asks for heartbeats means less than one an hour."""

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
"""An HMAC-SHA256; a nonce as long adds as much entropy as the proof can carry."""

MAX_SECRET_ID_BYTES: Final = 128
MAX_NAME_BYTES: Final = 128
"""Region, product and account in the handshake."""

MAX_BATCH: Final = 256
"""Messages or receipt handles of one request: with bodies of 256 bytes a batch is 64 KiB, one row of the log."""

MAX_DEDUP_ID_BYTES: Final = 64
MAX_TAGS: Final = 64
MAX_TAG_CHARS: Final = 128
MAX_ROUTING_KEY_BYTES: Final = 512
"""Shapes only, several times what a topic takes, so that the server names the tag or key that is too much."""
MAX_HEADERS: Final = 32
MAX_ATTRIBUTES: Final = 64
"""Names in one attribute map; several times what any version knows, so that unknown ones are named by the server."""

DEFAULT_MAX_WAITING_REQUESTS: Final = 4_096
"""Requests of one connection that wait for their replies; beyond it ``TOO_MANY_REQUESTS``. A waiting receive costs
the server about a kilobyte, so one connection makes it hold some 4 MiB. The welcome tells the limit in force."""

JOIN_BYTES: Final = 128 * 1024
"""Pieces of output are joined into one buffer up to this size; above it a join costs three times the bytes' own
encoding, since it leaves the cache, and the pieces go to the socket as they are."""
