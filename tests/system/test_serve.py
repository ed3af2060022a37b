"""The server as a process: it starts, serves, drains, ends and says how."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import Client, Queue, connect
from cmqd_client.errors import (
    AuthenticationFailed,
    CmqError,
    DiskNearlyFull,
    ServerUnreachable,
    WrongRegion,
)
from cmqd_protocol import messages as wire
from cmqd_protocol.errors import ErrorCode
from cmqd_protocol.frames import encode_preamble
from cmqd_protocol.messages import Error, server_message_decoder
from cmqd_types.messages import ReceivedMessage
from support.eventually import eventually_elsewhere
from support.raw_client import RawClient
from support.running_server import RunningServer, ServerFailedError

pytestmark = pytest.mark.system

TLS = Path(__file__).parents[1] / "support" / "tls"

LONG_DRAIN = ("--drain-timeout-ms", "600000")
"""A drain that waits although it has nothing to wait for takes longer than the time limit of the test."""


def last_error(data: bytes) -> Error:
    """The last frame of what a server wrote, which must be an error."""
    at = 8
    message: object = None
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        message = server_message_decoder.decode(data[at + 4 : at + 4 + size])
        at += 4 + size
    assert isinstance(message, Error)
    return message


async def status_until(client: Client, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for the server's status until it is as wanted."""
    while not is_wanted(status := await client.status()):  # noqa: ASYNC110 - it happens in another process
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


async def test_it_serves_and_survives_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            for number in range(20):
                await queue.send(f"{number}".encode(), headers={"n": str(number)})
            (first,) = await queue.receive(1, wait=0, visibility_timeout=3600)
        assert server.stop() == 0

        url = server.url
        server.start()
        assert url.rpartition(":")[0] == server.url.rpartition(":")[0], "the key is the same, the port may differ"
        async with connect(server.url) as client:
            queue = client.queue("jobs")
            info = await queue.attributes()
            assert (info.active, info.in_flight) == (19, 1)
            await queue.delete(first.receipt_handle)
            received = await queue.receive(256, wait=0)
            assert [message.body for message in received] == [f"{number}".encode() for number in range(1, 20)]
            assert received[0].headers == {"n": "1"}


def test_sigterm_ends_waits_with_shutting_down_finishes_sends_and_exits_in_time(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, RawClient(server.url) as waiting, RawClient(server.url) as sending:
        waiting.ask(wire.QueueInfo, wire.CreateQueue, "empty", {})
        waiting.ask(wire.QueueInfo, wire.CreateQueue, "jobs", {})
        waits = [waiting.begin(wire.ReceiveMessages, "empty", 1, 30_000) for _ in range(20)]
        waiting.ask(wire.QueueList, wire.ListQueues)
        sends = [sending.begin(wire.SendMessages, "jobs", [b"x"]) for _ in range(100)]

        server.send_signal(signal.SIGTERM)
        ends = [waiting.reply(request_id) for request_id in waits]
        answers = [sending.reply(request_id) for request_id in sends]
        waiting.read_to_end()

        assert {reply.code for reply in ends if isinstance(reply, wire.Error)} == {ErrorCode.SHUTTING_DOWN}
        assert len(ends) == 20
        stored = sum(isinstance(reply, wire.MessagesSent) for reply in answers)
        refused = [reply for reply in answers if isinstance(reply, wire.Error)]
        assert {reply.code for reply in refused} <= {ErrorCode.SHUTTING_DOWN}
        assert waiting.ended is not None
        assert waiting.ended.code == ErrorCode.SHUTTING_DOWN
        assert server.wait() == 0
        server.start()
        with RawClient(server.url) as again:
            assert again.ask(wire.QueueInfo, wire.GetQueueAttributes, "jobs").counts["active"] == stored
    assert "waits_ended=20" in server.log
    assert "clean=True" in server.log


def test_sigterm_during_a_redrive_ends_in_order_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """A move asks for its next page with each that comes: it must not go on into a log that is being closed."""
    count = 100 * 256
    with RunningServer(tmp_path) as server:
        with RawClient(server.url) as client:
            for name in ("dead", "jobs"):
                client.ask(wire.QueueInfo, wire.CreateQueue, name, {})
            policy = {"dead_letter_queue": "dead", "dead_letter_max_receives": 1000}
            client.ask(wire.QueueInfo, wire.CreateQueue, "source", policy)
            for _ in range(100):
                client.ask(wire.MessagesSent, wire.SendMessages, "dead", [b"x" * 1000] * 256)
            client.ask(wire.RedriveStatus, wire.StartRedrive, "dead", "jobs")

            assert server.stop() == 0

        assert "drain_incomplete" not in server.log
        server.start()
        assert "clean=True" in server.log
        with RawClient(server.url) as client:
            while client.ask(wire.RedriveStatus, wire.GetRedrive, "dead").ended_ms is None:
                time.sleep(0.05)
            assert client.ask(wire.QueueInfo, wire.GetQueueAttributes, "dead").counts["active"] == 0
            assert client.ask(wire.QueueInfo, wire.GetQueueAttributes, "jobs").counts["active"] == count


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_with_exit_code_0(tmp_path: Path, number: int) -> None:
    with RunningServer(tmp_path, *LONG_DRAIN) as server:
        assert server.stop(number) == 0

    assert "drain_incomplete" not in server.log, "the drain ended by itself, not by its time limit"


def test_sigterm_while_it_starts_ends_it(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.launch()
    eventually_elsewhere(lambda: "settings" in server.log)

    server.send_signal(signal.SIGTERM)

    assert server.wait() == 0


@pytest.mark.timeout(120)
def test_a_client_that_reads_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with RunningServer(tmp_path, *LONG_DRAIN) as server, socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(encode_preamble(1, 1))
        assert server.stop() == 0

    assert "drain_incomplete" not in server.log


async def test_ready_file_context_and_permissions(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        assert server.ready["pid"] == server.process.pid
        assert server.ready["durability"] == "fsync"
        os.kill(server.ready["storage_pid"], 0)
        for name in ("accounts.json", "admin.context.toml"):
            assert stat.S_IMODE((server.data / name).stat().st_mode) == 0o600


async def test_status_names_durability_and_recovery(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--durability", "os") as server, open(server.log_file) as log:
        async with connect(server.url) as client:
            await (await client.create_queue("jobs")).send(b"x")
            status = await client.status()
        assert status["durability"] == "os"
        assert status["queues"] == 1
        assert status["storage_rss_bytes"] > 0
        assert status["free_bytes"] > 0
        assert status["recovery"]["created"] is True
        assert "durability=os" in log.read()


async def test_ephemeral_keeps_keys_and_no_messages(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--ephemeral") as server:
        async with connect(server.url) as client:
            await (await client.create_queue("jobs")).send(b"x")
        server.stop()
        key = server.url.split("@")[0]
        server.start()
        assert server.url.split("@")[0] == key
        async with connect(server.url) as client:
            assert (await client.queues()).names == []


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


async def test_two_regions_are_two_brokers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        RunningServer(tmp_path / "a", "--region", "north") as north,
        RunningServer(tmp_path / "b", "--region", "south") as south,
    ):
        async with connect(north.url, region="north") as one, connect(south.url, region="south") as two:
            await one.create_queue("jobs")
            await two.create_queue("jobs")
            await one.queue("jobs").send(b"north")
            assert await two.queue("jobs").receive(1, wait=0) == []


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
            status = await client.status()
            await queue.send(b"x")

            assert len(await waiting) == 1
            assert status["connections"] == 1
            assert status["rss_bytes"] - before < 16 << 20


def test_who_does_not_authenticate_within_the_limit_is_put_out_with_the_reason(tmp_path: Path) -> None:
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
        "        time.sleep(30)\n"
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


def test_sigterm_ends_in_time_although_the_storage_hangs(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--drain-timeout-ms", "3000") as server, RawClient(server.url) as client:
        client.ask(wire.QueueInfo, wire.CreateQueue, "jobs", {})
        os.kill(server.ready["storage_pid"], signal.SIGSTOP)
        client.begin(wire.SendMessages, "jobs", [b"x"])
        server.send_signal(signal.SIGTERM)

        assert server.wait() == 6

    assert "drain_incomplete" in server.log


async def test_a_queue_tells_where_it_is(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--region", "north") as server:
        async with connect(server.url, region="north") as client:
            queue = await client.create_queue("jobs")
            info = await queue.attributes()

            assert info.region == "north"
            assert info.address == f"{server.host}:{server.port}"


async def test_a_nearly_full_disk_refuses_sends_while_receives_and_deletes_work(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        async with connect(server.url) as client:
            queue = await client.create_queue("jobs")
            await queue.send_batch([b"x"] * 10)
        server.stop()
        server.start("--min-free-bytes", str(1 << 59))
        async with connect(server.url, retries=0) as client:
            queue = client.queue("jobs")
            with pytest.raises(DiskNearlyFull) as refusal:
                await queue.send(b"y")
            for message in await queue.receive(10, wait=0):
                await message.delete()
            info = await queue.attributes()
            status = await client.status()

        assert refusal.value.retryable
        assert (info.active, info.in_flight) == (0, 0)
        assert status["sends_refused"] is True
        server.stop()
        server.start()
        async with connect(server.url) as client:
            await client.queue("jobs").send(b"z")


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
            async with connect(server.url, request_timeout=1, retries=0):
                pass
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(encode_preamble(1, 1))
            read_to_end(sock)
        async with connect(server.url, tls=context) as client:
            assert (await client.status())["connections"] == 1


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
                async with connect(url, request_timeout=1, retries=0):
                    pass


def test_the_storage_process_gone_ends_the_server_with_exit_code_3_and_the_reason(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        os.kill(server.ready["storage_pid"], signal.SIGKILL)

        assert server.wait() == 3
    assert "the storage failed" in server.log


def test_a_second_broker_on_the_folder_is_refused_naming_the_first(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        second = RunningServer(tmp_path)
        second.ready_file = tmp_path / "second.json"
        second.log_file = tmp_path / "second.log"
        second.launch()

        assert second.wait() == 4
        assert str(server.ready["storage_pid"]) in second.log or str(server.process.pid) in second.log


def test_a_broker_that_waits_for_the_folder_says_so_at_once_and_starts_when_it_is_free(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        second = RunningServer(tmp_path, "--log-format", "json")
        second.ready_file = tmp_path / "second.json"
        second.log_file = tmp_path / "second.log"
        second.launch()
        try:
            while "data_folder_in_use" not in second.log:
                assert second.process.poll() is None, "it ended without a line before"
                time.sleep(0.01)
            (line,) = (json.loads(line) for line in second.log.splitlines() if "data_folder_in_use" in line)
            assert str(server.process.pid) in line["text"]
            assert line["waiting_ms"] == 10_000
            server.stop()
            while not second.ready_file.exists():
                assert second.process.poll() is None, "it gave up"
                time.sleep(0.01)
            second.process.terminate()
            assert second.wait() == 0
        finally:
            second.process.kill()
            second.wait()


def test_a_taken_address_ends_with_exit_code_5(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailedError, match="code 5"):
            RunningServer(tmp_path).start("--listen", f"127.0.0.1:{port}")


def test_an_unusable_certificate_ends_with_exit_code_5(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(ServerFailedError, match="code 5"):
        RunningServer(tmp_path).start(
            "--tls-certificate", str(tmp_path / "bad.pem"), "--tls-key", str(tmp_path / "bad.pem")
        )


def test_a_folder_that_cannot_be_made_ends_with_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")

    with pytest.raises(ServerFailedError, match="code 4"):
        RunningServer(tmp_path).start()


def test_a_damaged_accounts_file_ends_with_exit_code_4_and_says_so(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        server.stop()
        (server.data / "accounts.json").write_text("{")
        with pytest.raises(ServerFailedError, match=r"(?s)code 4.*accounts\.json is damaged"):
            server.start()


def test_logs_as_json_have_fixed_events_and_every_setting(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--log-format", "json", environment={"CMQD_REGION": "north"}) as server:
        server.stop()
    lines = [json.loads(line) for line in server.log.splitlines()]
    events = {line["event"]: line for line in lines}
    assert {"starting", "settings", "recovered", "listening", "signal", "draining", "stopped"} <= set(events)
    assert events["starting"]["durability"] == "fsync"
    assert events["settings"]["region"] == "north"
    assert events["listening"]["port"] == server.port
    assert events["stopped"]["exit_code"] == 0


def test_flags_and_variables_and_file_are_joined_by_cmqd_config(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text('region = "north"\nmax_connections = 5\n')

    printed = subprocess.run(
        [sys.executable, "-m", "cmqd", "config", "--config", str(file), "--max-connections", "6"],
        env={**os.environ, "CMQD_LOG_LEVEL": "debug"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert 'region = "north"' in printed
    assert "max_connections = 6" in printed
    assert 'log_level = "debug"' in printed


def test_a_wrong_setting_ends_with_exit_code_2_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match=r"(?s)code 2.*heartbeat_ms.*1000"):
        RunningServer(tmp_path).start("--heartbeat-ms", "5")

    assert not (tmp_path / "data").exists()
