"""A real broker over a restored folder: its time, its messages, and handles that it must refuse."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cmqd_client import Queue, connect
from cmqd_client.errors import ReceiptHandleInvalid
from cmqd_client.results import MessageId, Peeked
from support.backup.growing_log import command
from support.processes.running_server import RunningServer
from support.server.lived_log import HOUR_MS, lived

pytestmark = pytest.mark.system

DAY_MS = 24 * HOUR_MS
SLACK_MS = 60_000


def event(server: RunningServer, name: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    (found,) = [line for line in lines if line["event"] == name]
    return found


async def state(url: str) -> tuple[int, int, int]:
    """Active messages, messages in flight, and the offset of the wall clock."""
    async with connect(url) as client:
        info = await client.queue("jobs").attributes()
        status = await client.status()
        return info.active, info.in_flight, status["clock_offset_ms"]


def test_broker_time_goes_on_from_the_last_row(tmp_path: Path) -> None:
    # A retention of a day, and a log that ended 30 days ago: by the wall clock every message has expired.
    then_ms = time.time_ns() // 1_000_000 - 30 * DAY_MS
    asyncio.run(lived(tmp_path / "old", then_ms))
    assert command("backup", tmp_path / "old", "--to", tmp_path / "backup").code == 0
    restored = RunningServer(tmp_path, "--log-format", "json")
    assert command("restore", tmp_path / "backup", restored.data).code == 0

    with restored as server:
        assert asyncio.run(state(server.url)) == (1, 1, pytest.approx(30 * DAY_MS, abs=SLACK_MS))
        assert event(server, "log_restored")["aged_ms"] == pytest.approx(30 * DAY_MS, abs=SLACK_MS)
        server.kill()
        server.start()
        # The second start goes by the offset that the first start recorded.
        assert asyncio.run(state(server.url)) == (1, 1, pytest.approx(30 * DAY_MS, abs=SLACK_MS))


def test_a_start_that_ends_before_its_first_row_leaves_the_restore_in_force(tmp_path: Path) -> None:
    asyncio.run(lived(tmp_path / "old", time.time_ns() // 1_000_000 - 30 * DAY_MS))
    command("backup", tmp_path / "old", "--to", tmp_path / "backup")
    restored = RunningServer(tmp_path)
    command("restore", tmp_path / "backup", restored.data)
    # A port that is taken ends the start: its files are made, and its first row may or may not be durable.
    for _ in range(2):
        refused = subprocess.run(
            [sys.executable, "-m", "cmqd", "serve", "--data", str(restored.data), "--listen", "192.0.2.1:1"],
            capture_output=True,
            check=False,
        )
        assert refused.returncode == 5

    with restored as server:
        assert asyncio.run(state(server.url)) == (1, 1, pytest.approx(30 * DAY_MS, abs=SLACK_MS))


async def send_one(url: str) -> None:
    async with connect(url) as client:
        await client.create_queue("dead")
        orders = await client.create_queue("orders", dead_letter_queue="dead", dead_letter_max_receives=5)
        await orders.send(b"order 1")


async def send_and_receive(url: str) -> tuple[MessageId, int]:
    """Send a message and receive both; return the id and the handle of the newer."""
    async with connect(url) as client:
        queue = client.queue("orders")
        await queue.send(b"order 2")
        messages = await queue.receive(10, visibility_timeout=3600)
        (newer,) = [message for message in messages if message.body == b"order 2"]
        return newer.id, newer.receipt_handle


async def state_of(queue: Queue) -> list[Peeked]:
    return list(await queue.peek(10, states=["active", "in_flight"]))


async def check_refusal(url: str, message_id: MessageId, handle: int) -> None:
    async with connect(url) as client:
        queue = client.queue("orders")
        assert (await queue.send(b"order 3")).id != message_id
        messages = await queue.receive(10, visibility_timeout=3600)
        assert sorted(message.body for message in messages) == [b"order 1", b"order 3"]
        before = await state_of(queue)
        for call in (
            lambda: queue.delete(handle),
            lambda: queue.change_visibility(handle, 0),
            lambda: queue.change_visibility(handle, 3600),
            lambda: queue.release(handle),
            lambda: queue.release(handle, count_receive=False),
            lambda: queue.reject(handle, "too late"),
        ):
            with pytest.raises(ReceiptHandleInvalid):
                await call()
            assert await state_of(queue) == before
        for batch in (
            queue.delete_batch([handle], check=False),
            queue.change_visibility_batch([handle], 0, check=False),
            queue.release_batch([handle], check=False),
            queue.reject_batch([handle], "too late", check=False),
        ):
            result = await batch
            assert ([type(failure.error) for failure in result.failures], result.done) == ([ReceiptHandleInvalid], [])
            assert await state_of(queue) == before
        for message in messages:
            await message.delete()


def test_what_a_client_got_behind_the_backup_is_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        asyncio.run(send_one(server.url))
        server.stop()
        command("backup", server.data, "--to", tmp_path / "backup")
        server.start()
        message_id, handle = asyncio.run(send_and_receive(server.url))
        server.stop()
        shutil.rmtree(server.data)
        assert command("restore", tmp_path / "backup", server.data).code == 0
        server.start()

        asyncio.run(check_refusal(server.url, message_id, handle))
