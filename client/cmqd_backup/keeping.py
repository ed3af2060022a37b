"""``--keep``: runs that no restore within a time needs are removed, and then the files that only they named.

A segment, a checkpoint or a part that a run lacks, though it has another with a higher number, is in no later run
either: they are made in the order of their numbers, and a file that is gone never comes back. So the oldest run that is
kept tells which files can go, and no other run is read.
"""

import contextlib
from collections.abc import Sequence

from cmqd_backup.runs import ACCOUNTS, CHECKPOINTS, PARTS, SEGMENTS, RunName, Runs, number_of
from cmqd_backup.stores import Store


def first_kept(names: Sequence[RunName], since_ms: int) -> int:
    """Return the place of the first run for restores to times at or after ``since_ms``: the newest run before it."""
    return max((index for index, name in enumerate(names) if name.wall_ms <= since_ms), default=0)


def remove_old(store: Store, since_ms: int) -> int:
    """Remove old runs and their files; return the number of removed runs. Raises Refused, OSError.

    The documents go first, the oldest first: a run whose files are gone would look as if it could be restored. Files
    that a removal left, because it was killed, go with the next.
    """
    runs = Runs(store)
    first = first_kept(runs.names, since_ms)
    # A damaged run is not the one that tells: the removal then waits for the next.
    kept = runs.read(first) if first else None
    if kept is None:
        return 0
    for name in runs.names[:first]:
        store.remove(name.path)
    named = {file.name for file in kept.files}
    for folder in (SEGMENTS, CHECKPOINTS, ACCOUNTS, PARTS):
        numbers = [number_of(name) for name in named if name.startswith(f"{folder}/")]
        for name in store.sizes(folder):
            with contextlib.suppress(ValueError):
                if name not in named and number_of(name) <= max(numbers, default=0):
                    store.remove(name)
    return first
