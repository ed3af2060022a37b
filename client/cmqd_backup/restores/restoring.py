"""A restore: a data folder as of a row of a backup.

    choose the row ─► lock the folder, mark it unfinished ─► files, each compared with its checksum ─► cut the segment
    with the row ─► accounts ─► check ─► fsync ─► manifest ─► remove the mark

The manifest comes last: a folder with segments and without a manifest is refused by every broker, so a restore that was
killed leaves no folder that looks whole. The mark lets a repeat of the restore clear the folder.

The log of the folder is a log of its own: with a new id, by which readers distinguish the two logs, and with a mark
for its first start (``Manifest.restored``). By the mark broker time goes on from the last row, and the counters
jump: the rows that are cut off have given numbers away.
"""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from cmqd_backup.accounts_content import ACCOUNTS_FILE, keys_in
from cmqd_backup.copying import copy_out
from cmqd_backup.listing import shown_size
from cmqd_backup.moments import shown_span, shown_time
from cmqd_backup.parts import missing_ranges
from cmqd_backup.refusals import Refused
from cmqd_backup.restores.cutting import cut_segment
from cmqd_backup.restores.targets import filling, owner_warning, require_empty
from cmqd_backup.row_times import RowTime, row_times
from cmqd_backup.runs import Run, Runs, StoredFile, stored_checkpoint, stored_segment
from cmqd_backup.stores import Store, naming
from cmqd_backup.timeline import Stretch, gaps, stretches
from cmqd_segment.checkpoint_file import CheckpointError, verify_checkpoint
from cmqd_segment.manifest import (
    CHECKPOINTS,
    MANIFEST_FORMAT,
    SEGMENTS,
    CheckpointEntry,
    Manifest,
    Restored,
    SegmentEntry,
    SegmentState,
    merge_ranges,
    sync_folder,
    write_manifest,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.scan import verify_segment


class Restoring(NamedTuple):
    """A restore that was asked for."""

    store: Store
    folder: Path
    to_ms: int | None
    """Wall clock; None: the last row of the backup."""
    accounts: bytes | None
    """Content of an accounts file in the place of the backup's."""
    now_ms: int
    out: Callable[[str], object]
    complain: Callable[[str], object]
    """Gets warnings."""


def restore(asked: Restoring) -> None:
    """Restore a folder; blocks. Raises Refused, OSError."""
    # Before the first change: the target may be the backup itself, or hold another log.
    require_empty(asked.folder)
    runs = Runs(asked.store)
    newest = runs.newest()
    if newest is None:
        raise Refused(f"{asked.store.place} has no backup" + "".join(f"; {fault}" for fault in runs.faults))
    if asked.to_ms is None:
        _require_newest(runs, newest)
    with filling(asked.folder):
        tell = _Restore(asked, runs, newest).run()
    for fault in runs.faults:
        asked.complain(fault)
    # Last: the folder is whole, also if the reader of the report has gone.
    tell()


def _require_newest(runs: Runs, newest: Run) -> None:
    """Refuse to restore an older run unless the operator names its time. Raises Refused: newer runs are damaged."""
    if runs.faults:
        lost = shown_span(max(0, runs.names[-1].wall_ms - newest.wall_ms))
        until = datetime.fromtimestamp(newest.wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
        raise Refused(
            f"{'; '.join(runs.faults)}. The runs before have the log up to {shown_time(newest.wall_ms)}, and the last"
            f" {lost} would be lost. To restore up to there: cmqd restore --to-time {until}"
        )


class _Restore:
    """A restore into an empty folder that is locked."""

    def __init__(self, asked: Restoring, runs: Runs, newest: Run) -> None:
        self._asked = asked
        self._runs = runs
        self._newest = newest
        self._folder = asked.folder
        self._needed = 0
        """Bytes of the files at most, without a cut."""
        self._mode = newest.file_mode & 0o640 | 0o600
        for name in (SEGMENTS, CHECKPOINTS):
            (asked.folder / name).mkdir(mode=0o750)

    def run(self) -> Callable[[], None]:
        """Write all files, the manifest last; return the report. Raises Refused, OSError."""
        try:
            return self._run()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Refused(
                f"{error.filename or self._folder}: {error.strerror}. The restore needs {self._needed:,} bytes"
                f" ({shown_size(self._needed)}) in {self._folder}"
            ) from error

    def _run(self) -> Callable[[], None]:
        stretch, last = self._choose()
        run = stretch.run
        checkpoint = self._newest_checkpoint(stretch, last.lsn)
        entries: list[SegmentEntry] = []
        for entry in stretch.segments(last.lsn):
            path = self._fetch_segment(entry)
            if entry.last_lsn > last.lsn:
                entry = cut_segment(path, entry, last.lsn)
                for fault in verify_segment(self._folder, entry):
                    raise Refused(fault)
            path.chmod(self._mode & 0o440)
            entries.append(entry)
        self._remove_others(entries)
        keys = self._write_accounts(run)
        manifest = self._manifest(stretch, last, entries, checkpoint)
        self._check(manifest, stretch)
        for name in (SEGMENTS, CHECKPOINTS):
            sync_folder(self._folder / name)
        sync_folder(self._folder)
        write_manifest(self._folder, manifest, self._mode)
        return partial(self._tell, stretch, last, manifest, keys)

    # ------------------------------------------------------------------ the row

    def _choose(self) -> tuple[Stretch, RowTime]:
        """Return the last row of the restore, and its stretch. Raises Refused."""
        to_ms, newest = self._asked.to_ms, self._newest
        if to_ms is None:
            return self._plan(stretches([newest])[0]), RowTime(newest.last_lsn, newest.last_ms, newest.offset_ms)
        if to_ms > newest.until_ms:
            raise Refused(
                f"{shown_time(to_ms)} is after the newest run of the backup, which has the log up to"
                f" {shown_time(newest.until_ms)}. Without --to-time the restore goes up to its last row"
            )
        stretch = self._plan(self._stretch_of(to_ms))
        run = stretch.run
        last = end = RowTime(run.last_lsn, run.last_ms, run.offset_ms)
        paths = [
            self._fetch_segment(entry) for entry in stretch.segments(stretch.last_lsn) if entry.last_lsn > last.lsn
        ]
        for end in row_times(paths, last, stretch.last_lsn):
            if end.wall_ms <= to_ms:
                last = end
        until_ms = run.until_ms if end.lsn == run.last_lsn else end.wall_ms
        if stretch.following is not None and not stretch.is_followed and last is end and to_ms > until_ms:
            (gap,) = gaps([stretch])
            raise Refused(
                f"{shown_time(to_ms)} is in a gap of the backup: rows {gap.first_lsn} to {gap.last_lsn} are not all"
                f" there. The nearest times are {shown_time(until_ms)} and {shown_time(gap.until_ms)}"
            )
        return stretch, last

    def _stretch_of(self, to_ms: int) -> Stretch:
        """Return the stretch of a time: the newest run before it, and the run behind. Raises Refused."""
        runs, names = self._runs, self._runs.names
        before = [index for index, name in enumerate(names) if name.wall_ms <= to_ms]
        run = runs.first_of(reversed(before))
        if run is None:
            raise Refused(
                f"{shown_time(to_ms)} is before the first time that the backup can restore, which is"
                f" {shown_time(names[0].wall_ms)}"
            )
        behind = [index for index, name in enumerate(names) if name.number > run.number]
        following = runs.first_of(behind)
        return stretches([run] if following is None else [run, following])[0]

    def _plan(self, stretch: Stretch) -> Stretch:
        """Note the size of the files of a stretch. The row is looked for in all of its segments."""
        runs = [stretch.run] if stretch.following is None else [stretch.run, stretch.following]
        checkpoints = [entry.bytes for run in runs for entry in run.manifest.checkpoints]
        self._needed = sum(entry.bytes for entry in stretch.segments(stretch.last_lsn)) + max(checkpoints, default=0)
        return stretch

    def _newest_checkpoint(self, stretch: Stretch, last_lsn: int) -> CheckpointEntry | None:
        """Fetch the newest checkpoint that has no fact of a row behind the last row; None if there is none."""
        runs = [stretch.run] if stretch.following is None else [stretch.run, stretch.following]
        usable = {
            (entry.lsn, entry.number): entry
            for run in runs
            for entry in run.manifest.checkpoints
            if entry.end_lsn <= last_lsn
        }
        if not usable:
            return None
        entry = usable[max(usable)]
        with self._new_file(entry.file) as file:
            copy_out(self._asked.store, stored_checkpoint(entry), file)
        return entry

    # ------------------------------------------------------------------ files

    @contextlib.contextmanager
    def _new_file(self, name: str):
        path = self._folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        with os.fdopen(descriptor, "wb", buffering=0) as file, naming(path):
            # With any mask of this process.
            os.fchmod(file.fileno(), self._mode)
            yield file
            os.fsync(file.fileno())

    def _fetch_segment(self, entry: SegmentEntry) -> Path:
        """Copy a segment into the folder, unless it is there."""
        path = self._folder / entry.file
        if not path.exists():
            with self._new_file(entry.file) as file:
                copy_out(self._asked.store, stored_segment(entry), file)
        return path

    def _remove_others(self, entries: Sequence[SegmentEntry]) -> None:
        """Remove the segments in which the last row was looked for and that lie behind it."""
        listed = {self._folder / entry.file for entry in entries}
        for path in (self._folder / SEGMENTS).iterdir():
            if path not in listed:
                path.unlink()

    def _write_accounts(self, run: Run) -> list[str]:
        """Write the accounts file, and return a line for each of its keys. Raises Refused, OSError."""
        content = self._asked.accounts
        if content is None and run.accounts is not None:
            content = self._read(run.accounts)
        if content is None:
            return []
        keys = keys_in(content)
        descriptor = os.open(self._folder / ACCOUNTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, naming(self._folder / ACCOUNTS_FILE):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return keys

    def _read(self, file: StoredFile) -> bytes:
        try:
            content = self._asked.store.read(file.name)
        except FileNotFoundError:
            raise Refused(f"{file.name} is missing in {self._asked.store.place}") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise Refused(
                f"{file.name} of {self._asked.store.place} does not match its checksum: it was cut, or changed"
            )
        return content

    # ------------------------------------------------------------------ the manifest

    def _manifest(
        self,
        stretch: Stretch,
        last: RowTime,
        entries: list[SegmentEntry],
        checkpoint: CheckpointEntry | None,
    ) -> Manifest:
        run = stretch.run
        source = run.manifest if stretch.following is None else stretch.following.manifest
        losses = [loss for loss in source.losses if loss.first_lsn <= last.lsn]
        dropped = missing_ranges(entries, [(loss.first_lsn, loss.last_lsn) for loss in losses], last.lsn)
        named = {number for entry in entries for number, _, _ in entry.sources}
        names = {name.id: name for name in (*source.names, *run.manifest.names)}
        return Manifest(
            format=MANIFEST_FORMAT,
            clean=True,
            # Numbers are not used twice, not even by the log that goes on elsewhere.
            next_number=self._newest.manifest.next_number,
            segments=[structs.replace(entry, state=SegmentState.SEALED) for entry in entries],
            checkpoints=[] if checkpoint is None else [checkpoint],
            dropped=dropped,
            losses=losses,
            log_id=secrets.token_hex(16),
            former_log_ids=[*run.manifest.former_log_ids, run.manifest.log_id],
            names=[names[number] for number in sorted(named & names.keys())],
            restored=Restored(last.lsn, last.time_ms, max(0, self._asked.now_ms - last.wall_ms)),
        )

    def _check(self, manifest: Manifest, stretch: Stretch) -> None:
        """Read the files of the folder back, and check that they are a whole log. Raises Refused, OSError."""
        newest = 0
        for entry in manifest.checkpoints:
            try:
                header, end = verify_checkpoint(self._folder / entry.file)
            except (CheckpointError, NewerFormatError) as error:
                raise Refused(f"checkpoint {entry.file} of the backup cannot be used: {error}") from error
            if (header.lsn, end.lsn) != (entry.lsn, entry.end_lsn):
                raise Refused(f"checkpoint {entry.file} of the backup does not match its entry")
            newest = entry.lsn
        runs = [stretch.run] if stretch.following is None else [stretch.run, stretch.following]
        known = merge_ranges([gone for run in runs for gone in run.manifest.dropped])
        for first, last in manifest.dropped:
            if not any(begin <= first and last <= end for begin, end in known):
                raise Refused(f"rows {first} to {last} are not in the backup")
            if last > newest:
                raise Refused(f"no checkpoint of the backup covers the rows up to {last}, which were reclaimed")
        for entry in manifest.segments:
            with (self._folder / entry.file).open("rb") as file:
                # From the disk: the page cache has the bytes that were just written.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    raise Refused(f"{entry.file} was not written right: the disk of {self._folder} is faulty")

    # ------------------------------------------------------------------ the report

    def _tell(self, stretch: Stretch, last: RowTime, manifest: Manifest, keys: Sequence[str]) -> None:
        asked, out = self._asked, self._asked.out
        behind = shown_span(manifest.restored.aged_ms) if manifest.restored is not None else ""
        out(f"last row: {last.lsn}, at {shown_time(last.wall_ms)}, {behind} before this restore")
        out(f"broker time at that row: {shown_time(last.time_ms)}; it goes on from there at the first start")
        if self._newest.last_lsn > last.lsn:
            out(f"cut off: rows {last.lsn + 1} to {self._newest.last_lsn} of the backup")
        out(f"log id: {manifest.log_id}; before: {manifest.former_log_ids[-1]}")
        if asked.accounts is not None:
            out("accounts: of the given file; receipt handles of other accounts files are refused")
        elif stretch.run.accounts is None:
            out(
                "accounts: none, the backup was made with --without-secrets. 'cmqd accounts new-key admin --data"
                f" {self._folder}' creates a file; no earlier key or receipt handle is valid then"
            )
        else:
            out(f"accounts: as of {shown_time(stretch.run.ended_ms)}; these keys are valid again:")
        for key in keys:
            out(f"  {key}")
        warning = owner_warning(self._folder)
        if warning:
            asked.complain(warning)
        out(f"{self._folder} is restored: start its broker")
