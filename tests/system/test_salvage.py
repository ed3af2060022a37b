"""A start that was told to accept a loss in the middle of the log, and the starts after it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cmqd_client import connect
from support.processes.running_server import RunningServer, ServerFailedError

pytestmark = pytest.mark.system

BODY = bytes(60_000)


def kill(server: RunningServer) -> None:
    """End the server and its storage process."""
    os.kill(server.ready["storage_pid"], signal.SIGKILL)
    server.kill()


async def work(url: str, sends: int) -> None:
    """Send, receive and delete in two queues."""
    async with connect(url) as client:
        for name in ("a", "b"):
            queue = await client.ensure_queue(name)
            for _ in range(sends):
                await queue.send(BODY)
            for message in await queue.receive(10):
                await message.delete()


def test_a_server_starts_from_a_log_with_gaps_again_and_again(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--segment-bytes", str(1 << 20)) as server:
        asyncio.run(work(server.url, 60))
        kill(server)
        for checkpoint in (server.data / "checkpoints").iterdir():
            checkpoint.unlink()
        segments = sorted((server.data / "segments").glob("*.db"))
        assert len(segments) > 4
        segments[0].unlink()
        segments[3].unlink()

        with pytest.raises(ServerFailedError, match="code 4"):
            server.start()
        server.start("--accept-loss")
        kill(server)
        assert "records_not_applied" in server.log
        for _ in range(2):
            server.start()
            asyncio.run(work(server.url, 10))
            kill(server)
        server.start()
