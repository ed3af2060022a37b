"""Interleavings of brokers, servers and faults that hypothesis finds; see :mod:`support.engine.machine`."""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.judge import profile

from cmqd.engine.fencing import FencedEngine
from support.engine import mutants as without
from support.engine.machine import EngineMachine, HazardMachine
from support.engine.memory_engine import MemorySession

TestEngine = EngineMachine.TestCase
TestEngine.settings = profile(400)

TestHazards = HazardMachine.TestCase
TestHazards.settings = profile(400)


class BelievesNotices(without.BelievesNotices, without.BelievesSlowAppends):
    """H2. With the barrier behind a slow append, a cancelled look must come together with three other faults."""


LONG_SEARCHES = [pytest.param(BelievesNotices, id="H2")] if os.environ.get("HYPOTHESIS_PROFILE") == "full" else []
"""A search of 13 s of processor time, in the part models of ``make test-all``."""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(without.BelievesWhatIsVisible, id="H1"),
        *LONG_SEARCHES,
        pytest.param(without.AcceptsAllButNone, id="H3"),
        pytest.param(without.AcceptsLists, id="H4"),
        pytest.param(without.ViolationIsSuccess, id="H5"),
        pytest.param(without.ChangesWithoutEpoch, id="H5-changes"),
    ],
)
def test_the_search_finds_each_hazard(engine: type[FencedEngine] | type[MemorySession]):
    machine = type("Machine", (HazardMachine,), {"engine": engine})

    with pytest.raises(AssertionError, match=r"^(?!waits at)"):
        run_state_machine_as_test(
            machine,  # type: ignore[arg-type]
            settings=settings(
                max_examples=3000,
                stateful_step_count=12,
                derandomize=True,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
