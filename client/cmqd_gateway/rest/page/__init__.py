"""The page of the JSON API: RapiDoc, served by the gateway itself, with the OpenAPI document.

``rapidoc-9.3.8.min.js`` is ``dist/rapidoc-min.js`` of the npm package ``rapidoc`` 9.3.8, unchanged; its licence
(MIT) and the licences of its parts are in ``rapidoc-9.3.8.LICENSE.txt``.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple


class PageFile(NamedTuple):
    """A file of the page."""

    content_type: str
    content: bytes
    max_age_seconds: int


def page_files() -> Mapping[str, PageFile]:
    """Return the files of the page by their path below ``/api/v1/``; the page itself has the empty path."""
    folder = files(__name__)
    return {
        "": PageFile("text/html", (folder / "index.html").read_bytes(), 0),
        "page.css": PageFile("text/css", (folder / "page.css").read_bytes(), 0),
        # The name has the version, so a browser can keep the file.
        RAPIDOC: PageFile("text/javascript", (folder / RAPIDOC).read_bytes(), 604_800),
        RAPIDOC_LICENCE: PageFile("text/plain", (folder / RAPIDOC_LICENCE).read_bytes(), 604_800),
    }


RAPIDOC = "rapidoc-9.3.8.min.js"
RAPIDOC_LICENCE = "rapidoc-9.3.8.LICENSE.txt"

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        # RapiDoc has style attributes and style elements in its shadow tree.
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
"""The page loads and sends only within the gateway, and cannot be framed."""
