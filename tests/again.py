"""A second run of the tests that have just failed, for ``.ci/run``; see decision 0198.

    python tests/again.py    exit code 0 if the few failed tests pass now; prints each as "failed by chance"

The tests start thousands of real processes on a busy machine, and a failure by chance of a single test among 13,000
would refuse a good change. A second run is refused after more than ``MOST`` failures, and after any failure of
``FINAL``: a lost message is no chance.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 3
FINAL = (
    "tests/engine/test_mixed_faults.py",
    "tests/engine/test_pair_of_brokers.py",
    "tests/system/kills/test_acknowledge_survives.py",
    "tests/system/kills/test_kill_nine.py",
    "tests/system/kills/test_killed_between_slices.py",
    "tests/system/power/test_only_fsynced_survives.py",
    "tests/system/power/test_power_failures.py",
    "tests/system/power/test_power_failures_of_fills.py",
)
"""The checks of acknowledged messages. Their choices are random, so a second run proves nothing about the first."""


def failed_tests(root: Path) -> list[str]:
    """Return the tests that failed in the last run of pytest, as pytest's cache lists them."""
    file = root / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def refusal(tests: Sequence[str]) -> str | None:
    """Return the reason why these failures are final; None if a second run is allowed."""
    if not tests:
        return "no test failed: the run ended for another reason"
    files = [test for test in tests if "::" not in test]
    if files:
        return f"{files[0]} could not be read, so that no test ran"
    if len(tests) > MOST:
        return f"{len(tests)} tests failed; at most {MOST} are run again"
    final = [test for test in tests if test.startswith(FINAL)]
    return f"{final[0]} checks that no acknowledged message is lost; its failure is final" if final else None


def main() -> int:
    """Run the failed tests again, one after the other, and return the exit code of pytest, or 1."""
    tests = failed_tests(ROOT)
    reason = refusal(tests)
    if reason is not None:
        print(f"not run again: {reason}", file=sys.stderr)
        return 1
    status = subprocess.run([sys.executable, "-m", "pytest", "-v", *tests], cwd=ROOT, check=False).returncode
    for test in tests if status == 0 else ():
        print(f"failed by chance: {test}")
    return status


if __name__ == "__main__":
    sys.exit(main())
