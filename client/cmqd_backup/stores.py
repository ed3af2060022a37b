"""The place of a backup: a folder, or a URL of any kind that fsspec knows."""

import contextlib
import os
import re
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, Protocol

from cmqd_backup.refusals import Refused
from cmqd_segment.folder_lock import holder_of, try_lock
from cmqd_segment.manifest import MANIFEST_NAME, sync_folder

_PART = ".part"
"""End of the name of a file that is being written."""

_ALMOST_URL: Final = re.compile("[a-z][a-z0-9]+:/")


def open_without_read_ahead(path: Path) -> IO[bytes]:
    """Open a file that a run reads at its pace, unbuffered. Raises OSError.

    The read-ahead of a disk is up to some MB in a single request, and a commit of the broker on the same disk waits
    for all of it: milliseconds, where a chunk takes a tenth of one.
    """
    file = path.open("rb", buffering=0)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    return file


class Store(Protocol):
    """Files by names with ``/``, below a root."""

    @property
    def place(self) -> str:
        """The root, for people."""
        ...

    @property
    def identity(self) -> str:
        """The root, the same for each spelling of it."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the files in a folder by name; empty without the folder. Raises OSError."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a small file. Raises OSError."""
        ...

    def reading(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a file. Raises OSError."""
        ...

    def writing(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Write a file; behind the context the file is durable. Raises OSError."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file that may be missing. Raises OSError."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other runs away, where the store can. Raises Refused, OSError."""
        ...


def open_store(place: str) -> Store:
    """Return the store at a path or URL; no file is touched. Raises Refused."""
    kind, separator, rest = place.partition("://")
    if not place.strip():
        raise Refused("the place of the backup is empty: name a folder or a URL")
    if not separator:
        if _ALMOST_URL.match(place):
            raise Refused(f"{place} is neither a folder nor a URL: write KIND://..., or ./{place} for a folder")
        return FolderStore(Path(place))
    if kind == "file":
        if not rest.startswith("/"):
            raise Refused(f"{place} names no path from the root: write file:///path")
        return FolderStore(Path(rest))
    return UrlStore(place)


@contextlib.contextmanager
def naming(path: Path) -> Generator[None]:
    """Give an error of the system the name of a file: that of a write, as on a full disk, has none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def require_no_dangling_link(folder: Path) -> None:
    """Refuse a path over a link that leads to no folder: no folder can be made in the place of the link.

    Raises Refused.
    """
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise Refused(f"{path} is a link to {path.readlink()}, where no folder is: make it, or name another folder")


class FolderStore:
    """A folder of this machine. A file has another name until it is whole and durable."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._is_made = False

    @property
    def place(self) -> str:
        """See ``Store``."""
        return str(self._root)

    @property
    def identity(self) -> str:
        """See ``Store``."""
        return os.path.realpath(self._root)

    def sizes(self, folder: str) -> dict[str, int]:
        """See ``Store``."""
        sizes: dict[str, int] = {}
        # A run beside this command may remove files (``--keep``) between the list and the look.
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(self._root / folder)):
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.endswith(_PART):
                        sizes[f"{folder}/{entry.name}"] = entry.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        """See ``Store``."""
        return (self._root / name).read_bytes()

    def reading(self, name: str) -> IO[bytes]:
        """See ``Store``."""
        file = open_without_read_ahead(self._root / name)
        # The page cache has the bytes that were just written, and would hide an error of the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[IO[bytes]]:
        """See ``Store``."""
        target = self._root / name
        if not target.parent.is_dir():
            self._make(target.parent)
        temporary = target.with_name(f".{target.name}{_PART}")
        # A new file: a link of that name could lead out of the backup. ``locked`` removes leftovers.
        # The owner alone: bodies of messages and secrets. Each write goes to the disk at once: the fsync of a whole
        # file would keep the commits of a broker on the same disk waiting for its hundred megabytes.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DSYNC | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with naming(target), os.fdopen(descriptor, "wb", buffering=0) as file:
                yield file
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)

    def _make(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)

    def remove(self, name: str) -> None:
        """See ``Store``."""
        (self._root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """See ``Store``."""
        if (self._root / MANIFEST_NAME).exists():
            # A data folder has files at the same paths as a backup.
            raise Refused(f"{self._root} is a data folder: name another place for the backup")
        require_no_dangling_link(self._root)
        if not self._root.is_dir():
            self._make(self._root)
        with try_lock(self._root, "cmqd backup") as is_free:
            if not is_free:
                raise Refused(f"{self._root} is in use by {holder_of(self._root) or 'another process'}")
            for leftover in self._root.glob(f"*/.*{_PART}"):
                leftover.unlink()
            yield


class UrlStore:
    """A place that fsspec reaches. An object appears whole when its write ends, or in part; no run names a
    file that was not read back.
    """

    def __init__(self, url: str) -> None:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError as missing:
            raise Refused(f"a URL needs: pip install 'cmqd[backup]' ({missing})") from None
        kind = url.partition("://")[0]
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except Exception as error:
            # Libraries of file systems have errors of their own, and some connect here.
            raise Refused(f"the file system of {kind} URLs cannot be used: {type(error).__name__}: {error}") from None
        if kind.rpartition("::")[2] == "memory":
            raise Refused(f"{url} is lost with the process that writes it: name another place")
        # A password would otherwise stand in every report.
        self._place = re.sub("//[^/@]*@", "//...@", url)

    @property
    def place(self) -> str:
        """See ``Store``."""
        return self._place

    @property
    def identity(self) -> str:
        """See ``Store``."""
        return self._place.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        """Turn each error of a file system into an OSError: their libraries have classes of their own."""
        try:
            yield
        except Refused:
            raise
        except OSError as error:
            if error.filename is not None:
                raise
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
            raise kind(f"{self._place}: {error}") from error
        except Exception as error:
            raise OSError(f"{self._place} cannot be used: {type(error).__name__}: {error}") from error

    def sizes(self, folder: str) -> dict[str, int]:
        """See ``Store``."""
        with self._asking():
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            return {
                f"{folder}/{entry['name'].rpartition('/')[2]}": int(entry["size"])
                for entry in found
                if entry["type"] == "file"
            }

    def read(self, name: str) -> bytes:
        """See ``Store``."""
        with self._asking():
            return bytes(self._files.cat_file(self._path(name)))

    @contextlib.contextmanager
    def reading(self, name: str) -> Generator[IO[bytes]]:
        """See ``Store``."""
        with self._asking(), self._files.open(self._path(name), "rb") as file:
            yield file

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[IO[bytes]]:
        """See ``Store``."""
        path = self._path(name)
        with self._asking(), self._open_new(path) as file:
            yield file

    def _open_new(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        try:
            return self._files.open(path, "wb")
        except FileNotFoundError:
            # Only now: the library of an object store would make a bucket of a mistyped name.
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._files.open(path, "wb")

    def remove(self, name: str) -> None:
        """See ``Store``."""
        with self._asking(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """See ``Store``: an object store has no lock."""
        yield
