"""Small private files beside the log: written whole, readable by the server's user alone, never half there."""

import contextlib
import os
import tempfile
from pathlib import Path

PRIVATE_MODE = 0o600


def read_private(path: Path) -> bytes | None:
    """Return the content of a private file, None if the file does not exist.

    A file that other users can read is narrowed to its owner: it may have been copied in with a loose mask.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if path.stat().st_mode & 0o077:
        path.chmod(PRIVATE_MODE)
    return content


def write_private(path: Path, content: bytes) -> None:
    """Replace a private file; when this returns, the new content is on disk under that name.

    After a crash at any moment the file holds either the old content or the new content. The temporary file is made
    with the final mode, so that other users can never read the secret, not even for a moment.

    Raises:
        OSError: the file was not replaced.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), PRIVATE_MODE)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
