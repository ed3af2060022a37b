"""The newest stored results of a kind."""

from pathlib import Path

from cmqd_bench.figures import results
from cmqd_bench.figures.results import Results, ResultsUnreadable

RESULTS = Path(__file__).resolve().parents[2] / "results"


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
