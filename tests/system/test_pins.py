"""Pins over kills of the broker: what a copy needs stays on disk, and nothing goes after a start until it was told."""

from pathlib import Path

import pytest

from cmqd_client import Client, connect
from cmqd_client.errors import InvalidArgument
from cmqd_client.pins import LogPin, StandingPin
from cmqd_segment.manifest import SegmentState, read_manifest
from support.eventually import eventually
from support.processes.running_broker import RunningBroker
from support.storage.verified import verify_folder

pytestmark = pytest.mark.system


async def tell(client: Client, pin: LogPin, start: str | None = None, after: int | None = None) -> StandingPin:
    """Tell the broker that the rows of a pin are copied."""
    start = pin.start if start is None else start
    return await client.pins.set_standing(
        "hourly", log_id=pin.log_id, lsn=pin.lsn, start=start, time=pin.time, every=60, after=after
    )


def sealed(folder: Path) -> set[int]:
    """Return the numbers of the sealed segments on disk."""
    entries = read_manifest(folder).segments
    return {entry.number for entry in entries if entry.state is SegmentState.SEALED and (folder / entry.file).exists()}


def checkpoints(folder: Path) -> set[int]:
    return {entry.number for entry in read_manifest(folder).checkpoints if (folder / entry.file).exists()}


async def consume_in_segments(client: Client, count: int) -> None:
    """Send and consume ``count`` messages, in a segment each; the next checkpoints cover them."""
    queue = await client.ensure_queue("orders")
    for number in range(count):
        await queue.send(b"%d" % number)
        (message,) = await queue.receive()
        await message.delete()
        await client.seal_segments()


async def test_the_files_of_a_copy_stay_while_the_broker_lives_and_go_after_its_kill(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with RunningBroker(tmp_path) as broker:
        async with connect(broker.url) as client:
            await consume_in_segments(client, 2)
            pin = await client.pins.make()
            numbers = set((await client.pins.segments(pin.pin_id)).numbers)
            assert numbers <= sealed(folder)
            await consume_in_segments(client, 4)
            # Five checkpoints have come; the scan behind each would have dropped the segments.
            assert numbers <= sealed(folder)
            assert pin.checkpoint == 0 or pin.checkpoint in checkpoints(folder)
        broker.kill()
        assert verify_folder(folder) == []
        broker.start()
        async with connect(broker.url) as client:
            with pytest.raises(InvalidArgument, match="begin a new copy"):
                await client.pins.segments(pin.pin_id)
            await consume_in_segments(client, 2)
            await eventually(lambda: not numbers & sealed(folder) and len(checkpoints(folder)) == 2)
    assert verify_folder(folder) == []


@pytest.mark.parametrize("step", ["told", "consumed", "pinned", "copied"])
async def test_after_a_kill_nothing_goes_until_the_backup_has_told_its_row(tmp_path: Path, step: str) -> None:
    folder = tmp_path / "data"

    def reclaimed_upto() -> int:
        return max((last_lsn for _, last_lsn in read_manifest(folder).dropped), default=0)

    with RunningBroker(tmp_path) as broker:
        async with connect(broker.url) as client:
            await client.ensure_queue("orders")
            copied = await client.pins.make()
            await tell(client, copied)
            await client.pins.release(copied.pin_id)
            if step != "told":
                await consume_in_segments(client, 2)
            if step in ("pinned", "copied"):
                pin = await client.pins.make()
                if step == "copied":
                    await tell(client, pin)
                    copied = pin
        broker.kill()
        assert [entry.name for entry in read_manifest(folder).standing_pins] == ["hourly"]
        before = reclaimed_upto()
        assert before <= copied.lsn
        broker.start()
        async with connect(broker.url) as client:
            # Each segment brings a checkpoint, and each checkpoint a scan for segments that may go.
            await consume_in_segments(client, 5)
            assert reclaimed_upto() == before
            status = (await client.status())["standing_pins"]
            assert [(entry["name"], entry["copied_lsn"]) for entry in status] == [("hourly", None)]
            with pytest.raises(InvalidArgument, match="went two ways"):
                await tell(client, copied, start="0" * 16)

            assert (await tell(client, copied)).gaps == []
            await consume_in_segments(client, 2)
            assert reclaimed_upto() <= copied.lsn
            before_kill, copied = copied, await client.pins.make()
            # No row between the two copies is gone, although the broker was killed and started in between.
            assert (await tell(client, copied, after=before_kill.lsn)).gaps == []
            await client.pins.release(copied.pin_id)
            await consume_in_segments(client, 2)
            await eventually(lambda: before < reclaimed_upto() <= copied.lsn)
            await client.pins.delete_standing("hourly")
        assert read_manifest(folder).standing_pins == []
    assert verify_folder(folder) == []
