"""A data folder: its manifest, its files, and views of the log at a moment.

Local and shared folders are read in place, with the two rules of ``SEGMENTS.md``: an unsealed segment is opened as
plain ``mode=ro``, and no statement stays open between two batches of rows, so that the broker is never held up. From a
URL (of any kind that fsspec knows) sealed segments and checkpoints are fetched into a cache, and compared with the
SHA-256 of the manifest before use; of side files the first part alone, for plans. The cache grows with every file read
and never shrinks; the user may empty the cache when no query runs.
"""

import contextlib
import hashlib
import logging
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs

from cmqd_log.data_folder.plan import View, describe, is_sealed
from cmqd_log.data_folder.side_files import SideFiles
from cmqd_log.errors import HIDDEN, FolderError, NewerFolderError, OptionError, SegmentReclaimedError, masked
from cmqd_log.options import Options, is_url
from cmqd_segment.manifest import (
    MANIFEST_NAME,
    CheckpointEntry,
    Manifest,
    ManifestError,
    SegmentEntry,
    SegmentState,
    SideEntry,
    merge_ranges,
    read_manifest,
)
from cmqd_segment.newer import NewerFormatError
from cmqd_segment.outcomes import Outcome, OutcomesError, read_outcomes
from cmqd_segment.scan import VerifiedFile, readable_segments, sealed_segments, verify_each
from cmqd_segment.schema import SegmentFormatError, open_read_only, pragma
from cmqd_segment.side import LIKELY_PLAN_BYTES, SideError, decode_plan, plan_stop

_log = logging.getLogger("cmqd_log")

ATTEMPTS = 50
"""Attempts to read a folder while its broker rolls segments."""
RETRY_SECONDS = 0.02
SEALING_SECONDS = 60.0
"""Time for which a segment may be neither readable as live nor listed as sealed: the broker computes its checksum."""
LEAST_KEY = 5
_SHA256 = re.compile("[0-9a-f]{64}")


class Folder:
    """Access to one data folder."""

    def __init__(self, path: str, cache_folder: str = "", storage: str = "") -> None:
        """Prepare access; no file is read yet.

        Args:
            path: a local path or a URL.
            cache_folder: folder for fetched files; empty = a folder of the user for temporary files.
            storage: arguments of a URL's file system, as JSON.

        Raises:
            FolderError: the URL cannot be opened.
        """
        self.path = path
        self.is_remote = is_url(path)
        # Spark writes file:/data where others write file:///data.
        self._local = Path(path.removeprefix("file://").removeprefix("file:"))
        self._keys: list[str] = []
        self._cache = Path(cache_folder or Path(tempfile.gettempdir()) / f"cmqd-cache-{os.getuid()}")
        self._files: Any = None
        if self.is_remote:
            arguments: dict[str, Any] = msgspec.json.decode(storage) if storage else {}
            self._keys = sorted(_texts_in(arguments), key=len, reverse=True)
            self._files, self._root = self._file_system(arguments)
        self.sides = SideFiles(self._side_begin, self._side_whole)

    def manifest(self) -> Manifest:
        """Read the manifest as it is now.

        Raises:
            FolderError: the manifest is missing, damaged or of a newer version.
        """
        try:
            if not self.is_remote:
                return read_manifest(self._local)
            with tempfile.TemporaryDirectory() as folder:
                self._get(MANIFEST_NAME, Path(folder) / MANIFEST_NAME)
                return read_manifest(Path(folder))
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
        return verify_each(self.manifest, self._placed, sealed_segments if self.is_remote else readable_segments)

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
        path = self._local / entry.file
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

    def outcomes(self, extent: SegmentEntry) -> "list[Outcome] | None":
        """Return the outcomes of a segment of a view, ascending; None if they are lost.

        Raises:
            SegmentReclaimedError: the file was replaced, or dropped with its segment; make another view.
            NewerFolderError: a newer version wrote the file.
        """
        listed, file = extent.outcomes, extent.outcomes_file
        if listed is None or not file:
            return []
        try:
            path = self._fetched(file, listed.sha256) if self.is_remote else self._local / file
            if path.stat().st_size != listed.bytes:
                raise OutcomesError(f"{file} does not have {listed.bytes} bytes")
            return read_outcomes(path, extent.number, extent.first_lsn, listed.generation)
        except NewerFormatError as error:
            raise NewerFolderError(f"{file} cannot be read: {error}") from error
        except (FolderError, OutcomesError, OSError) as error:
            entry = next((each for each in self.manifest().segments if each.number == extent.number), None)
            if entry is None or entry.outcomes_file != file:
                raise SegmentReclaimedError(f"{file} was replaced before the read") from error
            _log.warning("the outcomes of segment %s are lost: %s", extent.file, error)
            return None

    def checkpoint_path(self, entry: CheckpointEntry) -> Path:
        """Return a local path of a checkpoint; in a live folder the file may be gone before the caller opens it."""
        return self._fetched(entry.file, entry.sha256) if self.is_remote else self._local / entry.file

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
                path = self._fetched(extent.file, extent.sha256) if self.is_remote else self._local / extent.file
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

    def _fetched(self, file: str, sha256: str) -> Path:
        """Return the local copy of a file of a URL, fetched unless the cache has it.

        A copy gets its name, the checksum, after the comparison with the checksum, so every named copy is whole.
        """
        if not _SHA256.fullmatch(sha256):
            raise FolderError(
                f"the manifest of {self.path} is damaged: {sha256!r}, listed for {file}, is not a SHA-256 checksum"
            )
        self._make_cache()
        kept = self._cache / f"{sha256}{Path(file).suffix}"
        if _is_own(kept):
            return kept
        handle, name = tempfile.mkstemp(dir=self._cache)
        os.close(handle)
        temporary = Path(name)
        try:
            self._get(file, temporary)
            with temporary.open("rb") as copy:
                found = hashlib.file_digest(copy, "sha256").hexdigest()
                # Before the file gets its name: a loss of power could otherwise keep the name and lose the content.
                os.fsync(copy.fileno())
            if found != sha256:
                raise FolderError(
                    f"{self.path}/{file} does not match its checksum in the manifest; copy the file again"
                )
            temporary.replace(kept)
        finally:
            temporary.unlink(missing_ok=True)
        return kept

    def _side_whole(self, extent: SegmentEntry, side: SideEntry) -> bytes:
        file = extent.side_file
        return (self._fetched(file, side.sha256) if self.is_remote else self._local / file).read_bytes()

    def _side_begin(self, extent: SegmentEntry, side: SideEntry) -> bytes:
        """Read a side file up to the end of part one; from a URL by range.

        The cache has part one under the checksum of the whole file, which proves nothing about a part: the part and its
        segment have checksums of their own.
        """
        if not self.is_remote:
            with (self._local / extent.side_file).open("rb") as file:
                begin = file.read(LIKELY_PLAN_BYTES)
                return begin + file.read(max(_plan_stop(begin, side) - len(begin), 0))
        if not _SHA256.fullmatch(side.sha256):
            raise FolderError(f"{side.sha256!r}, listed for {extent.side_file}, is not a SHA-256 checksum")
        self._make_cache()
        kept = self._cache / f"{side.sha256}.plan"
        if _is_own(kept):
            return kept.read_bytes()
        begin = self._get_begin(extent.side_file, LIKELY_PLAN_BYTES)
        stop = _plan_stop(begin, side)
        if len(begin) < stop:
            begin = self._get_begin(extent.side_file, stop)
        # Not before its checksums are right: a damaged copy would stay.
        decode_plan(begin)
        with tempfile.NamedTemporaryFile(dir=self._cache, delete=False) as copy:
            copy.write(begin[:stop])
        Path(copy.name).replace(kept)
        return begin

    def _get_begin(self, file: str, size: int) -> bytes:
        """Fetch the first bytes of a file, at most ``size``, or more if the store knows no ranges. Raises OSError."""
        try:
            return self._files.cat_file(f"{self._root}/{file}", start=0, end=size)
        except Exception as error:
            raise self._failed(file, error) from None

    def _get(self, file: str, target: Path) -> None:
        """Fetch a file.

        Raises:
            OSError: in place of the errors of each kind of URL, and without the keys of the URL.
        """
        try:
            self._files.get_file(f"{self._root}/{file}", str(target))
        except Exception as error:
            raise self._failed(file, error) from None

    def _failed(self, file: str, error: Exception) -> OSError:
        """Return the error of a fetch, to be raised without its cause: Spark shows whole tracebacks, and the text of
        the cause may contain a key.
        """
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        return kind(self._hidden(f"{self.path}/{file} cannot be fetched: {type(error).__name__}: {error}"))

    @contextlib.contextmanager
    def _placed(self, file: str) -> Generator[Path]:
        """Yield a local folder that contains a file of the data folder.

        Raises:
            OSError: the file cannot be fetched.
        """
        if not self.is_remote:
            yield self._local
            return
        with tempfile.TemporaryDirectory(prefix="cmqd-") as folder:
            target = Path(folder) / file
            target.parent.mkdir()
            self._get(file, target)
            yield Path(folder)

    def _make_cache(self) -> None:
        """Make the cache folder, and check its owner.

        The path of the default folder can be guessed, so another user could make the folder first and plant files.

        Raises:
            FolderError: another user owns the folder.
        """
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self._cache.stat().st_uid
        except OSError as error:
            raise FolderError(f"the cache folder {self._cache} cannot be created: {error}") from error
        if owner != os.getuid():
            raise FolderError(
                f"the cache folder {self._cache} belongs to another user; set 'cacheFolder' to a folder of yours"
            )

    def _file_system(self, arguments: dict[str, Any]) -> tuple[Any, str]:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError as error:
            raise FolderError(f"{self.path} is a URL; install the package fsspec to read URLs") from error
        try:
            files, root = fsspec.core.url_to_fs(self.path, **arguments)
        except Exception as error:
            # The error for an unknown argument differs between kinds of file systems.
            text = f"{self.path} cannot be opened: {type(error).__name__}: {error}"
            raise FolderError(self._hidden(text)) from None
        return files, str(root).rstrip("/")

    def _hidden(self, text: str) -> str:
        """Return the text without the keys of the URL and of the storage options."""
        for key in self._keys:
            text = text.replace(key, HIDDEN)
        return masked(text)


def _is_own(kept: Path) -> bool:
    """True if the cache has a file, of this user."""
    return kept.exists() and kept.stat().st_uid == os.getuid()


def _plan_stop(begin: bytes, side: SideEntry) -> int:
    stop = plan_stop(begin)
    if stop > side.bytes:
        raise SideError(f"part one ends at byte {stop} of {side.bytes}")
    return stop


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


def _texts_in(value: Any) -> set[str]:
    """Return the texts in storage options that may be keys.

    Short texts (``true``, a region) are left out: no key is short, and hiding every short text would make errors
    unreadable.
    """
    if isinstance(value, str):
        return {value} if len(value) >= LEAST_KEY else set()
    if isinstance(value, dict):
        return {text for each in cast("dict[str, Any]", value).values() for text in _texts_in(each)}
    if isinstance(value, list):
        return {text for each in cast("list[Any]", value) for text in _texts_in(each)}
    return set()


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
