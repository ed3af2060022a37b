# Invariant: a gateway answers the same bytes alike with the direct door and without: the same answers in the same
# order, the same messages in the queue, and a connection that stays open or closes. No bytes raise an exception.
"""Requests of the JSON API with attacks and mutations in them, to a gateway with httptools and to one without.

In ``make test`` a few conversations of a fixed seed. ``make test-all PARTS=fuzz`` takes CMQD_FUZZ_SECONDS, and a seed
of its own, which is printed; CMQD_FUZZ_SEED repeats it.
"""

import asyncio
import random
import re
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import structlog
from aiohttp import web

from cmqd_gateway.http.connection_guard import ConnectionGuard
from cmqd_gateway.rest.table import BASE
from support.gateway.gateway_rig import GatewayRig
from support.mutations import mutated, rounds

pytest.importorskip("httptools")

FEW = 40
"""Conversations of a test without a time."""
TURNS = 50
"""Turns of the loop for all work that waits for nothing but the loop, as that of a request without its body does."""
KEY = "SECRET-ID:SECRET-KEY"
"""Stands for the key pair."""
HANDLE = b"HHHHHHHHHHHHHHHHHHHHHHHH"
"""Stands for a receipt handle of the queue, which ends with blanks behind its quote."""

TARGETS = (
    *(
        BASE + "/queues/orders" + path
        for path in ("/messages", "/receive", "/delete", "/messages/batch", "/delete/batch")
    ),
    *("/", "*", f"{BASE}/queues", "/ready", f"{BASE}/queues/orders/nothing"),
)
BODIES = (
    b'{"body": "x"}',
    b'{"body": "a", "headers": {"kind": "b"}, "delay": 0}',
    b'{"messages": [{"body": "a"}, {"body": "b"}]}',
    b'{"wait": 0}',
    b'{"receipt_handle": "' + HANDLE + b'"}',
    b'{"receipt_handles": ["12", "' + HANDLE + b'"]}',
    b'{"at": "9999-12-31T23:59:59-23:59", "body": "x"}',
    *(b"", b"{", b"[]", b'{"body": 1}', b'{"body": "\xff"}', b'{"body": "' + b"x" * 9_000 + b'"}', b"[" * 5_000),
)
ATTACKS = (
    *(
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length: 0005",
        "Content-Length: 5 ",
        "Content-Length:\t13",
    ),
    *("Content-Length: " + "0" * 3_500 + "13", "Content-Length: " + "9" * 30, "Content-Length: 18446744073709551615"),
    *("Content-Length: -1", "Content-Length: 0x5", "Content-Length : 5", "Content_Length: 5", "Content-Length:"),
    *("Content-Length: 1_3", "Content-Length: 13", "Content-Length: 0", "content-lengtH: 13", "Content-Length\t: 13"),
    *("Transfer-Encoding: chunked", "transfer-ENCODING: Chunked", "Transfer-Encoding: xchunked"),
    *("Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding:\x0bchunked"),
    *("Transfer-Encoding : chunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding:"),
    *("Host: a\r\nHost: b", "Host: user@gateway", "Host: a, b", "Host:", "Host: [::1", "X-Host: x\r\n Host: folded"),
    *(
        "X-Folded: a\r\n b",
        "X-Bare: a\nContent-Length: 5",
        "X-Bare: a\rContent-Length: 5",
        "X-Nul: \0",
        "X-High: \x80\xff",
    ),
    *("\x80X: y", ": empty", "No colon", "Connection: close", "Connection: keep-alive", "Connection: Keep-Alive, x"),
    *("Connection: Upgrade\r\nUpgrade: h2c", "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c"),
    *("Expect: 100-continue", "Expect: x", "Content-Encoding: gzip", "Content-Encoding: identity", "Trailer: x"),
    *("Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none", "Sec-WebSocket-Key1: x", "Cookie: session=x"),
    *("Authorization: Bearer a:b", "Authorization: Basic !", "Authorization: Bearer unknown:x"),
    *("Content-Type: text/plain", "Content-Type: application/json; charset=latin-1", "Content-Type:"),
    *("Idempotency-Key: once", 'Idempotency-Key: "once"', "Idempotency-Key:", "Idempotency-Key: \xe9", "X-Plain: 1"),
    *("X-Forwarded-For: 10.0.0.1", "X-Http-Method-Override: DELETE", "HTTP2-Settings: x", "Keep-Alive: x"),
)
EDGES = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\0",
        b"\xff",
        b" ",
        b"\t",
        b":",
        b"%2f",
        b"%00",
        b"//",
        b"/../",
        b"?",
        b"#",
    ),
    *(b"HTTP/1.0", b"HTTP/1.1", b"GET ", b"0\r\n\r\n", b"5\r\nhello\r\n", b"chunked", b"Content-Length: 5\r\n"),
)
OPENINGS = (
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n", b"\n", b"\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /\r\n", b"\r"),
    b"CONNECT gateway:80 HTTP/1.1\r\nHost: gateway\r\n\r\n",
)


def request_of(chance: random.Random) -> bytes:
    """Return a request of a client, with an attack in it or without."""
    target, body = chance.choice(TARGETS[:5] * 4 + TARGETS), chance.choice(BODIES)
    if chance.random() < 0.8:
        # The body of the operation: otherwise most requests would be refused for their fields.
        kind = ["/messages/batch", "/messages", "/receive", "/delete/batch", "/delete"]
        fitting = (BODIES[2], BODIES[chance.choice([0, 1])], BODIES[3], BODIES[5], BODIES[4])
        body = next((body for end, body in zip(kind, fitting, strict=True) if target.endswith(end)), body)
    method, version, length = "POST", "HTTP/1.1", [f"Content-Length: {len(body)}"]
    lines = ["Host: gateway", "Content-Type: application/json", f"Authorization: Bearer {KEY}"]
    match chance.randrange(16):
        case 0:
            method = chance.choice(["post", "PUT", "GET", "HEAD", "OPTIONS", "DELETE", "PATCH", "POST\t", "P\0ST"])
        case 1:
            version = chance.choice(["HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1 ", "HTTP/11", ""])
        case 2:
            target = chance.choice(
                [
                    *(
                        f"http://gateway{target}",
                        f"http://user@other{target}",
                        f"/{target}",
                        f"{target}/",
                        f"{target}?x=1",
                    ),
                    *(f"{target}#x", f"{target}?", target.replace("orders", "%6frders"), target.replace("/q", "/./q")),
                    *(
                        target.replace("orders", "orders%2F"),
                        target.replace("v1", "v1/x/.."),
                        f"{target}\x80",
                        f" {target}",
                    ),
                ]
            )
        case 3:
            body, length = b"5;x\r\n" + body[:5] + b"\r\n0\r\n\r\n", ["Transfer-Encoding: chunked"]
        case 4:
            del lines[chance.randrange(3)]
        case 5 | 6 | 7 | 8:
            attack = chance.choice(ATTACKS)
            if chance.random() < 0.5:
                # In place of the header, else beside it.
                name = attack.partition(":")[0].strip().lower()
                lines = [line for line in lines if not line.lower().startswith(name)]
                length = [line for line in length if not line.lower().startswith(name)]
            lines.insert(chance.randrange(len(lines) + 1), attack)
        case _:
            pass
    lines += length
    if chance.random() < 0.2:
        chance.shuffle(lines)
    head = f"{method} {target} {version}\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + body


def packets_of(chance: random.Random) -> list[bytes]:
    """Return the packets of a connection; an empty packet stands for a pause of a second."""
    requests = [request_of(chance) for _ in range(chance.choice([1, 2, 2, 3, 4]))]
    if chance.random() < 0.1:
        requests.insert(chance.randrange(len(requests) + 1), chance.choice(OPENINGS))
    for number, request in enumerate(requests):
        if chance.random() < 0.15:
            requests[number] = mutated(chance, request, requests, EDGES)
    packets: list[bytes] = []
    if chance.random() < 0.25:
        requests = [b"".join(requests)]
    for request in requests:
        match chance.randrange(5):
            case 0:
                cuts = sorted(chance.randrange(len(request) + 1) for _ in range(chance.randrange(1, 5)))
                packets += [request[start:end] for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True)]
            case 1:
                # The body behind its head, as some HTTP libraries write.
                end = request.find(b"\r\n\r\n") + 4
                packets += [request[:end], *([b""] if chance.random() < 0.3 else []), request[end:]]
            case _:
                packets.append(request)
    return packets


def aiohttp_of(rig: GatewayRig) -> web.Server:
    """Return the server of aiohttp."""
    server = rig.http_server._runners[0].server  # pyright: ignore[reportPrivateUsage]
    assert server is not None
    return server


class Wire(asyncio.Transport):
    """A transport whose packets arrive as the test says, on a socket that is open."""

    def __init__(self, rig: GatewayRig) -> None:
        super().__init__()
        self.inner: Any = aiohttp_of(rig)()
        self.guard: ConnectionGuard = rig.gateway.guards.make(self.inner, rig.http_server.door)
        self.written = bytearray()
        self.reads = True
        self.is_lost = False
        self._is_closing = False
        self._sockets = socket.socketpair()
        self.guard.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._sockets[0], "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(
            name, default
        )

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_lost
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def _lose(self) -> None:
        self.is_lost = True
        self.guard.connection_lost(None)
        for end in self._sockets:
            end.close()

    @property
    def waits_for_bytes(self) -> bool:
        """True if nothing but bytes of the client brings the connection further."""
        if self.is_lost:
            return True
        payload, waiter = self.guard.payload, self.inner._waiter
        if payload is not None and not payload.is_eof():
            # aiohttp waits for the rest of a body also if the bytes of the body have a fault.
            return True
        is_idle = waiter is not None and not waiter.done() and not self.inner._messages
        return self.guard.direct is None and is_idle

    def keeps_packet_open(self, pieces: list[bytes]) -> bool:
        """Return True if aiohttp would get these pieces in one packet with those before."""
        guard = self.guard
        return bool(guard._behind or (guard._held and any(pieces)))  # pyright: ignore[reportPrivateUsage]

    async def settle(self, rig: GatewayRig) -> None:
        """Wait until the connection waits for bytes."""
        turns = 0
        while turns < TURNS:
            await asyncio.sleep(0)
            turns = turns + 1 if self.waits_for_bytes else 0
            if not turns and await rig.server.status("waiting_receives"):
                # A mutation made a receive wait.
                await rig.server.put("orders", b"late")


CHANGING = re.compile(
    rb'(?<="requestId":")\w+|(?<=_id":")\w+(?=")|\n\n  b[\'"].*\n *\^|'
    rb"Msg-\w+|\d{4}-\d\d-\d\dT[\d:.]+Z?|(?<=Content-Length: )\d+|Date: [^\r]+|\d{6,}"
)
"""Ids, times, and the bytes of a packet that aiohttp repeats: a body that was waited for begins such a packet."""


def comparable(written: bytes) -> list[list[bytes]]:
    """Return answers without their order of headers, and without ids and times."""
    blocks = [block.split(b"\r\n") for block in CHANGING.sub(b"~", written).split(b"\r\n\r\n")]
    return [[first, *sorted(others)] for first, *others in blocks]


Packets = list[tuple[list[bytes], bool]]
"""Pieces of packets, and whether each packet comes after the answers to those before."""


async def outcome(rig: GatewayRig, packets: Packets) -> tuple[Any, Packets]:
    """Send packets to a gateway, and return the answers, the messages, and whether the connection is open.

    Beside them the packets as the gateway took them: aiohttp drops requests before a fault in the same packet, so bytes
    that waited in the guard count as one packet.
    """
    queue = rig.server.admin.queue("orders")
    await rig.server.put("orders", b"first", b"second")
    handle = str((await queue.receive())[0].receipt_handle).encode()
    key = f"{rig.own_key.secret_id}:{rig.own_key.secret_key}".encode()
    wire = Wire(rig)
    taken: Packets = []
    for pieces, waits in packets:
        if waits or not wire.reads:
            await wire.settle(rig)
        if wire.is_closing() or not wire.reads:
            break
        if wire.keeps_packet_open(pieces):
            former, former_waits = taken.pop()
            taken.append((former + pieces, former_waits))
        else:
            taken.append((pieces, waits))
        if any(pieces):
            filled = [piece.replace(HANDLE + b'"', (handle + b'"').ljust(len(HANDLE) + 1)) for piece in pieces]
            wire.guard.data_received(b"".join(piece.replace(KEY.encode(), key) for piece in filled))
        else:
            rig.gateway.guards.close_slow()
    await wire.settle(rig)
    rig.gateway.guards.close_slow()
    await wire.settle(rig)
    is_open, answers = not wire.is_closing(), comparable(bytes(wire.written))
    wire.close()
    await wire.settle(rig)
    assert (len(rig.gateway.guards), rig.gateway.guards.head_bytes, rig.gateway.bodies.bytes_in_use) == (0, 0, 0)
    stored = [
        (message.body, message.headers) for message in await queue.peek(100, states=["active", "in_flight", "delayed"])
    ]
    await queue.clear()
    return (is_open, answers, stored), taken


@pytest.fixture
async def rigs(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[GatewayRig, GatewayRig]]:
    """A gateway with the direct door, and one without, each before a broker of its own."""
    structlog.reset_defaults()
    async with GatewayRig() as direct:
        monkeypatch.setattr("cmqd_gateway.server.find_spec", dict[str, None]().get)
        async with GatewayRig() as other:
            for rig in (direct, other):
                rig.clock.hold()
                await rig.gateway.secrets.find(rig.own_key.secret_id, None)
            assert (direct.http_server.door is None, other.http_server.door is None) == (False, True)
            yield direct, other


async def test_the_direct_door_and_aiohttp_read_the_same_bytes_alike(
    rigs: tuple[GatewayRig, GatewayRig], caplog: pytest.LogCaptureFixture
) -> None:
    direct, other = rigs
    handled = 0
    for chance in rounds("http", FEW):
        packets: Packets = [([packet], chance.random() < 0.6) for packet in packets_of(chance)]
        try:
            first, taken = await outcome(direct, packets)
            second, _ = await outcome(other, taken)
            assert first == second
            assert not caplog.records, caplog.text
        except BaseException as error:
            error.add_note(f"packets: {packets}")
            raise
        handled += len(first[1]) - 1
    counts = [aiohttp_of(rig).requests_count for rig in rigs]
    print(f"answers: {handled}, by aiohttp: {counts}")
    assert counts[0] < 0.95 * counts[1]
