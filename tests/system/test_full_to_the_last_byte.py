"""A full disk: consumers go on within the ballast, a broker killed there starts again, and consuming makes room.

The tests mount a file system and need root: ``make test-root``.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import DiskNearlyFull
from support.eventually import eventually
from support.processes.running_server import RunningServer

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif("TEST_WITH_MOUNTS" not in os.environ, reason="needs root: make test-root"),
]

MIB = 1 << 20
DISK_MIB = 160
MESSAGES = 100_000
CONSUMERS = 16


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty file system without a share for root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Write until no byte more fits."""
    with (disk / "stranger").open("ab", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


async def consume(client: Client, count: int) -> int:
    """Receive and delete ``count`` messages singly, or all messages; return their number."""
    queue = client.queue("orders")
    begun = done = 0

    async def work() -> None:
        nonlocal begun, done
        while begun < count:
            begun += 1
            messages = await queue.receive(1, wait=0)
            if not messages:
                return
            await messages[0].delete()
            done += 1

    await asyncio.gather(*(work() for _ in range(CONSUMERS)))
    return done


async def sends_one(url: str) -> bool:
    """Send a message; return False if it was refused.

    At its start the broker drops the segments whose messages were deleted before, and may so have room for sends.
    """
    async with connect(url, retries=0) as sender:
        try:
            await sender.queue("orders").send(b"x")
        except DiskNearlyFull:
            return False
        return True


@pytest.mark.parametrize("size", [100, 400], ids=["segment fits into the ballast", "segment does not"])
async def test_consumers_empty_a_full_disk_across_a_crash(tmp_path: Path, disk: Path, size: int) -> None:
    server = RunningServer(tmp_path, "--min-free-bytes", "0")
    server.data = disk / "data"
    with server:
        async with connect(server.url) as client:
            await client.ensure_queue("orders")
            for _ in range(MESSAGES // 200):
                await client.queue("orders").send_batch([os.urandom(size)] * 200)
            fill(disk)
            assert await consume(client, MESSAGES // 2) == MESSAGES // 2
        os.kill(server.ready["storage_pid"], signal.SIGKILL)
        server.kill()
        fill(disk)

        server.start()

        async with connect(server.url) as client:
            sent = await sends_one(server.url)
            assert await consume(client, MESSAGES) == MESSAGES - MESSAGES // 2 + sent
            await eventually(lambda: free_bytes(disk) >= MESSAGES // 2 * size // 2)
        (disk / "stranger").unlink()
        async with connect(server.url) as client:
            while (await client.status())["sends_refused"]:  # noqa: ASYNC110 - a different process sets this
                await asyncio.sleep(0.1)
            await client.queue("orders").send(b"x")
