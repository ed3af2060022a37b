"""History: consumed messages stay in the log for the set time, over stops and kills of the broker."""

import asyncio
from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_segment.manifest import SegmentState, read_manifest
from support.eventually import eventually
from support.processes.running_broker import RunningBroker
from support.storage.verified import verify_folder

pytestmark = pytest.mark.system

DAY_MS = 86_400_000


def sealed_messages(broker: RunningBroker) -> int:
    segments = read_manifest(broker.folder / "data").segments
    return sum(entry.messages for entry in segments if entry.state is SegmentState.SEALED)


async def consume_in_segments(broker: RunningBroker, count: int) -> None:
    """Send ``count`` messages, with a segment per message, and consume all."""
    async with connect(broker.url) as client:
        queue = await client.ensure_queue("orders")
        for number in range(count):
            await queue.send(b"%d" % number)
            (message,) = await queue.receive()
            await message.delete()
            await client.seal_segments()


async def test_consumed_messages_stay_for_the_time_of_the_setting_over_crash_and_restart(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, "--keep-history-ms", str(DAY_MS))
    with broker:
        await consume_in_segments(broker, 3)
        assert await asyncio.to_thread(sealed_messages, broker) == 3
        broker.kill()
        broker.start()
        async with connect(broker.url) as client:
            # Counted once a checkpoint covers the messages.
            while not (await client.status())["history_bytes"]:
                await client.seal_segments()
                await (await client.ensure_queue("orders")).send(b"waits")
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.5)
            assert sealed_messages(broker) >= 3
            assert (await client.status())["history_bytes"] > 0
    assert verify_folder(tmp_path / "data") == []

    broker.flags = ("--keep-history-ms", "1")
    with broker:
        await eventually(
            lambda: all(entry.first_lsn != 1 for entry in read_manifest(tmp_path / "data").segments if entry.rows)
        )
    assert verify_folder(tmp_path / "data") == []
