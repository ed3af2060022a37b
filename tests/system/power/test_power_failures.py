"""Power failures that other tests do not meet: during the first start, and on a broker that does not sync."""

from collections import Counter
from pathlib import Path

import pytest

from support.crash.load_topics import PUSH_FLAGS, Endpoints
from support.crash.power import SEED, SMALL_SEGMENTS, traced_life
from support.crash.promises.ledger import Rule
from support.crash.traces.disk import Unsynced

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


async def test_a_power_failure_during_the_first_start_leaves_a_folder_that_starts(
    tmp_path: Path, endpoints: Endpoints
) -> None:
    life = await traced_life(tmp_path / "life", endpoints, SMALL_SEGMENTS)
    for number in range(6):
        cut = life.chance.randrange(1, life.begin)

        violations = await life.violations(tmp_path / f"rebuilt-{number}", cut, list(Unsynced)[number % 3])

        assert not violations, f"seed {SEED}, cut {cut} of {len(life.events)}: {violations}"


async def test_without_fsync_the_same_failures_are_found_to_lose_acknowledged_messages(
    tmp_path: Path, endpoints: Endpoints
) -> None:
    """The tests of power failures can fail: a broker with lowered durability does not pass."""
    # A single large segment, of one process: only the last rows are lost. With a loss in the middle the broker would
    # refuse to start.
    flags = ("--durability", "os", *PUSH_FLAGS)
    life = await traced_life(tmp_path / "life", endpoints, flags, way_commits=0)
    events = len(life.events)
    for number in range(3):
        cut = life.chance.randrange((life.begin + events) // 2, events)

        violations = await life.violations(tmp_path / f"rebuilt-{number}", cut, Unsynced.DROPPED)

        broken = Counter(violation.rule for violation in violations)
        assert broken[Rule.SEND_KEPT] > 0, f"seed {SEED}, cut {cut} of {events}: lost nothing, broke {broken}"
