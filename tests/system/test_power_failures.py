"""Power failures that other tests do not meet: during the first start, and on a broker that does not sync."""

import random
from collections import Counter
from pathlib import Path

import pytest

from support.crash.disk import Unsynced
from support.crash.ledger import Rule
from support.crash.load_topics import PUSH_FLAGS, Endpoints
from support.crash.power import SEED, SMALL_SEGMENTS, new_history, rebuild, traced_life, violations_after_restart

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


async def test_a_power_failure_during_the_first_start_leaves_a_folder_that_starts(
    tmp_path: Path, endpoints: Endpoints
) -> None:
    chance = random.Random(SEED)
    history = new_history()
    first = tmp_path / "first"
    first.mkdir()
    events, begin = await traced_life(first, endpoints, history, SMALL_SEGMENTS, "first", chance)
    for number in range(6):
        cut = chance.randrange(1, begin)
        rebuilt = tmp_path / f"rebuilt-{number}"
        rebuild(rebuilt, events[:cut], list(Unsynced)[number % 3], chance)

        so_far = history.until(events[cut].at_ns)
        violations = await violations_after_restart(rebuilt, endpoints, so_far, SMALL_SEGMENTS)

        assert not violations, f"seed {SEED}, cut {cut} of {len(events)}: {violations}"


async def test_without_fsync_the_same_failures_are_found_to_lose_acknowledged_messages(
    tmp_path: Path, endpoints: Endpoints
) -> None:
    """The tests of power failures can fail: a broker with lowered durability does not pass."""
    chance = random.Random(SEED)
    history = new_history()
    life = tmp_path / "life"
    life.mkdir()
    # A single large segment: only the last rows are lost. With a loss in the middle the broker would refuse to start.
    flags = ("--durability", "os", *PUSH_FLAGS)
    events, begin = await traced_life(life, endpoints, history, flags, "life", chance)
    for number in range(3):
        cut = chance.randrange((begin + len(events)) // 2, len(events))
        rebuilt = tmp_path / f"rebuilt-{number}"
        rebuild(rebuilt, events[:cut], Unsynced.DROPPED, chance)

        violations = await violations_after_restart(rebuilt, endpoints, history.until(events[cut].at_ns), flags)

        found = Counter(violation.rule for violation in violations)
        assert found[Rule.SEND_KEPT] > 0, f"seed {SEED}, cut {cut} of {len(events)}: lost nothing, found {found}"
