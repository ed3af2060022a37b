"""``--keep``: remove runs that no restore within a time needs, and then the files of the removed runs alone.

Segments, checkpoints and parts are made in the order of their numbers, and a removed file never comes back. If a run
lacks a file and has a file with a higher number, no later run has the lower number. So the oldest kept run decides
about all files, and the later runs are not read.
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

    The documents go first, the oldest first: a document without its files would look like a run for restores. Files
    of a removal that was killed go with the next removal.
    """
    runs = Runs(store)
    first = first_kept(runs.names, since_ms)
    # A damaged run decides about no file: the removal waits for the next run.
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
