"""The files of the console: read, compressed and named by their contents, once per process.

The paths of the shell's references get a version: the hash of all files. A browser keeps a file of a version for good,
and a page never mixes the files of two releases: a module that a page of an old release asks for is not found, and the
page has to be loaded again. Paths without a version are served too, and a browser asks again at each use.

    /console/static/VERSION/app/main.js     kept for good
    /console/static/app/main.js             asked for again at each use, answered by ETag
"""

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cmqd_gateway.http.stored_files import StoredFile, stored_file

STATIC: Final = "/console/static/"
"""Path of the files in the shell, to which the version is added."""
SHELL: Final = "index.html"

CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        # A form is sent by the script of its page. Without the script the browser would put a secret into the address.
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Markup can come from the templates alone: an assignment to innerHTML is an error in browsers that know this.
        "require-trusted-types-for 'script'",
        "trusted-types lit-html",
    ]
)
"""The console loads, runs and sends only within the gateway, has no inline code or style, and cannot be framed."""

_CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


class StaticFiles(msgspec.Struct, frozen=True):
    """The files of the console by their path below ``static/``."""

    version: str
    by_path: Mapping[str, StoredFile]
    shell: StoredFile
    """The document of every page; its references have the version."""


@cache
def static_files() -> StaticFiles:
    """Read and compress the files; later calls return the same object."""
    contents = dict(sorted(_contents(files("cmqd_gateway.console") / "static", PurePosixPath())))
    version = sha256(
        b"".join(sha256(path.encode()).digest() + sha256(content).digest() for path, content in contents.items())
    ).hexdigest()[:16]
    shell = contents.pop(SHELL).replace(STATIC.encode(), f"{STATIC}{version}/".encode())
    by_path = {path: static_file(path, content) for path, content in contents.items()}
    return StaticFiles(version, by_path, static_file(SHELL, shell))


def static_file(path: str, content: bytes) -> StoredFile:
    """Return a file with its compressed form.

    Raises:
        KeyError: the name has no ending of a known content type.
    """
    return stored_file(_CONTENT_TYPES[PurePosixPath(path).suffix], content)


def _contents(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _contents(entry, path / entry.name)
        else:
            yield str(path / entry.name), entry.read_bytes()
