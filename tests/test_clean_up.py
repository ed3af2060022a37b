"""The clean-up of a failed test has a time limit, and its end is told."""

import subprocess
import sys
from pathlib import Path

RUN = """
import importlib.util, sys, types
import pytest

spec = importlib.util.spec_from_file_location("limits", sys.argv[1])
limits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(limits)
limits.CLEAN_UP_SECONDS = 3
hooks = types.SimpleNamespace(
    pytest_configure=limits.pytest_configure, pytest_exception_interact=limits.pytest_exception_interact
)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[hooks]))
"""
FAILING = """
import threading
import pytest

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

def test_that_fails(endless):
    assert False
"""


def test_a_clean_up_that_does_not_end_is_shown(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")

    command = [sys.executable, "-c", RUN, str(Path(__file__).with_name("conftest.py")), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert ran.returncode == 1
    assert 'test_endless.py", line 8 in endless' in ran.stderr
