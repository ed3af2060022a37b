"""The leader's machine goes silent: no packet comes from it, and no kernel answers keepalives in its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmqd.exit_codes import ExitCode
from support.processes.environment import plain_environment
from support.processes.network_namespace import lacks_namespaces

TESTS = Path(__file__).resolve().parents[1]
LACKING = lacks_namespaces()

pytestmark = [
    pytest.mark.system,
    pytest.mark.postgresql,
    pytest.mark.skipif("CMQD_ALL_HAZARDS" not in os.environ, reason="runs in make test-all PARTS=redundancy"),
    pytest.mark.skipif(LACKING is not None, reason=f"needs {LACKING}"),
]


def test_a_standby_leads_when_the_leaders_machine_is_silent() -> None:
    """The primary ends the leader's sessions by its own limits of time; the old leader ends behind the silence."""
    ran = subprocess.run(
        ["unshare", "-n", sys.executable, "-m", "support.engine.silent_machine"],
        cwd=TESTS,
        env=plain_environment(),
        check=False,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout)
    print(figures)
    assert figures["exit_code_of_old_leader"] == ExitCode.FENCED
    assert figures["errors_with_patience"] == 0
