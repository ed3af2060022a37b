"""The manifest has nearly the last durable row, without a commit waiting for the manifest."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cmqd.storage.folder.manifest_freshness import REFRESH_BYTES, REFRESH_S, Freshness
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd_segment.manifest import SegmentState, read_manifest
from support.eventually import eventually
from support.storage.log_rig import InProcess, LogRig, settings_for


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def freshness(clock: Clock) -> Freshness:
    freshness = Freshness(clock)
    freshness.told(10, 1, 5000)
    return freshness


def test_without_new_rows_nothing_is_due(freshness: Freshness, clock: Clock) -> None:
    clock.now_s += 1_000_000

    assert not freshness.is_due(10, 1, 5000)


def test_the_age_of_the_first_row_that_was_not_told_counts(freshness: Freshness, clock: Clock) -> None:
    clock.now_s += 3600
    assert not freshness.is_due(11, 1, 6000)
    clock.now_s += REFRESH_S - 0.1
    assert not freshness.is_due(500, 1, 9000)

    clock.now_s += 0.1

    assert freshness.is_due(501, 1, 9100)
    freshness.told(501, 1, 9100)
    assert not freshness.is_due(502, 1, 9200)


@pytest.mark.parametrize(("number", "before"), [(1, 5000), (2, 0)])
def test_growth_is_due_at_once(freshness: Freshness, number: int, before: int) -> None:
    assert not freshness.is_due(11, number, before + REFRESH_BYTES - 1)
    assert freshness.is_due(11, number, before + REFRESH_BYTES)


def test_a_log_that_closes_writes_nothing_more(freshness: Freshness, clock: Clock) -> None:
    freshness.stop()
    clock.now_s += 1000

    assert not freshness.is_due(11, 1, REFRESH_BYTES * 2)


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[tuple[InProcess, LogRig]]:
    process = InProcess()
    log = StorageProcessLog(settings_for(folder, state_interval_ms=5), process.start)
    rig = LogRig(log)
    await rig.open()
    yield process, rig
    await log.kill()
    assert process.task is not None
    await process.task


async def test_the_manifest_tells_of_rows_some_seconds_after_their_commit(
    served: tuple[InProcess, LogRig], folder: Path, clock: Clock
) -> None:
    process, rig = served
    process.service.log.freshness = Freshness(clock)

    def told() -> int:
        (active,) = (entry for entry in read_manifest(folder).segments if entry.state is SegmentState.ACTIVE)
        return active.last_lsn

    await rig.store(1, 0, 1)
    await rig.store(1, 1, 1)
    assert told() == 0

    await rig.store(1, 2, 1)

    def told_later() -> bool:
        # Each tick examines the clock; the first that sees the rows begins to measure their age.
        clock.now_s += REFRESH_S
        return told() == 3

    await eventually(told_later)
