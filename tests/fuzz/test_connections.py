# Invariant: with any bytes, cut anywhere, a machine in any state either goes on or ends with a ConnectionEnded (a
# server with an Error frame or a refusing preamble); the machine raises no exception, reports no event after its end,
# and allocates no more than a small multiple of the received bytes, with any lengths and counts in the bytes.
"""Garbage against both machines: seeded and bounded here. For longer, from a new seed (prints the bytes that break the
invariant): ``PYTHONPATH=tests .venv/bin/python tests/fuzz/test_connections.py SECONDS [SEED]``.
"""

import os
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable

import pytest

from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.events import ConnectionEnded
from cmqd_protocol.frames import encode_preamble, frame
from cmqd_protocol.messages import GetServerStatus
from cmqd_protocol.server_connection import ServerConnection
from support.protocol.connection_pair import ConnectionPair, a_client, a_server
from support.protocol.vectors import load

Machine = ServerConnection | ClientConnection

SEEDS = [
    *(bytes.fromhex(vector["payload"]) for name in ("messages", "variants", "refused") for vector in load(name)),
    *(bytes.fromhex(step["bytes"])[4:] for vector in load("handshake") for step in vector["steps"]),
]
"""The material of garbage: meaningful payloads."""

CLAIMS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\x00\x0f\x00\x00",
    b"\xc9\xff\xff\xff\xff\x05",
    b"\xdc\xff\xff",
    b"\xde\xff\xff",
    b"\x91" * 1100,
    b"\x81\xa0" * 1100,
    b"\xc1",
    b"\xd6\xff\xff\xff\xff\xff",
    b"\xa2\xff\xfe",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
]
"""Pieces of msgpack that claim a lot, or are wrong in a way of their own."""


def fresh_server() -> Machine:
    return a_server()


def server_after_preamble() -> Machine:
    server = a_server()
    server.receive_data(encode_preamble(1, 1), 0)
    return server


def open_server() -> Machine:
    return ConnectionPair.opened().server


def fresh_client() -> Machine:
    return a_client()


def client_after_preamble() -> Machine:
    client = a_client()
    client.receive_data(encode_preamble(1, 0), 0)
    return client


def client_after_hello() -> Machine:
    pair = ConnectionPair()
    pair.carry_to_server()
    pair.carry_to_client()
    return pair.client


def open_client() -> Machine:
    client = ConnectionPair.opened().client
    for number in range(1, 31):
        client.send(GetServerStatus(number))
    client.data_to_send(0)
    return client


STARTS: list[Callable[[], Machine]] = [
    fresh_server,
    server_after_preamble,
    open_server,
    fresh_client,
    client_after_preamble,
    client_after_hello,
    open_client,
]


def mutated(chance: random.Random, payload: bytes) -> bytes:
    """A payload with a few things wrong."""
    data = bytearray(payload)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at:at] = chance.choice(CLAIMS)
            case 1:
                data[at : at + 1] = chance.choice(CLAIMS)
            case 2:
                data[at : at + 1] = chance.randbytes(1)
            case 3:
                del data[at : at + chance.randrange(1, 8)]
            case _:
                data[at:at] = chance.choice(SEEDS)[:40]
    return bytes(data)


def garbage(chance: random.Random) -> bytes:
    """A stream that is nearly, or not at all, a conversation."""
    pieces: list[bytes] = []
    if chance.random() < 0.3:
        pieces.append(encode_preamble(chance.choice((0, 1, 1, 9)), chance.choice((0, 1))))
    for _ in range(chance.randrange(1, 8)):
        payload = mutated(chance, chance.choice(SEEDS))
        match chance.randrange(8):
            case 0:
                pieces.append(struct.pack(">I", chance.choice((0, 1, 4096, 4097, 2**20, 2**32 - 1))))
            case 1:
                pieces.append(chance.randbytes(chance.randrange(40)))
            case 2:
                pieces.append(payload)
            case _:
                pieces.append(frame(payload))
    return b"".join(pieces)


def cut(chance: random.Random, stream: bytes) -> list[bytes]:
    match chance.randrange(3):
        case 0:
            return [stream]
        case 1:
            return [stream[at : at + 1] for at in range(len(stream))]
        case _:
            size = chance.randrange(1, 60)
            return [stream[at : at + size] for at in range(0, len(stream), size)]


def check(start: Callable[[], Machine], pieces: list[bytes]) -> bool:
    """Feed the pieces and check the invariant; returns whether the machine ended."""
    machine = start()
    machine.events()
    machine.data_to_send(0)
    for now_ms, piece in enumerate(pieces):
        machine.receive_data(piece, now_ms)
        events = machine.events()
        output = machine.data_to_send(now_ms)
        if machine.is_ending:
            assert isinstance(events[-1], ConnectionEnded)
            assert machine.ended == events[-1]
            assert not any(isinstance(event, ConnectionEnded) for event in events[:-1])
            assert output or isinstance(machine, ClientConnection)
            machine.receive_data(piece, now_ms)
            machine.tick(10**9)
            assert machine.events() == []
            assert machine.data_to_send(now_ms) == []
            return True
        assert not any(isinstance(event, ConnectionEnded) for event in events)
        held = int(repr(machine._reader).partition("held=")[2].partition(" ")[0])  # pyright: ignore[reportPrivateUsage]
        assert held <= sum(map(len, pieces[: now_ms + 1]))
    return False


STREAMS = 1_000 if "CMQD_FUZZ_SECONDS" in os.environ else 200
"""Each costs milliseconds: the part fuzz of ``make test-all`` has all."""


@pytest.mark.parametrize("start", STARTS)
def test_garbage_is_survived(start: Callable[[], Machine]) -> None:
    chance = random.Random(start.__name__)
    ends = 0
    for _ in range(STREAMS):
        stream = garbage(chance)
        try:
            ends += check(start, cut(chance, stream))
        except BaseException:
            print(f"{start.__name__} broke on {stream.hex()}", file=sys.stderr)
            raise

    # Otherwise the garbage is too good or too bad for a test.
    assert ends > STREAMS // 10


def peak_bytes(machine: Machine, stream: bytes) -> int:
    """Return the most memory that the process took while the machine received the stream."""
    tracemalloc.start()
    try:
        machine.receive_data(stream, 0)
        machine.events()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("start", STARTS)
def test_lengths_in_the_bytes_allocate_no_memory(start: Callable[[], Machine]) -> None:
    chance = random.Random(start.__name__)
    for seed in [payload for payload in SEEDS for _ in range(2)]:
        stream = frame(mutated(chance, seed) + chance.choice(CLAIMS))
        # Three times: another thread of the tests, with the links of a cluster, takes 256 KiB for each of its reads.
        peak = min(peak_bytes(start(), stream) for _ in range(3))

        # Python's own objects cost up to 60 bytes for a byte of msgpack, and nested maps 100 from Python 3.12 on, which
        # decodes more levels.
        assert peak < 16_384 + 100 * len(stream), f"{start.__name__} took {peak} bytes for {stream.hex()}"


def test_a_megabyte_of_empty_things_costs_no_more_than_its_frame_allows() -> None:
    """The worst input of an authenticated client: nils in the place of a list."""
    for claim in (b"\xdd\x00\x0f\xff\x00", b"\xdc\xff\x00"):
        entries = int.from_bytes(claim[1:], "big")
        machine = open_server()
        stream = frame(b"\x94\x10\x01\xa1q" + claim + b"\xc0" * entries)
        tracemalloc.start()
        try:
            machine.receive_data(stream, 0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert machine.is_open
        assert peak < 65_536 + 3 * len(stream)


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    stop = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < stop:
        chance = random.Random(seed + runs)
        stream = garbage(chance)
        start = chance.choice(STARTS)
        try:
            check(start, cut(chance, stream))
        except BaseException:
            print(f"seed {seed + runs}: {start.__name__} broke on {stream.hex()}")
            raise
        runs += 1
    print(f"{runs} streams from seed {seed}: the invariant held")
