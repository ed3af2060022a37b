"""Every call of the operating system fails once: no row that was reported durable is lost, and the log starts again.

``CMQD_FAILING_CALLS`` is ``sites`` for a fault at each call site (a part of ``make test-all``), or ``all`` for a fault
at each call (an hour). By default a few sites are chosen. ``CMQD_FAILING_SEED`` repeats the choices of an earlier run.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.environment import plain_environment

TESTS = Path(__file__).parents[2]
EXTENT = {"": ["--sample", "4"], "sites": [], "all": ["--all"]}[os.environ.get("CMQD_FAILING_CALLS", "")]

pytestmark = [pytest.mark.system, pytest.mark.timeout(4 * 3600)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls are made to fail through registers of x86-64")
def test_a_call_that_fails_loses_nothing_that_was_reported_durable(tmp_path: Path) -> None:
    seed = os.environ.get("CMQD_FAILING_SEED")
    command = [sys.executable, "-m", "support.crash.failing_calls", "--folder", tmp_path, *EXTENT]

    ran = subprocess.run(
        [*command, *(["--seed", seed] if seed else [])],
        env=plain_environment() | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )

    print(ran.stdout)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "completed" in ran.stdout or "failed" in ran.stdout
