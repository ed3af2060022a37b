"""Small files that must be there whole or not at all, and for their owner alone."""

import os
import secrets
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Replace a file durably; after a loss of power the file has either the old or the new content, whole.

    Raises:
        OSError: the folder or the disk refuses.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = beside(file)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def beside(file: Path) -> Path:
    """Return an unused name in the same folder."""
    return file.with_name(f".{file.name}.{secrets.token_hex(6)}.part")
