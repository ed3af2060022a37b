"""The clean-up of a failed test has a time limit, and its end is told; a socket that the test leaves fails no other."""

import subprocess
import sys
from pathlib import Path

RUN = """
import importlib.util, os, sys, types
import pytest

sys.path.insert(0, os.path.dirname(sys.argv[1]))
spec = importlib.util.spec_from_file_location("limits", sys.argv[1])
limits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(limits)
limits.CLEAN_UP_SECONDS = 3
hooks = types.SimpleNamespace(
    pytest_configure=limits.pytest_configure,
    pytest_exception_interact=limits.pytest_exception_interact,
    pytest_runtest_logfinish=limits.pytest_runtest_logfinish,
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


LEAVING = """
import gc
import socket

def test_that_fails():
    left = [socket.socket()]
    left.append(left)
    assert False

def test_behind():
    gc.collect()
"""


SETTINGS = """[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error::ResourceWarning
    error::pytest.PytestUnraisableExceptionWarning
"""


def run_tests(folder: Path, tests: str) -> "subprocess.CompletedProcess[str]":
    """Run tests with the hooks of this suite."""
    (folder / "test_given.py").write_text(tests)
    (folder / "pytest.ini").write_text(SETTINGS)
    command = [sys.executable, "-c", RUN, str(Path(__file__).with_name("conftest.py")), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_a_clean_up_that_does_not_end_is_shown(tmp_path: Path) -> None:
    ran = run_tests(tmp_path, FAILING)

    assert ran.returncode == 1
    assert 'test_given.py", line 8 in endless' in ran.stderr


def test_a_socket_that_a_failed_test_leaves_fails_no_other_test(tmp_path: Path) -> None:
    ran = run_tests(tmp_path, LEAVING)

    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
