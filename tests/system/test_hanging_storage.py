"""A stopped storage process: requests end, the server goes on, and no message is lost."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.errors import Busy, OutcomeUnknown
from support.processes.running_server import RunningServer
from support.processes.stopped_process import stop

pytestmark = pytest.mark.system


async def test_a_stopped_storage_is_told_of_and_what_was_decided_happens_later(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--storage-patience-ms", "5000") as server:
        async with connect(server.url, retries=0, patience=300, request_timeout=300) as client:
            queue = await client.ensure_queue("orders")
            await queue.send(b"before")
            storage_pid = server.ready["storage_pid"]
            stop(storage_pid)
            try:
                with pytest.raises(OutcomeUnknown):
                    await queue.send(b"meanwhile")
                with pytest.raises(Busy) as refusal:
                    await queue.send(b"refused")
                assert refusal.value.retry_after is not None
                with pytest.raises(Busy):
                    await queue.receive(1, wait=0)
                assert (await client.status())["held_replies"] >= 1
            finally:
                os.kill(storage_pid, signal.SIGCONT)
            while (await client.status())["held_replies"]:  # noqa: ASYNC110 - a process acts meanwhile
                await asyncio.sleep(0.01)
            while True:
                try:
                    messages = await queue.receive(16, wait=0)
                    break
                except Busy:
                    await asyncio.sleep(0.05)
            assert [message.body for message in messages] == [b"before", b"meanwhile"]
        assert "storage_hangs" in server.log
        assert "storage_goes_on" in server.log
