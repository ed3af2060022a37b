"""A data folder: its manifest, its files, and views of the log at a moment.

Local and shared folders are read in place, with the two rules of ``SEGMENTS.md``: an unsealed segment is opened as
plain ``mode=ro``, and no statement stays open between two batches of rows, so that the broker is never held up. From a
URL (of any kind that fsspec knows) sealed segments and checkpoints are fetched (``log_files``); of side files the first
part alone, for plans. A cache folder that the user gave grows with every file read and never shrinks; the user may
empty the folder when no query runs.
"""

import contextlib
import logging
import sqlite3
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Self

from msgspec import structs

from cmqd_log.data_folder.log_files import LogFiles
from cmqd_log.data_folder.plan import View, describe, is_sealed
from cmqd_log.data_folder.side_files import SideFiles
from cmqd_log.errors import FolderError, NewerFolderError, OptionError, SegmentReclaimedError
from cmqd_log.options import Options
from cmqd_segment.manifest import (
    MANIFEST_NAME,
    CheckpointEntry,
    Manifest,
    ManifestError,
    SegmentEntry,
    SegmentState,
    merge_ranges,
    read_manifest,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.outcomes import Outcome, OutcomesError, check_outcomes, read_outcomes
from cmqd_segment.scan import VerifiedFile, readable_segments, sealed_segments, verify_each
from cmqd_segment.schema import SegmentFormatError, open_read_only, pragma

_log = logging.getLogger("cmqd_log")

ATTEMPTS = 50
"""Attempts to read a folder while its broker rolls segments."""
RETRY_SECONDS = 0.02
SEALING_SECONDS = 60.0
"""Time for which a segment may be neither readable as live nor listed as sealed: the broker computes its checksum."""


class Folder:
    """Access to one data folder."""

    def __init__(self, path: str, cache_folder: str = "", storage: str = "") -> None:
        """Prepare access; no file is read yet.

        Args:
            path: a local path or a URL.
            cache_folder: folder in which fetched files stay; empty = a temporary folder, until :meth:`close`.
            storage: arguments of a URL's file system, as JSON.

        Raises:
            FolderError: the URL cannot be opened.
        """
        self.path = path
        self._files = LogFiles(path, cache_folder, storage)
        self.is_remote = self._files.is_remote
        # Not functions of the folder: in a circle of references a folder that was let go would keep its fetched files.
        self.sides = SideFiles(self._files.side_plan, self._files.side_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files that were fetched without a cache folder."""
        self._files.close()

    def manifest(self) -> Manifest:
        """Read the manifest as it is now.

        Raises:
            FolderError: the manifest is missing, damaged or of a newer version.
        """
        try:
            with self._files.placed(MANIFEST_NAME) as folder:
                return read_manifest(folder)
        except FileNotFoundError as error:
            raise FolderError(f"{self.path} is not a data folder: it has no manifest") from error
        except NewerFormatError as error:
            raise NewerFolderError(f"{self.path} cannot be read: {error}") from error
        except (ManifestError, OSError) as error:
            raise FolderError(f"the manifest of {self.path} cannot be read: {error}") from error

    def verify_files(self) -> Iterator[VerifiedFile]:
        """Yield each file of the manifest with its faults.

        From a URL a single file at a time is fetched, and removed after the check. Unsealed segments are not part of a
        copy, and are not checked there.

        Raises:
            FolderError: the manifest cannot be read.
        """
        return verify_each(self.manifest, self._files.placed, sealed_segments if self.is_remote else readable_segments)

    # ------------------------------------------------------------------ the view of this moment

    def view(self, *, include_active: bool) -> View:
        """Return the view of this moment, up to the last row below which all remaining rows are readable.

        Without ``include_active`` the view ends before the first unsealed row, even if later rows are sealed: a stream
        that had read the later rows would never come back for the earlier rows. A later view never ends earlier,
        because reclaimed rows count as covered.

        Raises:
            FolderError: the folder cannot be read, or its segments change faster than they are examined.
        """
        reason = ""
        attempts = 0
        stop_at = time.monotonic() + SEALING_SECONDS
        while attempts < ATTEMPTS and time.monotonic() < stop_at:
            if reason:
                time.sleep(RETRY_SECONDS)
            manifest = self.manifest()
            attempts += 1
            try:
                extents = self._extents(manifest, include_active)
            except (sqlite3.Error, SegmentFormatError, FileNotFoundError) as error:
                # The segment was sealed, dropped or begun after the manifest was read: read the manifest again.
                reason = str(error)
                if isinstance(error, sqlite3.Error) and _is_sealing(manifest):
                    # A seal can take seconds on a busy disk, so only SEALING_SECONDS limits these attempts.
                    attempts = 0
                continue
            covered = merge_ranges([*_gone(manifest), *((one.first_lsn, one.last_lsn) for one in extents)])
            hi = covered[0][1] if covered and covered[0][0] == 1 else 0
            # All rows up to ``last`` must be covered without a gap. Without ``include_active`` sealed segments may
            # follow an unsealed segment; they are not part of this view.
            last = extents[-1].last_lsn if extents else 0
            if include_active or not _has_unsealed(manifest):
                last = covered[-1][1] if covered else 0
            if hi < last:
                following = next(first for first, _ in covered if first > hi + 1)
                reason = f"no file holds {describe([(hi + 1, following - 1)])}"
            elif include_active and _states(self.manifest()) != _states(manifest):
                reason = "its segments changed during every attempt; try again"
            else:
                return View(
                    hi,
                    tuple(extents),
                    tuple(manifest.checkpoints),
                    manifest.log_id,
                    tuple(manifest.starts),
                    tuple(manifest.names),
                )
        raise FolderError(f"{self.path} cannot be read: {reason}")

    def _extents(self, manifest: Manifest, include_active: bool) -> list[SegmentEntry]:
        extents: list[SegmentEntry] = []
        for entry in manifest.segments:
            if entry.state is SegmentState.SEALED:
                if 0 < entry.first_lsn <= entry.last_lsn:
                    extents.append(entry)
            elif entry.state in (SegmentState.PREPARING, SegmentState.DROPPING):
                continue
            elif not include_active:
                break
            else:
                extent = self._live_extent(entry)
                if extent is not None:
                    extents.append(extent)
        return extents

    def _live_extent(self, entry: SegmentEntry) -> SegmentEntry | None:
        """Return the entry of an unsealed segment with its rows of this moment; None without rows."""
        path = self._files.local / entry.file
        if not path.exists():
            raise FileNotFoundError(path)
        with contextlib.closing(open_read_only(path, sealed=False)) as raw:
            ((first, last),) = raw.execute("SELECT min(lsn), max(lsn) FROM log").fetchall()
            if first is None:
                return None
            times = raw.execute("SELECT time_ms FROM log WHERE lsn IN (?, ?) ORDER BY lsn", (first, last)).fetchall()
            # Pages with those in the WAL. The length of the WAL tells nothing, because it may be filled ahead.
            size = pragma(raw, "page_count") * pragma(raw, "page_size")
        return structs.replace(
            entry, first_lsn=first, last_lsn=last, first_ms=times[0][0], last_ms=times[-1][0], bytes=size
        )

    # ------------------------------------------------------------------ files

    def outcomes(self, extent: SegmentEntry) -> "Iterator[Outcome] | None":
        """Return the outcomes of a segment of a view, ascending; None if they are lost.

        The whole file is checked before the first entry, and read by parts.

        Raises:
            SegmentReclaimedError: the file was replaced, or dropped with its segment; make another view.
            NewerFolderError: a newer version wrote the file.
        """
        listed, file = extent.outcomes, extent.outcomes_file
        if listed is None or not file:
            return iter(())
        try:
            path = self._files.located(file, listed.sha256)
            check_outcomes(path, extent.number, extent.first_lsn, listed.generation, listed.sha256)
        except NewerFormatError as error:
            raise NewerFolderError(f"{file} cannot be read: {error}") from error
        except (FolderError, OutcomesError, OSError) as error:
            self._raise_if_replaced(extent, error)
            _log.warning("the outcomes of segment %s are lost: %s", extent.file, error)
            return None
        return self._each_outcome(extent, path, listed.generation)

    def _each_outcome(self, extent: SegmentEntry, path: Path, generation: int) -> "Iterator[Outcome]":
        try:
            yield from read_outcomes(path, extent.number, extent.first_lsn, generation)
        except (OutcomesError, OSError) as error:
            self._raise_if_replaced(extent, error)
            raise FolderError(f"{extent.outcomes_file} changed during the read: {error}") from error

    def _raise_if_replaced(self, extent: SegmentEntry, error: Exception) -> None:
        file = extent.outcomes_file
        entry = next((each for each in self.manifest().segments if each.number == extent.number), None)
        if entry is None or entry.outcomes_file != file:
            raise SegmentReclaimedError(f"{file} was replaced before the read") from error

    def checkpoint_path(self, entry: CheckpointEntry) -> Path:
        """Return a local path of a checkpoint; in a live folder the file may be gone before the caller opens it."""
        return self._files.located(entry.file, entry.sha256)

    @contextlib.contextmanager
    def opened(self, extent: SegmentEntry) -> Generator[sqlite3.Connection]:
        """Open a segment of a view, which may have been sealed since the view was made.

        Raises:
            SegmentReclaimedError: the broker dropped the segment.
            FolderError: the segment cannot be read.
        """
        with contextlib.closing(self._open(extent)) as raw:
            yield raw

    def _open(self, extent: SegmentEntry) -> sqlite3.Connection:
        stop_at = time.monotonic() + SEALING_SECONDS
        # A segment that was sealed meanwhile must not be opened as live: SQLite would create files beside it.
        sealed = is_sealed(extent) or self._is_sealed(extent)
        while True:
            try:
                path = self._files.located(extent.file, extent.sha256)
                if not path.exists():
                    raise FileNotFoundError(path)
                raw = open_read_only(path, sealed=sealed)
                try:
                    # The first statement fails if the broker is sealing the file. Provoked here, where the segment can
                    # be opened again; between two batches of rows the failure would end the task.
                    raw.execute("SELECT lsn FROM log LIMIT 1").fetchall()
                except BaseException:
                    raw.close()
                    raise
                return raw
            except SegmentFormatError as error:
                raise FolderError(str(error)) from error
            except (sqlite3.Error, OSError) as error:
                entry = next((each for each in self.manifest().segments if each.number == extent.number), None)
                if entry is None or entry.state is SegmentState.DROPPING:
                    rows = describe([(extent.first_lsn, extent.last_lsn)])
                    raise SegmentReclaimedError(f"the broker reclaimed {rows} before the read") from error
                if (sealed and entry.state is SegmentState.SEALED) or time.monotonic() > stop_at:
                    raise FolderError(f"segment {extent.file} cannot be read: {error}") from error
                sealed = entry.state is SegmentState.SEALED
                if not sealed:
                    time.sleep(RETRY_SECONDS)

    def _is_sealed(self, extent: SegmentEntry) -> bool:
        return any(
            entry.number == extent.number and entry.state is SegmentState.SEALED for entry in self.manifest().segments
        )


def open_folder(options: Options) -> Folder:
    """Return the folder of the options.

    Raises:
        FolderError: the URL cannot be opened.
        OptionError: ``includeActive`` is set for a URL.
    """
    folder = Folder(options.path, options.cache_folder, options.storage)
    if folder.is_remote and options.include_active:
        raise OptionError(
            "includeActive", "true", "unsealed rows are readable only on the machine of the broker, not from a URL"
        )
    return folder


def _gone(manifest: Manifest) -> list[tuple[int, int]]:
    """Return the ranges of rows that were reclaimed, are being reclaimed, or were lost."""
    gone = [*manifest.dropped, *((entry.first_lsn, entry.last_lsn) for entry in manifest.losses)]
    gone += [(entry.first_lsn, entry.last_lsn) for entry in manifest.segments if entry.state is SegmentState.DROPPING]
    return [(first, last) for first, last in gone if 0 < first <= last]


def _has_unsealed(manifest: Manifest) -> bool:
    """True if the log may have unsealed rows."""
    return any(
        entry.state in (SegmentState.PREPARED, SegmentState.ACTIVE, SegmentState.RETIRED) for entry in manifest.segments
    )


def _is_sealing(manifest: Manifest) -> bool:
    return any(entry.state is SegmentState.RETIRED for entry in manifest.segments)


def _states(manifest: Manifest) -> list[tuple[int, SegmentState]]:
    return [(entry.number, entry.state) for entry in manifest.segments]
