"""A process that attacks one server on loopback for a bounded time: ``python -m cmqd_bench.attack.attacker``.

Blocking sockets do the handshake, a selector drives the flood. The process ends after the given time.
"""

import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import getrandbits
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cmqd_load.connect import authenticate_blocking
from cmqd_protocol.frames import encode_preamble, frame, header
from cmqd_protocol.limits import VERSION
from cmqd_protocol.messages import (
    Cancel,
    GetTopicAttributes,
    ListQueues,
    ListSubscriptions,
    PublishMessages,
    Request,
    SendMessages,
    encoder,
)

CHUNK: Final = 256 * 1024
"""Bytes offered to the socket at a time."""
UNFINISHED_BYTES: Final = 4_000_000
"""Bytes sent of a frame of 4 MiB, which stays incomplete."""
BULK_BYTES: Final = 960_000
"""Body of a bulk send."""
BULK_OUTSTANDING: Final = 64
"""Bulk sends of a connection without a reply."""
BULK_QUEUE: Final = "bulk"
WIDE_TOPIC: Final = "wide"
WIDE_QUEUES: Final = 500
"""Queues subscribed to the topic, with ``WIDE_FILTERS`` of ``WIDE_TAGS`` tags per subscription."""
WIDE_TAGS: Final = 20
WIDE_FILTERS: Final = 5
WIDE_MESSAGES: Final = 256
"""Messages per publish, no two with the same tags: 11 KB."""
WIDE_OUTSTANDING: Final = 60
"""Publishes of a connection without a reply."""
OTHER_ACCOUNT: Final = "attacker"
"""Account that sends the new dedup ids and sessions, so that the shares of two accounts are compared, and reads its
lists."""
LISTED_TOPIC: Final = "listed"
LISTED_SUBSCRIPTIONS: Final = 500
LISTED_QUEUES: Final = 3_000
READS: Final = 1_000
"""Reading requests of a connection that are written at once, when all earlier ones are answered: 18 kB."""
DEDUP_IDS: Final = 256
"""Messages per send; every message has a body of 1 byte and a new dedup id."""
DEDUP_OUTSTANDING: Final = 16
"""Sends with new dedup ids of a connection without a reply."""
SESSIONS: Final = 64
"""Sends written at once; every send has a body of 1 byte and a new session."""
SESSIONS_OUTSTANDING: Final = 1_024
"""Sends of new sessions of a connection without a reply."""
RECONNECT_SECONDS: Final = 0.01
"""Pause before reopening a connection that the server closed."""


@dataclass
class Assault:
    """One connection of an attack and its unwritten bytes."""

    connection: socket.socket
    refill: Callable[["Assault"], bytes]
    data: bytes = b""
    position: int = 0
    written: int = 0
    replies: int = 0
    filled: int = 0
    answered: bytearray = field(default_factory=bytearray)


def _connect(url: str, *, authenticate: bool) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), 10)
    if not authenticate:
        connection.sendall(encode_preamble(VERSION, VERSION))
        return connection
    authenticate_blocking(url, connection)
    return connection


def _always(data: bytes) -> Callable[[Assault], bytes]:
    return lambda _: data


def _unfinished(assault: Assault) -> bytes:
    return b"" if assault.written else header(4 * 1024 * 1024) + bytes(UNFINISHED_BYTES)


def _bulk(assault: Assault) -> bytes:
    if assault.filled - assault.replies >= BULK_OUTSTANDING:
        return b""
    assault.filled += 1
    # [16, u32 number, ...]: the number follows the header, the array's byte and the operation.
    return _BULK_SEND[:7] + (2**31 + assault.filled).to_bytes(4, "big") + _BULK_SEND[11:]


def _publishes(assault: Assault) -> bytes:
    """Publish messages with tags that were never used before."""
    if assault.filled - assault.replies >= WIDE_OUTSTANDING:
        return b""
    assault.filled += 1
    number = assault.filled
    tags: list[list[str]] = [
        [f"{number}-{place}", f"f{place % WIDE_TAGS}", f"f{(place * 7 + number) % WIDE_TAGS}"]
        for place in range(WIDE_MESSAGES)
    ]
    return frame(encoder.encode(PublishMessages(number, WIDE_TOPIC, [b"x" * 16] * WIDE_MESSAGES, tags=tags)))


def _dedup_ids(assault: Assault) -> bytes:
    """Encode a send of messages with new dedup ids."""
    if assault.filled - assault.replies >= DEDUP_OUTSTANDING:
        return b""
    assault.filled += 1
    prefix = os.urandom(8).hex()
    ids: list[str | None] = [f"{prefix}-{place}" for place in range(DEDUP_IDS)]
    return frame(encoder.encode(SendMessages(assault.filled, BULK_QUEUE, [b"x"] * DEDUP_IDS, dedup_ids=ids)))


def _sessions(assault: Assault) -> bytes:
    """Encode sends, every send the first of a new session."""
    if assault.filled - assault.replies > SESSIONS_OUTSTANDING - SESSIONS:
        return b""
    numbers = range(assault.filled + 1, assault.filled + SESSIONS + 1)
    assault.filled += SESSIONS
    return b"".join(
        frame(encoder.encode(SendMessages(number, BULK_QUEUE, [b"x"], session=getrandbits(63) | 1, sequence=1)))
        for number in numbers
    )


def _reads(make: Callable[[int], Request]) -> Callable[[Assault], bytes]:
    """Return the function that writes ``READS`` reading requests at once."""

    def reads(assault: Assault) -> bytes:
        if assault.filled > assault.replies:
            return b""
        numbers = range(assault.filled + 1, assault.filled + READS + 1)
        assault.filled += READS
        return b"".join(frame(encoder.encode(make(number))) for number in numbers)

    return reads


_ZEROS: Final = bytes(CHUNK)
_CANCELS: Final = frame(encoder.encode(Cancel(1))) * (CHUNK // 8)
_BULK_SEND: Final = frame(encoder.encode(SendMessages(2**32 - 1, BULK_QUEUE, [os.urandom(BULK_BYTES)])))


class Attack(NamedTuple):
    """A kind of attack."""

    refill: Callable[[Assault], bytes]
    """Returns the next bytes of a connection; empty = wait for a reply."""
    connections: Sequence[int] = (1,)
    """Numbers of connections, a case of the command each."""
    is_authenticated: bool = True
    has_lists: bool = False
    """True if the attack reads lists of many objects."""
    is_of_other_account: bool = False
    """True if the attack comes from a second account, not from that of the healthy client."""


def _of_lists(make: Callable[[int], Request]) -> Attack:
    return Attack(_reads(make), has_lists=True, is_of_other_account=True)


ATTACKS: Final[Mapping[str, Attack]] = {
    "zeros": Attack(_always(_ZEROS), (1, 50), is_authenticated=False),
    "zeros-authenticated": Attack(_always(_ZEROS), (1, 50)),
    "cancels": Attack(_always(_CANCELS), (1, 50)),
    "unfinished": Attack(_unfinished, (150,)),
    "bulk": Attack(_bulk),
    "publishes": Attack(_publishes),
    "dedup-ids": Attack(_dedup_ids, (4,), is_of_other_account=True),
    "sessions": Attack(_sessions, (4,), is_of_other_account=True),
    "subscription-lists": _of_lists(lambda number: ListSubscriptions(number, LISTED_TOPIC)),
    "queue-lists": _of_lists(ListQueues),
    "topic-attributes": _of_lists(lambda number: GetTopicAttributes(number, LISTED_TOPIC)),
}


def _write(assault: Assault) -> bool:
    """Write as much as the socket takes; return True if bytes remain."""
    if assault.position == len(assault.data):
        assault.data, assault.position = assault.refill(assault), 0
        if not assault.data:
            return False
    count = assault.connection.send(memoryview(assault.data)[assault.position : assault.position + CHUNK])
    assault.position += count
    assault.written += count
    return True


def _read(assault: Assault) -> None:
    """Read and count replies."""
    data = assault.connection.recv(65_536)
    if not data:
        raise ConnectionError
    received = assault.answered
    received += data
    while len(received) >= 4 and len(received) >= (stop := 4 + int.from_bytes(received[:4], "big")):
        assault.replies += stop > 4
        del received[:stop]


def attack(kind: str, url: str, connections: int, seconds: float) -> dict[str, int]:
    """Attack for ``seconds`` from ``connections`` connections; return counts."""
    selector = selectors.DefaultSelector()
    stop_at = time.monotonic() + seconds
    counts = {"bytes": 0, "reconnects": 0, "replies": 0}
    dropped_at: list[float] = []

    def join() -> None:
        connection = _connect(url, authenticate=ATTACKS[kind].is_authenticated)
        connection.setblocking(False)
        selector.register(
            connection, selectors.EVENT_READ | selectors.EVENT_WRITE, Assault(connection, ATTACKS[kind].refill)
        )

    def drop(assault: Assault) -> None:
        counts["bytes"] += assault.written
        counts["replies"] += assault.replies
        selector.unregister(assault.connection)
        assault.connection.close()

    for _ in range(connections):
        join()
    while time.monotonic() < stop_at:
        wrote = False
        for key, events in selector.select(0.05):
            assault: Assault = key.data
            try:
                if events & selectors.EVENT_READ:
                    _read(assault)
                if events & selectors.EVENT_WRITE:
                    wrote = _write(assault) or wrote
            except BlockingIOError:
                continue
            except OSError:
                drop(assault)
                counts["reconnects"] += 1
                dropped_at.append(time.monotonic())
        while dropped_at and time.monotonic() - dropped_at[0] >= RECONNECT_SECONDS:
            del dropped_at[0]
            try:
                join()
            except OSError:
                dropped_at.append(time.monotonic())
        if not wrote:
            time.sleep(0.002)
    for key in list(selector.get_map().values()):
        drop(key.data)
    return counts


def main() -> None:
    """Attack by the arguments: kind, URL, connections, seconds. Prints the counts."""
    kind, url, connections, seconds = sys.argv[1:]
    counts = attack(kind, url, int(connections), float(seconds))
    print(" ".join(f"{name}={value}" for name, value in counts.items()))


if __name__ == "__main__":
    main()
