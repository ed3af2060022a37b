"""The second run of failed tests: its refusals, and its verdict."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import again
import parts
import pytest

FLAKY = """
from pathlib import Path

def test_passes_at_the_second_run():
    marker = Path(__file__).with_name("marker")
    assert marker.exists() or marker.touch()

def test_always_fails():
    assert False
"""

NO_SKIPS = """
def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true")
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of pytest in these tests take a third of the time without the plugins of this project."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([], "no test failed"),
        (["tests/core/test_a.py"], "no test ran"),
        ([f"tests/core/test_a.py::test_{number}" for number in range(again.MOST + 1)], "4 tests failed"),
        (
            ["tests/core/test_a.py::test_1", "tests/system/kills/test_kill_nine.py::test_rounds"],
            "no acknowledged message",
        ),
    ],
)
def test_failures_that_are_final(tests: list[str], words: str) -> None:
    assert words in (again.refusal(tests) or "")


def test_few_failures_may_be_chance() -> None:
    assert again.refusal(["tests/core/test_a.py::test_1", "tests/console/test_b.py::test_2[en]"]) is None


def test_every_final_file_exists() -> None:
    assert [file for file in again.FINAL if not (again.ROOT / file).is_file()] == []


@pytest.mark.parametrize(("test", "status"), [("test_passes_at_the_second_run", 0), ("test_always_fails", 1)])
def test_the_second_run_decides(tmp_path: Path, test: str, status: int) -> None:
    (tmp_path / "tests").mkdir()
    shutil.copy(again.__file__, tmp_path / "tests")
    (tmp_path / "tests" / "test_flaky.py").write_text(FLAKY)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), f"tests/test_flaky.py::{test}"]
    first = subprocess.run(pytest_command, cwd=tmp_path, capture_output=True, check=False)
    assert first.returncode == 1
    assert json.loads((tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text())

    second = subprocess.run(
        [sys.executable, "tests/again.py"], cwd=tmp_path, capture_output=True, check=False, text=True
    )

    assert second.returncode == status, second.stdout
    assert (f"failed by chance: tests/test_flaky.py::{test}" in second.stdout) == (status == 0)


@pytest.mark.parametrize(
    ("test", "most", "final", "passes"),
    [
        ("test_passes_at_the_second_run", 1, False, True),
        ("test_passes_at_the_second_run", 1, True, False),
        ("test_passes_at_the_second_run", 0, False, False),
        ("test_always_fails", 1, False, False),
    ],
)
def test_a_failed_test_of_a_part_runs_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    test: str,
    most: int,
    final: bool,
    passes: bool,
) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    (tmp_path / "conftest.py").write_text(NO_SKIPS)
    monkeypatch.setattr(again, "ROOT", tmp_path)
    runs = again.PytestRuns(most)

    if passes:
        runs.run(f"test_flaky.py::{test}", final=final)
        assert runs.again == most - 1
    else:
        with pytest.raises(subprocess.CalledProcessError):
            runs.run(f"test_flaky.py::{test}", final=final)
    assert (f"failed by chance: test_flaky.py::{test}" in capfd.readouterr().out) == passes


def test_the_parts_share_the_number_of_second_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[again.PytestRuns] = []
    of_test = [parts.Part(name, parts.lacks_nothing, parts.install_nothing, seen.append) for name in ("a", "b")]
    monkeypatch.setattr(parts, "PARTS", tuple(of_test))

    assert parts.main(["run-again"]) == 0
    assert parts.main(["run"]) == 0

    in_ci, at_a_desk = seen[:2], seen[2:]
    assert in_ci[0] is in_ci[1]
    assert in_ci[0].again == again.MOST_OF_PARTS
    assert at_a_desk[0].again == 0


def test_the_first_failed_part_ends_the_run() -> None:
    ran: list[str] = []

    def fail(_runs: again.PytestRuns) -> None:
        ran.append("first")
        raise subprocess.CalledProcessError(1, ["pytest"])

    def second(_runs: again.PytestRuns) -> None:
        ran.append("second")

    of_test = [parts.Part(run.__name__, parts.lacks_nothing, parts.install_nothing, run) for run in (fail, second)]
    assert parts.run_parts(of_test, 6) == 1
    assert ran == ["first"]
