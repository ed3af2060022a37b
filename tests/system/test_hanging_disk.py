"""A disk that hangs while the loop process commits: other requests are answered, and commits leave the loop process.

The test mounts a file system and freezes it: ``make test-root``.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_client.queue import Message
from support.processes.running_server import RunningServer

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif("TEST_WITH_MOUNTS" not in os.environ, reason="needs root: make test-root"),
]

PROGRAM = """
import sys
from cmqd.storage.loop_side import commit_way
# On any machine a disk that does not hang is quick.
commit_way.LONG_US, commit_way.HANG_US, commit_way.PAUSE_S = 10**9, 2 * 10**6, 1.0
from cmqd.__main__ import main
sys.exit(main())
"""
HANG_S = 10.0


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty file system as the data folder."""
    image, folder = tmp_path / "image", tmp_path / "data"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def loop_commits(client: Client) -> int:
    """Return the number of commits of the loop process so far."""
    server = (await client.metrics()).server
    assert server is not None
    return server.loop_commits_total


async def test_a_disk_that_hangs_holds_up_no_request_that_does_not_wait_for_it(tmp_path: Path, data: Path) -> None:
    program = (sys.executable, "-c", PROGRAM)
    flags = ("--storage-patience-ms", "120000")
    with RunningServer(tmp_path, *flags, program=program) as server:
        async with (
            connect(server.url, retries=0, patience=300, request_timeout=300) as client,
            connect(server.url) as other,
        ):
            queue = await client.ensure_queue("orders")
            for _ in range(3):
                sent = 0
                before = await loop_commits(client)
                while await loop_commits(client) == before:
                    await queue.send(b"by the loop process")
                    sent += 1
                subprocess.run(["fsfreeze", "-f", str(data)], check=True)
                try:
                    held = asyncio.create_task(queue.send(b"held"))
                    # Far more answers than the limits of waiting allow, if the loop waited for the disk at each.
                    thaws_at = asyncio.get_running_loop().time() + HANG_S
                    answers = 0
                    while asyncio.get_running_loop().time() < thaws_at:
                        await other.status()
                        answers += 1
                        await asyncio.sleep(0.01)
                    assert not held.done()
                    assert answers > HANG_S
                finally:
                    subprocess.run(["fsfreeze", "-u", str(data)], check=True)
                await held
                await queue.send(b"by the storage process")
                messages: list[Message[bytes]] = []
                while len(messages) < sent + 2:
                    received = await queue.receive(16, wait=0)
                    messages += received
                    for message in received:
                        await message.delete()
                assert [message.body for message in messages[-2:]] == [b"held", b"by the storage process"]
        assert "storage_hangs" in server.log
        assert "storage_goes_on" in server.log
