"""Connections to a server in a process of its own: keys, garbage, slow readers, TLS and limits."""

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmqd_client import Client, Queue, connect
from cmqd_client.errors import (
    AuthenticationFailed,
    CmqError,
    ServerUnreachable,
    WrongRegion,
)
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import encode_preamble
from cmqd_protocol.messages import Error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.messages import ReceivedMessage
from support.client.raw_client import RawClient
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system
TLS = Path(__file__).parents[1] / "support" / "tls"


def last_error(data: bytes) -> Error:
    """Decode the last frame of a server, an error."""
    position, payload = 8, b""
    while position + 4 <= len(data):
        (size,) = struct.unpack_from(">I", data, position)
        payload = data[position + 4 : position + 4 + size]
        position += 4 + size
    return msgspec.msgpack.decode(payload, type=Error)


async def status_until(client: Client, is_wanted: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """Poll the status of the server until the status is as expected."""
    while not is_wanted(status := await client.status()):  # noqa: ASYNC110 - a process acts meanwhile
        await asyncio.sleep(0.01)
    return status


async def send_until_refused(queue: Queue) -> None:
    while True:
        await queue.send(b"x")
        await asyncio.sleep(0.05)


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(65_536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


async def test_a_wrong_key_and_a_wrong_region_are_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--region", "north") as server:
        secret_id, _, rest = server.url.removeprefix("cmq://").partition(":")
        address = rest.partition("@")[2]
        with pytest.raises(AuthenticationFailed):
            async with connect(f"cmq://{secret_id}:{'x' * 43}@{address}"):
                pass
        with pytest.raises(AuthenticationFailed):
            async with connect(f"cmq://AKID{'0' * 32}:{'x' * 43}@{address}"):
                pass
        with pytest.raises(WrongRegion):
            async with connect(server.url, region="south"):
                pass
        async with connect(server.url, region="north") as client:
            assert (await client.status())["region"] == "north"


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    encode_preamble(1, 1) + b"\x7f\xff\xff\xff",
    encode_preamble(1, 1) + (4097).to_bytes(4, "big") + bytes(4097),
    encode_preamble(1, 1) + b"\0\0\0\x03abc",
    encode_preamble(7, 6),
    os.urandom(65_536),
]


async def test_garbage_before_authentication_gets_the_door_and_others_notice_nothing(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            waiting = asyncio.create_task(queue.receive(1, wait=20))
            before = (await client.status())["rss_bytes"]
            for garbage in GARBAGE * 20:
                with socket.create_connection((server.host, server.port)) as sock:
                    try:
                        sock.sendall(garbage)
                        await asyncio.to_thread(read_to_end, sock)
                    except (BrokenPipeError, ConnectionResetError):
                        pass
            status = await status_until(client, lambda status: status["connections"] == 1)
            await queue.send(b"x")

            assert len(await waiting) == 1
            assert status["rss_bytes"] - before < 16 << 20


def test_a_connection_without_authentication_in_time_is_closed_with_the_reason(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--authentication-timeout-ms", "400") as server:
        started = time.monotonic()
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(encode_preamble(1, 1))
            data = read_to_end(sock)

        assert last_error(data).code == ErrorCode.AUTHENTICATION_TIMEOUT
        assert time.monotonic() - started > 0.3


async def test_a_connection_killed_while_it_waits_swallows_nothing(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from cmqd_client import connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1]) as client:\n"
        "        print('waiting', flush=True)\n"
        "        await asyncio.gather(*(client.queue('jobs').receive(1, wait=30) for _ in range(10)))\n"
        "asyncio.run(main())\n"
    )
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            victim = subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE)
            assert victim.stdout is not None
            with victim.stdout:
                await asyncio.to_thread(victim.stdout.readline)
                await status_until(client, lambda status: status["waiting_receives"] == 10)
                victim.kill()
                victim.wait()
            await status_until(client, lambda status: status["connections"] == 1)

            await queue.send_batch([f"{number}".encode() for number in range(10)])
            received = await queue.receive(10, wait=0)

            assert [message.receive_count for message in received] == [1] * 10


async def test_a_cancelled_receive_swallows_nothing(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            for _ in range(50):
                waiting = asyncio.create_task(queue.receive(1, wait=20))
                sending = asyncio.create_task(queue.send(b"x"))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                await sending
                while not (received := await queue.receive(1, wait=1)):
                    pass
                assert received[0].receive_count == 1
                await received[0].delete()


async def test_a_slow_reader_is_given_up_and_others_are_served(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys, time\n"
        "from cmqd_client import connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1], heartbeat=1) as client:\n"
        "        queue = client.queue('big')\n"
        "        tasks = [asyncio.create_task(queue.receive(1, wait=0)) for _ in range(60)]\n"
        "        await asyncio.sleep(0)\n"
        "        await asyncio.sleep(0.01)\n"
        "        print('asked', flush=True)\n"
        "        time.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with RunningServer(tmp_path, "--heartbeat-ms", "1000", "--max-unread-receives", "8") as server:
        async with connect(server.url) as client:
            big = await client.create_queue("big", max_message_bytes=1 << 20, visibility_timeout=3600)
            jobs = await client.create_queue("jobs")
            for _ in range(60):
                await big.send(bytes(1 << 20))
            slow = subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE)
            assert slow.stdout is not None
            try:
                await asyncio.to_thread(slow.stdout.readline)
                rss = 0
                while not (status := await client.status())["counters"]["slow_readers_closed"]:
                    rss = max(rss, status["rss_bytes"])
                    await jobs.send(b"x")
                    assert len(await jobs.receive(1, wait=20)) == 1
                    await asyncio.sleep(0.05)
                info = await big.attributes()
                assert info.in_flight < 40, "most of what it asked for stayed with the queue"
                assert info.in_flight + info.active == 60
            finally:
                slow.kill()
                slow.wait()
                slow.stdout.close()


async def test_what_a_slow_reader_was_not_sent_in_full_comes_back_and_nothing_else(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--heartbeat-ms", "1000") as server:
        async with connect(server.url) as client:
            big = await client.create_queue("big", max_message_bytes=1 << 20, visibility_timeout=3600)
            for _ in range(40):
                await big.send(bytes(1 << 20))
            with RawClient(server.url) as slow:
                for _ in range(40):
                    slow.begin(wire.ReceiveMessages, "big", 1, 0)
                await status_until(client, lambda status: status["counters"]["slow_readers_closed"] == 1)
                await status_until(client, lambda status: status["connections"] == 1)
                info = await big.attributes()
                with contextlib.suppress(ConnectionError):
                    await asyncio.to_thread(slow.read_to_end)

                got = [message for reply in slow.replies.values() for message in messages_of(reply)]
                assert 0 < len(got) < 40
                assert info.in_flight == len(got)
                assert info.active == 40 - len(got)
                again = await big.receive(1, wait=0)
                assert [message.receive_count for message in again] == [1]
                assert {message.id for message in again}.isdisjoint(message.message_id for message in got)


def messages_of(reply: object) -> list[ReceivedMessage]:
    assert isinstance(reply, wire.MessagesReceived), reply
    return reply.messages


async def test_tls(tmp_path: Path) -> None:
    flags = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
    with RunningServer(tmp_path, *flags) as server:
        assert server.url.endswith("?tls=1")
        context = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
        async with connect(server.url, tls=context) as client:
            queue = await client.create_queue("jobs")
            await queue.send(bytes(60_000))
            assert len(await queue.receive(1, wait=20)) == 1
            big = await client.create_queue("big", max_message_bytes=1 << 20)
            for _ in range(20):
                await big.send(bytes(1 << 20))
            received = await asyncio.gather(*(big.receive(1, wait=20) for _ in range(20)))
            assert [len(messages) for messages in received] == [1] * 20
        with pytest.raises(CmqError):
            async with connect(server.url, patience=1, retries=0):
                pass
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(encode_preamble(1, 1))
            read_to_end(sock)
        async with connect(server.url, tls=context) as client:
            await status_until(client, lambda status: status["connections"] == 1)


@pytest.mark.parametrize("has_tls", [False, True])
async def test_bodies_of_all_sizes_come_back_as_they_were_sent(tmp_path: Path, has_tls: bool) -> None:
    """Small and large frames in turn, many at once, over a connection: their reads begin and end anywhere."""
    chance = random.Random(39)
    sizes = [1, 4_000, 8_190, 65_000, 131_000, *range(255_900, 256_000, 10), 600_000, 1 << 20]
    bodies = [chance.randbytes(chance.choice(sizes)) for _ in range(60)]
    flags = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem")) if has_tls else ()
    context = ssl.create_default_context(cafile=str(TLS / "certificate.pem")) if has_tls else None
    with RunningServer(tmp_path, *flags) as server:
        async with connect(server.url, tls=context) as client:
            queue = await client.create_queue("jobs", max_message_bytes=1 << 20)
            await asyncio.gather(*(queue.send(body) for body in bodies))
            received: list[bytes] = []
            while len(received) < len(bodies):
                messages = await queue.receive(16, wait=20)
                received += [message.body for message in messages]
                await queue.delete_batch(messages)

    assert sorted(received) == sorted(bodies)


async def test_more_connections_than_descriptors_are_refused_and_the_rest_is_served(tmp_path: Path) -> None:
    with RunningServer(tmp_path, wrapper=("prlimit", "--nofile=100:100")) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            crowd = [socket.create_connection((server.host, server.port)) for _ in range(200)]
            try:
                await queue.send(b"x")
                assert len(await queue.receive(1, wait=20)) == 1
                status = await status_until(client, lambda status: status["counters"]["connections_refused"] >= 100)
                assert status["connections"] < 60, "36, and some that are being told so"
            finally:
                for sock in crowd:
                    sock.close()
            await status_until(client, lambda status: status["connections"] == 1)
            async with connect(server.url) as another:
                await another.queue("jobs").send(b"y")


async def test_a_disabled_key_ends_its_connections_and_rotation_works(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        address = server.url.rpartition("@")[2]
        async with connect(server.url) as admin:
            first = await admin.accounts.create("other")
            url = f"cmq://{first.secret_id}:{first.secret_key}@{address}"
            async with connect(url, retries=0) as other:
                await other.create_queue("jobs")
                second = await other.accounts.create_key()
                await admin.accounts.set_key_enabled(first.secret_id, False, account="other")
                with pytest.raises(CmqError):
                    await send_until_refused(other.queue("jobs"))
            async with connect(f"cmq://{second.secret_id}:{second.secret_key}@{address}") as other:
                await other.queue("jobs").send(b"y")
                await other.accounts.delete_key(first.secret_id)
            with pytest.raises((AuthenticationFailed, ServerUnreachable)):
                async with connect(url, patience=1, retries=0):
                    pass
