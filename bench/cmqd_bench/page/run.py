"""The command html: makes the page from files of results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cmqd_bench import results
from cmqd_bench.page.document import page
from cmqd_bench.results import Results, ResultsUnreadable

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS = ("peers", "curves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The flags of the command."""

    files: Sequence[Path]
    output: Path


def newest(kind: str, folder: Path | None = None) -> Results | None:
    """Return the newest stored results of a kind, by the start of the run; None if the folder has none."""
    files = [results.read(path) for path in sorted((folder or RESULTS).glob(f"*-{kind}.json"))]
    return max(files, key=lambda file: file.conditions.started, default=None)


def stored(kind: str) -> Results:
    """Return the newest stored results of a kind.

    Raises:
        ResultsUnreadable: none are stored.
    """
    file = newest(kind)
    if file is None:
        raise ResultsUnreadable(f"{RESULTS} has no file *-{kind}.json")
    return file


def print_page(plan: Plan) -> None:
    """Write the page and print its path.

    Raises:
        ResultsUnreadable: a file is no file of results, or there is none.
    """
    files = [results.read(path) for path in plan.files]
    if not files:
        files = [each for kind in KINDS if (each := newest(kind)) is not None]
    if not files:
        raise ResultsUnreadable(f"{RESULTS} has no file of results; name files with --files")
    plan.output.parent.mkdir(parents=True, exist_ok=True)
    plan.output.write_text(page(files), encoding="utf-8")
    print(f"{plan.output}: {plan.output.stat().st_size >> 10} KiB")
