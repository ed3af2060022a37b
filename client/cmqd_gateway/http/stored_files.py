"""Files that are compressed once and answered many times, with ETag: those of the console, and the OpenAPI document."""

import gzip
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec
from aiohttp import ETag, hdrs, web


class StoredFile(msgspec.Struct, frozen=True):
    """A file in memory."""

    content_type: str
    content: bytes
    compressed: bytes | None
    """The content as gzip; None if this is no shorter."""
    tag: str
    """Names the content, for ETag."""


def stored_file(content_type: str, content: bytes) -> StoredFile:
    """Return a file with its compressed form."""
    # Without the time: equal files have equal bytes.
    compressed = gzip.compress(content, 9, mtime=0)
    tag = sha256(content).hexdigest()[:16]
    return StoredFile(content_type, content, compressed if len(compressed) < len(content) else None, tag)


def file_answer(request: web.Request, file: StoredFile, headers: Mapping[str, str]) -> web.Response:
    """Return a file, compressed if the client takes gzip, or 304 if the client has it.

    Args:
        request: the request.
        file: the file.
        headers: further headers, with ``Cache-Control``.
    """
    is_compressed = file.compressed is not None and _takes_gzip(request)
    tag = f"{file.tag}-gzip" if is_compressed else file.tag
    sent = {**headers, "ETag": f'"{tag}"', "Vary": "Accept-Encoding"}
    if any(etag.value in (tag, "*") for etag in _known_tags(request)):
        return web.Response(status=304, headers=sent)
    if is_compressed:
        sent["Content-Encoding"] = "gzip"
    body = file.compressed if is_compressed else file.content
    return web.Response(body=body, content_type=file.content_type, charset="utf-8", headers=sent)


def _known_tags(request: web.Request) -> Iterable[ETag]:
    """Return the tags of ``If-None-Match``; the comparison is weak, as RFC 9110 asks."""
    return request.if_none_match or ()


def _takes_gzip(request: web.Request) -> bool:
    for entry in ",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, [])).split(","):
        coding, _, weight = entry.replace(" ", "").lower().partition(";")
        if coding == "gzip":
            return weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
