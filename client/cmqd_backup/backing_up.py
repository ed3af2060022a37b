"""A run of ``cmqd backup``: new files are copied and read back, and the document of the run is written last.

    hold the folder ─► compare with the run before ─► segments, checkpoints ─► accounts ─► check ─► the run

The accounts come after the rows: a key that a restored row needs is there. A file of the run before with the same name
and size is taken unchanged; any other file is of a run that was killed, and is read before the new run names the file.
"""

import hashlib
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from cmqd_backup.copying import Pace, check, copy_in
from cmqd_backup.holds import Held
from cmqd_backup.parts import missing_ranges
from cmqd_backup.refusals import Refused
from cmqd_backup.row_times import RowTime, checkpoint_time, row_times
from cmqd_backup.runs import ACCOUNTS, Run, Runs, StoredFile, stored_checkpoint, stored_document, stored_segment
from cmqd_backup.stores import Store
from cmqd_backup.writing_runs import write_run
from cmqd_segment.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_NAME,
    CheckpointEntry,
    Manifest,
    SegmentEntry,
    SegmentState,
    start_of,
)


class Copied(NamedTuple):
    """The result of a run."""

    run: Run
    after_lsn: int | None
    """The newest row of the run before; None of the first run."""
    new_files: int
    new_bytes: int


def back_up(
    held: Held,
    store: Store,
    *,
    read_accounts: Callable[[], bytes] | None,
    pace: Pace,
    began_ms: int,
    wall_ms: Callable[[], int],
    out: Callable[[str], object],
) -> Copied:
    """Make a run. The caller holds the folder and the store.

    Args:
        held: the folder.
        store: the place of the backup.
        read_accounts: returns the accounts of this moment, checked; None: leave them out.
        pace: of the copy.
        began_ms: a time by the wall clock before the folder was held: rows since may be missing.
        wall_ms: the wall clock.
        out: gets lines for the operator.

    Raises:
        Refused: the folder is damaged, or is not the log of the backup.
        OSError: a file cannot be read or written.
    """
    runs = Runs(store)
    newest = runs.newest()
    for fault in runs.faults:
        out(fault)
    manifest = manifest_upto(held)
    if newest is not None:
        _require_continuation(manifest, held, store, newest)
    number = runs.names[-1].number + 1 if runs.names else 1
    copied = _Copies(held.folder, store, newest, pace)
    for entry in manifest.segments:
        copied.take(entry.file, stored_segment(entry))
    checkpoints = [_with_checksum(held.folder, entry) for entry in manifest.checkpoints]
    manifest = structs.replace(manifest, checkpoints=checkpoints)
    for entry in checkpoints:
        copied.take(entry.file, stored_checkpoint(entry))
    accounts = None if read_accounts is None else copied.take_accounts(read_accounts(), number)
    last = _clock_at_end(held, manifest)
    run = Run(
        number=number,
        began_ms=began_ms,
        ended_ms=wall_ms(),
        last_lsn=held.last_lsn,
        last_ms=last.time_ms,
        offset_ms=last.offset_ms,
        file_mode=stat.S_IMODE((held.folder / MANIFEST_NAME).stat().st_mode),
        accounts=accounts,
        manifest=manifest,
    )
    # A part of an older run may be missing in the damaged run that follows.
    is_newest = newest is not None and newest.name == runs.names[-1]
    write_run(store, run, runs, newest if is_newest else None)
    return Copied(run, None if newest is None else newest.last_lsn, copied.files, copied.bytes)


def manifest_upto(held: Held) -> Manifest:
    """Return the manifest of the run: sealed segments and checkpoints up to its last row. Raises Refused."""
    manifest, last_lsn = held.manifest, held.last_lsn
    if not last_lsn:
        # A restored log begins at the time of its last row: here in 1970.
        raise Refused(f"the log of {held.folder} is empty: there is no row to copy")
    segments = [
        # Side files repeat their segments, and a broker makes missing ones anew. Outcomes change while their segment
        # does not, and a run has each segment once: a restored log begins without.
        structs.replace(entry, side=None, outcomes=None)
        for entry in manifest.segments
        if entry.state is SegmentState.SEALED and entry.rows and entry.last_lsn <= last_lsn
    ]
    checkpoints = [entry for entry in manifest.checkpoints if entry.end_lsn <= last_lsn]
    dropped = _dropped(held)
    losses = [loss for loss in manifest.losses if loss.first_lsn <= last_lsn]
    missing = missing_rows(held)
    if missing:
        raise Refused(f"rows {missing[0][0]} to {missing[0][1]} are in no file of {held.folder}")
    newest = checkpoints[-1].lsn if checkpoints else 0
    if dropped and max(last for _, last in dropped) > newest:
        raise Refused(f"no checkpoint of {held.folder} covers the rows that were reclaimed")
    return structs.replace(
        manifest,
        # A restored folder is a log of its own, also if this one is a cache.
        format=manifest.format if manifest.cache_of is None else MANIFEST_FORMAT,
        cache_of=None,
        clean=True,
        boot_id="",
        segments=segments,
        checkpoints=checkpoints,
        dropped=dropped,
        losses=losses,
        restored=None,
        standing_pins=[],
    )


def missing_rows(held: Held) -> list[tuple[int, int]]:
    """Return the ranges of rows that are in no file, and were not reclaimed or lost."""
    manifest = held.manifest
    sealed = [entry for entry in manifest.segments if entry.state is SegmentState.SEALED and entry.rows]
    losses = ((loss.first_lsn, loss.last_lsn) for loss in manifest.losses)
    return missing_ranges(
        [entry for entry in sealed if entry.last_lsn <= held.last_lsn], [*_dropped(held), *losses], held.last_lsn
    )


def _dropped(held: Held) -> list[tuple[int, int]]:
    # The rows of a segment that is about to go count as reclaimed: a checkpoint covered them when that was decided.
    manifest = held.manifest
    dropping = [
        (entry.first_lsn, entry.last_lsn)
        for entry in manifest.segments
        if entry.state is SegmentState.DROPPING and entry.rows
    ]
    return [gone for gone in (*manifest.dropped, *dropping) if gone[0] <= held.last_lsn]


def _require_continuation(manifest: Manifest, held: Held, store: Store, newest: Run) -> None:
    """Refuse a folder with a log that does not go on from the newest run. Raises Refused."""
    before = newest.manifest
    if before.log_id != manifest.log_id:
        raise Refused(
            f"{store.place} has backups of log {before.log_id}, and {held.folder} has log {manifest.log_id}: name"
            " another place"
        )
    # An empty number is of a row from before the oldest start that the manifest keeps: an import forgets all starts.
    starts = {start_of(manifest.starts, newest.last_lsn) for manifest in (before, manifest)} - {""}
    if held.last_lsn < newest.last_lsn or len(starts) > 1:
        raise Refused(
            f"{held.folder} does not go on from the newest backup in {store.place}, which ends at row"
            f" {newest.last_lsn}: the folder was replaced by an older copy. Name another place"
        )
    if not _has_segments_of(before.segments, manifest.segments):
        raise Refused(
            f"{held.folder} has the log of the newest backup in {store.place} in other segments: it is the folder of"
            " another broker, or was copied anew from the engine. Name another place"
        )


def _has_segments_of(before: Sequence[SegmentEntry], segments: Sequence[SegmentEntry]) -> bool:
    """Return whether the segments go on from those of an earlier run: the same numbers begin with the same rows. A
    restore to a row between two runs joins their segments by number.
    """
    firsts = [entry.first_lsn for entry in before]
    numbers = {entry.number: entry.first_lsn for entry in before}
    for entry in segments:
        if numbers.get(entry.number, entry.first_lsn) != entry.first_lsn:
            return False
        index = bisect_right(firsts, entry.last_lsn) - 1
        if index >= 0 and before[index].last_lsn >= entry.first_lsn and before[index].number != entry.number:
            return False
    return True


class _Copies:
    """The copies of a run."""

    def __init__(self, folder: Path, store: Store, newest: Run | None, pace: Pace) -> None:
        self._folder = folder
        self._store = store
        self._accounts = None if newest is None else newest.accounts
        self._known = {} if newest is None else {file.name: file for file in newest.files}
        self._pace = pace
        self._sizes: dict[str, dict[str, int]] = {}
        self.files = 0
        self.bytes = 0

    def take(self, source: str, file: StoredFile) -> None:
        """Have a file of the folder in the backup. Raises Refused, OSError."""
        if self._is_there(file):
            return
        copy_in(self._folder / source, self._store, file, self._pace)
        self.files += 1
        self.bytes += file.bytes

    def take_accounts(self, content: bytes, number: int) -> StoredFile:
        """Have accounts in the backup. Raises Refused, OSError."""
        file = stored_document(ACCOUNTS, content, number)
        if self._accounts is not None and self._accounts.sha256 == file.sha256:
            file = self._accounts
        if not self._is_there(file):
            with self._store.writing(file.name) as writing:
                writing.write(content)
            check(self._store, file, self._pace)
        return file

    def _is_there(self, file: StoredFile) -> bool:
        folder = file.name.partition("/")[0]
        sizes = self._sizes.get(folder)
        if sizes is None:
            sizes = self._sizes[folder] = self._store.sizes(folder)
        if sizes.get(file.name) != file.bytes:
            return False
        if self._known.get(file.name) == file:
            return True
        try:
            check(self._store, file, self._pace)
        except Refused:
            return False
        return True


def _with_checksum(folder: Path, entry: CheckpointEntry) -> CheckpointEntry:
    """Return an entry with its checksum; a manifest that was rebuilt from the files has none."""
    if entry.sha256:
        return entry
    with (folder / entry.file).open("rb") as file:
        return structs.replace(entry, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _clock_at_end(held: Held, manifest: Manifest) -> RowTime:
    """Return the clock at the last row. Raises Refused, OSError."""
    start = RowTime(0, 0, 0)
    if manifest.checkpoints:
        start = checkpoint_time(held.folder / manifest.checkpoints[-1].file)
    paths = [held.folder / entry.file for entry in manifest.segments if entry.last_lsn > start.lsn]
    return deque(row_times(paths, start, held.last_lsn), maxlen=1).pop() if paths else start
