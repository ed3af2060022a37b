"""The files that a broker holds for a copy, over pins that a test makes up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from cmqd_backup.live import pinned_folder, standing_name
from cmqd_backup.refusals import Refused
from cmqd_client import Client
from cmqd_client.pins import LogPin, PinnedSegments
from cmqd_segment.manifest import CACHE_FORMAT, CacheOf, SegmentState, read_manifest, write_manifest
from support.backup.growing_log import GrowingLog


class FakePins:
    """Pins of a broker; a page has two segments."""

    def __init__(self, log_id: str, numbers: Sequence[int], lsn: int) -> None:
        self._numbers = numbers
        self._pin = LogPin(7, log_id, lsn, "", datetime(2026, 1, 1, tzinfo=UTC), 0, 0, timedelta(minutes=5), 1)
        self.released: list[int] = []

    async def make(self) -> LogPin:
        return self._pin

    async def segments(self, pin_id: int, *, after: int = 0, limit: int = 10_000) -> PinnedSegments:
        assert pin_id == 7
        behind = [number for number in self._numbers if number > after]
        return PinnedSegments(behind[:2], behind[1] if len(behind) > 2 else None, 2)

    async def release(self, pin_id: int) -> None:
        self.released.append(pin_id)


class FakeClient:
    def __init__(self, pins: FakePins) -> None:
        self.pins = pins


async def held(folder: Path, pins: FakePins) -> tuple[int, list[int]]:
    """Return the last row of a copy, and the numbers of its segments."""
    async with pinned_folder(cast("Client", cast("Any", FakeClient(pins))), folder) as (found, _):
        return found.last_lsn, [entry.number for entry in found.manifest.segments if entry.state is SegmentState.SEALED]


@pytest.fixture
async def log(tmp_path: Path) -> GrowingLog:
    made = GrowingLog(tmp_path / "data")
    await made.grow(8)
    return made


async def test_a_copy_ends_with_the_newest_segment_of_the_pin(log: GrowingLog):
    manifest = read_manifest(log.folder)
    numbers = [entry.number for entry in manifest.segments if entry.rows]
    pins = FakePins(manifest.log_id, numbers, lsn=7)

    assert await held(log.folder, pins) == (8, numbers)
    assert pins.released == [7]


async def test_the_folder_of_another_log_or_broker_is_refused(log: GrowingLog):
    manifest = read_manifest(log.folder)
    numbers = [entry.number for entry in manifest.segments if entry.rows]
    other, standby = FakePins("other", numbers, 8), FakePins(manifest.log_id, [*numbers, max(numbers) + 100], 8)

    with pytest.raises(Refused, match="the broker that was asked has log other"):
        await held(log.folder, other)
    with pytest.raises(Refused, match="is not the folder of the broker that was asked"):
        await held(log.folder, standby)

    assert (other.released, standby.released) == ([7], [7])


async def test_rows_of_a_standby_in_segments_that_the_leader_has_not_are_copied(log: GrowingLog):
    # A standby that was stopped in order has no unsealed rows. The leader has all rows in one segment.
    manifest = read_manifest(log.folder)
    numbers = [entry.number for entry in manifest.segments if entry.rows]
    cache = structs.replace(manifest, format=CACHE_FORMAT, cache_of=CacheOf(manifest.log_id, 0))
    write_manifest(log.folder, cache)

    assert len(numbers) > 1
    assert await held(log.folder, FakePins(manifest.log_id, numbers[:1], lsn=8)) == (8, numbers)


def test_the_name_of_a_standing_pin_is_of_its_place():
    names = [standing_name(place) for place in ("/mnt/backup/orders", "s3://b/orders/", "/", "/x/" + "a" * 80)]

    assert len(set(names)) == 4
    assert [name.rpartition("-")[0] for name in names] == ["orders", "orders", "backup", "a" * 40]
    assert all(len(name) <= 64 for name in names)
