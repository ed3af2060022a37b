"""The parts of ``make test-all``: tests that are slow or need an installation, and so are not in ``make test``.

    python tests/parts.py setup          install for every part; exit code 1 if a part cannot run here, with the reason
    python tests/parts.py run [PART ...] run these parts, or all of them; the first failure ends the run
    python tests/parts.py list           print the names of the parts in one line

A new part is an entry of ``PARTS``: its name, a function that installs and returns the things that are missing, and a
function that runs the part.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "parts"
PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that are tested, the one of ``.venv`` by ``make test``."""
KILL_ROUNDS = 60
POWER_FAILURES = 12


@dataclass(frozen=True)
class Part:
    """One part of ``make test-all``."""

    name: str
    setup: Callable[[], list[str]]
    """Install; return one line for each thing that is missing."""
    run: Callable[[], None]
    """Raises CalledProcessError: a test failed."""


def call(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the root of the project. Raises CalledProcessError."""
    subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=True)


def run_pytest(python: str | Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run tests; no test at all is a failure, too."""
    call([python, "-m", "pytest", "-q", *arguments], environment)


# ---------------------------------------------------------------- virtual environments


def make_venv(name: str, python: str | Path, *locks: str) -> list[str]:
    """Build ``VENVS/name`` with the locked packages and this project; later locks overrule earlier ones."""
    folder, files = VENVS / name, [ROOT / "pyproject.toml", *(ROOT / "requirements" / lock for lock in locks)]
    wanted = sha256(b"".join([str(python).encode(), *(file.read_bytes() for file in files)])).hexdigest()
    stamp = folder / "parts-stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return []
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    try:
        call([python, "-m", "venv", "--clear", folder])
        for number, lock in enumerate(locks):
            # The first lock is complete. A later one replaces packages, and pip would refuse the older versions.
            alone = ["--no-deps"] if number else []
            call([*pip, *alone, "--require-hashes", "--only-binary", ":all:", "-r", f"requirements/{lock}"])
        call([*pip, "--no-deps", "--no-build-isolation", "--editable", "."])
    except (OSError, subprocess.CalledProcessError) as error:
        return [f"the packages for {name}: {error}"]
    stamp.write_text(wanted)
    return []


def run_fast_tests(name: str) -> None:
    """Run the tests that start no process and no Spark in ``VENVS/name``."""
    ignored = ("--ignore=tests/spark", "--ignore=tests/typing", "--ignore=tests/bench", "--ignore=tests/test_docs.py")
    run_pytest(
        VENVS / name / "bin" / "python",
        *("-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not system and not spark", *ignored),
        environment={"HYPOTHESIS_PROFILE": "quick"},
    )


def find_python(version: str) -> str | None:
    """Find a Python of this version that can make virtual environments: on PATH, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    for candidate in candidates:
        check = f"import ensurepip, venv, sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        try:
            subprocess.run([candidate, "-c", check], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return None


def other_pythons() -> list[str]:
    return [version for version in PYTHONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]


# ---------------------------------------------------------------- the parts


def setup_nothing() -> list[str]:
    return []


def run_kill_rounds() -> None:
    counts = {"CMQD_KILL_ROUNDS": str(KILL_ROUNDS), "CMQD_POWER_FAILURES": str(POWER_FAILURES)}
    files = ("tests/system/test_kill_nine.py", "tests/system/test_only_fsynced_survives.py")
    run_pytest(sys.executable, "-n", "2", "--dist", "loadfile", *files, environment=counts)


def setup_lowest() -> list[str]:
    return make_venv("lowest", sys.executable, "dev.txt", "lowest.txt")


def setup_other_pythons() -> list[str]:
    missing: list[str] = []
    for version in other_pythons():
        python = find_python(version)
        if python is None:
            missing.append(f"Python {version} with its venv module, as python{version}")
        else:
            missing += make_venv(version, python, "dev.txt")
    return missing


def run_other_pythons() -> None:
    for version in other_pythons():
        print(f"--- Python {version}", flush=True)
        run_fast_tests(version)


def as_root() -> list[str] | None:
    """Return the beginning of a command that root runs, or None where this process cannot become root."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
        return None
    return [sudo, "-n", "-E"]


def setup_mounts() -> list[str]:
    root = as_root()
    if root is None:
        return ["root, or sudo without a password, to mount file systems"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            call([*root, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder])
            call([*root, "umount", folder])
        except (OSError, subprocess.CalledProcessError) as error:
            return [f"the right to mount file systems, which root of a container may lack: {error}"]
    return []


def run_mounts() -> None:
    command = [*(as_root() or []), "env", "TEST_WITH_MOUNTS=1", sys.executable, "-m", "pytest", "-q"]
    call([*command, "-p", "no:cacheprovider", "tests/system/test_full_to_the_last_byte.py"])


PARTS = (
    Part("kill-rounds", setup_nothing, run_kill_rounds),
    Part("lowest-versions", setup_lowest, lambda: run_fast_tests("lowest")),
    Part("other-pythons", setup_other_pythons, run_other_pythons),
    Part("mounts", setup_mounts, run_mounts),
)


def setup_all() -> int:
    missing = [f"{part.name} needs {thing}" for part in PARTS for thing in part.setup()]
    for line in missing:
        print(f"setup-all: {line}", file=sys.stderr)
    return 1 if missing else 0


def run_parts(names: Sequence[str]) -> int:
    by_name = {part.name: part for part in PARTS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        print(f"no part is called {', '.join(unknown)}; there are: {' '.join(by_name)}", file=sys.stderr)
        return 2
    for name in names or by_name:
        print(f"=== {name}", flush=True)
        began = time.monotonic()
        try:
            by_name[name].run()
        except subprocess.CalledProcessError as error:
            print(f"=== {name} failed after {time.monotonic() - began:.0f} s: {error}", file=sys.stderr)
            return 1
        print(f"=== {name} passed in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["setup"]:
            return setup_all()
        case ["run", *names]:
            return run_parts(names)
        case ["list"]:
            print(" ".join(part.name for part in PARTS))
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
