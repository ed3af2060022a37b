"""Runs the tests that a change touches, nearest first, for a minute: ``make quick FILES="a.py b.py"``.

    python tests/quick.py [FILE ...]    without files: the uncommitted changes, or else the last commit

The shortest chain of imports between a test file and a change is their distance. Files that are no modules, pages for
example, are touched by tests that write their names. The run ends with the first test that ends after a minute, and
names the files that were left out.
"""

import ast
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".", "protocol", "client", "bench", "tests")
"""Folders from which modules are imported."""
SECONDS = 60
MOST_FILES = 100
"""More files than a minute is enough for: a limit of the time of collection."""


def modules_below(root: Path) -> dict[str, Path]:
    """Return the files of the project's modules by the modules' names."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("[a-z]*/**/*.py" if folder == "." else "**/*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            if folder != "." or parts[0] == "cmqd":
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def names_of(file: Path) -> Iterator[str]:
    """Yield the names that the file may import; of strings, the programs that ``python -m`` may start."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield f"{text}.__main__"
            case _:
                pass


def imported_by(modules: Mapping[str, Path]) -> dict[Path, set[Path]]:
    """Return the importing files by the imported file."""
    found: dict[Path, set[Path]] = defaultdict(set)
    for file in modules.values():
        for name in names_of(file):
            # ``from package import name`` is a module, or else a name in a package.
            target = modules.get(name) or modules.get(name.rpartition(".")[0])
            if target is not None and target != file and not name.endswith("__main__"):
                found[target].add(file)
            elif name in modules:
                found[modules[name]].add(file)
    for conftest in (file for name, file in modules.items() if name.rpartition(".")[2] == "conftest"):
        found[conftest].update(file for file in modules.values() if conftest.parent in file.parents)
    return found


def touched_tests(root: Path, changed: Iterable[Path]) -> dict[Path, int]:
    """Return the distances of test files to the changed files, the nearest first."""
    modules = modules_below(root)
    importers = imported_by(modules)
    known = set(modules.values())
    distances: dict[Path, int] = {}
    others = [file.name for file in changed if file not in known]
    row = [file for file in changed if file in known]
    if others:
        row += [file for file in known if root / "tests" in file.parents and any(map(file.read_text().count, others))]
    distance = 0
    while row:
        distances.update((file, distance) for file in row)
        row = list({found for file in row for found in importers[file]} - distances.keys())
        distance += 1
    tests = [file for file in distances if file.name.startswith("test_") and root / "tests" in file.parents]
    return {file: distances[file] for file in sorted(tests, key=lambda file: (distances[file], file))}


class Minute:
    """A plugin of pytest: the tests in the order of their files, and an end after the time."""

    def __init__(self, files: Sequence[Path], seconds: float) -> None:
        self.rank = {file: number for number, file in enumerate(files)}
        self.deadline = time.monotonic() + seconds
        self.left_out = Counter[Path]()
        self.failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort behind tests/conftest.py, which has the longest files first."""
        items.sort(key=lambda item: self.rank.get(item.path, len(self.rank)))
        self.left_out.update(item.path for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        self.left_out[item.path] -= 1
        if time.monotonic() > self.deadline and self.left_out.total():
            item.session.shouldstop = "the minute is over"
        return result


def changed_files(root: Path) -> list[Path]:
    """Return the uncommitted changes; of a clean tree, the files of the last commit."""

    def git(*arguments: str) -> list[Path]:
        output = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
        return [root / line for line in output.splitlines()]

    uncommitted = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return uncommitted or git("diff", "--name-only", "HEAD~", "HEAD")


def main(arguments: Sequence[str]) -> int:
    changed = [Path(argument).resolve() for argument in arguments] or changed_files(ROOT)
    if missing := [str(file) for file in changed if arguments and not file.exists()]:
        print(f"no such file: {', '.join(missing)}", file=sys.stderr)
        return 2
    tests = list(touched_tests(ROOT, changed))
    if not tests:
        print("no test touches this change")
        return 0
    minute = Minute(tests[:MOST_FILES], SECONDS)
    # The browser's tests need a browser: the part "console" of make test-all runs them.
    chosen = [str(test) for test in tests[:MOST_FILES] if ROOT / "tests" / "console" not in test.parents]
    code = pytest.main(["-q", "-p", "no:cacheprovider", *chosen], plugins=[minute]) if chosen else 0
    left_out = [file for file, count in minute.left_out.items() if count > 0] + tests[MOST_FILES:]
    left_out += [test for test in tests[:MOST_FILES] if str(test) not in chosen]
    for folder in sorted({file.parent for file in left_out}):
        names = " ".join(file.name for file in left_out if file.parent == folder)
        print(f"left out in {folder.relative_to(ROOT)}: {names}")
    return int(minute.failed) if minute.left_out.total() and code != pytest.ExitCode.USAGE_ERROR else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
