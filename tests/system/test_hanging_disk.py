"""A disk that turns slow, hangs, recovers, or is slow now and then, while the loop process commits: requests without a
row are answered, commits leave the loop process and return to it, and no message is lost.

The tests mount a file system and freeze it: ``make test-root``. Limits of time are set so that a freeze alone is long,
on any machine, and a minute is a second.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_client.queue import Queue
from support.processes.running_server import RunningServer

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif("TEST_WITH_MOUNTS" not in os.environ, reason="needs root: make test-root"),
]

PROGRAM = """
import sys
from cmqd.storage.loop_side import commit_way
commit_way.LONG_US, commit_way.HANG_US, commit_way.WEIGHT, commit_way.PAUSE_S = {limits}
from cmqd.__main__ import main
sys.exit(main())
"""
HANGS = (10**9, 2_000_000, 1 / 32, 1.0)
"""Commits are quick, or hang."""
TURNS_SLOW = (400_000, 10**9, 1 / 4, 1.0)
"""Commits are quick, or long: the share of long commits decides."""
HANG_S = 10.0
SLOW_S = 0.5
"""More than a long commit."""
MINUTE_S = 1.0
FREEZER = """
while read -r step; do fsfreeze "$step" "$1" && echo done; done
fsfreeze -u "$1" 2>/dev/null
"""
"""Freezes and thaws as it is told, and thaws at the end of its input: also if the tests are killed."""


class Disk:
    """A mounted file system that can be frozen: writes and syncs wait until the thaw."""

    def __init__(self, folder: Path) -> None:
        self._freezer = subprocess.Popen(
            ["sh", "-c", FREEZER, "sh", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def freeze(self) -> None:
        """Let the disk hang."""
        self._take("-f")

    def thaw(self) -> None:
        """Let the disk go on."""
        self._take("-u")

    def close(self) -> None:
        """End the freezer."""
        self._freezer.communicate()

    def _take(self, step: str) -> None:
        assert self._freezer.stdin is not None
        assert self._freezer.stdout is not None
        self._freezer.stdin.write(f"{step}\n")
        self._freezer.stdin.flush()
        assert self._freezer.stdout.readline() == "done\n"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount an empty file system as the data folder."""
    image, folder = tmp_path / "image", tmp_path / "data"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    disk = Disk(folder)
    yield disk
    disk.close()
    subprocess.run(["umount", str(folder)], check=True)


@dataclass
class Sends:
    """Numbered messages, one at a time."""

    client: Client
    queue: Queue
    other: Client
    disk: Disk
    bodies: list[bytes] = field(default_factory=list[bytes])

    async def send(self) -> None:
        self.bodies.append(b"%d" % len(self.bodies))
        await self.queue.send(self.bodies[-1])

    async def held(self, seconds: float) -> int:
        """Send while the disk hangs for this time; return the number of answers to another client meanwhile."""
        self.disk.freeze()
        sending = asyncio.create_task(self.send())
        try:
            answers = 0
            thaws_at = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < thaws_at:
                await self.other.status()
                answers += 1
                await asyncio.sleep(0.01)
            assert not sending.done()
        finally:
            self.disk.thaw()
        await sending
        return answers

    async def by_loop(self) -> None:
        """Send until the loop process has committed."""
        before = await self.loop_commits()
        while await self.loop_commits() == before:
            await self.send()

    async def loop_commits(self) -> int:
        """Return the number of commits of the loop process so far."""
        server = (await self.client.metrics()).server
        assert server is not None
        return server.loop_commits_total

    async def received(self) -> list[bytes]:
        """Receive and delete as many messages as were sent; return their bodies."""
        bodies: list[bytes] = []
        while len(bodies) < len(self.bodies):
            for message in await self.queue.receive(16, wait=0):
                await message.delete()
                bodies.append(message.body)
        return bodies


@asynccontextmanager
async def sends_to(server: RunningServer, disk: Disk) -> AsyncGenerator[Sends]:
    """Connect two clients; at the end, all messages must be in the queue, in their order."""
    with server:
        async with (
            connect(server.url, retries=0, patience=300, request_timeout=300) as client,
            connect(server.url, request_timeout=300) as other,
        ):
            sends = Sends(client, await client.ensure_queue("orders"), other, disk)
            yield sends
            assert await sends.received() == sends.bodies


def broker(folder: Path, limits: tuple[object, ...]) -> RunningServer:
    """Return a broker with these limits of ``commit_way``."""
    program = (sys.executable, "-c", PROGRAM.format(limits=limits))
    return RunningServer(folder, "--storage-patience-ms", "120000", program=program)


async def test_a_disk_that_hangs_holds_up_no_request_that_does_not_wait_for_it(tmp_path: Path, disk: Disk) -> None:
    server = broker(tmp_path, HANGS)
    async with sends_to(server, disk) as sends:
        for _ in range(2):
            await sends.by_loop()
            # Far more answers than the limits of waiting allow, if the loop waited for the disk at each.
            assert await sends.held(HANG_S) > HANG_S
            await sends.send()
    assert "storage_hangs" in server.log
    assert "storage_goes_on" in server.log


async def test_commits_leave_the_loop_process_on_a_slow_disk_and_return_with_a_quick_one(
    tmp_path: Path, disk: Disk
) -> None:
    async with sends_to(broker(tmp_path, TURNS_SLOW), disk) as sends:
        for _ in range(2):
            await sends.by_loop()
            before = -1
            while before != await sends.loop_commits():
                before = await sends.loop_commits()
                await sends.held(SLOW_S)


async def test_a_disk_that_is_slow_once_a_minute_delays_the_commits_of_that_time(tmp_path: Path, disk: Disk) -> None:
    async with sends_to(broker(tmp_path, TURNS_SLOW), disk) as sends:
        for _ in range(5):
            await sends.by_loop()
            await sends.held(SLOW_S)
            minute_ends_at = asyncio.get_running_loop().time() + MINUTE_S
            while asyncio.get_running_loop().time() < minute_ends_at:
                await sends.send()
