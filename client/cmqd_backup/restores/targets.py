"""The folder that a restore or clone fills: locked, and marked as unfinished until the end."""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

from cmqd_backup.accounts_content import ACCOUNTS_FILE
from cmqd_backup.refusals import Refused
from cmqd_backup.stores import require_no_dangling_link
from cmqd_segment.folder_lock import LOCK, holder_of, try_lock
from cmqd_segment.manifest import CHECKPOINTS, MANIFEST_NAME, SEGMENTS, UNFINISHED, sync_folder

WORK: Final = "unfinished-work"
"""A folder below the target for files that are removed at the end."""
_KEPT: Final = frozenset({LOCK, "lost+found"})
"""Names in a folder that counts as empty: the lock, and the folder of a file system's root."""


def require_empty(folder: Path) -> None:
    """Refuse a target with files; an unfinished restore or clone may be repeated. Raises Refused, OSError."""
    if (folder / UNFINISHED).exists() and (folder / MANIFEST_NAME).exists():
        # Killed behind its manifest. With the mark, a repeat would clear the folder if the manifest was lost later.
        with try_lock(folder) as is_free:
            if is_free and (folder / MANIFEST_NAME).exists():
                (folder / UNFINISHED).unlink(missing_ok=True)
                raise Refused(f"{folder} was restored by a command that was killed at its end, and is whole: use it")
    _require_empty(folder)


def _require_empty(folder: Path) -> None:
    require_no_dangling_link(folder)
    try:
        names = {path.name for path in folder.iterdir()} - _KEPT
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise Refused(f"{folder} is not a folder") from None
    if names and (UNFINISHED not in names or MANIFEST_NAME in names):
        raise Refused(f"{folder} is not empty: name a new folder, or an empty one")


@contextlib.contextmanager
def filling(folder: Path) -> Generator[None]:
    """Make and hold a folder; the caller writes its files, and the manifest last. An error removes them again.

    Raises Refused, OSError.
    """
    is_new = not folder.exists()
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    with try_lock(folder) as is_free:
        if not is_free:
            raise Refused(f"{folder} is in use by {holder_of(folder) or 'another process'}")
        # Again: another restore into the folder may have ended since.
        _require_empty(folder)
        _clear_unfinished(folder)
        try:
            (folder / UNFINISHED).touch(mode=0o600)
            sync_folder(folder)
            yield
        except BaseException:
            if not (folder / MANIFEST_NAME).exists():
                _leave(folder, is_new=is_new)
            raise
        (folder / UNFINISHED).unlink()
        sync_folder(folder)


def owner_warning(folder: Path) -> str:
    """Return a warning if the files of a folder belong to root; empty otherwise. A broker seldom runs as root."""
    if os.geteuid():
        return ""
    return f"the files belong to root: if the broker runs as another user, first run chown -R USER: {folder}"


def _clear_unfinished(folder: Path) -> None:
    """Remove the files of a restore that did not end; no other file is in the folder."""
    for name in (SEGMENTS, CHECKPOINTS, WORK):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (ACCOUNTS_FILE, f"{ACCOUNTS_FILE}.1", f"{MANIFEST_NAME}.tmp"):
        (folder / name).unlink(missing_ok=True)


def _leave(folder: Path, *, is_new: bool) -> None:
    """Restore the state of a folder before the command, as far as the disk allows."""
    with contextlib.suppress(OSError):
        _clear_unfinished(folder)
        (folder / UNFINISHED).unlink(missing_ok=True)
        if is_new:
            (folder / LOCK).unlink()
            folder.rmdir()
