"""The choice of ``make quick``, its order, and its end after a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick

FILES = {
    "cmqd/__init__.py": "",
    "cmqd/__main__.py": "from cmqd import broker",
    "cmqd/broker.py": "from cmqd.rules import check",
    "cmqd/rules.py": "def check(): ...",
    "tests/shared/rig.py": "import cmqd.broker",
    "tests/a/test_far.py": "from shared import rig\ndef test_far(): ...",
    "tests/a/test_started.py": "COMMAND = ['-m', 'cmqd']\ndef test_started(): ...",
    "tests/b/test_near.py": "from cmqd.rules import check\ndef test_first(): ...\ndef test_second(): ...",
    "tests/b/test_apart.py": "PAGE = 'SPEC.md'\ndef test_apart(): ...",
    "protocol/SPEC.md": "text",
}
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import quick
quick.ROOT, quick.SECONDS = Path.cwd(), float(sys.argv[2])
sys.exit(quick.main(sys.argv[3:]))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = . tests\naddopts = --import-mode=importlib\n")
    return tmp_path


def run(root: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(Path(quick.__file__).parent), str(seconds), "cmqd/rules.py"]
    # The plugin of the real cmqd is not in the tree.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("cmqd/rules.py", {"tests/b/test_near.py": 1, "tests/a/test_far.py": 3, "tests/a/test_started.py": 3}),
        ("protocol/SPEC.md", {"tests/b/test_apart.py": 0}),
        ("tests/a/test_far.py", {"tests/a/test_far.py": 0}),
    ],
)
def test_tests_are_as_near_as_their_shortest_chain_of_imports(
    root: Path, changed: str, touched: dict[str, int]
) -> None:
    found = quick.touched_tests(root, [root / changed])

    assert list(found.items()) == [(root / name, distance) for name, distance in touched.items()]


@pytest.mark.parametrize(
    ("seconds", "passed", "left_out"),
    [
        (60, "4 passed", ""),
        (0, "1 passed", "left out in tests/a: test_far.py test_started.py\nleft out in tests/b: test_near.py\n"),
    ],
)
def test_the_nearest_test_runs_first_and_what_the_time_leaves_out_is_named(
    root: Path, seconds: float, passed: str, left_out: str
) -> None:
    ran = run(root, seconds)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert passed in ran.stdout
    assert ran.stdout.endswith(left_out)
    assert ("left out" in ran.stdout) == bool(left_out)


def test_a_failure_is_the_exit_code(root: Path) -> None:
    (root / "tests/b/test_near.py").write_text("import cmqd.rules\ndef test_first(): assert False")

    assert run(root, 0).returncode == 1
