# pyright: reportPrivateUsage=false
"""Direct requests: frequent requests that do not reach aiohttp, with the same answers, limits and order."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.http.connection_guard import ConnectionGuard
from cmqd_gateway.rest.table import BASE
from support.eventually import eventually
from support.gateway.gateway_rig import GatewayRig

pytest.importorskip("httptools")
from cmqd_gateway.rest.direct import DirectRequests

REPEATED = "X-Other: 1\r\nX-Other: 2\r\n"
"""Headers that make a request one for aiohttp, without another meaning."""


@pytest.fixture
async def rig() -> AsyncGenerator[GatewayRig]:
    """A gateway that knows the key."""
    async with GatewayRig() as rig:
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        yield rig


def post(rig: GatewayRig, path: str, body: Any = None, headers: str = "", key: KeySecret | None = None) -> bytes:
    """Return a request to the queue ``orders``."""
    key = key or rig.own_key
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"POST {BASE}/queues/orders{path} HTTP/1.1\r\nHost: {rig.host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key.secret_id}:{key.secret_key}\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Caller:
    """A connection to the gateway."""

    def __init__(self, rig: GatewayRig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.rig = rig
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, rig: GatewayRig) -> "Caller":
        return cls(rig, *await rig.open_raw())

    async def answer(self) -> tuple[str, dict[str, str], Any]:
        """Return status, headers and JSON of the next answer."""
        line, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("Content-Length", "0")))
        return line, headers, json.loads(body) if body else None

    async def ask(self, *pieces: bytes) -> tuple[str, dict[str, str], Any]:
        """Send a request and return its answer."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
        return await self.answer()


@pytest.fixture
async def caller(rig: GatewayRig) -> AsyncGenerator[Caller]:
    caller = await Caller.open(rig)
    yield caller
    caller.writer.close()


def seen_by_aiohttp(rig: GatewayRig) -> int:
    """Return the number of requests that aiohttp has handled."""
    return sum(runner.server.requests_count for runner in rig.http_server._runners if runner.server is not None)


REQUESTS: list[tuple[str, Any, str]] = [
    ("/messages", {"body": "x", "headers": {"kind": "order"}}, ""),
    ("/messages", {"body": "x" * 9_000, "delay": 1.5}, ""),
    ("/messages", {"body": "x"}, "Idempotency-Key: once\r\n"),
    ("/messages", {"body": ""}, ""),
    ("/messages/batch", {"messages": [{"body": "a"}, {"body": "b"}]}, ""),
    ("/receive", {"wait": 0}, ""),
    ("/receive", {"wait": 0, "max_messages": 1_000}, ""),
    ("/receive", None, ""),
    ("/delete", {"receipt_handle": "12"}, ""),
    ("/delete", {"receipt_handle": "99999999999999999999"}, ""),
    ("/delete/batch", {"receipt_handles": ["12", "13"]}, ""),
]


@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS)
async def test_an_answer_is_the_same_as_that_of_aiohttp(
    rig: GatewayRig, caller: Caller, path: str, body: Any, headers: str
):
    direct = await caller.ask(post(rig, path, body, headers))
    assert seen_by_aiohttp(rig) == 0
    other = await caller.ask(post(rig, path, body, REPEATED + headers))
    assert seen_by_aiohttp(rig) == 1

    assert direct[0] == other[0]
    assert set(direct[1]) == set(other[1])
    for name in ("Content-Type", "Server", "Cache-Control", "X-Content-Type-Options"):
        assert direct[1].get(name) == other[1].get(name)
    assert type(direct[2]) is type(other[2])
    if direct[2] is not None:
        assert list(direct[2]) == list(other[2])


async def test_a_delete_is_answered_without_a_body(rig: GatewayRig, caller: Caller):
    await rig.server.put("orders", b"x")
    received = (await caller.ask(post(rig, "/receive", {"wait": 0})))[2]["messages"][0]

    line, headers, body = await caller.ask(post(rig, "/delete", {"receipt_handle": received["receipt_handle"]}))

    assert (line, body) == ("HTTP/1.1 204 No Content", None)
    assert "Content-Length" not in headers
    assert (received["body"], seen_by_aiohttp(rig)) == ("x", 0)
    assert await rig.server.bodies("orders") == []


FAULTY: Sequence[Callable[[GatewayRig], bytes]] = (
    lambda rig: post(rig, "/messages", {"body": 1}),
    lambda rig: post(rig, "/messages", {"bodi": "x"}),
    lambda rig: post(rig, "/messages", None),
    lambda rig: post(rig, "/messages", {"body": "x"}).replace(b"application/json", b"text/plain"),
    lambda rig: post(rig, "/messages?x=1", {"body": "x"}),
    lambda rig: post(rig, "/messages", {"body": "x"}, "Sec-Fetch-Site: cross-site\r\n"),
    lambda rig: post(rig, "/messages", {"body": "x"}, "Idempotency-Key: \r\n"),
    lambda rig: post(rig, "/messages", {"body": "x"}, key=KeySecret(rig.own_key.secret_id, "wrong")),
    lambda rig: post(rig, "/messages", {"body": "x"}, key=KeySecret("unknown", "wrong")),
    lambda rig: post(rig, "/messages", {"body": "x"}).replace(b"orders", b"%6frders"),
    lambda rig: post(rig, "/nothing", {"body": "x"}),
)


@pytest.mark.parametrize("request_of", FAULTY)
async def test_a_request_with_a_fault_is_explained_by_aiohttp(
    rig: GatewayRig, caller: Caller, request_of: Callable[[GatewayRig], bytes]
):
    line, _, _ = await caller.ask(request_of(rig))

    assert seen_by_aiohttp(rig) == 1
    assert line.split(" ")[1] in ("400", "401", "403", "404", "415", "201")
    # The next request on the connection is a direct one again.
    assert (await caller.ask(post(rig, "/messages", {"body": "next"})))[0] == "HTTP/1.1 201 Created"
    assert seen_by_aiohttp(rig) == 1


async def test_a_head_that_was_right_is_refused_after_a_change_of_its_key(rig: GatewayRig, caller: Caller):
    key = rig.add_key("another", "secret")
    await rig.gateway.secrets.find("another", None)
    request = post(rig, "/receive", {"wait": 0}, key=key)
    # The broker of the rig does not know the key, so its refusal comes after the gateway's check.
    first = await caller.ask(request)
    direct = seen_by_aiohttp(rig)

    rig.add_key("another", "changed")
    rig.key_changed("another")
    await rig.gateway.secrets.find("another", None)
    second = await caller.ask(request)

    assert (direct, seen_by_aiohttp(rig)) == (0, 1)
    assert first[2]["name"] == "authentication_failed"
    assert (second[0], second[2]["name"]) == ("HTTP/1.1 401 Unauthorized", "unauthorized")


async def test_a_disabled_key_is_refused(rig: GatewayRig, caller: Caller):
    request = post(rig, "/messages", {"body": "x"})
    assert (await caller.ask(request))[0] == "HTTP/1.1 201 Created"
    rig.add_key(rig.own_key.secret_id, rig.own_key.secret_key, enabled=False)
    rig.key_changed(rig.own_key.secret_id)
    await rig.gateway.secrets.find(rig.own_key.secret_id, None)

    assert (await caller.ask(request))[0] == "HTTP/1.1 401 Unauthorized"


async def test_a_key_over_its_rate_is_refused():
    async with GatewayRig(max_requests_per_second_per_key=2) as rig:
        rig.clock.hold()
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        caller = await Caller.open(rig)
        request = post(rig, "/messages", {"body": "x"})

        lines = [(await caller.ask(request))[0] for _ in range(3)]

        assert lines == ["HTTP/1.1 201 Created"] * 2 + ["HTTP/1.1 429 Too Many Requests"]
        caller.writer.close()


async def test_known_heads_are_bounded(rig: GatewayRig, caller: Caller, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cmqd_gateway.rest.direct._MAX_HEADS", 4)
    for number in range(10):
        await caller.ask(post(rig, "/messages", {"body": "x"}, f"X-Number: {number}\r\n"))

    door = caller.rig.http_server.door
    assert isinstance(door, DirectRequests)
    assert len(door._heads) == 4


async def test_a_head_is_forgotten_with_the_secret_of_its_key(rig: GatewayRig, caller: Caller):
    rig.clock.hold()
    await rig.gateway.secrets.find(rig.own_key.secret_id, None)
    await caller.ask(post(rig, "/messages", {"body": "x"}))
    door = rig.http_server.door
    assert isinstance(door, DirectRequests)
    secret = rig.own_key.secret_key.encode()

    # A new reading of the same secret changes nothing.
    rig.key_changed(rig.own_key.secret_id)
    await rig.gateway.secrets.find(rig.own_key.secret_id, None)
    rig.gateway.secrets.drop_unconfirmed()
    door.drop_unconfirmed()
    assert [secret in text for text in door._heads] == [True]

    rig.clock.advance(1)
    rig.gateway.secrets.drop_unconfirmed()
    door.drop_unconfirmed()
    assert not door._heads
    assert (await caller.ask(post(rig, "/messages", {"body": "x"})))[0] == "HTTP/1.1 201 Created"


# ---------------------------------------------------------------- order, and bodies in pieces


async def test_a_body_behind_its_head_is_waited_for(rig: GatewayRig, caller: Caller):
    request = post(rig, "/messages", {"body": "x"})
    caller.writer.write(request[:-5])
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)

    line, _, _ = await caller.ask(request[-5:])

    assert (line, seen_by_aiohttp(rig)) == ("HTTP/1.1 201 Created", 0)
    assert rig.gateway.guards.head_bytes == 0


async def test_a_body_that_does_not_come_is_left_to_aiohttp(rig: GatewayRig, caller: Caller):
    request = post(rig, "/messages", {"body": "x"})
    caller.writer.write(request[:-5])
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)
    rig.gateway.guards.close_slow()
    await eventually(lambda: seen_by_aiohttp(rig) == 1)

    line, _, _ = await caller.ask(request[-5:])

    assert line == "HTTP/1.1 201 Created"
    assert rig.gateway.guards.head_bytes == 0


async def test_a_body_in_many_pieces_is_left_to_aiohttp_and_the_next_request_is_direct(rig: GatewayRig, caller: Caller):
    request = post(rig, "/messages", {"body": "x" * 1_000})
    caller.writer.write(request[:-900])
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)
    caller.writer.write(request[-900:-500])
    await eventually(lambda: seen_by_aiohttp(rig) == 1)

    assert (await caller.ask(request[-500:]))[0] == "HTTP/1.1 201 Created"
    assert (await caller.ask(request))[0] == "HTTP/1.1 201 Created"
    assert seen_by_aiohttp(rig) == 1


async def test_requests_sent_ahead_are_answered_in_order(rig: GatewayRig, caller: Caller):
    poll, send = post(rig, "/receive", {"wait": 30}), post(rig, "/messages", {"body": "behind"})
    caller.writer.write(poll)
    await waiting_receives(rig, 1)
    caller.writer.write(send)
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)

    await rig.server.put("orders", b"first")

    assert (await caller.answer())[2]["messages"][0]["body"] == "first"
    assert (await caller.answer())[0] == "HTTP/1.1 201 Created"
    assert (seen_by_aiohttp(rig), rig.gateway.guards.head_bytes) == (0, 0)
    # Two requests in one packet belong to aiohttp, and so do all that follow.
    caller.writer.write(send + send)
    assert [(await caller.answer())[0] for _ in range(2)] == ["HTTP/1.1 201 Created"] * 2
    assert (await caller.ask(send))[0] == "HTTP/1.1 201 Created"
    assert seen_by_aiohttp(rig) == 3


async def test_a_client_that_sends_without_end_behind_a_poll_is_not_read_from(rig: GatewayRig, caller: Caller):
    caller.writer.write(post(rig, "/receive", {"wait": 30}))
    await waiting_receives(rig, 1)

    caller.writer.write(post(rig, "/messages", {"body": "x"}) * 2_000)
    (guard,) = rig.gateway.guards._guards.values()
    await eventually(lambda: len(guard._behind) > 65_536)
    for _ in range(20):
        await rig.server.status("waiting_receives")

    # A read of the socket above the limit, and no more.
    assert len(guard._behind) <= 65_536 + (256 << 10)
    await rig.server.put("orders", b"first")
    assert (await caller.answer())[2]["messages"][0]["body"] == "first"
    for _ in range(300):
        assert (await caller.answer())[0] == "HTTP/1.1 201 Created"
    caller.writer.transport.abort()


async def test_a_request_to_aiohttp_is_answered_before_a_direct_request(rig: GatewayRig, caller: Caller):
    caller.writer.write(post(rig, "/receive", {"wait": 30}, REPEATED))
    await waiting_receives(rig, 1)
    caller.writer.write(post(rig, "/messages", {"body": "behind"}))
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)

    await rig.server.put("orders", b"first")

    assert (await caller.answer())[2]["messages"][0]["body"] == "first"
    assert (await caller.answer())[0] == "HTTP/1.1 201 Created"


# ---------------------------------------------------------------- connections


async def test_direct_requests_keep_their_connection_open_and_idle_connections_close():
    async with GatewayRig(keep_alive_seconds=60) as rig:
        rig.clock.hold()
        caller, idle = await Caller.open(rig), await Caller.open(rig)
        await eventually(lambda: len(rig.gateway.guards) == 2)
        for _ in range(3):
            rig.clock.advance(25)
            await rig.gateway.secrets.find(rig.own_key.secret_id, None)
            assert (await caller.ask(post(rig, "/messages", {"body": "x"})))[0] == "HTTP/1.1 201 Created"
            rig.gateway.guards.close_slow()

        assert await idle.reader.read() == b""
        await eventually(lambda: len(rig.gateway.guards) == 1)
        assert seen_by_aiohttp(rig) == 0
        for each in (caller, idle):
            each.writer.close()


async def test_a_request_whose_body_is_waited_for_keeps_its_connection_open():
    async with GatewayRig(keep_alive_seconds=60) as rig:
        rig.clock.hold()
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        caller = await Caller.open(rig)
        await eventually(lambda: len(rig.gateway.guards) == 1)
        rig.clock.advance(59)
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        request = post(rig, "/messages", {"body": "x"})
        caller.writer.write(request[:-5])
        await eventually(lambda: rig.gateway.guards.partial_heads == 1)

        rig.clock.advance(1)
        rig.gateway.guards.close_slow()

        assert (await caller.ask(request[-5:]))[0] == "HTTP/1.1 201 Created"
        caller.writer.close()


async def test_bytes_that_arrive_after_the_close_are_not_a_request():
    async with GatewayRig(keep_alive_seconds=60) as rig:
        rig.clock.hold()
        caller = await Caller.open(rig)
        await eventually(lambda: len(rig.gateway.guards) == 1)
        (guard,) = rig.gateway.guards._guards.values()
        rig.clock.advance(60)
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        rig.gateway.guards.close_slow()

        # As a connection of TLS does while it sends the rest of its bytes.
        guard.data_received(post(rig, "/messages", {"body": "x"}))

        assert (guard.direct, rig.gateway.guards.head_bytes) == (None, 0)
        assert await caller.reader.read() == b""
        assert await rig.server.bodies("orders") == []
        caller.writer.close()


async def test_a_request_in_progress_is_answered_at_the_end_of_the_gateway(rig: GatewayRig, caller: Caller):
    rig.server.link.hold()
    caller.writer.write(post(rig, "/delete", {"receipt_handle": "12"}))
    await eventually(lambda: rig.gateway.guards.connections_in_request == 1)
    await eventually(lambda: rig.server.link.held)
    closing = asyncio.create_task(rig.http_server.close())
    await eventually(lambda: rig.gateway.is_draining)
    rig.server.link.let_go()

    line, headers, _ = await caller.answer()

    assert (line, headers["Connection"]) == ("HTTP/1.1 409 Conflict", "close")
    assert await caller.reader.read() == b""
    await closing


async def test_the_listener_for_metrics_has_no_direct_requests():
    async with GatewayRig(metrics_listen="127.0.0.1:0") as rig:
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        assert rig.http_server.metrics_address is not None
        caller = Caller(rig, *await asyncio.open_connection(*rig.http_server.metrics_address))
        caller.writer.write(post(rig, "/messages", {"body": "x"}))

        assert (await caller.reader.readline()).startswith(b"HTTP/1.1 404 ")
        caller.writer.close()


async def test_without_httptools_aiohttp_has_all_requests(monkeypatch: pytest.MonkeyPatch):
    def not_found(_: str) -> None: ...

    monkeypatch.setattr("cmqd_gateway.server.find_spec", not_found)
    async with GatewayRig() as rig:
        await rig.gateway.secrets.find(rig.own_key.secret_id, None)
        caller = await Caller.open(rig)

        assert (await caller.ask(post(rig, "/messages", {"body": "x"})))[0] == "HTTP/1.1 201 Created"
        assert seen_by_aiohttp(rig) == 1
        caller.writer.close()


async def test_a_client_that_does_not_read_gets_no_further_answer(rig: GatewayRig, caller: Caller):
    await eventually(lambda: len(rig.gateway.guards) == 1)
    (guard,) = rig.gateway.guards._guards.values()
    assert isinstance(guard, ConnectionGuard)
    guard.pause_writing()
    assert (await caller.ask(post(rig, "/messages", {"body": "a"})))[0] == "HTTP/1.1 201 Created"
    caller.writer.write(post(rig, "/messages", {"body": "b"}))
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)
    assert await rig.server.bodies("orders") == [b"a"]

    guard.resume_writing()

    assert (await caller.answer())[0] == "HTTP/1.1 201 Created"


async def test_messages_return_to_their_queue_from_a_client_that_does_not_read(rig: GatewayRig, caller: Caller):
    rig.clock.hold()
    await rig.gateway.secrets.find(rig.own_key.secret_id, None)
    await eventually(lambda: len(rig.gateway.guards) == 1)
    (guard,) = rig.gateway.guards._guards.values()
    await rig.server.put("orders", b"x")
    guard.pause_writing()
    caller.writer.write(post(rig, "/receive", {"wait": 0}))
    assert b"200 OK" in await caller.reader.readline()

    # The answer is with the transport, and not yet with the client as far as the guard knows.
    assert await rig.server.bodies("orders", "in_flight") == [b"x"]
    rig.clock.advance(rig.settings.slow_client_seconds)
    rig.gateway.guards.close_slow()

    await rig.server.wait_bodies("orders", b"x")
    assert (rig.gateway.guards.closed_as_slow, seen_by_aiohttp(rig)) == (1, 0)


async def test_a_request_of_a_connection_that_is_lost_at_once_is_not_executed(rig: GatewayRig, caller: Caller):
    await eventually(lambda: len(rig.gateway.guards) == 1)
    (guard,) = rig.gateway.guards._guards.values()
    guard.data_received(post(rig, "/messages", {"body": "x" * 9_000}))
    assert guard.direct is not None

    guard.connection_lost(None)
    await asyncio.wait([guard.direct])

    assert await rig.server.bodies("orders") == []
    assert (rig.gateway.guards.connections_in_request, rig.gateway.bodies.bytes_in_use) == (0, 0)


async def waiting_receives(rig: GatewayRig, count: int) -> None:
    while await rig.server.status("waiting_receives") != count:
        pass


async def test_a_connection_with_an_answer_that_the_client_reads_slowly_is_not_idle():
    async with GatewayRig(keep_alive_seconds=1) as rig:
        rig.clock.hold()
        caller = await Caller.open(rig)
        await eventually(lambda: len(rig.gateway.guards) == 1)
        (guard,) = rig.gateway.guards._guards.values()
        guard.pause_writing()
        rig.clock.advance(5)

        rig.gateway.guards.close_slow()
        assert guard.transport is not None
        assert not guard.transport.is_closing()
        guard.resume_writing()
        rig.gateway.guards.close_slow()

        assert guard.transport.is_closing()
        caller.writer.close()
