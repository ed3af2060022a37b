"""Power failure: acknowledged messages are there when the disk holds only fsynced data.

kill -9 leaves the page cache behind, so it cannot show a missing fsync. Here the broker runs under a tracer that
records every write and every sync in its data folder; from the trace the folder is rebuilt as after a power failure at
some moment, a broker is started on that folder, and the history up to that moment is checked.

``CMQD_POWER_FAILURES`` sets the number of power failures (default 4; ``make test-all`` has more), and
``CMQD_POWER_SEED`` repeats the choices of an earlier run.
"""

import os
import random
from pathlib import Path

import pytest

from support.crash.load_topics import Endpoints
from support.crash.power import (
    SEED,
    SMALL_SEGMENTS,
    choose_cut,
    done,
    new_history,
    traced_life,
    violations_after_restart,
)
from support.crash.promises.history import Publish, Send
from support.crash.traces.disk import Unsynced

FAILURES = int(os.environ.get("CMQD_POWER_FAILURES", "4"))
LIVES = 2 if FAILURES < 6 else 3
# Arbitrary parts of the unsynced data are the hardest case, so this case comes twice.
UNSYNCED = (*Unsynced, Unsynced.SCRAMBLED)

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200 + 60 * FAILURES)]


async def test_acknowledged_messages_survive_on_fsynced_data_alone(tmp_path: Path, endpoints: Endpoints) -> None:
    print(f"CMQD_POWER_SEED={SEED}")
    chance = random.Random(SEED)
    history = new_history()
    folder = tmp_path / "life-0"
    failures = sends = publishes = 0
    for generation in range(LIVES):
        life = await traced_life(
            folder, endpoints, SMALL_SEGMENTS, history=history, generation=f"life-{generation}", chance=chance
        )
        for side in range(FAILURES // LIVES):
            unsynced = UNSYNCED[failures % len(UNSYNCED)]
            cut = choose_cut(life)
            rebuilt = tmp_path / f"rebuilt-{generation}-{side}"
            before = life.cut(rebuilt, cut, unsynced)
            sends, publishes = sends + done(before, Send), publishes + done(before, Publish)
            violations = await violations_after_restart(rebuilt, endpoints, before, SMALL_SEGMENTS)
            told = "\n".join(map(str, violations[:20]))
            case = f"seed {SEED}, life {generation}, cut {cut} of {len(life.events)}, {unsynced}"
            assert not violations, f"{case}\n{told}"
            failures += 1
        # The next life begins on the folder after a power failure of this life.
        folder = tmp_path / f"life-{generation + 1}"
        history = life.cut(folder, choose_cut(life), Unsynced.SCRAMBLED)
    violations = await violations_after_restart(folder, endpoints, history, SMALL_SEGMENTS)
    told = "\n".join(map(str, violations[:20]))
    assert not violations, f"seed {SEED}, after all lives\n{told}"
    # Over all failures: how many of them are left by the last failure is chance.
    assert sends > 100
    assert publishes > 30
    print(f"power failures: {failures + 1} of {failures + 1} with nothing lost")
