"""Scale curves: the judgement of a curve on made-up costs, and real steps for a moment."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cmqd_bench.commands.arguments import plan_from
from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.commands.plans import CURVE_NAMES, Curves
from cmqd_bench.curves.catalog import CURVES
from cmqd_bench.curves.cliffs import cliffs_of, find_cliffs
from cmqd_bench.curves.run import MAX_RSS_MIB, hindrance
from cmqd_bench.figures import results
from cmqd_bench.figures.results import Row, Scenario, is_overloaded, points
from support.bench.long_benches import long_bench
from support.bench.results_files import results_of

FLAT = Scenario(name="queues", title="over N queues", is_curve=True)
BODY = Scenario(name="body", title="with N bytes", is_curve=True, expected_slope=1.0, fixed_cost_x=1_000.0)


def plan_of(command: str) -> Curves:
    return plan_from(Curves, build_parser().parse_args(shlex.split(command)))


def test_a_flat_or_falling_curve_has_no_cliff():
    assert find_cliffs(FLAT, [(1, 50.0), (10, 51.0), (100, 49.0), (1_000, 70.0)]) == []
    assert find_cliffs(FLAT, [(1, 500.0), (10, 50.0), (100, 5.0)]) == []
    assert find_cliffs(FLAT, [(1, 50.0)]) == []
    assert find_cliffs(FLAT, []) == []


def test_a_cliff_names_both_ends_of_the_step():
    (cliff,) = find_cliffs(FLAT, [(1, 50.0), (10, 50.0), (100, 100.0), (1_000, 101.0)])

    assert (cliff.start_x, cliff.end_x, cliff.growth, cliff.is_step) == (10, 100, 2.0, True)
    assert str(cliff) == "cliff on the curve queues: 50 us at 10, 100 us at 100, 2.00 times the expected cost"


def test_a_slow_climb_is_found_from_the_cheapest_step():
    (climb,) = find_cliffs(FLAT, [(1, 50.0), (10, 40.0), (100, 58.0), (1_000, 84.0)])

    assert (climb.start_x, climb.end_x, climb.is_step) == (10, 1_000, False)
    assert climb.growth == pytest.approx(2.1)


def test_a_cost_in_proportion_is_no_cliff_where_it_is_expected():
    # 50 us, and as much again per 1,000 bytes.
    costs = [(0.0, 50.0), (1_000.0, 100.0), (10_000.0, 550.0), (100_000.0, 5_050.0)]

    assert find_cliffs(BODY, costs) == []
    assert len(find_cliffs(FLAT, costs)) == 3
    # A quadratic cost exceeds the expectation.
    assert find_cliffs(BODY, [(10_000.0, 550.0), (100_000.0, 50_500.0)])


def test_cliffs_are_judged_on_medians_and_tell_of_other_programs():
    def row(x: float, cpu_us: float, turn: int, is_disturbed: bool = False, rate: float = 1.0) -> Row:
        return Row(scenario="queues", peer="cmqd", turn=turn, x=x, rate=rate, cpu_us=cpu_us, is_disturbed=is_disturbed)

    calm = [row(1, 50, 1), row(10, 55, 1), row(1, 50, 2), row(10, 500, 2), row(1, 50, 3), row(10, 55, 3)]
    file = results_of(calm, kind="curves", scenarios=[FLAT])
    assert cliffs_of(file) == []

    # The rows of a file come in any order, and a step without a completed item has no cost.
    file.rows[:] = [row(100, 0, 1, rate=0.0), row(10, 500, 1, is_disturbed=True), row(1, 50, 1)]
    (cliff,) = cliffs_of(file)
    assert (cliff.start_x, cliff.end_x, cliff.peer, cliff.is_disturbed) == (1, 10, "cmqd", True)
    assert "other programs" in str(cliff)


def test_a_rate_that_was_not_reached_is_an_overload_and_no_cliff():
    scenario = Scenario(name="rate", title="at N a second", x="a second", is_curve=True, is_offered_rate=True)
    rows = [
        Row(scenario="rate", peer="cmqd", x=x, rate=rate, cpu_us=cost)
        for x, rate, cost in ((1_000, 1_000, 50.0), (2_000, 1_990, 45.0), (4_000, 2_500, 200.0))
    ]
    file = results_of(rows, kind="curves", scenarios=[scenario])

    assert [is_overloaded(scenario, point) for point in points(rows)] == [False, False, True]
    assert cliffs_of(file) == []
    rows[2] = msgspec.structs.replace(rows[2], rate=4_000)
    file.rows[:] = rows
    assert len(cliffs_of(file)) == 1


def test_the_command_knows_the_curves_by_name():
    assert tuple(CURVES) == CURVE_NAMES
    assert all(name == curve.scenario.name for name, curve in CURVES.items())
    assert list(plan_of("curves --curves body,batch").curves) == ["body", "batch"]
    with pytest.raises(SystemExit):
        build_parser().parse_args(["curves", "--curves", "depth"])


@pytest.mark.parametrize("name", CURVE_NAMES)
def test_steps_rise_and_quick_steps_are_some_of_them(name: str):
    curve = CURVES[name]

    assert sorted(set(curve.steps)) == list(curve.steps)
    assert set(curve.quick_steps) <= set(curve.steps)


def test_a_step_does_not_begin_beyond_a_bound_and_the_bound_is_named():
    plan, curve = plan_of("curves --limit 60"), CURVES["backlog"]
    within = {"seconds_left": 1.0, "rss_mib": 100.0}

    assert hindrance(plan, curve, 0, **within, free=1 << 40) == ""
    assert "60 s" in hindrance(plan, curve, 0, seconds_left=0.0, rss_mib=100.0, free=1 << 40)
    assert "memory" in hindrance(plan, curve, 0, seconds_left=1.0, rss_mib=MAX_RSS_MIB + 1.0, free=1 << 40)
    assert "disk" in hindrance(plan, curve, 10_000_000, **within, free=1 << 32)
    assert hindrance(plan, curve, 10_000, **within, free=1 << 32) == ""


@long_bench
@pytest.mark.system
def test_every_curve_runs_for_a_moment_and_writes_its_rows(tmp_path: Path):
    output = tmp_path / "curves.json"
    command = [sys.executable, "-m", "cmqd_bench", "curves", "--quick", "--json"]
    command += ["--output", str(output), "--scratch", str(tmp_path / "scratch")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    file = results.read(output)
    assert json.loads(done.stdout)["kind"] == file.kind == "curves"
    assert file.gaps == []
    steps = [(row.scenario, row.x) for row in file.rows]
    assert steps == [(name, step) for name, curve in CURVES.items() for step in curve.quick_steps]
    assert all(row.rate > 0 and row.rss_mib for row in file.rows)
    assert {scenario.name for scenario in file.scenarios} == set(CURVES)
    assert not any((tmp_path / "scratch").iterdir())
