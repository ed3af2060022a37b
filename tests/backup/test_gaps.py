"""Gaps of a backup at an interval: a broker that reclaimed rows between two runs, and the times that it says then.

``tests/server/handlers/test_pins.py`` moves the clock of the limit of 24 hours; here the limit is a second.
"""

import asyncio
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_segment.manifest import read_manifest
from support.backup.growing_log import command
from support.eventually import eventually
from support.processes.environment import plain_environment
from support.processes.running_server import RunningServer

pytestmark = pytest.mark.system

WITHOUT_PATIENCE = """
import sys
from cmqd.__main__ import main
from cmqd.server.log_upkeep import pins
pins.STANDING_LIMIT_MS = 1000
sys.exit(main())
"""
"""A broker to which a second without its backup is a day."""
SHORT_OF_SPACE = ("--min-free-bytes", str(1 << 50))
"""A broker that takes its disk for nearly full."""


async def consume_in_segments(client: Client, count: int) -> datetime:
    """Send and consume messages in a segment each; return a time in the middle."""
    queue = await client.ensure_queue("orders")
    middle = datetime.now(UTC)
    for number in range(count):
        if number == count // 2:
            middle = datetime.now(UTC)
        await queue.send(b"%d" % number)
        (message,) = await queue.receive()
        await message.delete()
        await client.seal_segments()
    return middle


def run_once(server: RunningServer, backup: Path) -> str:
    """Make a run of a backup at an interval, whose program then ends; return its lines."""
    program = subprocess.Popen(
        [sys.executable, "-m", "cmqd", "backup", str(server.data), "--to", str(backup), "--every", "1s"],
        stdout=subprocess.PIPE,
        text=True,
        env=plain_environment(),
    )
    assert program.stdout is not None
    try:
        lines = ""
        # The line of a complete run comes behind the call that tells the broker its row.
        while "is complete and verified" not in lines:
            line = program.stdout.readline()
            assert line, lines
            lines += line
        return lines
    finally:
        program.terminate()
        program.communicate()


@pytest.mark.parametrize("cause", ["day", "disk"])
async def test_a_time_in_a_gap_is_refused_with_its_neighbours(tmp_path: Path, cause: str) -> None:
    backup = tmp_path / "backup"
    program = (sys.executable, "-c", WITHOUT_PATIENCE) if cause == "day" else ()
    with RunningServer(tmp_path, program=program) as server:

        async def consume(count: int) -> datetime:
            async with connect(server.url) as client:
                return await consume_in_segments(client, count)

        def dropped() -> int:
            return max((last for _, last in read_manifest(server.data).dropped), default=0)

        await consume(2)
        assert "gap:" not in await asyncio.to_thread(run_once, server, backup)
        gone_at = await consume(6)
        copied = read_manifest(server.data).segments[0].last_lsn
        if cause == "disk":
            server.stop()
            server.start(*SHORT_OF_SPACE)
        await eventually(lambda: dropped() > copied + 6)
        if cause == "disk":
            server.stop()
            server.start()
        await consume(2)
        assert "gap: rows " in await asyncio.to_thread(run_once, server, backup)
        server.stop()

    listed = command("backup", "list", backup)
    refused = command("restore", backup, tmp_path / "gone", "--to-time", gone_at.isoformat())
    assert "gaps, in which rows are missing:" in listed.lines
    assert (refused.code, (tmp_path / "gone").exists()) == (4, False)
    assert "is in a gap of the backup: rows " in refused.error
    neighbours = re.search(r"nearest times are (.+ \+0000) and (.+ \+0000)", refused.error)
    assert neighbours is not None, refused.error
    for number, moment in enumerate(neighbours.groups()):
        date, time, _ = moment.split()
        ended = command("restore", backup, tmp_path / f"near-{number}", "--to-time", f"{date}T{time}Z")
        assert ended.code == 0, ended.error
