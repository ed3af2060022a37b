"""``--keep``: runs that no restore within a time needs are removed, and then the files that only they named."""

from collections.abc import Sequence

from cmqd_backup.runs import ACCOUNTS, CHECKPOINTS, SEGMENTS, Run, run_name
from cmqd_backup.stores import Store


def kept_runs(runs: Sequence[Run], since_ms: int) -> list[Run]:
    """Return the runs for restores to a time at or after ``since_ms``: the newest run before it, and all later runs."""
    before = [run for run in runs if run.wall_ms <= since_ms]
    return [run for run in runs if not before or run.number >= before[-1].number]


def remove_old(store: Store, runs: Sequence[Run], since_ms: int) -> int:
    """Remove old runs and their files; return the number of removed runs. Raises OSError.

    The documents go first, the oldest first: a run whose files are gone would look as if it could be restored.
    """
    kept = kept_runs(runs, since_ms)
    old = [run for run in runs if run.number < kept[0].number] if kept else []
    for run in old:
        store.remove(run_name(run.number))
    if old:
        named = {file.name for run in kept for file in run.files}
        for folder in (SEGMENTS, CHECKPOINTS, ACCOUNTS):
            for name in store.sizes(folder):
                if name not in named:
                    store.remove(name)
    return len(old)
