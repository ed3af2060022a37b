"""Files of a data folder by their names in the manifest: in place, or fetched from a URL.

A fetched file is compared with its SHA-256 and gets this checksum as its name, so every named copy is whole. The copies
are in the cache folder that the user gave, where they stay. Without a cache folder they are in a temporary folder that
all readers of the URL in this process share, and that goes with the last reader.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeAlias, cast

import msgspec

from cmqd_log.errors import HIDDEN, FolderError, masked
from cmqd_log.options import is_url
from cmqd_segment.manifest import SegmentEntry, SideEntry
from cmqd_segment.side import LIKELY_PLAN_BYTES, SideError, decode_plan, plan_stop

LEAST_KEY = 5
_SHA256 = re.compile("[0-9a-f]{64}")


class LogFiles:
    """Access to the files of a data folder."""

    def __init__(self, path: str, cache_folder: str = "", storage: str = "") -> None:
        """Prepare access; no file is read yet. Arguments and errors as for ``Folder``."""
        self.path = path
        self.is_remote = is_url(path)
        # Spark writes file:/data where others write file:///data.
        self.local = Path(path.removeprefix("file://").removeprefix("file:"))
        self._given = Path(cache_folder) if cache_folder else None
        self._storage = storage
        self._shared: _SharedFolder | None = None
        self._keys: list[str] = []
        self._files: Any = None
        if self.is_remote:
            arguments: dict[str, Any] = msgspec.json.decode(storage) if storage else {}
            self._keys = sorted(_texts_in(arguments), key=len, reverse=True)
            self._files, self._root = self._file_system(arguments)
            self._hold()

    def close(self) -> None:
        """Let go of the temporary folder; the last reader of the URL removes it."""
        self._shared = None

    def located(self, file: str, sha256: str) -> Path:
        """Return a local path of a file, fetched from a URL unless a copy is here.

        Raises:
            FolderError: the copy does not match its checksum.
            OSError: the file cannot be fetched.
        """
        return self._fetched(file, sha256) if self.is_remote else self.local / file

    def side_file(self, extent: SegmentEntry, side: SideEntry) -> bytes:
        """Read a side file; errors as for :meth:`located`."""
        return self.located(extent.side_file, side.sha256).read_bytes()

    def side_plan(self, extent: SegmentEntry, side: SideEntry) -> bytes:
        """Read a side file up to the end of part one; from a URL by range.

        A copy of part one has the checksum of the whole file, which proves nothing about a part: the part and its
        segment have checksums of their own.

        Raises:
            SideError, FolderError: the part cannot be used.
            OSError: the part cannot be read.
        """
        if not self.is_remote:
            with (self.local / extent.side_file).open("rb") as file:
                begin = file.read(LIKELY_PLAN_BYTES)
                return begin + file.read(max(_plan_stop(begin, side) - len(begin), 0))
        if not _SHA256.fullmatch(side.sha256):
            raise FolderError(f"{side.sha256!r}, listed for {extent.side_file}, is not a SHA-256 checksum")
        cache = self._cache()
        kept = cache / f"{side.sha256}.plan"
        if _is_own(kept):
            return kept.read_bytes()
        begin = self._get_begin(extent.side_file, LIKELY_PLAN_BYTES)
        stop = _plan_stop(begin, side)
        if len(begin) < stop:
            begin = self._get_begin(extent.side_file, stop)
        # Not before its checksums are right: a damaged copy would stay.
        decode_plan(begin)
        with self._kept_as(kept) as temporary:
            temporary.write_bytes(begin[:stop])
        return begin

    def get(self, file: str, target: Path) -> None:
        """Fetch a file.

        Raises:
            OSError: in place of the errors of each kind of URL, and without the keys of the URL.
        """
        try:
            self._files.get_file(f"{self._root}/{file}", str(target))
        except Exception as error:
            raise self._failed(file, error) from None

    @contextlib.contextmanager
    def placed(self, file: str) -> Generator[Path]:
        """Yield a local folder that contains a file of the data folder.

        Raises:
            OSError: the file cannot be fetched.
        """
        if not self.is_remote:
            yield self.local
            return
        with tempfile.TemporaryDirectory(prefix="cmqd-") as folder:
            target = Path(folder) / file
            target.parent.mkdir(exist_ok=True)
            self.get(file, target)
            yield Path(folder)

    # ------------------------------------------------------------------ copies of a URL

    def _fetched(self, file: str, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise FolderError(
                f"the manifest of {self.path} is damaged: {sha256!r}, listed for {file}, is not a SHA-256 checksum"
            )
        cache = self._cache()
        kept = cache / f"{sha256}{Path(file).suffix}"
        if _is_own(kept):
            return kept
        with self._kept_as(kept) as temporary:
            self.get(file, temporary)
            with temporary.open("rb") as copy:
                found = hashlib.file_digest(copy, "sha256").hexdigest()
            if found != sha256:
                raise FolderError(
                    f"{self.path}/{file} does not match its checksum in the manifest; copy the file again"
                )
        return kept

    @contextlib.contextmanager
    def _kept_as(self, kept: Path) -> Generator[Path]:
        """Yield a temporary file, which gets its name at the end, and is removed after an error."""
        handle, name = tempfile.mkstemp(dir=kept.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            if self._given is not None:
                # Before the file gets its name: a loss of power could otherwise keep the name and lose the content.
                with temporary.open("rb") as copy:
                    os.fsync(copy.fileno())
            temporary.replace(kept)
        finally:
            temporary.unlink(missing_ok=True)

    def _get_begin(self, file: str, size: int) -> bytes:
        """Fetch the first bytes of a file, at most ``size``, or more if the store knows no ranges. Raises OSError."""
        try:
            return self._files.cat_file(f"{self._root}/{file}", start=0, end=size)
        except Exception as error:
            raise self._failed(file, error) from None

    def _failed(self, file: str, error: Exception) -> OSError:
        """Return the error of a fetch, to be raised without its cause: Spark shows whole tracebacks, and the text of
        the cause may contain a key.
        """
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        return kind(self._hidden(f"{self.path}/{file} cannot be fetched: {type(error).__name__}: {error}"))

    def _cache(self) -> Path:
        """Return the folder of the copies, after a check of its owner.

        The path of a given folder can be guessed, so another user could make the folder first and plant files.

        Raises:
            FolderError: another user owns the folder.
        """
        if self._given is None:
            return self._hold().place()
        try:
            self._given.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self._given.stat().st_uid
        except OSError as error:
            raise FolderError(f"the cache folder {self._given} cannot be created: {error}") from error
        if owner != os.getuid():
            raise FolderError(
                f"the cache folder {self._given} belongs to another user; set 'cacheFolder' to a folder of yours"
            )
        return self._given

    def _hold(self) -> "_SharedFolder":
        if self._shared is None:
            self._shared = _SharedFolder.of(self.path, self._storage)
        return self._shared

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


_Key: TypeAlias = tuple[int, str, str]
"""Process, URL and storage options."""


class _SharedFolder:
    """A temporary folder for the copies of a URL, removed with the last reader that holds it."""

    _folders: ClassVar[weakref.WeakValueDictionary[_Key, "_SharedFolder"]] = weakref.WeakValueDictionary()
    _guard = Lock()

    def __init__(self) -> None:
        self._place: Path | None = None

    @classmethod
    def of(cls, path: str, storage: str) -> "_SharedFolder":
        """Return the folder of a URL and its storage options."""
        # By process: a fork must not use a folder that its parent removes.
        key = os.getpid(), path, storage
        with cls._guard:
            shared = cls._folders.get(key)
            if shared is None:
                shared = cls._folders[key] = cls()
            return shared

    def place(self) -> Path:
        """Return the path of the folder, made at the first call."""
        with self._guard:
            if self._place is None:
                self._place = Path(tempfile.mkdtemp(prefix="cmqd-"))
                # Also at the end of the program, for a reader that was abandoned.
                weakref.finalize(self, _remove, self._place, os.getpid())
            return self._place


def _remove(place: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(place, ignore_errors=True)


def _is_own(kept: Path) -> bool:
    """True if a copy is there, of this user."""
    return kept.exists() and kept.stat().st_uid == os.getuid()


def _plan_stop(begin: bytes, side: SideEntry) -> int:
    stop = plan_stop(begin)
    if stop > side.bytes:
        raise SideError(f"part one ends at byte {stop} of {side.bytes}")
    return stop


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
