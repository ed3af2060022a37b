"""Abuse: smuggling, oversized and slow requests, many connections. The answer is a clear refusal, and the gateway
serves others meanwhile."""

import asyncio
import contextlib
import re
import ssl
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cmqd_gateway.http.connection_guard import ConnectionGuards
from cmqd_gateway.process.gateway_settings import Settings
from support.eventually import eventually
from support.gateway.cmq_requests import PATH, encoded
from support.gateway.gateway_rig import GatewayRig, RigClock
from support.server.fake_clock import StoppedTimer

CERTIFICATE = Path(__file__).parents[1] / "support/tls/certificate.pem"
KEY = CERTIFICATE.with_name("key.pem")


async def exchange(rig: GatewayRig, *pieces: bytes) -> bytes:
    """Send bytes over a connection of its own, and return all bytes up to its end."""
    reader, writer = await rig.open_raw()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def statuses(answer: bytes) -> list[bytes]:
    """Return the status of each answer."""
    return re.findall(rb"HTTP/1\.[01] ([0-9]{3}) ", answer)


def smuggled(rig: GatewayRig) -> bytes:
    """Return a request that must never be executed as a second request."""
    body = encoded(rig.sign({"Action": "SendMessage", "queueName": "orders", "msgBody": "smuggled"}))
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body


HEADS = {
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "equal lengths twice": b"Content-Length: 5\r\nContent-Length: 5\r\n",
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "a length with a sign": b"Content-Length: +5\r\n",
    "a negative length": b"Content-Length: -5\r\n",
    "a hexadecimal length": b"Content-Length: 0x5\r\n",
    "a length with an underscore": b"Content-Length: 1_0\r\n",
    "a length that is no number": b"Content-Length: five\r\n",
    "a huge length": b"Content-Length: 99999999999999999999999999\r\n",
    "an unknown coding": b"Transfer-Encoding: chunked, identity\r\n",
    "a disguised coding": b"Transfer-Encoding: xchunked\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "a coding with a tab": b"Transfer-Encoding:\tchunked\x0b\r\n",
    "a folded line": b"X-Folded: a\r\n b\r\nContent-Length: 5\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n",
    "a blank before the colon": b"Content-Length : 5\r\n",
    "a name with a blank": b"Content Length: 5\r\n",
    "no colon": b"Content-Length\r\n",
    "an empty name": b": 5\r\n",
    "a NUL": b"X-Nul: a\x00b\r\n",
    "a bare CR": b"X-Cr: a\rContent-Length: 5\r\n",
    "a bare LF": b"X-Lf: a\nContent-Length: 5\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_ambiguous_lengths_smuggle_no_request(rig: GatewayRig, head: bytes):
    start = b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    hidden = smuggled(rig)
    reader, writer = await rig.open_raw()
    # A reader of the length sees five bytes and then a request, a reader of chunks sees an end and then a request.
    writer.write(start + head + b"\r\n0\r\n\r\n" + hidden)
    writer.write_eof()

    answer = await reader.read()

    writer.close()
    # Refused, with the connection closed behind the refusal, or read in the one way that leaves no doubt.
    assert await rig.server.bodies("orders") == []
    assert statuses(answer)[:1] in ([b"400"], []), answer
    assert len(statuses(answer)) <= 1
    assert await works(rig)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v2/index.php HTTP/1.1\nHost: x\n\n",
        b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
        b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
        b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
        b"GET /v2/index.php\r\n\r\n",
        b"GET /v2/index.php HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET  /v2/index.php  HTTP/1.1\r\nHost: x\r\n\r\n",
        b"G\x00T /v2/index.php HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"CMQD\x00\x01\r\n\r\n" + b"\xff" * 50,
        b"\r\n" * 10_000 + b"nonsense\r\n\r\n",
    ],
    ids=[
        "LF",
        "LF in chunks",
        "-1",
        "0x5",
        "no CRLF",
        "huge chunk",
        "0.9",
        "9.9",
        "blanks",
        "NUL",
        "TLS",
        "cmqd",
        "CRLF",
    ],
)
async def test_malformed_requests_are_refused_and_closed(rig: GatewayRig, request_bytes: bytes):
    reader, writer = await rig.open_raw()
    writer.write(request_bytes)
    writer.write_eof()

    answer = await reader.read()

    writer.close()
    assert statuses(answer) in ([b"400"], [b"200"], []), answer
    if statuses(answer) == [b"200"]:
        assert b'"code":4000' in answer
    assert await works(rig)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v2/index.php?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2/index.php HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /v2/index.php HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 1_000 + b"\r\n",
        b"GET /v2/index.php HTTP/1.1\r\nHost: x\r\n" + b"a" * 20_000 + b": a\r\n\r\n",
    ],
    ids=["a long line", "a long field", "many fields", "a long name"],
)
async def test_heads_over_the_limits_are_refused(rig: GatewayRig, head: bytes):
    answer = await exchange(rig, head)

    assert statuses(answer) == [b"400"]
    assert await works(rig)


async def test_a_body_over_the_limit_is_refused_before_it_is_read():
    async with GatewayRig(max_request_bytes=65_536) as rig:
        declared, chunked = await asyncio.gather(
            exchange(rig, b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     b"Content-Length: 70000\r\n\r\n" + b"a" * 70_000),
            exchange(rig, b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"a" * 4096 + b"\r\n") * 20 + b"0\r\n\r\n"),
        )  # fmt: skip

        assert b"(10420)" in declared
        assert b"(10420)" in chunked
        assert rig.gateway.bodies.bytes_in_use == 0
        assert await works(rig)


async def test_a_compressed_body_is_not_unpacked(rig: GatewayRig):
    import gzip

    bomb = gzip.compress(b"\x00" * 50_000_000)
    answer = await rig.post_raw(bomb, headers={"Content-Encoding": "gzip"})

    assert answer["code"] == 4000


async def test_bodies_that_are_being_read_have_a_budget():
    async with GatewayRig(body_memory_bytes=8 << 20) as rig:
        head = b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\nConnection: close\r\n\r\n"
        connections = [await rig.open_raw() for _ in range(4)]
        for _, writer in connections:
            writer.write(head + b"a" * 2_000_000)
            await writer.drain()

        done, _ = await asyncio.wait(
            [asyncio.create_task(reader.read(1_000)) for reader, _ in connections], return_when=asyncio.FIRST_COMPLETED
        )

        assert all(b'"code":4420' in task.result() for task in done)
        assert rig.gateway.bodies.bytes_in_use <= 8 << 20
        assert await works(rig)
        for _, writer in connections:
            writer.transport.abort()
        await eventually(lambda: rig.gateway.bodies.bytes_in_use == 0)


async def test_a_body_that_comes_too_slowly_is_refused():
    async with GatewayRig(slow_client_seconds=0.2) as rig:
        answer = await exchange(rig, b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", b"a")

        assert b"did not arrive within 0.2 s" in answer


@pytest.mark.parametrize(
    "form",
    [
        b"&".join(b"p%d=1" % number for number in range(100_000)),
        b"&" * 4_000_000,
        b"=" * 4_000_000,
        b"%" * 4_000_000,
        b"Action=" + b"%41" * 1_000_000,
        b"Action=SendMessage&" + b"msgBody.1=a&" * 200,
        b"\xff" * 1_000_000,
        b"\x00",
        b'{"Action": "SendMessage"}',
    ],
    ids=["parameters", "separators", "equal signs", "percent signs", "escapes", "repeats", "FF", "NUL", "JSON"],
)
async def test_huge_and_malformed_forms_are_refused(rig: GatewayRig, form: bytes):
    answer = await rig.post_raw(form)

    assert answer["code"] == 4000
    assert len(answer["message"]) < 500
    assert await works(rig)


async def test_a_client_that_does_not_finish_its_head_is_closed(rig: GatewayRig):
    rig.clock.hold()
    reader, writer = await rig.open_raw()
    writer.write(b"POST /v2/index.php HTTP/1.1\r\n")
    await eventually(lambda: rig.gateway.guards.partial_heads == 1)
    rig.clock.advance(rig.settings.slow_client_seconds - 1)
    writer.write(b"X-More: 1\r\n")
    rig.gateway.guards.close_slow()
    assert len(rig.gateway.guards) == 1

    rig.clock.advance(1)
    rig.gateway.guards.close_slow()

    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await eventually(lambda: len(rig.gateway.guards) == 0)
    assert rig.gateway.guards.closed_as_slow == 1


PARTIAL = b"GET /v2/index.php HTTP/1.1\r\nX-More: "


def request_bytes_of(rig: GatewayRig, **parameters: Any) -> bytes:
    """Return a signed request."""
    form = encoded(rig.sign(parameters))
    return b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (
        PATH.encode(), rig.host.encode(), len(form),
    ) + form  # fmt: skip


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Return the body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


def test_a_held_clock_reaches_a_deadline_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(100):
        # Shortly before 1,024 s after the start of the machine, where doubles get a digit less.
        monkeypatch.setattr(time, "monotonic", lambda step=step: 1024 - 45 + step * 1.1e-9)
        clock = RigClock()
        clock.hold()
        clock.advance(31)
        since = clock()
        clock.advance(29)
        clock.advance(1)
        assert clock() - 30 == since


async def test_a_head_behind_a_long_handler_is_timed_from_the_end_of_the_handler(rig: GatewayRig):
    rig.clock.hold()
    guards, slow = rig.gateway.guards, rig.settings.slow_client_seconds
    reader, writer = await rig.open_raw()
    writer.write(request_bytes_of(rig, Action="ReceiveMessage", queueName="orders", pollingWaitSeconds=30))
    await rig.server.wait_status("waiting_receives", 1)
    writer.write(PARTIAL)
    await eventually(lambda: guards.partial_heads == 1)

    rig.clock.advance(slow + 1)
    guards.close_slow()
    await rig.server.put("orders", b"one")
    assert b'"code":0' in await read_answer(reader)
    await rig.handlers_ended()
    rig.clock.advance(slow - 1)
    guards.close_slow()
    assert guards.closed_as_slow == 0
    rig.clock.advance(1)
    guards.close_slow()

    assert guards.closed_as_slow == 1
    await eventually(lambda: len(guards) == 0)
    assert guards.head_bytes == 0
    writer.close()


async def test_a_large_head_that_comes_with_the_request_before_it_is_timed(rig: GatewayRig):
    rig.clock.hold()
    guards = rig.gateway.guards
    reader, writer = await rig.open_raw()
    writer.write(request_bytes_of(rig, Action="ListQueue") + PARTIAL + b"x" * 10_000)
    assert b'"code":0' in await read_answer(reader)
    await rig.handlers_ended()
    # Not a number of bytes: the head may arrive in several reads, and its first piece as a part of the request's read.
    await eventually(lambda: guards.partial_heads == 1)

    rig.clock.advance(rig.settings.slow_client_seconds)
    guards.close_slow()

    assert guards.closed_as_slow == 1
    writer.close()


async def test_pipelined_requests_and_bodies_are_no_unfinished_heads(rig: GatewayRig):
    rig.clock.hold()
    guards = rig.gateway.guards
    reader, writer = await rig.open_raw()
    for filler in ("x", "x" * 5_000, "x" * 200_000):
        writer.write(request_bytes_of(rig, Action="ListQueue", filler=filler) * 10)
        for _ in range(10):
            assert b'"code":0' in await read_answer(reader)
    chunked = request_bytes_of(rig, Action="ListQueue").partition(b"Content-Length")[0]
    form = encoded(rig.sign({"Action": "ListQueue", "filler": "x" * 100_000}))
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(form[at : at + 9_999]), form[at : at + 9_999])
                      for at in range(0, len(form), 9_999))  # fmt: skip
    writer.write(chunked + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n")
    assert b'"code":0' in await read_answer(reader)
    await rig.handlers_ended()

    assert (guards.head_bytes, guards.partial_heads) == (0, 0)
    rig.clock.advance(301)
    guards.close_slow()
    writer.write(request_bytes_of(rig, Action="ListQueue"))
    assert b'"code":0' in await read_answer(reader)
    writer.close()


async def test_the_rest_of_a_refused_body_is_no_unfinished_head():
    async with GatewayRig(max_request_bytes=65_536) as rig:
        reader, writer = await rig.open_raw()
        writer.write(b"POST /v2/index.php HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"a" * 10_000)
        assert b"(10420)" in await read_answer(reader)
        for _ in range(20):
            writer.write(b"a" * 10_000)
            await writer.drain()

        assert rig.gateway.guards.head_bytes <= 20_000
        writer.transport.abort()


async def test_unfinished_heads_share_a_memory(monkeypatch: pytest.MonkeyPatch, rig: GatewayRig):
    monkeypatch.setattr("cmqd_gateway.http.connection_guard.HEADS_MEMORY_BYTES", 200_000)
    guards = rig.gateway.guards
    field = b"x" * 9_000 + b"\r\nX-More: "
    connections = [await rig.open_raw() for _ in range(10)]
    for _, writer in connections:
        writer.write(PARTIAL)
    for _ in range(20):
        for _, writer in connections:
            if not writer.transport.is_closing():
                writer.write(field)
        await asyncio.sleep(0)
        assert guards.head_bytes <= 200_000 + 10 * 2 * 16_384
    await eventually(lambda: guards.closed_for_memory > 0)

    # Small requests find their way also while the memory is in use.
    assert await works(rig)
    for _, writer in connections:
        writer.transport.abort()
    await eventually(lambda: guards.head_bytes == 0)


async def test_a_head_of_many_large_fields_is_refused(rig: GatewayRig):
    head = b"GET /v2/index.php HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 10_000) for number in range(7))

    assert statuses(await exchange(rig, head + fields + b"\r\n")) == [b"431"]
    assert statuses(await exchange(rig, head + fields[:60_000].rpartition(b"\r\n")[0] + b"\r\n\r\n")) == [b"200"]
    assert await works(rig)


async def test_hundreds_of_idle_connections_stay_open_and_are_served_again(rig: GatewayRig):
    count = 300
    rig.clock.hold()
    connections = [await rig.open_raw() for _ in range(count)]
    for _ in range(2):
        for _, writer in connections:
            writer.write(request_bytes_of(rig, Action="ListQueue"))
        answers = [await read_answer(reader) for reader, _ in connections]
        assert all(b'"code":0' in answer for answer in answers)
        assert len(rig.gateway.guards) == count
        rig.clock.advance(301)
        rig.gateway.guards.close_slow()

    assert len(rig.gateway.guards) == count
    assert rig.gateway.guards.head_bytes == rig.gateway.bodies.bytes_in_use == 0
    for _, writer in connections:
        writer.close()
    await eventually(lambda: len(rig.gateway.guards) == 0)


async def test_an_idle_connection_stays_open_for_longer_than_the_pools_of_the_sdks(rig: GatewayRig):
    assert Settings().keep_alive_seconds > 300
    reader, writer = await rig.open_raw()
    form = encoded(rig.sign({"Action": "ListQueue"}))
    request = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (
        PATH.encode(), rig.host.encode(), len(form),
    )  # fmt: skip
    rig.clock.hold()
    for _ in range(3):
        writer.write(request + form)
        assert b'"code":0' in await reader.read(4_096)
        rig.clock.advance(301)
        rig.gateway.guards.close_slow()

    assert len(rig.gateway.guards) == 1
    writer.close()


async def test_a_client_that_does_not_read_is_closed():
    guards = ConnectionGuards(10, 30.0, now := StoppedTimer())
    guard, transport = guards.make(Silent()), Aborted()
    guard.connection_made(transport)

    guard.pause_writing()
    now.seconds = 29.0
    guards.close_slow()
    assert not transport.aborted
    guard.resume_writing()
    guard.pause_writing()
    now.seconds = 58.0
    guards.close_slow()
    assert not transport.aborted
    now.seconds = 59.0
    guards.close_slow()
    assert transport.aborted


async def test_a_check_of_slow_clients_makes_no_call_for_a_quiet_connection():
    """The check of 20,000 connections is one piece of work, in which no client is served."""
    guards = ConnectionGuards(1_000, 30.0, StoppedTimer(), idle_seconds=600)
    numbers: list[int] = []
    calls = 0

    def count(frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        # A collection of garbage may call other code meanwhile.
        calls += frame.f_code.co_filename == ConnectionGuards.close_slow.__code__.co_filename

    for _ in range(2):
        for _ in range(100):
            guards.make(Silent()).connection_made(Aborted())
        calls = 0
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            guards.close_slow()
        finally:
            sys.setprofile(before)
        numbers.append(calls)

    assert len(guards) == 200
    assert 0 < numbers[0] == numbers[1] < 20


async def test_connections_over_the_limit_are_closed_at_once():
    async with GatewayRig(max_connections=3) as rig:
        held = [await rig.open_raw() for _ in range(3)]
        await eventually(lambda: len(rig.gateway.guards) == 3)

        reader, writer = await rig.open_raw()
        try:
            refused = await reader.read()
        except ConnectionResetError:
            refused = b""
        writer.close()
        held.pop()[1].close()
        await eventually(lambda: len(rig.gateway.guards) == 2)

        assert refused == b""
        assert rig.gateway.guards.refused == 1
        assert await works(rig)
        for _, writer in held:
            writer.close()


async def test_a_flood_of_pipelined_requests_is_read_as_fast_as_it_is_answered(rig: GatewayRig):
    """A client that sends requests without end and reads no answer: its connection is not read from any more."""
    reader, writer = await rig.open_raw()
    request = b"GET /v2/index.php?Action=%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 1_000)
    sent = 0
    while sent < 64 << 20:
        writer.write(request * 100)
        sent += len(request) * 100
        try:
            async with asyncio.timeout(0.5):
                await writer.drain()
        except TimeoutError:
            break

    assert sent < 64 << 20
    assert await works(rig)
    writer.transport.abort()
    assert reader is not None


async def test_https_is_spoken_with_the_settings_of_the_native_port():
    async with GatewayRig(
        listen_https="127.0.0.1:0", tls_certificate=CERTIFICATE, tls_key=KEY, public_names=("localhost",)
    ) as rig:
        host, port = rig.http_server.addresses[1]
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        form = encoded(rig.sign_for(f"localhost:{port}", {"Action": "ListQueue"}))
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (PATH.encode(), port, len(form)) + form
        )  # fmt: skip
        answer = await reader.read()
        writer.close()

    assert b'"code":0' in answer


async def test_a_client_that_waits_for_continue_is_answered(rig: GatewayRig):
    # curl, and so the PHP SDK, asks so for bodies over 1 KiB.
    form = encoded(rig.sign({"Action": "SendMessage", "queueName": "orders", "msgBody": "x" * 2_000}))
    reader, writer = await rig.open_raw()
    head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    writer.write(head % (PATH.encode(), rig.host.encode(), len(form)))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(form)

    assert b'"code":0' in await reader.read()
    writer.close()


async def works(rig: GatewayRig) -> bool:
    return (await rig.call("ListQueue"))["code"] == 0


class Silent(asyncio.Protocol):
    """A protocol that does nothing."""


class Aborted(asyncio.Transport):
    """A transport that notes its end."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
