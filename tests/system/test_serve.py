"""The server as a process: start, service, drain, end, and the exit code."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.errors import (
    DiskNearlyFull,
)
from cmqd_protocol import messages as wire
from cmqd_protocol.frames import encode_preamble
from cmqd_protocol.protocol_errors import ErrorCode
from support.client.raw_client import RawClient
from support.eventually import eventually_elsewhere
from support.processes.environment import plain_environment
from support.processes.running_server import NEW_INTERPRETER, RunningServer, ServerFailedError
from support.processes.stopped_process import stop

pytestmark = pytest.mark.system
LONG_DRAIN = ("--drain-timeout-ms", "600000")
"""A drain that waits without a reason takes longer than the time limit of the test."""


async def test_it_serves_and_survives_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path, program=NEW_INTERPRETER) as server:
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
    """A move asks for its next page with every page: it must not continue into a log that is being closed."""
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
    with RunningServer(tmp_path, *LONG_DRAIN, program=NEW_INTERPRETER) as server:
        assert server.stop(number) == 0

    assert "drain_incomplete" not in server.log, "the drain ended by itself, not by its time limit"


def test_sigterm_while_it_starts_ends_it(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, "--log-level", "debug", program=NEW_INTERPRETER)
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


def test_sigterm_ends_in_time_although_the_storage_hangs(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--drain-timeout-ms", "3000") as server, RawClient(server.url) as client:
        client.ask(wire.QueueInfo, wire.CreateQueue, "jobs", {})
        stop(server.ready["storage_pid"])
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


def test_the_storage_process_gone_ends_the_server_with_exit_code_3_and_the_reason(tmp_path: Path) -> None:
    with RunningServer(tmp_path, program=NEW_INTERPRETER) as server:
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


def test_the_commands_of_the_greeting_can_be_pasted(tmp_path: Path) -> None:
    with RunningServer(tmp_path, program=NEW_INTERPRETER) as server:
        lines = server.log.splitlines()
        begin = lines.index("Next, in a second terminal:") + 1
        commands = "\n".join(lines[begin : lines.index("Ctrl-C ends the broker in order.")])
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    assert f"  folder      {tmp_path / 'data'}" in lines
    assert ran.returncode == 0, ran.stderr
    assert "first" in ran.stdout


def test_a_standard_output_that_takes_no_greeting_ends_nothing(tmp_path: Path) -> None:
    wrapper = ("bash", "-c", 'exec "$@" > >(true)', "bash")
    with RunningServer(tmp_path, wrapper=wrapper) as server:
        assert "is ready." not in server.log
        with RawClient(server.url) as client:
            client.ask(wire.QueueInfo, wire.CreateQueue, "jobs", {})
        assert server.stop() == 0


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_start_without_standard_streams_serves_and_ends_in_order(closed: str, tmp_path: Path) -> None:
    with RunningServer(tmp_path, wrapper=("bash", "-c", f'exec "$@" {closed}', "bash")) as server:
        with RawClient(server.url) as client:
            client.ask(wire.QueueInfo, wire.CreateQueue, "jobs", {})
        for process in (server.process.pid, server.ready["storage_pid"]):
            streams = [os.readlink(f"/proc/{process}/fd/{number}") for number in range(3)]
            assert not [stream for stream in streams if stream.startswith("socket:")], streams
        # libuv ended the process here, at the close of a socket with the number of a standard stream.
        assert server.stop() == 0


def test_logs_for_programs_have_no_greeting(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--log-format", "json") as server:
        assert [line for line in server.log.splitlines() if not line.startswith("{")] == []


def test_logs_as_json_have_fixed_events_and_every_setting(tmp_path: Path) -> None:
    with RunningServer(
        tmp_path, "--log-format", "json", "--log-level", "debug", environment={"CMQD_REGION": "north"}
    ) as server:
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
        RunningServer(tmp_path, program=NEW_INTERPRETER).start("--heartbeat-ms", "5")

    assert not (tmp_path / "data").exists()
