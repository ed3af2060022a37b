"""Two commits compared: the verdict on ratios, and real processes of two trees with a known difference."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cmqd_bench.commands.command_line import build_parser, options_from
from cmqd_bench.commands.options import SCENARIOS as OPTIONS
from cmqd_bench.commands.options import Options, defaults
from cmqd_bench.compare.scenarios import SCENARIOS, Measure, Scenario, ScenarioTurns
from cmqd_bench.compare.tree import ROOT, RevisionUnknown, WrongProduct, check_product, checked_out
from cmqd_bench.compare.turns import MIN_TURNS, CompareFailed, Turns
from cmqd_bench.compare.verdict import Verdict, compare
from cmqd_bench.machine.servers import ServerFailed


def turns(*ratios: float) -> list[tuple[float, float]]:
    return [(100.0, 100.0 * ratio) for ratio in ratios]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.0, 1.04, 0.97], Verdict.SAME),
        ([1.2, 1.3, 1.25], Verdict.SLOWER),
        ([0.8, 0.7, 0.75], Verdict.FASTER),
        ([1.2, 0.9, 1.3], Verdict.UNCLEAR),
        # Two turns agree by chance.
        ([1.2, 1.3], Verdict.UNCLEAR),
        ([1.02, 1.01], Verdict.SAME),
        ([0.8, 1.1, 0.7], Verdict.UNCLEAR),
        # A single turn of five may disagree: its process had bad luck with its addresses.
        ([1.2, 0.9, 1.3, 1.2, 1.1], Verdict.SLOWER),
        ([0.8, 1.4, 0.7, 0.8, 0.9], Verdict.FASTER),
        # Two of five may not.
        ([1.2, 0.9, 1.3, 1.2, 0.8], Verdict.UNCLEAR),
        # Within the tolerance, whatever the turns agree about.
        ([1.03, 1.03, 1.03, 1.03, 1.03], Verdict.SAME),
    ],
)
def test_a_verdict_needs_a_difference_and_agreement(ratios: list[float], verdict: Verdict):
    assert compare("send", turns(*ratios)).verdict is verdict


def test_a_smaller_tolerance_sees_a_smaller_difference():
    assert compare("send", turns(1.03, 1.03, 1.02), tolerance=0.01).verdict is Verdict.SLOWER


def test_a_slow_minute_of_the_machine_is_no_difference():
    # Three times slower in the second turn, both trees alike.
    compared = compare("send", [(100.0, 101.0), (300.0, 303.0), (100.0, 101.0)])

    assert compared.verdict is Verdict.SAME
    assert compared.ratio == pytest.approx(1.01)


MICROS = """
from types import SimpleNamespace


def micro(name, loops):
    def prepare():
        def work():
            for _ in range(loops):
                pass
            return 1
        return work
    return SimpleNamespace(name=name, prepare=prepare)


def all_micros():
    return [{micros}]
"""


def tree(folder: Path, micros: str) -> Path:
    """A checkout with a product and a micro suite of a few empty loops."""
    (folder / "cmqd").mkdir(parents=True)
    (folder / "cmqd/__init__.py").touch()
    package = folder / "bench/cmqd_bench/micro"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").touch()
    (package / "runner.py").write_text(MICROS.replace("{micros}", micros))
    return folder


def test_each_process_measures_the_code_of_its_own_tree(tmp_path: Path):
    # A hundred times the work: no busy machine hides that, because the time is CPU time.
    base = tree(tmp_path / "base", "micro('grown', 1_000), micro('shrunk', 100_000), micro('gone', 10)")
    new = tree(tmp_path / "new", "micro('shrunk', 1_000), micro('grown', 100_000), micro('added', 10)")

    compared = Turns(base, new)
    compared.run(turns=3, seconds=0)

    assert {each.name: each.verdict for each in compared.comparisons(0.05)} == {
        "shrunk": Verdict.FASTER,
        "grown": Verdict.SLOWER,
    }
    assert (compared.only_base, compared.only_new) == (["gone"], ["added"])
    assert compared.count == 3


def test_the_time_is_bounded_but_a_verdict_is_given(tmp_path: Path):
    same = tree(tmp_path / "tree", "micro('same', 10)")

    compared = Turns(same, same)
    compared.run(turns=50, seconds=0)

    assert compared.count == MIN_TURNS
    assert len(compared.comparisons(0.05)) == 1


def test_a_tree_that_cannot_be_measured_is_named(tmp_path: Path):
    base = tree(tmp_path / "base", "micro('same', 10)")
    broken = tree(tmp_path / "broken", "1 / 0")

    with pytest.raises(CompareFailed, match=r"broken[\s\S]*ZeroDivisionError"):
        Turns(base, broken).run(turns=1, seconds=0)


def test_a_tree_without_the_product_is_no_measurement_of_the_installed_product(tmp_path: Path):
    base = tree(tmp_path / "base", "micro('same', 10)")
    (base / "cmqd/__init__.py").unlink()
    (base / "cmqd").rmdir()

    with pytest.raises(CompareFailed, match="imported"):
        Turns(base, base).run(turns=1, seconds=0)


def is_checkout() -> bool:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not is_checkout(), reason="not a git checkout")
def test_a_base_is_checked_out_beside_the_tree_and_removed():
    with checked_out("HEAD") as (folder, commit):
        assert (folder / "cmqd/__init__.py").is_file()
        assert folder != ROOT
        assert len(commit) >= 10

    assert not folder.exists()
    listed = subprocess.run(["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True)
    assert str(folder) not in listed.stdout


@pytest.mark.skipif(not is_checkout(), reason="not a git checkout")
def test_an_unknown_base_is_an_error_of_the_command():
    with pytest.raises(RevisionUnknown), checked_out("no-such-revision"):
        pass

    command = [sys.executable, "-m", "cmqd_bench", "compare", "--base", "no-such-revision"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no-such-revision" in done.stderr or "single revision" in done.stderr


@pytest.mark.skipif(not is_checkout(), reason="not a git checkout")
@pytest.mark.system
def test_the_command_compares_the_working_tree_with_a_commit():
    command = [sys.executable, "-m", "cmqd_bench", "compare", "--base", "HEAD", "--turns", "3", "--seconds", "1"]
    command += ["--tolerance", "1", "--filter", "receipt handle", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    # 3 is a verdict as well: the working tree may have been edited.
    assert done.returncode in (0, 3), done.stderr
    report = json.loads(done.stdout)
    assert {each["name"] for each in report["benchmarks"]} == {
        "core: receipt handles of 16 leases",
        "core: lease of a receipt handle",
    }
    assert all(each["base"] > 0 and each["new"] > 0 for each in report["benchmarks"])


def scenario(name: str, **figures: str) -> Scenario:
    return Scenario(name, defaults("cycle"), figures)


def figures_of(values: Mapping[str, Sequence[float]], **extra: float) -> Measure:
    """Return a measurement that gives each tree its values in order."""
    left = {name: list(costs) for name, costs in values.items()}

    def measure(_: Options, tree: Path, __: int) -> Mapping[str, float]:
        if not left[tree.name]:
            raise ServerFailed("the server ended")
        return {"cost": left[tree.name].pop(0), "other_cores": 0.0, **extra}

    return measure


def test_figures_of_brokers_are_compared_within_their_turns():
    # The machine slows down from turn to turn, and the new tree needs twice as much in each.
    measure = figures_of({"base": [10.0, 20.0, 40.0], "new": [20.0, 40.0, 80.0]}, other_cores=0.5)
    compared = ScenarioTurns(Path("base"), Path("new"), [scenario("cycle", cost="CPU")], measure)

    assert compared.run(turns=3, seconds=60) == 3

    (figure,) = compared.comparisons(0.03)
    assert (figure.name, figure.base, figure.new, figure.ratio) == ("cycle: CPU", 20.0, 40.0, 2.0)
    assert figure.verdict is Verdict.SLOWER
    assert (compared.disturbed, compared.rounds) == (6, 6)


def test_a_scenario_that_fails_rests_and_the_others_go_on():
    failing = figures_of({"base": [10.0, 10.0], "new": [10.0]})
    steady = figures_of({"base": [5.0] * 3, "new": [5.0] * 3})
    first, second = scenario("first", cost="CPU"), Scenario("second", defaults("send"), {"cost": "CPU"})

    def measure(options: Options, tree: Path, seed: int) -> Mapping[str, Any]:
        return (failing if options.scenario == "cycle" else steady)(options, tree, seed)

    compared = ScenarioTurns(Path("base"), Path("new"), [first, second], measure)
    compared.run(turns=3, seconds=60)

    # The base went first in the first turn and the new tree in the second.
    assert compared.failures == {"first": "turn 2, new: the server ended"}
    assert {each.name: each.verdict for each in compared.comparisons(0.03)} == {
        "first: CPU": Verdict.SAME,
        "second: CPU": Verdict.SAME,
    }


def test_no_turn_of_scenarios_begins_beyond_the_limit():
    compared = ScenarioTurns(Path("base"), Path("new"), [scenario("cycle", cost="CPU")], figures_of({}))

    assert compared.run(turns=3, seconds=-1) == 0
    assert compared.comparisons(0.03) == []


@pytest.mark.parametrize("each", SCENARIOS, ids=lambda each: each.name)
def test_each_compared_scenario_has_possible_options(each: Scenario):
    command = [
        "--" + name.replace("_", "-") for name in ("batch", "messages") if name in OPTIONS[each.options.scenario][1]
    ]
    arguments = [text for flag in command for text in (flag, str(getattr(each.options, flag[2:])))]

    options_from(build_parser().parse_args([each.options.scenario, *arguments]))
    assert each.figures


def test_a_tree_whose_processes_import_another_product_is_refused(tmp_path: Path):
    check_product(ROOT)
    with pytest.raises(WrongProduct, match=str(tmp_path)):
        check_product(tmp_path)
