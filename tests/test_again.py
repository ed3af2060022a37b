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


def failing_part(name: str, runs: list[str], failures: list[str]) -> parts.Part:
    def run() -> None:
        runs.append(name)
        if name in failures:
            failures.remove(name)
            raise subprocess.CalledProcessError(1, ["pytest"])

    return parts.Part(name, parts.lacks_nothing, parts.install_nothing, run)


@pytest.mark.parametrize(
    ("failures", "status", "resumed"),
    [
        (["wheels"], 0, ["wheels", "mounts", "console", "models"]),
        (["wheels", "wheels"], 1, ["wheels"]),
        (["wheels", "mounts"], 0, ["wheels", "mounts", "mounts", "console", "models"]),
        (["wheels", "mounts", "console"], 1, ["wheels", "mounts", "mounts", "console"]),
        (["wheels", "models"], 1, ["wheels", "mounts", "console", "models"]),
    ],
)
def test_a_run_of_parts_is_resumed_at_the_part_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: list[str], status: int, resumed: list[str]
) -> None:
    runs: list[str] = []
    of_test = [failing_part(name, runs, failures) for name in ("costs", "wheels", "mounts", "console", "models")]
    monkeypatch.setattr(parts, "PARTS", tuple(of_test))
    monkeypatch.setattr(parts, "VENVS", tmp_path)
    monkeypatch.setattr(parts, "REMAINING", tmp_path / "remaining")
    assert parts.run_parts(of_test) == 1
    runs.clear()

    assert parts.main(["resume"]) == status

    assert runs == resumed


def test_a_failed_check_of_messages_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "VENVS", tmp_path)
    monkeypatch.setattr(parts, "REMAINING", tmp_path / "remaining")
    assert parts.run_parts([failing_part("kill-rounds", [], ["kill-rounds"])]) == 1

    assert parts.main(["resume"]) == 1
