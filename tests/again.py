"""Runs of pytest whose failed tests may run a second time, for ``.ci/run``; see decision 0198.

    python tests/again.py    run the tests again that failed in ``make test``: exit code 0 if these pass now

The tests start thousands of real processes on a busy machine, and a failure by chance of a single test among 13,000
would refuse a good change. A test that passes at its second run is printed as "failed by chance". A second run is
refused after more than ``MOST`` failures, and after any failure of ``FINAL``: a lost message is no chance.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
MOST = 3
"""Failed tests that a run of ``make test`` may repeat."""
MOST_OF_PARTS = 6
"""Failed tests that a run of ``make test-all`` may repeat: it runs the fast tests of ``make test`` twice more."""
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


def failed_tests(cache: Path) -> list[str]:
    """Return the tests that failed in the last run of pytest, as the folder of pytest's cache lists them."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def refusal(tests: Sequence[str], most: int = MOST) -> str | None:
    """Return the reason why these failures are final; None if a second run is allowed."""
    if not tests:
        return "no test failed: the run ended for another reason"
    files = [test for test in tests if "::" not in test]
    if files:
        return f"{files[0]} could not be read, so that no test ran"
    if len(tests) > most:
        return f"{len(tests)} tests failed; at most {most} may run again"
    final = [test for test in tests if test.startswith(FINAL)]
    return f"{final[0]} checks that no acknowledged message is lost; its failure is final" if final else None


def run_again(pytest: Sequence[str | Path], tests: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the failed tests again, one after the other. Raises CalledProcessError: a test failed again."""
    subprocess.run([*pytest, "-v", *tests], cwd=ROOT, env={**os.environ, **environment}, check=True)
    for test in tests:
        print(f"failed by chance: {test}", flush=True)


class PytestRuns:
    """Runs of pytest with a common number of second runs."""

    def __init__(self, again: int = 0) -> None:
        self.again = again
        """The failed tests that may still run a second time."""

    def run(
        self,
        *arguments: str,
        python: str | Path = sys.executable,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        final: bool = False,
    ) -> None:
        """Run tests; a test that is skipped is a failure, and so is a run without tests.

        Args:
            arguments: of pytest.
            python: an interpreter with pytest.
            prefix: the beginning of the command, for example of one that root runs.
            environment: further variables.
            final: no failed test runs a second time.

        Raises:
            CalledProcessError: a test failed, and failed again if it had a second run.
        """
        # A cache of its own: the cache of the project keeps the failures of runs of other tests.
        with TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            pytest = [*prefix, python, "-m", "pytest", "--no-skips", "-o", f"cache_dir={cache}"]
            variables = environment or {}
            try:
                command = [*pytest, "-q", *arguments]
                subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)
            except subprocess.CalledProcessError:
                if final or not self.again:
                    raise
                tests = failed_tests(Path(cache))
                reason = refusal(tests, self.again)
                if reason is not None:
                    print(f"not run again: {reason}", file=sys.stderr)
                    raise
                self.again -= len(tests)
                run_again(pytest, tests, variables)


def main() -> int:
    """Run the failed tests of ``make test`` again, and return the exit code of pytest, or 1."""
    tests = failed_tests(ROOT / ".pytest_cache")
    reason = refusal(tests)
    if reason is not None:
        print(f"not run again: {reason}", file=sys.stderr)
        return 1
    try:
        run_again([sys.executable, "-m", "pytest"], tests, {})
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
